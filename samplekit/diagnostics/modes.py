r"""Modes: separate heaps of draws, and whether the chains agree on their weights.

Notes
-----
A heap is looked for in one-dimensional views, every scalar and the leading principal components of
all of them: a valley in the histogram, deep in comparison with the lower of its two shores and with
enough draws on either side. Views are cheap and miss what only more dimensions show; what they
find is then tested, so a chance valley raises no alarm.

The test: chain :math:`c` spends the share :math:`p_c` of its draws beyond the valley. With all
chains at the target, :math:`\sum_c (p_c - \bar p)^2 / ((C - 1) v)` follows :math:`F_{C-1,\nu}`,
where :math:`v = \bar p (1 - \bar p)\, \tau / N` allows for slow switching: :math:`\tau` is the
larger of the autocorrelation time of the indicator and that of the two-state Markov chain with the
counted crossings, :math:`(2 - a - b)/(a + b)` for the crossing rates :math:`a, b`. :math:`\nu` is
the smaller of what ESS allows (`check_mixing`) and the number of crossings.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from samplekit.diagnostics.check_mixing import LEVEL, f_tail, freedom
from samplekit.diagnostics.evidence import Evidence
from samplekit.diagnostics.findings import Finding
from samplekit.diagnostics.numbers import Numbers
from samplekit.diagnostics.words import say
from samplekit.sampling.ranks import autocovariance, geyer_ess

# Draws of all chains that views are made of: histograms gain nothing from more.
_DRAWS = 2**14
# Scalars that principal components are made of (evenly spread), and how many components.
_SCALARS, _COMPONENTS = 128, 5
# Bins of a histogram over the central 98 %; three neighbours are counted together.
_BINS, _CENTRAL = 60, (0.01, 0.99)
# A valley: at most half as high as its lower shore, by this many standard errors (60 bins, hundreds
# of views: the largest of 10⁴ normal numbers is 3.9), 2 % of the draws on either side.
_DEPTH, _ERRORS, _SIDE = 0.5, 4.0, 0.02
# A chain is in one mode when at most this share of its draws is elsewhere.
_VISIT = 0.005


@dataclasses.dataclass(frozen=True)
class Valley:
    """Draws that fall apart in one view.

    Attributes
    ----------
    view
        Label of the scalar, or "component 1" of all.
    labels
        The scalars concerned.
    at
        Where the valley is, in units of the scalar (of standard deviations for a component).
    occupancy
        Share of each chain's draws above the valley.
    ess
        Effective draws of the indicator, all chains together.
    crossings
        How often chains crossed the valley.
    """

    view: str
    labels: tuple[str, ...]
    at: float
    occupancy: np.ndarray
    ess: float
    crossings: int

    @property
    def apart(self) -> bool:
        """Whether some chains sit on one side and some on the other."""
        return bool((self.occupancy <= _VISIT).any() and (self.occupancy >= 1 - _VISIT).any())

    @property
    def chance(self) -> float:
        """The chance of occupancies that differ this much, were the chains at one target."""
        chains, p = len(self.occupancy), self.occupancy.mean()
        if chains < 2 or not 0 < p < 1:
            return 1.0
        noise = p * (1 - p) * chains / self.ess
        statistic = np.asarray(self.occupancy.var(ddof=1) / noise)
        below = np.minimum(freedom(np.asarray(self.ess), chains), self.crossings)
        return float(f_tail(statistic, chains - 1, below))


def find_valleys(evidence: Evidence, numbers: Numbers) -> tuple[list[Valley], int]:
    """Find the views in which the draws fall apart.

    Parameters
    ----------
    evidence, numbers
        The run and its numbers.

    Returns
    -------
    The valleys, and how many views were looked at.
    """
    thin = max(1, -(-evidence.chains * evidence.draws // _DRAWS))
    usable = numbers.usable & numbers.changes.any(axis=1)
    ess = np.nan_to_num(numbers.halves.ess.min(axis=0), nan=1.0)
    spread = np.flatnonzero(usable)
    spread = set(spread[np.linspace(0, len(spread) - 1, min(len(spread), _SCALARS)).astype(int)])
    valleys, kept, kept_labels, done = [], [], [], 0
    for labels, rows in evidence.scalars():
        chosen = np.flatnonzero(usable[done : done + len(labels)])
        views = rows[chosen, :, ::thin]
        for k, edges in _search(views, ess[done + chosen]):
            label = labels[chosen[k]]
            valleys += [_valley((label, (label,)), views[k], edge) for edge in edges]
        mine = [k for k, i in enumerate(chosen) if done + i in spread]
        kept.append(_standardized(views[mine]))
        kept_labels += [labels[chosen[k]] for k in mine]
        done += len(labels)
    count = int(usable.sum())
    if len(kept_labels) > 1:
        components, weights = _components(np.concatenate(kept))
        least = np.full(len(components), ess[usable].min())
        for k, edges in _search(components, least):
            order = np.argsort(-np.abs(weights[k]), kind="stable")[:3]
            concerned = tuple(kept_labels[i] for i in order)
            name = f"component {k + 1}"
            valleys += [_valley((name, concerned), components[k], edge) for edge in edges]
        count += len(components)
    return valleys, count


def _standardized(rows: np.ndarray) -> np.ndarray:
    """Center and scale (scalar, chain, draw) robustly, and bound outliers."""
    low, middle, high = np.quantile(rows, (0.16, 0.5, 0.84), axis=(1, 2))
    scale = np.where(high > low, (high - low) / 2, 1.0)
    return np.clip((rows - middle[:, None, None]) / scale[:, None, None], -4, 4)


def _components(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the leading principal components (component, chain, draw) and their directions."""
    flat = rows.reshape(len(rows), -1)
    centered = flat - flat.mean(axis=1, keepdims=True)
    _, vectors = np.linalg.eigh(centered @ centered.T / flat.shape[1])
    directions = vectors[:, ::-1][:, :_COMPONENTS].T
    return (directions @ centered).reshape(-1, *rows.shape[1:]), directions


