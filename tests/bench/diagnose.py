"""The verdict on a large run, beside the summary of ArviZ."""

from tests.bench.harness import Contender, measure_living
from tests.bench.report import Bar, Options, Section, with_range, with_spread

NOTES = (
    "4 × 10,000 draws of 200 scalars in memory, second and later calls. `az.summary` computes the "
    "table alone; `sk.diagnose` the table, all checks and the verdict."
)


def measure(options: Options) -> Section:
    """Measure both."""
    print("diagnose", flush=True)
    section = Section("Diagnose", NOTES)
    contenders = [
        Contender.worker("az.summary", "diagnose", "arviz"),
        Contender.worker("sk.diagnose", "diagnose", "samplekit"),
    ]
    outcomes = measure_living(contenders, options.rounds, options.log)
    section.outcomes["diagnose"] = outcomes
    base, own = outcomes.values()
    section.bars.append(Bar("`sk.diagnose` / `az.summary`", own.ratio("wall_s", base), 2.0))
    rows = [(o.name, with_range(o, "wall_s"), with_spread(o, "wall_s", base)) for o in (base, own)]
    section.table("diagnose", ("", "seconds", "÷ az.summary"), rows)
    return section
