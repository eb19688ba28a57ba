r"""Checks of mixing: R-hat, effective sample sizes, and drift within the chains.

Notes
-----
Every verdict allows for noise. Let half chain :math:`m` of :math:`M = 2C` have mean
:math:`\bar z_m` in normal scores, whose variance by autocorrelation within alone is :math:`v`
(`samplekit.diagnostics.numbers`). When all chains have reached the same law,

.. math::

    \frac{\sum_m (\bar z_m - \bar z)^2}{(M - 1)\, v} \sim F_{M-1,\,\nu}, \qquad
    \frac{\sum_c (\bar z_{c,2} - \bar z_{c,1})^2}{2 C v} \sim F_{C,\,\nu}, \qquad
    \frac{(\sum_c \bar z_{c,2} - \bar z_{c,1})^2}{2 C v} \sim F_{1,\,\nu};

the first is R-hat, since :math:`\hat R^2 - 1` is that variance of means over the variance within;
the others are drift, each chain its own way or all in one direction. :math:`\nu` stands for the
error of :math:`v`: an autocorrelation time that was summed over five times itself has a relative
variance of about 20/ESS (Sokal 1997, doi:10.1007/978-1-4899-0319-8_6), which is that of
:math:`\chi^2_\nu/\nu` with :math:`\nu = \mathrm{ESS}/10`. Short chains add a bias of some
:math:`2\tau/n = 2M/\mathrm{ESS}`, whose square is added to the variance.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from samplekit.diagnostics.check_draws import cannot_tell, ess_wanted
from samplekit.diagnostics.evidence import Evidence
from samplekit.diagnostics.findings import Finding, Severity, named
from samplekit.diagnostics.numbers import Numbers
from samplekit.diagnostics.words import say

# The chance that a healthy run gets a "problem" from one check, all its scalars together.
LEVEL = 2e-4

# Vehtari et al. 2021, §4: chains that differ by more than R-hat 1.01 are not yet one sample.
RHAT = 1.01

# The estimated ESS has a relative error of √(20/ESS) (see above), 20 to 30 % at 200 to 400. Below
# half of what is wanted that no longer explains it, the least of many scalars included.
_SURELY_BELOW = 0.5

# Drift below a tenth of a standard deviation is within the error of a mean at ESS 100.
_DRIFT = 0.1


def f_tail(statistic: np.ndarray, above: float, below: np.ndarray) -> np.ndarray:
    """Return the chance of a larger F statistic."""
    from scipy.special import fdtrc

    return fdtrc(above, np.maximum(below, 1.0), statistic)


def freedom(ess: np.ndarray, chains: int) -> np.ndarray:
    """Return the degrees of freedom of a variance that was judged by `ess` draws of `chains`."""
    return 2 / (20 / ess + (2 * chains / ess) ** 2)


def check_mixing(evidence: Evidence, numbers: Numbers, target: Any) -> Iterator[Finding]:
    """Check R-hat, effective sample sizes and drift."""
    del target
    judged = numbers.usable & numbers.changes.any(axis=1)
    if not judged.any():
        return
    yield from _rhat(evidence, numbers, judged)
    if not cannot_tell(evidence):
        for code, column, what in (
            ("ess-bulk", "ess_bulk", "means and medians"),
            ("ess-tail", "ess_tail", "5 % and 95 % quantiles"),
        ):
            yield from _ess(evidence, numbers, judged, (code, column, what))
    yield from _drift(evidence, numbers, judged)


def _worst(evidence: Evidence, chosen: np.ndarray, badness: np.ndarray) -> list[str]:
    """Return the labels of the chosen scalars, worst first."""
    order = np.argsort(-np.nan_to_num(badness, nan=np.inf), kind="stable")
    return [evidence.names[i] for i in order if chosen[i]]


def _rhat(evidence: Evidence, numbers: Numbers, judged: np.ndarray) -> Iterator[Finding]:
    if evidence.chains < 2 or evidence.draws < 4:
        return
    rhat = numbers.table["r_hat"].to_numpy()
    high = judged & ~(rhat <= RHAT)  # NaN is not fine
    if not high.any():
        return
    means, variance = numbers.halves.means, numbers.halves.variance
    with np.errstate(all="ignore"):
        statistic = means.var(axis=2, ddof=1) / variance
        below = freedom(numbers.halves.ess, means.shape[2])
        chance = f_tail(statistic, means.shape[2] - 1, below)
    # A constant fold says nothing; a chain without variance is no noise at all.
    chance = np.where(np.isnan(statistic), 1.0, chance).min(axis=0)
    apart = high & ((chance < LEVEL / (2 * judged.sum())) | ~np.isfinite(rhat))
    ess = numbers.table["ess_bulk"].to_numpy()
    untold = high & ~(ess >= _SURELY_BELOW * ess_wanted(evidence.chains))
    if apart.any():
        yield _rhat_finding(evidence, high, rhat, "problem")
    elif untold.any():
        why = "So few effective draws cannot tell whether that is noise or chains that disagree."
        yield _rhat_finding(evidence, high, rhat, "problem", why=why)
    else:
        why = "At this effective sample size such a value is also seen when all is well."
        yield _rhat_finding(evidence, high, rhat, "warning", why=why)


def _rhat_finding(
    evidence: Evidence,
    chosen: np.ndarray,
    rhat: np.ndarray,
    severity: Severity,
    *,
    why: str = "",
) -> Finding:
    labels = _worst(evidence, chosen, rhat)
    worst = rhat[evidence.names.index(labels[0])]
    more, warmup = 2 * evidence.draws, max(2000, 2 * evidence.draws)
    remedy = f"Draw more, to see which it is: {say(evidence.sampler, 'draws', draws=more)}."
    if not why:
        why = (
            "The chains disagree by more than their own noise explains: they have not reached the "
            "same distribution, so no average over them is one of the target."
        )
        stays = (
            "or a geometry that wants other coordinates (a non-centred "
            f"parametrisation, {say(evidence.sampler, 'metric') or 'a scaling'})."
        )
        if evidence.discrete:
            stays = "that flips hardly cross: temper it, or look at what does not tell them apart."
        remedy = (
            f"Give them longer warm-up ({say(evidence.sampler, 'warmup', warmup=warmup)}) and more "
            f"draws ({say(evidence.sampler, 'draws', draws=more)}); if R-hat stays, the target has "
            f"separate modes {stays}"
        )
    return Finding(
        "rhat",
        severity,
        tuple(labels),
        f"R-hat is {worst:.3f} for {labels[0]} and above {RHAT} for {len(labels):,} of "
        f"{len(evidence.names):,} scalars ({named(labels)}).",
        why,
        remedy,
    )


def _ess(
    evidence: Evidence, numbers: Numbers, judged: np.ndarray, what: tuple[str, str, str]
) -> Iterator[Finding]:
    code, column, used_for = what
    ess = numbers.table[column].to_numpy()
    wanted = ess_wanted(evidence.chains)
    low = judged & ~(ess >= wanted)
    if not low.any():
        return
    labels = _worst(evidence, low, -ess)
    least = ess[evidence.names.index(labels[0])]
    surely = not least >= _SURELY_BELOW * wanted
    more = evidence.draws * int(np.clip(np.ceil(wanted / max(least, 1.0)), 2, 100))
    if not np.isfinite(least):
        more = 2 * evidence.draws
    yield Finding(
        code,
        "problem" if surely else "warning",
        tuple(labels),
        f"{labels[0]} has {least:.0f} effective draws of {evidence.chains * evidence.draws:,} "
        f"({column.removeprefix('ess_')}); {wanted} are wanted, and {len(labels):,} of "
        f"{len(evidence.names):,} scalars have fewer ({named(labels)}).",
        f"With so few, {used_for} are uncertain, and so are R-hat and this number itself."
        if surely
        else f"This is near the limit: {used_for} are still rough.",
        f"Draw more ({say(evidence.sampler, 'draws', draws=more)}); if that takes too long, mixing "
        f"is the trouble: {_faster(evidence)}.",
    )


def _faster(evidence: Evidence) -> str:
    """Name what mixes faster than the sampler of this run."""
    if evidence.discrete:
        sweeps = "" if evidence.sampler.name == "Gibbs" else "whole sweeps (sk.Gibbs(), thin=), or "
        return f"{sweeps}tempering across what separates the modes"
    coordinates = "other coordinates for these variables"
    if evidence.sampler.hamiltonian:
        dense = say(evidence.sampler, "metric")
        return f"a dense metric ({dense}), or {coordinates}" if dense else coordinates
    return f"a kernel that follows the gradient (NUTS), or {coordinates}"


def _drift(evidence: Evidence, numbers: Numbers, judged: np.ndarray) -> Iterator[Finding]:
    if evidence.draws < 4:
        return
    means, variance, ess = numbers.halves.means, numbers.halves.variance, numbers.halves.ess
    chains = evidence.chains
    moves = means[:, :, chains:] - means[:, :, :chains]
    with np.errstate(all="ignore"):
        below = freedom(ess, 2 * chains)
        each = (moves**2).mean(axis=2)
        common = moves.mean(axis=2) ** 2
        chance = np.stack(
            (
                f_tail(each / (2 * variance), chains, below),
                f_tail(common * chains / (2 * variance), 1, below),
            )
        )
        size = np.sqrt(np.stack((each, common)))
    tests = 4 * judged.sum()
    seen = (chance < LEVEL / tests) & (size > _DRIFT)
    drifts = judged & seen.any(axis=(0, 1))
    if not drifts.any():
        return
    moved = np.where(seen, size, 0).max(axis=(0, 1))
    labels = _worst(evidence, drifts, moved)
    worst = moved[evidence.names.index(labels[0])]
    yield Finding(
        "drift",
        "problem",
        tuple(labels),
        f"From the first to the second half of the chains {labels[0]} moved by {worst:.2f} "
        f"standard deviations (in normal scores), more than noise explains; so did "
        f"{len(labels):,} of {len(evidence.names):,} scalars ({named(labels)}).",
        "The chains are still on their way, or so slow that half of the run is one excursion: "
        "averages depend on when you stop.",
        f"Lengthen warm-up ({say(evidence.sampler, 'warmup', warmup=max(2000, 2 * evidence.draws))}"
        ") or continue and drop the first half "
        f"({say(evidence.sampler, 'draws', draws=2 * evidence.draws)}).",
    )
