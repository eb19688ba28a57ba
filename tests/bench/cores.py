"""What a second core brings: the same work by a process that is pinned to one core."""

import os

from tests.bench.harness import Contender, measure_living
from tests.bench.report import Bar, Options, Section, number, with_range

NOTES = (
    "Compute-bound work in two processes, one of them pinned to one core; compiling excluded. "
    "NUTS: 4 chains, 1000 + 1000 steps, logistic regressions of 1,000 × 25 and 4,000 × 50. "
    "MALA: 16,384 chains, 20 steps of the 64-128-128-1 network, on one device of JAX or on one for "
    "each core. Fit: statistics of one's own, k = 20, d = 5, 10⁶ rows."
)
LEAST = 1.7
CASES = ("NUTS", "NUTS, 4,000 × 50", "MALA", "MALA, a device for each", "fit")


def measure(options: Options) -> Section:
    """Measure every case; on a machine with one core there is nothing to say."""
    section = Section("Two cores", NOTES)
    rows = []
    available = len(os.sched_getaffinity(0))
    for case in CASES if available > 1 else ():
        print(f"cores, {case}", flush=True)
        counts = (1, 2)
        found = [Contender.worker(f"{n}", "cores", case, n) for n in counts]
        outcomes = measure_living(found, options.rounds, options.log)
        section.outcomes[case] = outcomes
        one, two = (outcomes[str(n)] for n in counts)
        ratio = one.ratio("wall_s", two)
        section.bars.append(Bar(f"{case}: two cores for one", ratio, LEAST, least=True))
        rows.append((case, with_range(one, "wall_s"), with_range(two, "wall_s"), number(ratio)))
    section.table("seconds", ("", "one core", "two cores", "times faster"), rows)
    return section
