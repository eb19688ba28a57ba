"""Imports in fresh processes."""

from tests.bench.harness import Contender, measure_fresh
from tests.bench.report import Bar, Options, Section, number, with_range, with_spread

STATEMENTS = (
    "import jax",
    "import samplekit",
    "import samplekit; samplekit.sample",
    "import samplekit; samplekit.from_numpyro",
    "import numpyro",
    "import blackjax",
)
NOTES = "Seconds of the statement alone, in a fresh process; `modules` counts what it loaded."


def measure(options: Options) -> Section:
    """Measure every statement."""
    print("import", flush=True)
    section = Section("Imports", NOTES)
    contenders = [Contender.worker(s, "imports", s) for s in STATEMENTS]
    measure_fresh(contenders, 1, options.log)  # files into the page cache, bytecode written
    outcomes = measure_fresh(contenders, options.rounds, options.log)
    section.outcomes["import"] = outcomes
    base = outcomes["import jax"]
    for statement in STATEMENTS[1:3]:
        ratio = outcomes[statement].ratio("import_s", base)
        section.bars.append(Bar(f"`{statement}` / `import jax`", ratio, 1.3))
    rows = [
        (
            f"`{o.name}`",
            with_range(o, "import_s"),
            with_spread(o, "import_s", base),
            number(o.median("modules")),
        )
        for o in outcomes.values()
    ]
    section.table("import", ("", "seconds", "÷ import jax", "modules"), rows)
    return section
