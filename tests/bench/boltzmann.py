"""Boltzmann machines: an epoch against its matrix products, CD-1, torch; and scikit-learn's."""

from tests.bench.harness import Contender, Outcome, measure_living
from tests.bench.report import Bar, Options, Section, number, with_range, with_spread

NOTES = (
    "Gauss–Bernoulli machines, 10,000 rows, batches of 100, float32; milliseconds of an epoch, "
    "Adam included, compiling excluded: a training of 100 epochs over 100, its set-up included; of "
    "10 over 10 for `fisher, 10 epochs`, the contrastive methods and scikit-learn, of 3 for torch. "
    "`products` is the three bare matrix products of a batch (rows·Wᵀ, ·W, and the gradient's) in "
    "one scan. torch: autograd of the closed-form Fisher score, on one thread or all, whichever "
    "is faster. scikit-learn: its BernoulliRBM (PCD, binary units) on the signs of the rows."
)
DIGITS_NOTES = (
    "Binary machines with 64 hidden units, scikit-learn's 8 × 8 digits (1,437 rows to train, 360 "
    "held out), 10 epochs, each library's default settings, five seeds in turn. Both are judged by "
    "the exact pseudo-log-likelihood over all sites, and by scikit-learn's own `score_samples`."
)
SHORT = "fisher, 10 epochs"
# visible × hidden, and the most that an epoch may cost in matrix products.
SHAPES = {(784, 30): 1.3, (64, 128): 1.8}


def epoch(options: Options) -> Section:
    """Measure one epoch of every method at both shapes."""
    section = Section("Boltzmann machines", NOTES)
    if not options.torch_python:
        section.notes += " torch is not installed (python -m tests.bench.peers): left out."
    for (visible, hidden), most in SHAPES.items():
        name = f"{visible} × {hidden}"
        print(f"boltzmann, {name}", flush=True)
        kinds = ("products", "fisher", SHORT, "fisher-learned", "cd", "pcd", "scikit-learn")
        found = [Contender.worker(k, "boltzmann", k, visible, hidden) for k in kinds]
        if options.torch_python:
            python = options.torch_python
            arguments = ("torch_boltzmann", visible, hidden)
            found.append(Contender.worker("torch", *arguments, python=python))
        outcomes = measure_living(found, options.rounds, options.log)
        _summarize(section, name, outcomes, most)
    return section


def _summarize(section: Section, name: str, outcomes: dict[str, Outcome], most: float) -> None:
    for outcome in outcomes.values():
        for one in outcome.rounds:
            one["ms"] = 1e3 * one["wall_s"] / one["epochs"]
    section.outcomes[name] = outcomes
    own, products = outcomes["fisher"], outcomes["products"]
    section.bars.append(Bar(f"{name}: Fisher / three products", own.ratio("ms", products), most))
    for other in ("cd", "torch"):
        if other in outcomes:
            ratio = own.ratio("ms", outcomes[other])
            section.bars.append(Bar(f"{name}: Fisher / {other}", ratio, 0.5))
    rows = [
        (
            o.name,
            with_range(o, "ms"),
            with_spread(o, "ms", products),
            number(o.median("cores"), 2),
            number(o.facts.get("setup_s", float("nan"))),
        )
        for o in outcomes.values()
    ]
    section.table(name, ("", "ms an epoch", "÷ products", "cores used", "set-up, s"), rows)


def digits(options: Options) -> Section:
    """Measure binary machines beside scikit-learn's."""
    print("boltzmann, digits", flush=True)
    section = Section("Binary machines", DIGITS_NOTES)
    kinds = ("samplekit", "scikit-learn")
    found = [Contender.worker(k, "boltzmann", f"digits-{k}") for k in kinds]
    outcomes = measure_living(found, options.rounds, options.log)
    section.outcomes["digits"] = outcomes
    own, other = (outcomes[k] for k in kinds)
    section.bars += [
        Bar("seconds / scikit-learn", own.ratio("wall_s", other), 1.0),
        Bar(
            "held-out pseudo-likelihood − scikit-learn's",
            own.median("exact") - other.median("exact"),
            0.0,
            least=True,
        ),
        Bar(
            "by scikit-learn's score_samples, the same",
            own.median("theirs") - other.median("theirs"),
            0.0,
            least=True,
        ),
    ]
    rows = [
        (o.name, with_range(o, "wall_s"), with_range(o, "exact"), with_range(o, "theirs"))
        for o in outcomes.values()
    ]
    header = ("", "seconds", "pseudo-log-likelihood", "by scikit-learn's score_samples")
    section.table("10 epochs", header, rows)
    return section


MEASURES = {"boltzmann": epoch, "binary-machines": digits}
