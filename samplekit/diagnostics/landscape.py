# SPDX-License-Identifier: Apache-2.0
"""A target in one or two dimensions, tabulated: where it lives, its density and its score.

The grid is even in unconstrained values, so the mass of a cell is proportional to the density there
and no inverse of the map to constrained values is needed: simplices and ordered vectors are no
special cases, their grid is bent.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from samplekit.core.errors import TargetError
from samplekit.core.protocols import DensityTarget
from samplekit.diagnostics.chart import Chart, Values, chart_of, draws_of, is_plain, with_axes
from samplekit.targets.mixtures import Exact

# Points of a grid, by dimension: one compiled program looks far, zooms in and draws.
_POINTS = {1: 4001, 2: 161}
# Points of them, in one dimension, that follow each tail beyond the view.
_TAIL = 500
# The search looks at cubes of these half widths, unconstrained, until one holds the mass.
_CUBES = (32.0, 256.0, 2048.0, 16384.0)
# A view holds this part of the mass, with a margin of this part of its width on each side.
_HELD, _MARGIN = 0.98, 0.12
# The grid of a constrained target holds more: what lies at the edge of the support, and belongs to
# the view, is far away in unconstrained values.
_HELD_BENT = 0.998
# For draws that went astray the view grows by at most this many widths on each side.
_ASTRAY = 1.5
# Bounds may lie on the edge of the support, which is infinitely far away: by this part inside.
_INSIDE = 1e-4


@dataclasses.dataclass(frozen=True)
class Landscape:
    """A target on a grid.

    Attributes
    ----------
    labels
        The scalars that are the axes.
    view
        Constrained (low, high) of every axis, as a picture should show it.
    values
        Constrained values of the grid points, (*grid, axis).
    density
        Density of the constrained values; None for a score in two dimensions. It integrates to
        one, in one dimension with the tails beyond the grid, in two over the grid.
    mass
        Share of every cell of the grid in the mass; None as `density`.
    score
        Gradient of the log density with respect to the constrained values, (*grid, axis); None
        where the density has none.
    draws
        Finite draws of the run, (draw, axis); None without a run.
    nonfinite
        How many draws were not finite.
    """

    labels: tuple[str, ...]
    view: np.ndarray
    values: np.ndarray
    density: np.ndarray | None
    mass: np.ndarray | None
    score: np.ndarray | None
    draws: np.ndarray | None = None
    nonfinite: int = 0


def survey(
    target: Any,
    variables: Mapping[str, np.ndarray] | None = None,
    bounds: np.ndarray | None = None,
) -> Landscape:
    """Tabulate a target of one or two dimensions where it has its mass, or within bounds.

    Parameters
    ----------
    target
        The target.
    variables
        Draws of a run by variable, (chain, draw, *event); the view holds most of them as well.
    bounds
        Constrained (low, high) of every axis.
    """
    chart = chart_of(with_axes(target, variables, bounds))
    draws = None if variables is None else draws_of(chart, variables)
    land = _table(chart, _box(chart, draws, bounds))
    shown, nonfinite = None, 0
    view = _widened(land.view) if land.density is not None else land.view
    if draws is not None:
        finite = np.isfinite(draws).all(axis=1)
        shown, nonfinite = draws[finite][:, list(chart.axes)], int((~finite).sum())
        view = _stretched(view, _widened(_quantiles(shown))) if len(shown) else view
    # What was not tabulated would look empty.
    reach = _extent(land.values)
    view = np.stack([np.fmax(view[:, 0], reach[:, 0]), np.fmin(view[:, 1], reach[:, 1])], axis=1)
    view = view if bounds is None else bounds
    return dataclasses.replace(land, view=view, draws=shown, nonfinite=nonfinite)


# The grid ---------------------------------------------------------------------------------------


def _grid(box: np.ndarray) -> np.ndarray:
    """Return the points of an even grid, (*grid, axis)."""
    sides = [np.linspace(low, high, _POINTS[len(box)]) for low, high in box]
    return np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1)


def _log_density(found: Values, points: np.ndarray) -> np.ndarray:
    """Return log p_U on a grid, integrating the score where nothing else is known.

    The integral goes along the first axis through the middle, then along the second.
    """
    if not np.isnan(found.log_density).all():
        log_density = found.log_density
    elif points.shape[-1] == 1:
        log_density = _integral(found.free_score[:, 0], points[:, 0])
    else:
        middle = len(points) // 2
        along = _integral(found.free_score[:, middle, 0], points[:, middle, 0])
        across = [
            _integral(s, p) for s, p in zip(found.free_score[..., 1], points[..., 1], strict=True)
        ]
        log_density = along[:, None] + np.array(across)
    return np.where(np.isfinite(log_density), log_density, -np.inf)


def _integral(slope: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Integrate from the middle outward; beyond a value that is not finite all is NaN."""
    middle = len(x) // 2
    parts = (slope[1:] + slope[:-1]) / 2 * np.diff(x)
    right, left = np.cumsum(parts[middle:]), -np.cumsum(parts[:middle][::-1])[::-1]
    return np.concatenate([left, 0 * slope[middle : middle + 1], right])


