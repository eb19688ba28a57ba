"""Which kernel should `sk.sample` take? Trust first, then time, over known answers.

For each target and kernel: is R-hat below 1.01, no mean off by more than 4 Monte Carlo errors, and
no sd by more than that and 10 %, in every round; and how many effective draws a second.
"""

import math

from tests.bench.harness import Contender, Outcome, measure_living
from tests.bench.report import Options, Section, number
from tests.bench.workers.choice import KERNELS, NAMES

MOST_RHAT, MOST_Z, MOST_SD = 1.01, 4.0, 0.1
NOTES = (
    "4 chains, 1000 + 1000 steps, the defaults of each kernel, another seed each round, compiling "
    "excluded. Trusted: in every round R-hat below 1.01, all means within 4 Monte Carlo errors of "
    "the published or exact ones, and all sds within 10 % or 4 Monte Carlo errors. Otherwise what "
    "failed, and how often."
)


def measure(options: Options) -> Section:
    """Measure every target with every kernel."""
    section = Section("Which kernel", NOTES)
    rows = []
    for name in NAMES[:3] if options.quick else NAMES:
        print(f"choice, {name}", flush=True)
        contenders = [Contender.worker(k, "choice", k, name) for k in KERNELS]
        outcomes = measure_living(contenders, min(options.rounds, 3), options.log)
        section.outcomes[name] = outcomes
        rows.append((name, *(_cell(outcomes[k]) for k in KERNELS)))
    section.table("trust, and ESS per second", ("", *KERNELS), rows)
    return section


def _cell(outcome: Outcome) -> str:
    if outcome.error:
        return outcome.error[:40]
    for one in outcome.rounds:
        one["ess_per_s"] = one["ess"] / one["wall_s"]
    failures = {
        "R-hat": sum(not v < MOST_RHAT for v in outcome.values("rhat")),
        "mean": sum(not v < MOST_Z for v in outcome.values("z")),
        "sd": sum(not v < MOST_SD for v in outcome.values("sd")),
    }
    said = ", ".join(f"{what} ×{count}" for what, count in failures.items() if count)
    speed = number(outcome.median("ess_per_s")) if outcome.rounds else number(math.nan)
    return f"{speed} ({said})" if said else f"{speed} ✓"
