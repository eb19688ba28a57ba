"""Whether draws fit their target: the bias of unadjusted kernels, scores that are no gradients."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from samplekit.core.protocols import DensityTarget
from samplekit.diagnostics.evidence import Evidence
from samplekit.diagnostics.findings import Finding, named
from samplekit.diagnostics.gradient import LoopWork, closed_loop_work
from samplekit.diagnostics.scores import NonfiniteError, Placed, has_score, place
from samplekit.diagnostics.stein import SteinResult, discrepancy, robust_scale
from samplekit.sampling.convergence import ess_bulk

# Draws compared: the discrepancy takes a few hundred milliseconds, and resolves variances to 5 %.
MAX_DRAWS = 5000
# Fewer effective draws than this resolve no bias that matters, and their errors are uncertain.
LEAST_EFFECTIVE = 400
# A false alarm must be rarer than 0.3 % of healthy runs, heavy tails included, of which a normal
# approximation knows too little: hence ten times less, shared by all coordinates.
LEVEL = 3e-4
# What is too small to matter: a variance off by 5 %, a mean off by a tenth of the spread. A step
# that halves the first is no different to a user, since 4000 draws know a variance to 3 %.
VARIANCE_OFF, MEAN_OFF = 0.05, 0.1
# The discrepancy over that of exact draws, which exceeds 2 in less than 1 % of runs by itself.
CLEARLY_ABOVE = 2.0
# A loop of draws that changes log p by 0.1 makes densities ambiguous by 10 %; but in many
# dimensions, where log p of two draws differs by several nats, 5 % of that is a good network.
LOOP_WORK, LOOP_SHARE = 0.1, 0.05
LOOPS = 300
# A Metropolis-like kernel: exact up to the quadrature where the score is a gradient.
_CORRECTED = "ScoreMALA"


@dataclasses.dataclass(frozen=True)
class _Moments:
    """Stein's identities E[s] = 0 and E[x·s] = −1, coordinate by coordinate."""

    variance_off: np.ndarray  # relative: −1 − E[x·s]
    mean_off: np.ndarray  # in units of the spread: −E[s]
    wrong: np.ndarray  # significant and large enough to matter
    average_wrong: bool  # likewise of `variance_off` averaged over the coordinates


def check_bias(evidence: Evidence, target: Any = None) -> Iterator[Finding]:
    """Yield what is wrong between the draws of a run and its target.

    Parameters
    ----------
    evidence
        The run.
    target
        The target that it was sampled from; None: not given.

    Notes
    -----
    Codes: "unadjusted-bias" (an unadjusted kernel whose moments or Stein discrepancy are wrong),
    "bias-unchecked" (an unadjusted kernel without a target to compare with), "not-a-gradient" (a
    score whose work around closed loops is large), "wrong-target" (draws of another kernel that do
    not fit). For every f of moderate growth a target's draws satisfy E[s f + ∇f] = 0 (Stein); with
    f = 1 and f = x_i these are E[s_i] = 0 and E[x_i s_i] = −1, and for a Gaussian the second is
    minus the ratio of the draws' variance to the target's.

    Examples
    --------
    >>> import numpy as np, samplekit as sk
    >>> from samplekit.diagnostics.evidence import gather
    >>> x = np.random.default_rng(0).normal(size=(4, 500, 2))
    >>> list(check_bias(gather({"x": x}), sk.targets.gaussian(2)))
    []
    >>> [f.code for f in check_bias(gather({"x": 1.3 * x}), sk.targets.gaussian(2))]
    ['wrong-target']
    """
    sampler = evidence.sampler
    unadjusted = sampler.adjusted is False and sampler.name != _CORRECTED
    if target is None or not has_score(target):
        if unadjusted:
            missing = "no target was given" if target is None else "the target has no score"
            yield _unchecked(evidence, missing)
        return
    if not all(np.isfinite(draws).all() for draws in evidence.variables.values()):
        return  # a finding of its own
    try:
        placed = place(evidence, target, MAX_DRAWS)
        if np.ptp(placed.positions, axis=1).min() == 0:
            return  # frozen chains are a finding of their own
        scores = placed.scores()
    except NonfiniteError as error:
        yield _unchecked(evidence, str(error).split(", ")[0])
        return
    turning = None
    if not isinstance(target, DensityTarget):
        turning = _loop_finding(closed_loop_work(target, placed.positions, loops=LOOPS))
        if turning:
            yield turning
    if unadjusted or turning is None:  # where there is no density, there is no target to miss
        yield from _compare(evidence, placed, scores, unadjusted=unadjusted)