# Where the mass is ------------------------------------------------------------------------------


def _box(chart: Chart, draws: np.ndarray | None, bounds: np.ndarray | None) -> np.ndarray:
    """Return the unconstrained box (axis, low and high) to draw."""
    if bounds is not None and len(chart.labels) == chart.dim:
        return _box_within(chart, bounds)
    run = None if draws is None else _box_of(chart, draws)
    try:
        home = _home(chart)
    except TargetError:
        if run is None:
            raise
        return _widened(run)
    return home if run is None else _stretched(home, _widened(run))


def _stretched(home: np.ndarray, run: np.ndarray) -> np.ndarray:
    """Return the box of both, but not much more than the first for the sake of the second."""
    width = np.ptp(home, axis=1)
    low = np.maximum(run[:, 0], home[:, 0] - _ASTRAY * width)
    high = np.minimum(run[:, 1], home[:, 1] + _ASTRAY * width)
    return np.stack([np.minimum(home[:, 0], low), np.maximum(home[:, 1], high)], axis=1)


def _home(chart: Chart) -> np.ndarray:
    """Return the box that holds most of the mass: from exact draws, or by looking around."""
    if isinstance(chart.target, Exact):
        exact = np.asarray(chart.target.draw(jax.random.key(0), 4000), float)
        return _widened(_quantiles(exact))
    for half in _CUBES:
        box = np.array([[-half, half]] * chart.dim)
        mass = _mass(chart, box)
        edge = len(mass) // 10
        if mass[(slice(edge, -edge),) * chart.dim].sum() > 1 - 1e-3:
            break
    else:  # no end in sight, as of a score that was learned from data: look at where chains start
        return np.array([[-4.0, 4.0]] * chart.dim)
    held = box
    for _ in range(8):
        held = _held(mass, box, _HELD if is_plain(chart.target) else _HELD_BENT)
        if (np.ptp(held, axis=1) > 0.4 * np.ptp(box, axis=1)).all():
            break
        box = held
        mass = _mass(chart, box)
    return _widened(held)


def _mass(chart: Chart, box: np.ndarray) -> np.ndarray:
    """Return the share of every cell of an even grid."""
    points = _grid(box)
    log_density = _log_density(chart.evaluate(points), points)
    top = log_density.max()
    if not np.isfinite(top):
        raise TargetError(
            f"The target is nowhere finite between {box[0, 0]:g} and {box[0, 1]:g} "
            "(unconstrained), so there is nothing to draw. Pass bounds= or a run, or look at what "
            "its function returns."
        )
    mass = np.exp(log_density - top)
    return mass / mass.sum()


def _held(mass: np.ndarray, box: np.ndarray, part: float) -> np.ndarray:
    """Return the box of the region of highest density that holds a part, a cell more around."""
    inside = _most(mass, mass, part)
    held = []
    for axis, (low, high) in enumerate(box):
        there = np.flatnonzero(inside.any(axis=tuple(a for a in range(mass.ndim) if a != axis)))
        cell = (high - low) / (mass.shape[axis] - 1)
        held.append([low + (there[0] - 1) * cell, low + (there[-1] + 1) * cell])
    return np.array(held)


