"""Charts of one scalar: trace, ranks, marginal by chain, growth of the effective sample size.

Each takes draws of shape (chain, draw) and returns an inline SVG. Nothing is judged here.
"""

from collections.abc import Sequence

import numpy as np

from samplekit.reporting.markup import Markup, element
from samplekit.reporting.numbers import count
from samplekit.reporting.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    chart,
    dots,
    line,
    text,
    x_axis,
    y_axis,
)

# More lines than this cannot be told apart; `most_different` says which are shown.
MOST_CHAINS = 8
_RANK_BINS = 20
_MARGINAL_BINS = 96
_X = (LEFT, WIDTH - RIGHT)
_Y = (HEIGHT - BOTTOM, TOP)  # pixels grow downwards


def most_different(draws: np.ndarray) -> np.ndarray:
    """Return the chains to show: all, or those whose location or spread differs most.

    A chain that is not finite or does not move counts as the most different of all.
    """
    chains = draws.shape[0]
    if chains <= MOST_CHAINS:
        return np.arange(chains)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        score = np.maximum(_oddness(draws.mean(axis=1)), _oddness(np.log(draws.std(axis=1))))
    return np.sort(np.argsort(-score, kind="stable")[:MOST_CHAINS])


def _oddness(values: np.ndarray) -> np.ndarray:
    """Return how far each value is from the others; infinity for what is not finite."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return np.full(values.shape, np.inf)
    far = np.abs(values - np.median(finite)) / (finite.std() or 1.0)
    return np.where(np.isfinite(far), far, np.inf)


def color(index: int) -> str:
    """Return the class that colours the chain shown at this place."""
    return f"c{index % MOST_CHAINS}"


def trace(draws: np.ndarray, chains: Sequence[int] | np.ndarray) -> Markup:
    """Draw the values over time; many draws become the least and the most of each pixel."""
    shown = draws[chains]
    x = Axis(0, draws.shape[1], *_X)
    y = Axis.over(shown, *_Y)
    marks = [y_axis(y, *_X), x_axis(x, _Y[0], "draw")]
    for i, values in enumerate(shown):
        at, kept = extremes(values, int(_X[1] - _X[0]))
        still = " still" if np.all(values == values[0]) else ""
        marks.append(line(x(at), y(kept), class_=f"trace {color(i)}{still}"))
    bad = np.flatnonzero(~np.isfinite(shown).all(axis=0))
    if bad.size:
        pixels = np.unique(np.round(x(bad)))
        marks.append(dots(pixels, np.full(pixels.shape, TOP + 3.0), class_="bad"))
        marks.append(text(_X[1], TOP - 7, "● not finite", text_anchor="end", class_="problem"))
    return chart(f"Trace of {count(len(shown), 'chain')} over {draws.shape[1]:,} draws", marks)


def extremes(values: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the places and values of the least and the most draw of each of so many bins.

    What is not finite stays, as NaN: a gap must not vanish because its neighbours are fine.
    """
    values = np.where(np.isfinite(values), values, np.nan)
    if values.size <= 2 * bins:
        return np.arange(values.size), values
    kept: list[int] = []
    for part in np.array_split(np.arange(values.size), bins):
        inside = values[part]
        gap = np.flatnonzero(np.isnan(inside))
        if gap.size < inside.size:
            kept += sorted({part[np.nanargmin(inside)], part[np.nanargmax(inside)]})
        if gap.size:
            kept.append(int(part[gap[0]]))
    order = np.sort(np.array(kept))
    return order, values[order]