def _compare(
    evidence: Evidence, placed: Placed, scores: np.ndarray, *, unadjusted: bool
) -> Iterator[Finding]:
    """Compare draws with the score by moments and by the discrepancy."""
    stein = discrepancy(placed.positions, scores, placed.names)
    if stein.draws_used < LEAST_EFFECTIVE * stein.autocorrelation_time:
        return  # too few to tell, which is a finding of its own
    fits = stein.p_value > LEVEL or stein.value < CLEARLY_ABOVE * stein.null
    if unadjusted:
        moments = _moments(placed.positions, scores)
        if moments.wrong.any() or moments.average_wrong or not fits:
            yield _biased(evidence, moments, stein, placed.names)
    elif not fits:
        yield _wrong_target(stein)


def _moments(positions: np.ndarray, scores: np.ndarray) -> _Moments:
    """Test Stein's identities of draws (chain, draw, dim), with errors aware of correlation."""
    dim = positions.shape[2]
    flat = positions.reshape(-1, dim)
    scale = robust_scale(flat)
    s = scores * scale
    spread = (positions - np.median(flat, axis=0)) / scale * s + 1
    series = np.concatenate([s, spread, spread.mean(axis=2, keepdims=True)], axis=2)
    rows = series.reshape(-1, 2 * dim + 1)
    effective = np.clip(np.nan_to_num(ess_bulk(series), nan=1.0), 1.0, len(rows))
    mean = rows.mean(axis=0)
    wrong = _p_values(rows - mean, mean, effective) * len(mean) < LEVEL
    wrong &= np.abs(mean) > np.repeat([MEAN_OFF, VARIANCE_OFF], [dim, dim + 1])
    return _Moments(-mean[dim:-1], -mean[:dim], wrong[:dim] | wrong[dim:-1], bool(wrong[-1]))


def _p_values(centered: np.ndarray, mean: np.ndarray, effective: np.ndarray) -> np.ndarray:
    """Return two-sided p-values of means that should be zero, for skewed and correlated series.

    Draws that happen to stay near the center have too small a mean of x², and too small an error of
    it: hence the smaller of the usual t and Johnson's for skewed laws (1978, Journal of the
    American Statistical Association 73, 536–544). And the error itself is known from
    autocorrelations as well as from about a quarter as many independent draws: hence Student's law.
    """
    from scipy.special import stdtr

    variance = np.maximum((centered**2).mean(axis=0), 1e-300)
    skew = (centered**3).mean(axis=0) / variance
    error = np.sqrt(variance / effective)
    plain = mean / error
    johnson = (mean + skew / (6 * effective) + skew * mean**2 / (3 * variance)) / error
    same = np.sign(plain) == np.sign(johnson)
    size = np.where(same, np.minimum(np.abs(plain), np.abs(johnson)), 0.0)
    return 2 * stdtr(np.maximum(effective / 4, 1.0), -size)


def _unchecked(evidence: Evidence, reason: str) -> Finding:
    name = evidence.sampler.name or "This sampler"
    return Finding(
        "bias-unchecked",
        "note",
        (),
        f"The draws were not compared with the target: {reason}.",
        f"{name} has no Metropolis step: it samples a law that differs from the target by its step "
        "size, and chains that agree with each other (R-hat) do not show it.",
        "Give the target, sk.diagnose(run, target): its score tells the bias. Or use an adjusted "
        "kernel, sk.MALA() or sk.NUTS() (sk.ScoreMALA() for a score alone).",
    )