def _most(mass: np.ndarray, density: np.ndarray, part: float = _HELD) -> np.ndarray:
    """Mark the region of highest density that holds a part of the mass."""
    order = np.argsort(density, axis=None)[::-1]
    share = np.cumsum(mass.ravel()[order])
    least = np.searchsorted(share, part * share[-1]).clip(max=share.size - 1)
    return density >= density.ravel()[order[least]]


def _box_of(chart: Chart, draws: np.ndarray) -> np.ndarray | None:
    """Return the box of most draws (draw, scalar); None if none of them is finite."""
    free = chart.unconstrained(draws[:: max(1, len(draws) // 4000)])
    free = free[np.isfinite(free).all(axis=1)]
    return _quantiles(free) if len(free) else None


def _box_within(chart: Chart, bounds: np.ndarray) -> np.ndarray:
    """Return the box of constrained bounds."""
    inside = bounds + _INSIDE * np.ptp(bounds, axis=1)[:, None] * np.array([1, -1])
    corners = chart.unconstrained(np.array(list(itertools.product(*inside))))
    corners = corners[np.isfinite(corners).all(axis=1)]
    if len(corners) < 2:
        raise TargetError(
            f"bounds={bounds.tolist()} reach beyond the support of the target. Give bounds within "
            f"it for {', '.join(chart.labels)}, in constrained values."
        )
    return np.stack([corners.min(axis=0), corners.max(axis=0)], axis=1)


def _quantiles(points: np.ndarray) -> np.ndarray:
    """Return the box that leaves out as much at each end as a view may."""
    tail = (1 - _HELD) / 2
    return np.quantile(points, [tail, 1 - tail], axis=0).T.astype(float)


def _widened(box: np.ndarray) -> np.ndarray:
    # Draws that are all equal have a box without width.
    width = np.maximum(np.ptp(box, axis=1), 1e-3 * np.maximum(1, np.abs(box).max(axis=1)))
    return box + _MARGIN * width[:, None] * np.array([-1, 1])


# The table --------------------------------------------------------------------------------------


def _table(chart: Chart, box: np.ndarray) -> Landscape:
    """Tabulate density and score within a box."""
    points = _grid(box) if chart.dim == 2 else _with_tails(box[0])[:, None]
    found = chart.evaluate(points)
    labels = tuple(chart.labels[i] for i in chart.axes)
    score = found.score if chart.smooth else None
    if chart.dim == 2 and not isinstance(chart.target, DensityTarget):
        view = _extent(found.value)
        return Landscape(labels, view, found.value, None, None, score)
    log_density, cells = _log_density(found, points), _cells(points)
    mass = np.exp(log_density - log_density.max()) * cells
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        density = np.exp(log_density - log_density.max() - found.log_slope) / mass.sum()
    mass, density = mass / mass.sum(), np.nan_to_num(density, posinf=0.0)
    if chart.dim == 1:  # the tails have told their mass
        inner = slice(_TAIL, -_TAIL)
        found = Values(*(a[inner] for a in found))
        mass, density, score = mass[inner], density[inner], None if score is None else score[inner]
    view = _extent(found.value[_most(mass, density)])
    return Landscape(labels, view, found.value, density, mass, score)


def _with_tails(side: np.ndarray) -> np.ndarray:
    """Return points even within a side and ever wider apart beyond."""
    low, high = side
    inner = np.linspace(low, high, _POINTS[1] - 2 * _TAIL)
    step = inner[1] - inner[0]
    beyond = np.geomspace(step, max(1e3 * (high - low), _CUBES[0]), _TAIL)
    return np.concatenate([low - beyond[::-1], inner, high + beyond])


def _cells(points: np.ndarray) -> np.ndarray:
    """Return the size of the cell around every point."""
    if points.ndim == 2:
        return np.gradient(points[:, 0])
    corner = points[1, 1] - points[0, 0]
    return np.full(points.shape[:-1], corner.prod())


def _extent(values: np.ndarray) -> np.ndarray:
    """Return the (low, high) of every axis (the last)."""
    flat = values.reshape(-1, values.shape[-1])
    flat = flat[np.isfinite(flat).all(axis=1)]
    return np.stack([flat.min(axis=0), flat.max(axis=0)], axis=1)
