"""Charts of the run as a whole: its energies, and where its trajectories diverged."""

import numpy as np

from samplekit.reporting.markup import Markup
from samplekit.reporting.numbers import count
from samplekit.reporting.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    area,
    chart,
    dots,
    line,
    shortened,
    x_axis,
    y_axis,
)

# Points of a cloud: more are slower to draw and no clearer.
MOST_POINTS = 1500
_ENERGY_BINS = 40
_PAIR_HEIGHT = 260
# A positive variable over more than this ratio is read on a logarithmic scale: the neck of a
# funnel lies there.
_LOG_RATIO = 20.0


def energies(energy: np.ndarray) -> Markup:
    """Draw the energies of the draws, and how far one step changes them.

    Parameters
    ----------
    energy
        Energies of shape (chain, draw).

    Notes
    -----
    A step draws a new momentum and with it a new energy. Where the change is much narrower than
    the energies themselves, the chain takes many steps from low energies to high ones; E-BFMI is
    the ratio of both variances (Betancourt 2017, arXiv:1701.02434).
    """
    energy = np.asarray(energy, np.float64)
    with np.errstate(invalid="ignore"):
        center = energy - energy.mean(axis=1, keepdims=True)
        change = np.diff(energy, axis=1)
    both = [values[np.isfinite(values)] for values in (center, change)]
    reach = max((float(np.quantile(np.abs(v), 0.998)) for v in both if v.size), default=1.0) or 1.0
    x = Axis(-reach, reach, LEFT - 28, WIDTH - RIGHT)
    edges = np.linspace(-reach, reach, _ENERGY_BINS + 1)
    shapes = [np.histogram(v, edges)[0] / max(1, v.size) for v in both]
    y = Axis(0, 1.05 * (max(float(s.max()) for s in shapes) or 1.0), HEIGHT - BOTTOM, TOP)
    marks = [x_axis(x, HEIGHT - BOTTOM, "energy, from its mean", most=6)]
    for shape, kind in zip(shapes, ("levels", "changes"), strict=True):
        xs, ys = x(np.repeat(edges, 2)[1:-1]), y(np.repeat(shape, 2))
        marks.append(area(xs, ys, HEIGHT - BOTTOM, class_=f"area {kind}"))
        marks.append(line(xs, ys, class_=f"curve {kind}"))
    return chart("Energies of the draws, and their change from draw to draw", marks)


def telling_pairs(
    scalars: np.ndarray, diverging: np.ndarray, most: int = 3
) -> list[tuple[int, int]]:
    """Return the pairs of scalars in which divergences stand apart most.

    Parameters
    ----------
    scalars
        Draws of shape (scalar, draw).
    diverging
        Which draws diverged.
    most
        How many pairs.

    Notes
    -----
    A scalar tells where its distribution function over the divergent draws is far from that over
    all draws (Kolmogorov's distance), which sees a shift as well as a narrow neck.
    """
    apart = np.array([_distance(row[diverging], row) for row in scalars])
    best = np.argsort(-apart, kind="stable")
    if best.size < 2:
        return []
    return [(int(best[0]), int(other)) for other in best[1 : most + 1]]


def _distance(some: np.ndarray, every: np.ndarray) -> float:
    some, every = np.sort(some[np.isfinite(some)]), np.sort(every[np.isfinite(every)])
    if not some.size or not every.size or every[0] == every[-1]:
        return 0.0
    below = np.searchsorted(some, every, side="right") / some.size
    return float(np.abs(below - np.arange(1, every.size + 1) / every.size).max())


def pair(
    across: np.ndarray, up: np.ndarray, diverging: np.ndarray, names: tuple[str, str]
) -> Markup:
    """Draw two scalars against each other, divergent draws on top.

    Parameters
    ----------
    across, up
        Draws of two scalars, flat.
    diverging
        Which draws diverged.
    names
        Their labels.
    """
    bottom = _PAIR_HEIGHT - BOTTOM
    logs = [_wide(v) for v in (across, up)]
    x = Axis.over(across, LEFT, WIDTH - RIGHT, log=logs[0])
    y = Axis.over(up, bottom, TOP, log=logs[1])
    calm = thinned(np.flatnonzero(~diverging), MOST_POINTS)
    wild = thinned(np.flatnonzero(diverging), MOST_POINTS)
    words = [
        shortened(n, 26) + (", log scale" if g else "") for n, g in zip(names, logs, strict=True)
    ]
    marks = [
        y_axis(y, LEFT, WIDTH - RIGHT, words[1]),
        x_axis(x, bottom, words[0]),
        dots(x(across[calm]), y(up[calm]), class_="cloud"),
        dots(x(across[wild]), y(up[wild]), class_="wild"),
    ]
    said = f"{names[1]} against {names[0]}; {count(int(diverging.sum()), 'divergent draw')} marked"
    return chart(said, marks, height=_PAIR_HEIGHT)


def _wide(values: np.ndarray) -> bool:
    finite = values[np.isfinite(values)]
    return bool(finite.size) and finite.min() > 0 and finite.max() / finite.min() > _LOG_RATIO


def thinned(places: np.ndarray, most: int) -> np.ndarray:
    """Return at most so many of these places, evenly spaced."""
    if places.size <= most:
        return places
    return places[np.linspace(0, places.size - 1, most).astype(int)]
