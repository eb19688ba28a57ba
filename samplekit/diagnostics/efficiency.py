"""What draws cost: effective draws per evaluation of the target and per second."""

from typing import Any

import numpy as np

from samplekit.diagnostics.evidence import Evidence, gather
from samplekit.diagnostics.numbers import Numbers, measure

# Scores (or log densities) that one step of a kernel costs, where the run does not count them.
_PER_STEP = {
    "RandomWalk": 1,
    "MetropolisHastings": 1,
    "Independence": 1,
    "Langevin": 1,
    "MALA": 1,
    "Barker": 1,
}


def efficiency(run: Any) -> dict[str, float | None]:
    """Compute what effective draws cost.

    Parameters
    ----------
    run
        A run, or anything else that `diagnose` takes.

    Returns
    -------
    ess_min (the smallest bulk or tail effective sample size), seconds (of the draws, without
    warm-up and compilation where the library counts them apart), ess_per_second, evaluations (of
    the score, or of the log density where no score is used; warm-up left out), ess_per_evaluation,
    seconds_to_next_100. None where the run does not tell, or where the ESS is undefined.

    Notes
    -----
    Effective draws grow in proportion to draws once chains are stationary, so the time to the next
    100 is 100 divided by the effective draws per second.

    Examples
    --------
    >>> import samplekit as sk
    >>> run = sk.sample(sk.targets.gaussian(2), sk.MALA(), draws=200, progress=False)
    >>> efficiency(run)["evaluations"]
    800.0
    """
    evidence = gather(run)
    return efficiency_of(evidence, measure(evidence))


def efficiency_of(evidence: Evidence, numbers: Numbers) -> dict[str, float | None]:
    """Compute `efficiency` from what is already known of a run."""
    table = numbers.table.loc[numbers.usable, ["ess_bulk", "ess_tail"]].to_numpy()
    least = float(table.min()) if table.size else float("nan")
    ess = least if np.isfinite(least) else None
    seconds, evaluations = evidence.seconds, _evaluations(evidence)
    per_second = ess / seconds if ess and seconds else None
    return {
        "ess_min": ess,
        "seconds": seconds,
        "ess_per_second": per_second,
        "evaluations": evaluations,
        "ess_per_evaluation": ess / evaluations if ess and evaluations else None,
        "seconds_to_next_100": 100 / per_second if per_second else None,
    }


def _evaluations(evidence: Evidence) -> float | None:
    """Count evaluations of the target during the draws."""
    steps = evidence.stats.get("n_steps")
    if steps is not None and np.isfinite(steps).all():
        return float(steps.sum())
    each = _PER_STEP.get(evidence.sampler.name or "")
    if each is None:
        return None
    return float(each * evidence.thin * evidence.chains * evidence.draws)
