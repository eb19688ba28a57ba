"""Annealed Langevin down a noise-conditional network, beside a bare scan and torch."""

from tests.bench.harness import Contender, measure_fresh, measure_living
from tests.bench.report import Bar, Options, Section, number, with_range, with_spread

# Over the bare loop, and seconds to the first steps beyond the imports.
MOST, FIRST = 1.15, 1.5
LEVELS, STEPS = 10, 100
NOTES = (
    "A noise-conditional 2-128-128-2 network, 10 levels of 100 steps; seconds of a second or later "
    "call, up to the DataTree. The floor is one jitted loop of the same scores and the same number "
    "of normal draws, and nothing else; torch is an eager loop without gradients, on one thread or "
    "all, whichever is faster. First steps: a fresh process, without a compilation cache, from the "
    "end of the imports to the DataTree of one step a level."
)


def measure(options: Options) -> Section:
    """Measure all contenders."""
    section = Section("Annealed Langevin", NOTES)
    if not options.torch_python:
        section.notes += " torch is not installed (python -m tests.bench.peers): left out."
    particles = 1000 if options.quick else 10_000
    name = f"{particles:,} particles"
    print(f"anneal, {name}", flush=True)
    contenders = [
        Contender.worker(who, "anneal", who, particles, LEVELS, STEPS)
        for who in ("floor", "samplekit")
    ]
    if options.torch_python:
        arguments = (particles, LEVELS, STEPS)
        python = options.torch_python
        contenders.append(Contender.worker("torch", "torch_anneal", *arguments, python=python))
    outcomes = measure_living(contenders, options.rounds, options.log)
    section.outcomes[name] = outcomes
    floor, own = outcomes["floor"], outcomes["samplekit"]
    section.bars.append(Bar("anneal: samplekit / floor", own.ratio("wall_s", floor), MOST))
    if "torch" in outcomes:
        ratio = own.ratio("wall_s", outcomes["torch"])
        section.bars.append(Bar("anneal: samplekit / torch", ratio, 1.0))
    rows = [
        (
            o.name,
            with_range(o, "wall_s"),
            with_spread(o, "wall_s", floor),
            number(o.median("cores"), 2),
            number(o.median("spread")),
            number(o.facts.get("setup_s", float("nan"))),
        )
        for o in outcomes.values()
    ]
    header = ("", "seconds", "÷ floor", "cores used", "spread of the particles", "set-up, s")
    section.table(name, header, rows)
    contender = Contender.worker("samplekit", "anneal", "first", particles, LEVELS, 1)
    fresh = measure_fresh([contender], options.rounds, options.log)["samplekit"]
    section.outcomes["first steps"] = {"samplekit": fresh}
    section.bars.append(Bar("anneal: seconds to the first steps", fresh.median("first_s"), FIRST))
    times = (with_range(fresh, "first_s"), with_range(fresh, "wall_s"))
    header = ("", "seconds beyond the imports", "of the whole process")
    section.table("first steps", header, [("samplekit", *times)])
    return section
