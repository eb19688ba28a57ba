"""Weights of separate modes: replica exchange and a cycle with long jumps beside plain HMC."""

import math

from tests.bench.harness import Contender, measure_living
from tests.bench.report import Bar, Options, Section, number, with_range

NOTES = (
    "Two modes of weights 1/5 and 4/5 ten standard deviations apart on each axis, and the grid of "
    "25. 8 chains, 1000 + 8000 steps, every second a draw. The error of a weight is over its Monte "
    "Carlo error, the largest of all modes. Effective draws are those of the rarest indicator of a "
    "mode; a round trip is a position that has been at the hottest copy and arrives at the target. "
    "Cycle: HMC and a random walk as long as the modes are apart."
)
CASES = ("1/5 and 4/5", "25 modes")
KERNELS = ("Tempering", "Cycle", "HMC")
# Beyond this a weight is wrong: of 25, in three rounds, none is by chance.
MOST = 5.0


def measure(options: Options) -> Section:
    """Measure all kernels on both targets."""
    section = Section("Separate modes", NOTES)
    for case in CASES:
        print(f"tempering, {case}", flush=True)
        found = [Contender.worker(kernel, "tempering", case, kernel) for kernel in KERNELS]
        outcomes = measure_living(found, options.rounds, options.log)
        section.outcomes[case] = outcomes
        rows = []
        for outcome in outcomes.values():
            for one in outcome.rounds:
                one["ess_per_s"] = one["ess"] / one["wall_s"]
            worst = max(outcome.values("z"), default=math.nan)
            if outcome.name != "HMC":
                what = f"{case}: {outcome.name}, error of a weight"
                section.bars.append(Bar(what, worst, MOST, noise=MOST))
            trips = outcome.median("round_trips")
            rows.append(
                (
                    outcome.name,
                    "no chain leaves its mode" if math.isnan(worst) else number(worst),
                    with_range(outcome, "ess_per_s"),
                    number(trips) if trips > 0 else "–",
                    with_range(outcome, "wall_s"),
                )
            )
        header = (
            "", "largest error of a weight", "effective draws a second",
            "round trips per 1,000 gradients", "seconds",
        )  # fmt: skip
        section.table(case, header, rows)
    return section