def _search(views: np.ndarray, ess: np.ndarray) -> Iterator[tuple[int, list[float]]]:
    """Yield the views (view, chain, draw) that have valleys, and where."""
    if not views.size:
        return
    flat = views.reshape(len(views), -1)
    counts, low, width = _histograms(flat)
    effective = np.minimum(1.0, ess / flat.shape[1])
    # Three neighbours together, as many effective draws as that is worth.
    summed = counts[:, :-2] + counts[:, 1:-1] + counts[:, 2:]
    scaled = summed * effective[:, None]
    left = np.maximum.accumulate(scaled, axis=1)
    right = np.maximum.accumulate(scaled[:, ::-1], axis=1)[:, ::-1]
    shore = np.minimum(left, right)
    error = np.sqrt(_DEPTH**2 * shore + scaled + 1)
    mass = np.cumsum(counts, axis=1)[:, 1:-1] / flat.shape[1]
    lowest = (mass > _SIDE) & (mass < 1 - _SIDE)
    deep = lowest & (_DEPTH * shore - scaled > _ERRORS * error)
    for k in np.flatnonzero(deep.any(axis=1)):
        # The lowest place of each stretch of deep bins; the middle where it is empty.
        edges = []
        places = np.flatnonzero(deep[k])
        for stretch in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
            bottom = stretch[scaled[k, stretch] == scaled[k, stretch].min()]
            edges.append(float(low[k] + (bottom[len(bottom) // 2] + 1.5) * width[k]))
        yield int(k), edges


def _histograms(flat: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count (view, draw) in bins; bins of whole numbers hold equally many of them."""
    low, high = np.quantile(flat, _CENTRAL, axis=1)
    width = (high - low) / _BINS
    whole = (flat == np.rint(flat)).all(axis=1)
    width = np.where(whole, np.maximum(1.0, np.ceil(width)), width)
    low = np.where(whole, np.floor(low) - 0.5, low)
    width = np.where(width > 0, width, 1.0)
    with np.errstate(over="ignore"):
        place = np.floor((flat - low[:, None]) / width[:, None])
    inside = (place >= 0) & (place < _BINS)
    index = np.where(inside, place, _BINS).astype(np.int64)
    index += np.arange(len(flat))[:, None] * (_BINS + 1)
    counts = np.bincount(index.ravel(), minlength=len(flat) * (_BINS + 1))
    return counts.reshape(len(flat), -1)[:, :_BINS].astype(float), low, width


def _valley(names: tuple[str, tuple[str, ...]], view: np.ndarray, at: float) -> Valley:
    """Measure how the chains (chain, draw) share the two sides of a valley."""
    above = (view > at).astype(float)
    chains, draws = above.shape
    occupancy = above.mean(axis=1)
    moves = np.diff(above, axis=1)
    up, down = int((moves > 0).sum()), int((moves < 0).sum())
    high = float(above[:, :-1].sum())
    low = above[:, :-1].size - high
    rate = up / max(low, 1.0) + down / max(high, 1.0)
    markov = chains * draws * rate / max(2 - rate, rate)
    geyer = chains * draws
    if draws >= 4 and up + down:
        covariance = autocovariance((above - occupancy[:, None])[None])
        for between in (0.0, 1.0):  # put back what subtracting the chains' means took away
            extra = covariance[:, 0] / np.maximum(geyer / chains - 1, 1) * between
            geyer = float(geyer_ess(covariance, extra, chains=chains)[0])
    ess = max(1.0, min(markov, geyer))
    return Valley(names[0], names[1], at, occupancy, ess, up + down)


def check_modes(evidence: Evidence, numbers: Numbers, target: Any) -> Iterator[Finding]:
    """Check that chains visit the same modes, and equally often."""
    del target
    if evidence.chains < 2 or evidence.draws < 20:
        return
    valleys, views = find_valleys(evidence, numbers)
    level = LEVEL / max(views, 1)
    differ = [
        v for v in valleys if v.chance < level or (v.apart and v.crossings < len(v.occupancy))
    ]
    apart = [v for v in differ if v.apart]
    if apart:
        yield _apart(evidence, apart)
    elif differ:
        yield _weights(evidence, min(differ, key=lambda v: v.chance), differ)


def _shares(occupancy: np.ndarray) -> str:
    shown = ", ".join(f"{100 * p:.0f}" for p in occupancy[:8])
    return f"{shown}{', …' * (len(occupancy) > 8)} %"


def _concerned(valleys: list[Valley]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(label for v in valleys for label in v.labels))


def _apart(evidence: Evidence, valleys: list[Valley]) -> Finding:
    worst = min(valleys, key=lambda v: v.crossings)
    return Finding(
        "modes-apart",
        "problem",
        _concerned(valleys),
        f"Chains sit on different sides of a gap in {worst.view} at {worst.at:.3g}: beyond it are "
        f"{_shares(worst.occupancy)} of the draws of each chain, crossed {worst.crossings} times.",
        "The target has modes between which this sampler does not travel, so the share of each "
        "mode is that of the starts, not its probability.",
        "If the modes are copies of each other (labels that may be swapped), order the variables; "
        "otherwise make the gap passable: sample sk.tempered(target, beta) with beta < 1 and see "
        "where it goes, take longer trajectories or bolder proposals (sk.MetropolisHastings with a "
        f"jump), and start many chains ({say(evidence.sampler, 'starts')}).",
    )


def _weights(evidence: Evidence, worst: Valley, valleys: list[Valley]) -> Finding:
    return Finding(
        "mode-weights",
        "problem",
        _concerned(valleys),
        f"Chains disagree about the weight of a mode: beyond {worst.at:.3g} in {worst.view} are "
        f"{_shares(worst.occupancy)} of the draws of each chain "
        f"(chance {worst.chance:.0e} with {worst.ess:.0f} effective draws).",
        "R-hat can be fine while every probability and mean that depends on these weights is wrong "
        "by as much as the chains differ.",
        f"Draw until the weights agree ({say(evidence.sampler, 'draws', draws=4 * evidence.draws)})"
        "; if crossings stay rare, use bolder moves (sk.MetropolisHastings with a jump between the "
        "modes) or sample sk.tempered(target, beta) to see the way across.",
    )
