"""NUTS with its program compiled: effective draws per second."""

from tests.bench import targets
from tests.bench.harness import Contender, Outcome, measure_living
from tests.bench.report import Bar, Options, Section, number, with_range, with_spread

# How many times BlackJAX's effective draws per second the issue asks for.
BARS = {"schools": 3.0, "logreg25": 3.0, "banana2": 1.0, "gauss100": 1.0, "funnel10": 1.0}
# Beyond this R-hat an effective sample size means nothing: not converged.
MOST_RHAT = 1.05
NOTES = (
    "4 chains, 1000 warm-up steps and 1000 draws, another seed each round; least bulk ESS over the "
    "coordinates, per wall second of the second and later calls: warm-up included, compiling not. "
    "BlackJAX: window_adaptation, 4 vmapped chains, one jitted program. samplekit: `sk.sample` as "
    "called by a user, up to the DataTree. Gradients count warm-up too. n/c: R-hat above 1.05."
)


def measure(options: Options) -> Section:
    """Measure every target."""
    section = Section("NUTS, warm", NOTES)
    for name in targets.NAMES[:3] if options.quick else targets.NAMES:
        print(f"warm, {name}", flush=True)
        contenders = [
            Contender.worker("BlackJAX NUTS", "warm", "blackjax", name),
            Contender.worker("samplekit NUTS", "warm", "samplekit", name),
        ]
        outcomes = measure_living(contenders, options.rounds, options.log)
        for outcome in outcomes.values():
            for one in outcome.rounds:
                one["ess_per_s"] = one["ess"] / one["wall_s"]
                one["ess_per_1000"] = 1000 * one["ess"] / one["gradients"]
        section.outcomes[name] = outcomes
        _summarize(section, name, outcomes)
    return section


def _flag(outcome: Outcome) -> str:
    bad = sum(r > MOST_RHAT for r in outcome.values("rhat"))
    return f"n/c in {bad} of {len(outcome.rounds)}" if bad else ""


def _summarize(section: Section, name: str, outcomes: dict[str, Outcome]) -> None:
    base, own = outcomes.values()
    flags = [f"{o.name} {o.error or _flag(o)}" for o in (base, own) if o.error or _flag(o)]
    section.bars.append(
        Bar(
            f"{name}: ESS/s, samplekit / BlackJAX",
            own.ratio("ess_per_s", base),
            BARS[name],
            least=True,
            remark="; ".join(flags),
        )
    )
    rows = [
        (
            outcome.name,
            with_range(outcome, "wall_s"),
            with_range(outcome, "ess"),
            number(max(outcome.values("rhat"), default=float("nan"))) + f" {_flag(outcome)}",
            number(outcome.median("gradients")),
            number(outcome.median("ess_per_1000")),
            with_range(outcome, "ess_per_s"),
            with_spread(outcome, "ess_per_s", base),
            number(outcome.facts.get("setup_s", float("nan"))),
        )
        for outcome in outcomes.values()
    ]
    header = (
        "", "seconds", "ESS", "largest R-hat", "gradients", "ESS per 1000 gradients", "ESS/s",
        "÷ BlackJAX", "first call, s",
    )  # fmt: skip
    section.table(name, header, rows)
