"""The demo's figures."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import samplekit as sk
from samplekit.demo.targets import EFFECT, ERROR, SCHOOLS, NetworkEnergy
from samplekit.diagnostics.plot_style import (
    BLUE,
    INK,
    PALE,
    SKY,
    VERMILION,
    Picture,
    scatter,
    shade,
)
from samplekit.sampling.convergence import summarize

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def canvas(columns: int = 1, **options: Any) -> "tuple[Figure, list[Axes]]":
    """Return a figure, made without touching pyplot's state, and its axes in a row."""
    figure = Picture(options.pop("size", (4.2 * columns + 0.6, 3.8)))
    axes = figure.subplots(1, columns, squeeze=False, **options)
    return figure, list(axes[0])


def contours(ax: "Axes", log_density: Callable[[Any], Any], box: Sequence[float]) -> None:
    """Shade a density on the plane; box is left, right, bottom, top."""
    x, y = np.linspace(box[0], box[1], 160), np.linspace(box[2], box[3], 160)
    grid = np.stack(np.meshgrid(x, y), axis=-1).astype(np.float32)
    value = np.asarray(jax.jit(jax.vmap(jax.vmap(log_density)))(jnp.asarray(grid)))
    density = np.exp(value - value.max())
    shade(ax, x, y, density)
    ax.set(xlim=box[:2], ylim=box[2:])


def draw_two_modes(run: "xr.DataTree") -> "Figure":
    """Draw the histogram against the exact density, and the path of a chain."""
    draws = run.posterior["x"].values[..., 0]
    figure, (left, right) = canvas(2, size=(9.6, 3.6), width_ratios=[3, 2])
    x = np.linspace(-7, 12, 500)
    exact = (3 * np.exp(-((x + 2) ** 2) / 2) + np.exp(-((x - 4) ** 2) / 8)) / (
        5 * np.sqrt(2 * np.pi)
    )
    bins, label = list(np.linspace(-7, 12, 96)), f"{draws.size:,} draws"
    left.hist(draws.ravel(), bins=bins, density=True, color=SKY, label=label)
    left.plot(x, exact, color=INK, lw=1.6, label="exact density")
    left.set(title="Two modes by random-walk Metropolis", xlabel="x", ylabel="density")
    left.set(xlim=(-7, 12))
    left.legend()
    steps = min(500, draws.shape[1])
    right.plot(np.arange(steps), draws[0, :steps], lw=0.7, color=BLUE)
    right.set(title=f"Chain 0, first {steps} draws", xlabel="draw", ylabel="x")
    return figure


def draw_banana(mala: "xr.DataTree", nuts: "xr.DataTree") -> "Figure":
    """Draw both kernels on the banana."""
    target = sk.targets.banana()
    figure, axes = canvas(2, sharey=True)
    for ax, name, run in zip(axes, ("MALA", "NUTS"), (mala, nuts), strict=True):
        contours(ax, target.log_density, (-7, 7, -5, 15))
        scatter(ax, run.posterior["x"].values)
        ess = summarize({"x": run.posterior["x"].values}).ess_bulk
        count = run.posterior["x"].values[..., 0].size
        ax.set(xlabel="x[0]", title=f"Banana by {name}: ESS {ess:,.0f} of {count:,}")
    axes[0].set_ylabel("x[1]")
    return figure


def draw_network(run: "xr.DataTree") -> "Figure":
    """Draw the network's density and the draws on it."""
    figure, (left, right) = canvas(2, size=(8.4, 4.2), sharey=True, sharex=True)
    energy, box = NetworkEnergy(), (-5.0, 6.0, -5.5, 5.5)
    for ax in (left, right):
        contours(ax, lambda x: -energy(x), box)
        ax.set(xlabel="x[0]", aspect="equal")
    scatter(right, run.posterior["x"].values)
    left.set(title="exp(-energy) of a small network", ylabel="x[1]")
    right.set(title="Draws by NUTS")
    return figure


def draw_schools(run: "xr.DataTree") -> "Figure":
    """Draw the effects with 50 and 90 percent intervals beside what was observed."""
    figure, (ax,) = canvas(size=(7.6, 4.4))
    theta = run.posterior["theta"].values.reshape(-1, len(SCHOOLS))
    low, quarter, middle, three, high = np.quantile(theta, [0.05, 0.25, 0.5, 0.75, 0.95], axis=0)
    place = np.arange(len(SCHOOLS))[::-1]
    ax.errorbar(
        EFFECT,
        place + 0.17,
        xerr=1.645 * ERROR,
        fmt="o",
        color=PALE,
        ms=4,
        lw=1.2,
        label="observed, 90 %",
    )
    ax.hlines(place - 0.13, low, high, color=BLUE, lw=1.4)
    ax.hlines(place - 0.13, quarter, three, color=BLUE, lw=4.5)
    ax.plot(
        middle,
        place - 0.13,
        "o",
        color="white",
        mec=BLUE,
        ms=5.5,
        mew=1.5,
        label="posterior, 50 % and 90 %",
    )
    mu = float(run.posterior["mu"].mean())
    ax.axvline(mu, color=VERMILION, lw=1, ls="--", label=f"mean of all schools, {mu:.1f}")
    ax.set_yticks(place, SCHOOLS)
    ax.set(title="Eight schools by NUTS", xlabel="effect of coaching (points)")
    ax.tick_params(axis="y", length=0)
    figure.legend(loc="outside lower center", ncols=3)
    return figure
