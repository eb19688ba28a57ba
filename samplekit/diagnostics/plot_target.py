# SPDX-License-Identifier: Apache-2.0
"""The picture of a target in one or two dimensions: density, score, draws."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from samplekit.core.errors import SettingsError
from samplekit.core.protocols import DensityTarget
from samplekit.diagnostics.evidence import gather
from samplekit.diagnostics.landscape import Landscape, survey
from samplekit.diagnostics.plot_style import (
    INK,
    PURPLE,
    SKY,
    Picture,
    scatter,
    shade,
    styled,
)

# Arrows along each axis; the bins of a histogram; the most draws shown as points.
_ARROWS, _BINS, _DOTS = 18, 80, 3000


def plot_target(target: Any, run: Any = None, *, bounds: ArrayLike | None = None) -> Figure:
    """Draw the density and the score of a target in one or two dimensions, and a run's draws.

    Parameters
    ----------
    target
        What has a log density, a score or both, with one or two scalars: a NumPyro model, too.
    run
        Its draws: a DataTree, or anything else that `diagnose` takes.
    bounds
        (low, high) for each axis, in constrained values. Left out, the picture holds 98 % of the
        mass and of the draws.

    Returns
    -------
    A figure that stands alone (`savefig` writes it, notebooks show it): pyplot is not involved.

    Notes
    -----
    All is shown over constrained values: with y = T(u), p_Y(y) = p_U(u) / |det T'(u)|, u being what
    kernels move. In one dimension the density is normalized, the tails beyond the picture included,
    so the histogram of draws should follow it; of a score alone the density is exp ∫ s. In two, the
    shades hold 20, 40, 60, 80 and 95 % of the mass in view (Hyndman 1996,
    doi:10.1080/00031305.1996.10474359), and arrows point where a Langevin step would drift, long
    ones shortened. A score alone has no density in two dimensions: it may not be a gradient.

    Examples
    --------
    >>> import samplekit as sk
    >>> from samplekit.diagnostics.plot_target import plot_target
    >>> figure = plot_target(sk.targets.banana())
    >>> [ax.get_xlabel() for ax in figure.axes]
    ['x[0]']
    """
    variables = None if run is None else gather(run).variables
    land = survey(target, variables, _pairs(bounds))
    with styled():
        if len(land.labels) == 2:
            return _plane(land)
        return _line(land, known=isinstance(target, DensityTarget))


def _pairs(bounds: ArrayLike | None) -> np.ndarray | None:
    """Return bounds as (axis, low and high)."""
    if bounds is None:
        return None
    try:
        pairs = np.atleast_2d(np.asarray(bounds, float))
    except (TypeError, ValueError):
        pairs = np.empty((1, 0))
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not (pairs[:, 0] < pairs[:, 1]).all():
        raise SettingsError(
            f"bounds={bounds!r} is not understood. Give (low, high) for each axis, low below high: "
            "(-3, 3) in one dimension, [(-3, 3), (0, 5)] in two."
        )
    if not np.isfinite(pairs).all():
        raise SettingsError(f"bounds={bounds!r} are not finite: a picture has edges.")
    return pairs


# One dimension ----------------------------------------------------------------------------------


def _line(land: Landscape, *, known: bool) -> Figure:
    """Draw density and histogram above, the score below."""
    rows = 1 if land.score is None else 2
    figure = Picture((7.2, 3.6 + 1.2 * (rows - 1)))
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False, height_ratios=[3, 1.2][:rows])[:, 0]
    top, x, (low, high) = axes[0], land.values[:, 0], land.view[0]
    seen = (low <= x) & (x <= high)
    density = np.zeros(1) if land.density is None else land.density
    peak = density[seen].max()
    if land.draws is not None:
        edges = np.linspace(low, high, _BINS + 1)
        counts, _ = np.histogram(land.draws[:, 0], edges)
        # Draws out of view count as well, or the histogram would stand above the density.
        height = counts / max(1, len(land.draws)) / np.diff(edges)
        top.stairs(height, edges, fill=True, color=SKY, alpha=0.6, label=_count(land))
        # A frozen chain must not press the density flat.
        peak = max(peak, min(height.max(), 3 * peak))
    label = "density" if known else "density, from the score"
    top.plot(x, density, color=INK, lw=1.6, label=label)
    top.set(ylabel="density", xlim=(low, high), ylim=(0, 1.06 * peak))
    top.set_title(label.capitalize() if land.draws is None else "Density and draws")
    if land.draws is not None:
        top.legend(loc="best")
    if land.score is not None:
        bottom, score = axes[1], land.score[:, 0]
        bottom.axhline(0, color=INK, lw=0.6)
        bottom.plot(x, score, color=PURPLE, lw=1.4)
        bottom.set(ylabel="score", ylim=_score_limits(score[seen], density[seen]))
    axes[-1].set_xlabel(land.labels[0], parse_math=False)
    return figure


def _score_limits(score: np.ndarray, density: np.ndarray) -> tuple[float, float]:
    """Leave out what the score does where next to nothing lives: it may go to infinity."""
    lively = score[np.isfinite(score) & (density > 0.02 * density.max())]
    if not lively.size or np.ptp(lively) == 0:
        return (-1.0, 1.0)
    low, high = min(lively.min(), 0), max(lively.max(), 0)
    return low - 0.15 * (high - low), high + 0.15 * (high - low)


# Two dimensions ---------------------------------------------------------------------------------


def _plane(land: Landscape) -> Figure:
    """Draw density and score on the left, density and draws on the right."""
    panels = 1 if land.draws is None else 2
    width, height = np.ptp(land.view, axis=1)
    alike = 1 / 1.7 < width / height < 1.7  # else equal units would leave a sliver
    figure = Picture((4.4 * panels + 0.5, 4.4 * (height / width if alike else 0.9) + 0.8))
    figure.set_layout_engine("compressed")  # takes equal units into account
    axes = list(figure.subplots(1, panels, sharex=True, sharey=True, squeeze=False)[0])
    for ax in axes:
        if land.density is not None:
            x, y = np.moveaxis(land.values, -1, 0)
            # Draws lie upon it, or arrows.
            shade(ax, x, y, land.density, mass=land.mass, alpha=0.75 if ax is axes[0] else 0.4)
        ax.set(xlim=land.view[0], ylim=land.view[1], aspect="equal" if alike else "auto")
        ax.set_xlabel(land.labels[0], parse_math=False)
    axes[0].set_ylabel(land.labels[1], parse_math=False)
    parts = {"density": land.density, "score": land.score}
    axes[0].set_title(" and ".join(n for n, a in parts.items() if a is not None).capitalize())
    if land.score is not None:
        _arrows(axes[0], land, land.score)
    if land.draws is not None:
        scatter(axes[1], land.draws, _DOTS)
        axes[1].set_title(_count(land))
    if land.density is not None:
        figure.supxlabel("shades hold 20, 40, 60, 80 and 95 % of the mass", size=8.5, color=INK)
    return figure


def _arrows(ax: Axes, land: Landscape, score: np.ndarray) -> None:
    """Draw the score where it is; long arrows are shortened, short ones keep their proportion."""
    low, size = land.view[:, 0], np.ptp(land.view, axis=1)
    place = (land.values.reshape(-1, 2) - low) / size  # in parts of the picture
    arrow = score.reshape(-1, 2) / size
    pick = _evenly(place, np.isfinite(arrow).all(axis=1))
    place, arrow = place[pick], arrow[pick]
    length = np.linalg.norm(arrow, axis=1)
    usual = np.median(length) if length.any() else 1.0
    arrow = arrow / (length + usual)[:, None] / _ARROWS
    ax.quiver(
        *(low + place * size).T,
        *(arrow * size).T,
        angles="xy",
        scale_units="xy",
        scale=1,
        color=INK,
        alpha=0.75,
        width=0.0035,
        headwidth=4.5,
        pivot="middle",
    )


def _evenly(place: np.ndarray, fit: np.ndarray) -> np.ndarray:
    """Choose from points of the unit square, fit ones, the most central of every tile."""
    inside = np.flatnonzero(fit & ((place > 0) & (place < 1)).all(axis=1))
    tile = np.floor(place[inside] * _ARROWS)
    off = np.linalg.norm(place[inside] * _ARROWS - tile - 0.5, axis=1)
    order = np.lexsort([off, *tile.T])
    _, first = np.unique(tile[order], axis=0, return_index=True)
    return inside[order[first]]


def _count(land: Landscape) -> str:
    """Say how many draws there are, and how many are not to be seen."""
    if land.draws is None:
        return ""
    within = ((land.draws >= land.view[:, 0]) & (land.draws <= land.view[:, 1])).all(axis=1)
    away = len(land.draws) - int(within.sum())
    text = f"{len(land.draws):,} draws"
    text += f", {away:,} out of view" if away else ""
    return text + (f", {land.nonfinite:,} not finite" if land.nonfinite else "")
