"""Many chains: microseconds a step against the bare gradient and noise, and against torchebm."""

from tests.bench import energies
from tests.bench.harness import Contender, Outcome, measure_living
from tests.bench.report import Bar, Options, Section, number, with_range, with_spread

KERNELS = ("langevin", "mala", "hmc")
MOST = 1.15
NOTES = (
    "Fixed step size, no metric; microseconds of wall time a step of all chains, compiling "
    "excluded, the call of `sk.sample` included up to its DataTree. The floor is one jitted loop "
    "that evaluates the same gradients and draws the same noise from the same keys, and nothing "
    'else; "by hand" adds the acceptance step. An HMC step is 10 leapfrogs. samplekit stores two '
    "draws, or every draw. BlackJAX: sgld, mala or hmc under vmap in one jitted loop, a key for "
    "each chain and step. torchebm runs on one thread or all, whichever is faster."
)


def measure(options: Options) -> Section:
    """Measure every energy, number of chains and kernel."""
    section = Section("Many chains", NOTES)
    if not options.torch_python:
        section.notes += " torchebm is not installed (python -m tests.bench.peers): left out."
    for energy in energies.NAMES:
        for chains in (1024,) if options.quick else (1024, 16384):
            for kernel in KERNELS:
                name = f"{kernel}, {energy}, {chains:,} chains"
                print(f"many, {name}", flush=True)
                contenders = _contenders(kernel, energy, chains, options)
                outcomes = measure_living(contenders, options.rounds, options.log)
                for outcome in outcomes.values():
                    for one in outcome.rounds:
                        one["us"] = 1e6 * one["wall_s"] / one["steps"]
                section.outcomes[name] = outcomes
                _summarize(section, name, outcomes, chains)
    return section


def _contenders(kernel: str, energy: str, chains: int, options: Options) -> list[Contender]:
    steps = energies.steps(energy, kernel, chains)

    def worker(name: str, who: str) -> Contender:
        return Contender.worker(name, "many", who, kernel, energy, chains, steps)

    found = [
        worker("floor", "floor"),
        worker("samplekit", "samplekit"),
        worker("samplekit, every draw stored", "samplekit-every"),
    ]
    if kernel != "langevin":
        found.insert(1, worker("by hand", "hand"))
    found.append(worker("BlackJAX", "blackjax"))
    if options.torch_python and kernel != "mala":  # torchebm has no MALA
        fewer = max(4, steps // 5)  # an eager loop costs the same at every step
        arguments = (kernel, energy, chains, fewer)
        python = options.torch_python
        found.append(Contender.worker("torchebm", "torch_many", *arguments, python=python))
    return found


def _summarize(section: Section, name: str, outcomes: dict[str, Outcome], chains: int) -> None:
    floor, own, every = (
        outcomes[n] for n in ("floor", "samplekit", "samplekit, every draw stored")
    )
    if chains > 1024:  # the issue sets the floor's bar for 16,384 chains
        section.bars.append(Bar(f"{name}: samplekit / floor", own.ratio("us", floor), MOST))
    torch = outcomes.get("torchebm")
    if torch is not None:
        for one in (own, every):
            section.bars.append(Bar(f"{name}: {one.name} / torchebm", one.ratio("us", torch), 1.0))
    rows = [
        (
            outcome.name,
            with_range(outcome, "us"),
            with_spread(outcome, "us", floor),
            number(outcome.median("cores"), 2),
            number(outcome.median("steps")),
            number(1e3 * outcome.facts.get("call_s", float("nan"))),
            number(outcome.facts.get("setup_s", float("nan"))),
        )
        for outcome in outcomes.values()
    ]
    header = ("", "µs a step", "÷ floor", "cores used", "steps", "a call alone, ms", "set-up, s")
    section.table(name, header, rows)
