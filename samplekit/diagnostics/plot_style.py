# SPDX-License-Identifier: Apache-2.0
"""The look of every picture: colors, settings, and a figure that owes nothing to pyplot."""

import io
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito 2008: told apart with any color vision.
BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
SKY, PURPLE, INK, PALE = "#56B4E9", "#CC79A7", "#333333", "#B8BEC4"
COLORS = (BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE, INK, PALE)
STYLE: Any = {
    "figure.dpi": 130,
    "savefig.dpi": 130,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "image.cmap": "Blues",
}

# Contours hold these parts of the mass.
SHARES = (0.95, 0.8, 0.6, 0.4, 0.2)


class Picture(Figure):
    """A figure that notebooks show although pyplot does not know it."""

    def __init__(self, size: tuple[float, float]) -> None:
        super().__init__(figsize=size, dpi=STYLE["figure.dpi"], layout="constrained")
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def styled() -> Any:
    """Return a context that draws in the house style, whatever the user's settings are."""
    return style.context(["default", STYLE])


def mass_levels(density: np.ndarray, mass: np.ndarray | None = None) -> np.ndarray:
    """Return the densities whose contours hold the `SHARES` of the mass, in rising order.

    Parameters
    ----------
    density
        The density on a grid.
    mass
        The mass of every cell, where the cells differ in size; else the density tells it.

    Examples
    --------
    >>> x = np.linspace(-8, 8, 4001)
    >>> levels = mass_levels(np.exp(-(x**2) / 2))
    >>> np.sqrt(-2 * np.log(levels[0])).round(2)  # 95 % of a Gaussian lie within 1.96
    np.float64(1.96)
    """
    weight = density if mass is None else mass
    order = np.argsort(density, axis=None)[::-1]
    share = np.cumsum(weight.ravel()[order])
    place = np.searchsorted(share, np.array(SHARES) * share[-1])
    # A flat density has one level for several shares.
    return np.unique(density.ravel()[order][np.minimum(place, share.size - 1)])


def shade(
    ax: Axes,
    x: np.ndarray,
    y: np.ndarray,
    density: np.ndarray,
    *,
    mass: np.ndarray | None = None,
    alpha: float = 0.75,
) -> None:
    """Shade a density on a grid, which may be bent; `mass` as in `mass_levels`."""
    levels = mass_levels(density, mass)
    top = 1.01 * density.max()
    ax.contourf(x, y, density, levels=[*levels, top], cmap="Blues", alpha=alpha)
    ax.contour(x, y, density, levels=levels, colors=BLUE, linewidths=0.6)


def scatter(ax: Axes, draws: np.ndarray, count: int = 1500) -> None:
    """Show some draws of all chains."""
    flat = draws.reshape(-1, draws.shape[-1])
    flat = flat[:: max(1, len(flat) // count)]
    ax.plot(flat[:, 0], flat[:, 1], ".", ms=2.2, color=VERMILION, alpha=0.55, mew=0)
