"""Checks of the sampler: acceptance, divergences, tree depth, energy, step size, walkers."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from samplekit.diagnostics.check_draws import chain_list
from samplekit.diagnostics.evidence import Evidence, Sampler
from samplekit.diagnostics.findings import Finding
from samplekit.diagnostics.numbers import Numbers, ebfmi
from samplekit.diagnostics.words import say

# Acceptance rates at which a kernel works well: (usual goal, low, high). Random walk: above 80 % of
# the best efficiency between 0.15 and 0.5 (Gelman, Roberts and Gilks 1996), and not yet poor at
# 0.1. Langevin kernels: near the best between 0.4 and 0.8 (Roberts and Rosenthal 1998,
# doi:10.1111/1467-9868.00123). Hamiltonian kernels: best between 0.6 and 0.9 (Betancourt, Byrne and
# Girolami 2014, arXiv:1411.6669); dual averaging ends on the safe side, so only rates near 1 are
# a waste.
_BANDS: dict[str | None, tuple[float, float, float]] = {
    "RandomWalk": (0.234, 0.1, 0.55),
    "MALA": (0.574, 0.3, 0.9),
    "Barker": (0.57, 0.25, 0.85),
    "ScoreMALA": (0.8, 0.5, 0.97),
    "HMC": (0.8, 0.6, 0.998),  # ours aims for 0.95 where it tunes the length
    "NUTS": (0.8, 0.6, 0.99),
    "MCLMC": (0.9, 0.65, 0.99),
    "Independence": (0.5, 0.1, 1.0),
    "GibbsWithGradients": (0.8, 0.1, 1.0),  # one flip where the odds are known is seldom refused
    None: (0.5, 0.05, 0.99),
}
# What happens in fewer than one of a thousand steps moves no probability by more than that, which
# is below the error of any of them at an ESS of 10⁵.
_RARE = 1e-3
# The chance to call a rate of one in a thousand larger than it is.
_LEVEL = 0.01
# Fewer draws than this say little of a rate near 0 or 1.
_FEW_DRAWS = 100
# Below 0.3 the momentum takes many steps to cross the energies (Betancourt 2016, arXiv:1604.00695);
# below 0.2 that is beyond doubt at a few hundred draws, and was the first limit of Stan.
_EBFMI_LOW, _EBFMI_BAD = 0.3, 0.2
# NUTS is cut in more than half of its steps: it is then a random walk of fixed length.
_MOSTLY = 0.5
# Chains tuned one by one end within a factor of 2 of each other even on hard targets, since dual
# averaging settles log step_size to some 20 %; a factor of 4 is another place or no tuning.
_STEP_FACTOR = 4.0
# A step size that still changes by a tenth between the first and last third of the draws, or of the
# last part of warm-up by a factor of 2, has not settled.
_STEP_DRIFT, _STEP_WARMUP = 0.1, 2.0


def check_sampler(evidence: Evidence, numbers: Numbers, target: Any) -> Iterator[Finding]:
    """Check what the sampler itself reported; what it did not report is no fault."""
    del numbers, target
    yield from _acceptance(evidence)
    yield from _nonfinite(evidence)
    yield from _divergences(evidence)
    yield from _tree_depth(evidence)
    yield from _energy(evidence)
    yield from _step_size(evidence)
    yield from _walkers(evidence)


def more_than_rare(count: int, total: int) -> bool:
    """Tell whether something happens more often than once in a thousand, beyond chance."""
    from scipy.special import pdtrc

    return count > 0 and float(pdtrc(count - 1, _RARE * total)) < _LEVEL


def acceptance_band(sampler: Sampler) -> tuple[float, float]:
    """Return the acceptance rates between which a kernel works well.

    A goal of the user's own moves the band with it: the lower edge in proportion to the goal, the
    upper one to its distance from 1.
    """
    usual, low, high = _BANDS.get(sampler.name, _BANDS[None])
    goal = sampler.target_accept or usual
    return low * goal / usual, 1 - (1 - high) * (1 - goal) / (1 - usual)


def _acceptance(evidence: Evidence) -> Iterator[Finding]:
    rates = evidence.stats.get("acceptance_rate", evidence.stats.get("accepted"))
    if rates is None or evidence.draws < _FEW_DRAWS or evidence.sampler.ensemble:
        return
    rates = rates.astype(np.float64)
    name = evidence.sampler.name or "The sampler"
    total = np.nansum(rates, axis=1)  # a NaN rate was no acceptance
    smaller = "a much smaller step_size, or none at all so that warm-up tunes it"
    # Fewer than one acceptance (rejection) expected in the whole chain.
    none, all_taken = total < 1, np.nansum(1 - rates, axis=1) < 1
    if none.any():
        chains = chain_list(np.flatnonzero(none))
        yield Finding(
            "acceptance-zero",
            "problem",
            (),
            f"{name} accepted nothing in {chains}: the mean acceptance rate is "
            f"{rates[none].mean():.1g}.",
            "The chain stands where it was; its draws are one value, repeated.",
            f"Take {smaller}; check that the score at the start is finite and of the right sign, "
            "and that the log density is not −inf nearly everywhere.",
        )
    # Those whose best proposals are always taken.
    if all_taken.any() and evidence.sampler.name not in ("Independence", "GibbsWithGradients"):
        chains = chain_list(np.flatnonzero(all_taken))
        yield Finding(
            "acceptance-one",
            "problem",
            (),
            f"{name} accepted everything in {chains}: the mean acceptance rate is "
            f"{rates[all_taken].mean():.6f}.",
            "Either the steps are so small that the chain hardly moves, or the target does not "
            "depend on the position and anything would be accepted.",
            "Leave step_size out so that warm-up tunes it, or take one ten times larger; and check "
            "that the log density changes when the position does.",
        )
    low, high = acceptance_band(evidence.sampler)
    means = rates.mean(axis=1)
    outside = ~((means >= low) & (means <= high)) & ~none & ~all_taken
    if outside.any():
        yield _band(evidence, means, outside, (low, high))


def _band(
    evidence: Evidence, means: np.ndarray, outside: np.ndarray, band: tuple[float, float]
) -> Finding:
    worst = means[outside][np.argmax(np.abs(means[outside] - np.mean(band)))]
    low = not worst >= band[0]
    tuned = evidence.sampler.target_accept is not None
    again = say(evidence.sampler, "warmup", warmup=2000)
    other = "smaller" if low else "larger"
    otherwise = f"Take a {other} step_size, or leave it out so that warm-up tunes it."
    if evidence.sampler.name == "GibbsWithGradients":
        otherwise = "Take fewer flips a step: sk.GibbsWithGradients(flips=1)."
    return Finding(
        "acceptance-band",
        "warning",
        (),
        f"The mean acceptance rate is {worst:.3f} in {chain_list(np.flatnonzero(outside))}; "
        f"{evidence.sampler.name or 'samplers of this kind'} works well between {band[0]:.2f} and "
        f"{band[1]:.2f}.",
        "Too many proposals are thrown away, and a chain may stick where they all are."
        if low
        else "The steps are shorter than they need be, so draws cost more than they should.",
        f"Warm-up did not reach its goal: lengthen it ({again})." if tuned else otherwise,
    )


def _nonfinite(evidence: Evidence) -> Iterator[Finding]:
    found = evidence.stats.get("nonfinite")
    if found is None or not np.any(found):
        return
    count, total = int(np.sum(found)), found.size
    often = more_than_rare(count, total)
    yield Finding(
        "nonfinite-proposals",
        "problem" if often else "warning",
        (),
        f"{count:,} proposals in {total:,} draws led to NaN or infinity and were refused.",
        "Where the target is NaN there is a wall that is not in your model, and the draws are "
        "those of the target cut off there.",
        "Find the place (jax.config.update('jax_debug_nans', True)): an overflow of exp, a log of "
        "a negative number, 0/0 in a gradient; give bounds as support= instead of letting the "
        "density break.",
    )


def _divergences(evidence: Evidence) -> Iterator[Finding]:
    diverging = evidence.stats.get("diverging")
    if diverging is None or not np.any(diverging):
        return
    count, total = int(np.sum(diverging != 0)), diverging.size
    often = more_than_rare(count, total)
    goal = evidence.sampler.target_accept or 0.8
    higher = 0.95 if goal < 0.95 else 0.99
    yield Finding(
        "divergences",
        "problem" if often else "warning",
        (),
        f"{count:,} of {total:,} transitions diverged ({100 * count / total:.2g} %).",
        "The integrator lost the energy where the target bends sharply; trajectories turn away "
        "there, so that region is missing from the draws and averages are biased."
        if often
        else "So few may be chance, or the edge of a region that trajectories cannot enter.",
        f"Take smaller steps, {say(evidence.sampler, 'accept', accept=higher)}; if divergences "
        "remain, change coordinates: a non-centred parametrisation for hierarchies, a log or an "
        "unconstraining transform for scales.",
    )


def _tree_depth(evidence: Evidence) -> Iterator[Finding]:
    cut = evidence.stats.get("reached_max_treedepth")
    depth = evidence.stats.get("tree_depth")
    if cut is None and depth is not None:
        cut = depth >= 10  # the limit of Stan and of everyone after it, where none is reported
    if cut is None or not np.any(cut):
        return
    count, total = int(np.sum(cut != 0)), cut.size
    share = count / total
    limit = int(evidence.sampler.settings.get("max_treedepth") or (10 if depth is None else 0))
    limit = limit or int(np.max(depth)) if depth is not None else limit
    yield Finding(
        "tree-depth",
        "problem" if share > _MOSTLY else "warning",
        (),
        f"{count:,} of {total:,} trajectories ({100 * share:.2g} %) were cut at tree depth "
        f"{limit}, before they turned back.",
        "This biases nothing, but trajectories that are cut explore like a random walk, and each "
        f"of them costs {2**limit:,} gradients.",
        f"First look for badly scaled or strongly correlated variables "
        f"({say(evidence.sampler, 'metric') or 'a dense metric'}, standardised data); then allow "
        f"longer trajectories, {say(evidence.sampler, 'depth', depth=limit + 2)}.",
    )


def _energy(evidence: Evidence) -> Iterator[Finding]:
    energy = evidence.stats.get("energy")
    if energy is None or not evidence.sampler.hamiltonian or energy.shape[1] < 2:
        return
    fractions = ebfmi(energy)
    undefined = ~np.isfinite(fractions)
    if undefined.any():
        yield Finding(
            "ebfmi-undefined",
            "problem",
            (),
            f"The energy of {chain_list(np.flatnonzero(undefined))} is constant or not finite, so "
            "E-BFMI is undefined.",
            "The energy of a chain that samples changes at every draw: this one is stuck, or its "
            "log density is NaN or infinite.",
            "Look at the log density of these chains (run['sample_stats']['lp']) and at their "
            "draws; correct the target where it is not finite and sample again.",
        )
    low = fractions < _EBFMI_LOW
    if low.any() and energy.shape[1] >= _FEW_DRAWS:
        yield Finding(
            "ebfmi-low",
            "problem" if (fractions < _EBFMI_BAD).any() else "warning",
            (),
            f"E-BFMI is {np.nanmin(fractions):.2f} (below {_EBFMI_LOW} in "
            f"{chain_list(np.flatnonzero(low))}).",
            "The energies of the target spread far wider than one fresh momentum can follow, so "
            "its tails, or the neck of a funnel, are explored slowly and may be missed.",
            "Change coordinates so that the spread of one variable does not depend on another (a "
            "non-centred parametrisation, log scales), or heavy tails become lighter; longer runs "
            "help little.",
        )


def _step_size(evidence: Evidence) -> Iterator[Finding]:
    steps = evidence.stats.get("step_size")
    if steps is None or not steps.size or not np.all(steps > 0):
        return
    logs = np.log(steps.astype(np.float64))
    third = max(1, logs.shape[1] // 3)
    begin, end = logs[:, :third], logs[:, -third:]
    drift = np.abs(end.mean(axis=1) - begin.mean(axis=1))
    # A step size that is jittered on purpose has means that differ by its jitter only.
    noise = np.sqrt((begin.var(axis=1) + end.var(axis=1)) / third)
    moving = (drift > _STEP_DRIFT) & (drift > 6 * noise)
    typical = np.median(logs, axis=1)
    factor = float(np.exp(typical.max() - typical.min()))
    warm = _late_warmup(evidence)
    if moving.any():
        seen = (
            f"The step size of {chain_list(np.flatnonzero(moving))} changed by a factor of "
            f"{np.exp(drift.max()):.2f} during the draws."
        )
        why = "A kernel that is tuned while it samples has no invariant distribution to rely on."
    elif factor > _STEP_FACTOR:
        seen = f"The tuned step sizes of the chains differ by a factor of {factor:.1f}."
        why = (
            "Chains that had settled on the same target would have come to nearly the same step "
            "size: some were tuned elsewhere, or not long enough."
        )
    elif warm > _STEP_WARMUP:
        seen = f"In the last part of warm-up the step size still moved by a factor of {warm:.1f}."
        why = "The draws use a step size that warm-up was still changing, so it may be far off."
    else:
        return
    yield Finding(
        "step-unsettled",
        "problem" if moving.any() else "warning",
        (),
        seen,
        why,
        f"Lengthen warm-up ({say(evidence.sampler, 'warmup', warmup=2000)}); if the chains still "
        "differ, look at where each of them is, and give better starts "
        f"({say(evidence.sampler, 'starts')}).",
    )


def _late_warmup(evidence: Evidence) -> float:
    """Return the factor by which the step size moved over the last tenth of warm-up, in trend.

    The step itself jumps at every update of dual averaging; halves of the tenth are compared by
    their medians.
    """
    steps = evidence.warmup_stats.get("step_size")
    if steps is None or steps.shape[1] < _FEW_DRAWS or not np.all(steps > 0):
        return 1.0
    last = np.log(steps[:, -(steps.shape[1] // 10) :].astype(np.float64))
    half = last.shape[1] // 2
    moved = np.median(last[:, half:], axis=1) - np.median(last[:, :half], axis=1)
    return float(np.exp(np.abs(moved).max()))


def _walkers(evidence: Evidence) -> Iterator[Finding]:
    if not evidence.sampler.ensemble:
        return
    yield Finding(
        "ensemble-walkers",
        "note",
        (),
        f"The {evidence.chains} chains are walkers of one ensemble ({evidence.sampler.library}).",
        "Walkers move by looking at each other, so their agreement (R-hat) proves little; the "
        "effective sample size here is that of the walkers' mean autocorrelation.",
        "Run the ensemble again from other starts and compare the two runs; draw at least 50 "
        "autocorrelation times.",
    )
