"""Checks of the draws themselves: that they are numbers, move, and are enough."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from samplekit.diagnostics.evidence import Evidence
from samplekit.diagnostics.findings import Finding, named
from samplekit.diagnostics.numbers import FEWEST_DRAWS, Numbers
from samplekit.diagnostics.words import say

# Effective draws that a chain must have, and the chains from which on more are not asked for: 400
# in all put means within 5 % of a standard deviation and let R-hat be judged (Vehtari et al. 2021,
# §4, who use four chains; a thousand short chains need no 100 each).
ESS_PER_CHAIN = 100
CHAINS_COUNTED = 4

# Half chains of fewer than ten draws have no variance to speak of.
_FEW_DRAWS = 20

# A chain is called frozen when it would have moved this often had it been like the others:
# exp(−14) ≈ 10⁻⁶ is the chance that it stood still by luck (a rare indicator may).
_MOVES_EXPECTED = 14.0

# Changes that two equal chains must share before luck is ruled out (discrete, slow variables).
_SHARED_CHANGES = 10


def ess_wanted(chains: int) -> int:
    """Return the effective draws that a run should have."""
    return ESS_PER_CHAIN * min(max(chains, 1), CHAINS_COUNTED)


def cannot_tell(evidence: Evidence) -> bool:
    """Tell whether there are too few draws for any diagnostic, however good they are."""
    total = evidence.chains * evidence.draws
    return evidence.draws < _FEW_DRAWS or total < ess_wanted(evidence.chains)


def chain_list(chains: Iterable[Any]) -> str:
    """Name chains for a sentence."""
    numbers = [int(c) for c in chains]
    some = ", ".join(map(str, numbers[:6])) + (", …" if len(numbers) > 6 else "")
    return f"chain{'s' * (len(numbers) > 1)} {some}"


def check_draws(evidence: Evidence, numbers: Numbers, target: Any) -> Iterator[Finding]:
    """Check that draws are finite, move, differ between chains, and are enough."""
    del target
    yield from _nonfinite(evidence, numbers)
    yield from _counts(evidence)
    yield from _identical(evidence, numbers)
    yield from _frozen(evidence, numbers)


def _nonfinite(evidence: Evidence, numbers: Numbers) -> Iterator[Finding]:
    whole = (numbers.nonfinite == evidence.draws).any(axis=0)
    some = numbers.nonfinite.any(axis=0) & ~whole
    for code, chains in (("nonfinite-chain", whole), ("nonfinite-draws", some)):
        if not chains.any():
            continue
        bad = numbers.nonfinite[:, chains].sum(axis=1)
        labels = [evidence.names[i] for i in np.argsort(-bad, kind="stable") if bad[i]]
        lost = int(numbers.nonfinite[:, chains].max(axis=0).sum())
        where = chain_list(np.flatnonzero(chains))
        yield Finding(
            code,
            "problem",
            tuple(labels),
            f"{lost:,} draw{'s' * (lost > 1)} of {named(labels)} in {where} "
            f"{'are' if lost > 1 else 'is'} NaN or infinite.",
            "Means, quantiles and every diagnostic of these variables are undefined, and a target "
            "that gives NaN at one place may be wrong at others.",
            "Find where the target or a derived quantity is not finite (a log of 0, an overflow, "
            "0/0; jax.config.update('jax_debug_nans', True) points at it), correct it and sample "
            "again.",
        )


def _counts(evidence: Evidence) -> Iterator[Finding]:
    chains, draws = evidence.chains, evidence.draws
    if cannot_tell(evidence):
        need = max(_FEW_DRAWS, 2 * ESS_PER_CHAIN)
        tiny = draws < FEWEST_DRAWS
        hint = " Many short chains: sk.nested_rhat(run, superchains=...) works from one draw on."
        yield Finding(
            "too-few-draws",
            "problem",
            (),
            f"{chains} chain{'s' * (chains > 1)} of {draws:,} draw{'s' * (draws > 1)}: "
            + ("R-hat and ESS are undefined." if tiny else "too few for R-hat and ESS to tell."),
            f"Even independent draws would be fewer than the {ess_wanted(chains)} effective ones "
            "that a verdict needs: nothing here speaks for these draws, nor against them.",
            f"Draw more: {say(evidence.sampler, 'draws', draws=max(1000, need))}."
            + (hint if tiny and chains > CHAINS_COUNTED else ""),
        )
    if chains == 1:
        yield Finding(
            "single-chain",
            "problem",
            (),
            "There is one chain, so R-hat does not exist.",
            "A chain that has found one of several modes, or is far too slow, looks fine to "
            "itself; only other chains from other starts can contradict it.",
            f"Run several from different starts: {say(evidence.sampler, 'chains')}.",
        )


def _identical(evidence: Evidence, numbers: Numbers) -> Iterator[Finding]:
    """Find chains that agree bit for bit in their second half."""
    moving = numbers.changes.sum(axis=0) >= _SHARED_CHANGES
    if evidence.chains < 2 or moving.sum() < 2:
        return
    half = evidence.draws // 2
    groups: dict[bytes, list[int]] = {}
    for chain in np.flatnonzero(moving):
        last = [v[chain, half:] for v in evidence.variables.values()]
        # Equal chains agree in their last draw; only those are compared in full.
        groups.setdefault(b"".join(v[-1].tobytes() for v in last), []).append(int(chain))
    pairs = []
    for members in groups.values():
        first, *others = members
        for other in others:
            same = all(
                np.array_equal(v[first, half:], v[other, half:], equal_nan=True)
                for v in evidence.variables.values()
            )
            pairs += [(first, other)] if same else []
    if pairs:
        yield Finding(
            "chains-identical",
            "problem",
            (),
            f"{chain_list(sorted({c for pair in pairs for c in pair})).capitalize()} have the same "
            f"draws, bit for bit, in the last {evidence.draws - half:,} draws.",
            "Copies of one chain always agree, so R-hat says 1.00 whatever went wrong, and the "
            "effective sample size counts the same draws twice.",
            "Give every chain its own seed (sk.sample does; separate runs need separate seed=).",
        )


def _frozen(evidence: Evidence, numbers: Numbers) -> Iterator[Finding]:
    if evidence.draws < 2:
        return
    still = (numbers.changes == 0) & (numbers.nonfinite == 0)
    all_still = still.all(axis=0)  # chains in which nothing moves
    if all_still.all():
        yield _all_frozen(evidence, numbers)
        return
    if all_still.any():
        yield _some_frozen(evidence, np.flatnonzero(all_still))
    # Scalars that stand still while others of the same chain move.
    alive = ~all_still
    judged = ~numbers.fixed & (numbers.nonfinite.sum(axis=1) == 0)
    apart = judged & still[:, alive].all(axis=1)
    if apart.any():
        labels = [evidence.names[i] for i in np.flatnonzero(apart)]
        yield _apart(evidence, labels)
    lucky = ~_would_move(evidence, numbers, still)
    some = judged & ~apart & (still & ~lucky)[:, alive].any(axis=1)
    if some.any():
        labels = [evidence.names[i] for i in np.flatnonzero(some)]
        yield _some_frozen(evidence, np.flatnonzero(still[some].any(axis=0) & alive), labels)


def _would_move(evidence: Evidence, numbers: Numbers, still: np.ndarray) -> np.ndarray:
    """Tell which chains would surely have moved had they been like the others, (scalar, chain).

    A discrete variable may rest at its commonest value by luck, so what counts is how often the
    other chains leave that very value; where they never take it, how often they move at all.
    """
    partly = still.any(axis=1) & ~still.all(axis=1)
    surely = np.zeros_like(still)
    if not partly.any():
        return surely
    done = 0
    for labels, rows in evidence.scalars():
        for k in np.flatnonzero(partly[done : done + len(labels)]):
            others = rows[k][~still[done + k]]
            moved = others[:, 1:] != others[:, :-1]
            for chain in np.flatnonzero(still[done + k]):
                visits = others[:, :-1] == rows[k, chain, 0]
                counted = moved[visits] if visits.any() else moved
                surely[done + k, chain] = counted.mean() * evidence.draws > _MOVES_EXPECTED
        done += len(labels)
    return surely


def _all_frozen(evidence: Evidence, numbers: Numbers) -> Finding:
    same = bool((numbers.first == numbers.first[:, :1]).all())
    starts, ends = evidence.starts, evidence.ends
    if starts is not None and ends is not None and np.array_equal(starts, ends):
        return Finding(
            "stuck-at-start",
            "problem",
            evidence.names,
            f"All {evidence.draws:,} draws of every chain equal the place where the chain began.",
            "No proposal was ever taken, so these are the starts and not draws of the target.",
            "Look at the target at the start (is the log density finite, the score huge or NaN?), "
            "take a much smaller step_size, or start elsewhere "
            f"({say(evidence.sampler, 'starts')}).",
        )
    if same and evidence.chains > 1:
        check = (
            "Check that the target depends on its position, that the step size is not 0, and that "
            "proposals are accepted at all"
        )
        if evidence.discrete:
            check = (
                "If one state has nearly all of the probability, this is the answer, and how rare "
                "the others are is in the target's log odds, not in draws; otherwise check that "
                "flips are accepted at all"
            )
        return Finding(
            "frozen-together",
            "problem",
            evidence.names,
            f"All chains stand still at one value (first: {evidence.names[0]} = "
            f"{numbers.first[0, 0]:.4g}).",
            "Nothing was sampled. R-hat is undefined and ArviZ counts every draw as effective.",
            f"{check}; then sample again from different starts "
            f"({say(evidence.sampler, 'starts')}).",
        )
    return _apart(evidence, list(evidence.names))


def _apart(evidence: Evidence, labels: list[str]) -> Finding:
    return Finding(
        "frozen-apart",
        "problem",
        tuple(labels),
        f"{named(labels)} never change{'s' * (len(labels) == 1)} within a chain, and every chain "
        "has its own value.",
        "Each chain reports the place where it got stuck; their spread says nothing of the target.",
        "Check acceptance and step size: a much smaller step_size (or leave it out, so that "
        "warm-up tunes it), a finite score at the starts, and that this variable is sampled at "
        "all.",
    )


def _some_frozen(
    evidence: Evidence, chains: np.ndarray, labels: list[str] | None = None
) -> Finding:
    what = "every variable" if labels is None else named(labels)
    numbered = chain_list(chains)
    return Finding(
        "frozen-chain",
        "problem",
        tuple(labels) if labels is not None else evidence.names,
        f"{numbered.capitalize()} stand{'s' * (len(chains) == 1)} still in {what} while the "
        "others move.",
        "A chain that got stuck adds one value many times over, and where it is stuck the others "
        "may not have been.",
        "Do not just drop the chain: look at where it stands. A smaller step "
        f"({say(evidence.sampler, 'accept', accept=0.95)}), more warm-up "
        f"({say(evidence.sampler, 'warmup', warmup=2000)}) or a better start "
        f"({say(evidence.sampler, 'starts')}) frees it.",
    )