def ranks(draws: np.ndarray, chains: Sequence[int] | np.ndarray) -> Markup:
    """Draw, for each chain, how often its draws fall into each twentieth of all draws.

    Chains that sample the same distribution are flat: every bar near the line.
    """
    flat = np.where(np.isfinite(draws), draws, np.nan).ravel()
    order = np.argsort(flat, kind="stable")  # NaN last
    rank = np.empty(flat.size)
    rank[order] = np.arange(flat.size)
    # Equal values share their mean rank, as in R-hat.
    _, group, size = np.unique(flat, return_inverse=True, return_counts=True, equal_nan=True)
    rank = (np.bincount(group, rank) / size)[group].reshape(draws.shape)
    bins = max(2, min(_RANK_BINS, draws.shape[1] // 5))
    # Each chain's share of a bin, 1 where chains agree; rows are cut at `top` times that.
    shares = np.array([np.histogram(rank[c], bins, range=(0, flat.size))[0] for c in chains]) * (
        bins / draws.shape[1]
    )
    top = float(np.clip(shares.max(), 2.0, 4.0))
    x = Axis(0, bins, *_X)
    row = (_Y[0] - TOP) / len(shares)
    high = row * (0.86 if len(shares) > 1 else 1.0)
    marks = []
    for i, share in enumerate(shares):
        floor = TOP + row * (i + 1)
        tops = floor - high * np.minimum(share, top) / top
        edges = x(np.arange(bins))
        wide = x(1) - x(0) - 1
        path = "".join(
            f"M{e:.1f} {floor:.1f}V{t:.1f}h{wide:.1f}V{floor:.1f}"
            for e, t in zip(edges, tops, strict=True)
        )
        level = floor - high / top
        marks += [
            element("path", d=path, class_=f"bar {color(i)}"),
            element("path", d=f"M{_X[0]} {level:.1f}H{_X[1]}", class_="expected"),
            text(LEFT - 6, floor - high / 2 + 4, str(chains[i]), text_anchor="end"),
        ]
    marks.append(text(4, TOP - 7, "chain", class_="label"))
    marks.append(element("path", d=f"M{_X[0]} {_Y[0]}H{_X[1]}"))
    middle, below = (_X[0] + _X[1]) / 2, _Y[0] + 15
    marks.append(text(_X[0], below, "lowest"))
    marks.append(text(_X[1], below, "highest", text_anchor="end"))
    marks.append(
        text(middle, below + 14, "rank among all draws", class_="label", text_anchor="middle")
    )
    return chart(f"Rank histograms of {count(len(shares), 'chain')}", marks)


def marginal(draws: np.ndarray, chains: Sequence[int] | np.ndarray, *, log: bool = False) -> Markup:
    """Draw the distribution of each chain: smoothed, or as spikes where values are counts."""
    shown = draws[chains]
    finite = shown[np.isfinite(shown)]
    whole = finite.size and np.array_equal(finite, np.round(finite)) and np.ptp(finite) <= 60
    window = finite if whole or not finite.size else _window(finite)
    x = Axis.over(window, *_X, log=log)
    curves = [_spikes(v) if whole else _smooth(v, x) for v in shown]
    # A chain that stands still is a spike, which must not flatten the curves of the others.
    tops = np.array([float(ys.max()) for _, ys in curves if ys.size and ys.max() > 0])
    highest = min(float(tops.max()), 4 * float(np.median(tops))) if tops.size else 1.0
    y = Axis(0, 1.05 * highest, *_Y)
    marks = [x_axis(x, _Y[0], "value")]
    for i, (xs, ys) in enumerate(curves):
        nudge = 2.0 * (i - (len(curves) - 1) / 2) if whole else 0.0  # spikes side by side
        if whole:
            xs, ys = np.repeat(xs, 3), np.stack([0 * ys, ys, ys * np.nan], axis=1).ravel()
        marks.append(
            line(
                x(xs) + nudge,
                np.maximum(y(ys), TOP - 6),
                class_=f"{'spike' if whole else 'curve'} {color(i)}",
            )
        )
    return chart(f"Distribution of each of {count(len(shown), 'chain')}", marks)


def _window(values: np.ndarray) -> np.ndarray:
    """Return the range worth drawing: heavy tails would leave a spike in an empty picture."""
    low, high = np.quantile(values, [0.005, 0.995])
    room = 0.1 * (high - low)
    return np.clip(np.array([low - room, high + room]), values.min(), values.max())


def _spikes(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    at, often = np.unique(values[np.isfinite(values)], return_counts=True)
    return at, often / max(1, values.size)


def _smooth(values: np.ndarray, axis: Axis) -> tuple[np.ndarray, np.ndarray]:
    """Return a smoothed histogram over the pixels of an axis (a Gaussian, Silverman's width)."""
    pixels = axis(values[np.isfinite(values)])
    edges = np.linspace(axis.start, axis.end, _MARGINAL_BINS + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    back = _values_at(middles, axis)
    if not pixels.size:
        return back, np.zeros_like(middles)
    often = np.histogram(np.clip(pixels, axis.start, axis.end), edges)[0] / pixels.size
    # Clipped values belong to the tails outside the picture, not to its first and last bin.
    often[0] -= np.mean(pixels < axis.start)
    often[-1] -= np.mean(pixels > axis.end)
    inner = np.clip(pixels, axis.start, axis.end)
    spread = min(float(inner.std()), float(np.subtract(*np.quantile(inner, [0.75, 0.25]))) / 1.34)
    width = max(0.9 * (spread or float(inner.std())) * pixels.size**-0.2, edges[1] - edges[0])
    weights = np.exp(-0.5 * ((middles[:, None] - middles) / width) ** 2)
    weights /= weights.sum(axis=0, keepdims=True)  # each bin's mass stays inside the picture
    return back, weights @ often


def _values_at(pixels: np.ndarray, axis: Axis) -> np.ndarray:
    part = (pixels - axis.start) / (axis.end - axis.start)
    if axis.log:
        return np.exp(np.log(axis.low) + part * (np.log(axis.high) - np.log(axis.low)))
    return axis.low + part * (axis.high - axis.low)


def growth(at: np.ndarray, bulk: np.ndarray, tail: np.ndarray, goal: float) -> Markup:
    """Draw how the effective sample sizes grew with the draws; a straight rise is healthy."""
    x = Axis(0, float(at[-1]), *_X)
    both = np.concatenate([bulk, tail])
    finite = both[np.isfinite(both)]
    y = Axis(0, 1.08 * max(goal, float(finite.max()) if finite.size else 0.0), *_Y)
    marks = [y_axis(y, *_X, "effective draws"), x_axis(x, _Y[0], "draws per chain")]
    marks.append(element("path", d=f"M{_X[0]} {y(goal):.1f}H{_X[1]}", class_="goal"))
    marks.append(line(x(at), y(bulk), class_="curve bulk"))
    marks.append(line(x(at), y(tail), class_="curve tail"))
    if not finite.size:
        marks.append(text(150, 90, "undefined", text_anchor="middle", class_="problem"))
    return chart("Growth of the effective sample size with the draws", marks)