def _biased(
    evidence: Evidence, moments: _Moments, stein: SteinResult, names: tuple[str, ...]
) -> Finding:
    size = np.maximum(np.abs(moments.variance_off), np.abs(moments.mean_off))
    wrong = [int(i) for i in np.argsort(-size) if moments.wrong[i]]
    if wrong:
        worst, variables = wrong[0], tuple(names[i] for i in wrong)
        seen = (
            f"By Stein's identities the variance of {variables[0]} is off by about "
            f"{moments.variance_off[worst]:+.0%} and its mean by {moments.mean_off[worst]:+.2f} of "
            f"its spread; {len(wrong)} of {len(names)} coordinates are off"
        )
    elif moments.average_wrong:
        variables = ()
        seen = (
            "By Stein's identities the variances are off by about "
            f"{moments.variance_off.mean():+.0%} on average over {len(names)} coordinates"
        )
    else:
        variables = _drivers(stein)
        seen = f"The draws do not fit the target, most of all in {named(variables)}"
    seen += f". The Stein discrepancy is {_times(stein)}."
    return Finding(
        "unadjusted-bias",
        "problem",
        variables,
        seen,
        f"{evidence.sampler.name or 'This sampler'} has no Metropolis step, so its step size "
        "biases what it samples; more draws do not help, and R-hat cannot see it.",
        _smaller_step(evidence),
    )


def _smaller_step(evidence: Evidence) -> str:
    name, step = evidence.sampler.name, evidence.sampler.step_size
    other = (
        "sk.MCLMC(adjusted=True)" if name == "MCLMC" else "sk.MALA() (sk.ScoreMALA() for a score)"
    )
    half = f"step_size={step / 2:.3g}" if step else "half the step size"
    return (
        f"Use {half}: the bias falls with the square of the step, so half of it leaves a quarter. "
        f"Or remove the bias altogether with {other}."
    )


def _wrong_target(stein: SteinResult) -> Finding:
    drivers = _drivers(stein)
    return Finding(
        "wrong-target",
        "problem",
        drivers,
        f"The draws do not fit the target, most of all in {named(drivers)}: their Stein "
        f"discrepancy is {_times(stein)}.",
        "Either the run was made from another target, its data or its parameters, or the chains "
        "have not reached it yet.",
        "Make sure that this is the very target that was sampled. If it is, see the other findings "
        "(R-hat, drift, acceptance) first, and sample longer from other starts.",
    )


def _times(stein: SteinResult) -> str:
    return f"{stein.value / stein.null:.1f} times that of exact draws (p = {stein.p_value:.2g})"


def _drivers(stein: SteinResult, share: float = 0.8) -> tuple[str, ...]:
    """Return the coordinates that make up most of the discrepancy, largest first."""
    ranked = sorted(stein.contributions.items(), key=lambda item: -item[1])
    ranked = [(name, value) for name, value in ranked if value > 0] or ranked[:1]
    sums = np.cumsum([value for _, value in ranked])
    return tuple(n for n, _ in ranked[: int(np.searchsorted(sums, share * sums[-1])) + 1])


def _loop_finding(loops: LoopWork) -> Finding | None:
    """Judge the work around loops: sure, more than the quadrature's own error, and too much."""
    least = loops.work - 3 * loops.standard_error - 2 * loops.quadrature_error
    if least < LOOP_WORK or least < LOOP_SHARE * loops.edge:
        return None
    return Finding(
        "not-a-gradient",
        "problem",
        (),
        f"The score does work around closed loops between draws: {loops.work:.2g} nats (root mean "
        f"square of {loops.loops} triangles, at most {loops.worst:.2g}), where log p of two draws "
        f"differs by {loops.edge:.2g}.",
        "A score that is a gradient does none. This one gives no density: log p between two draws "
        "depends on the way, so Metropolis-like acceptance is wrong by as much, and what is "
        "sampled depends on kernel and step size.",
        "Learn an energy and use its gradient (conservative by construction), train the score "
        "longer or regularise it; sk.closed_loop_work(target, run) measures the progress.",
    )
