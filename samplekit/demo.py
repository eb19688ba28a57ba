# SPDX-License-Identifier: Apache-2.0
"""The tour behind `samplekit demo`: four targets, one table, figures and stored runs."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array

import samplekit as sk
from samplekit.core.errors import StoreError
from samplekit.sampling.convergence import summarize

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.table import Table

# Okabe and Ito 2008: told apart with any color vision.
BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
SKY, PURPLE, INK, PALE = "#56B4E9", "#CC79A7", "#333333", "#B8BEC4"
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

# Written first: it says that the folder is ours, and which of its entries.
MARKER = "samplekit-demo.json"

SCHOOLS = ["Choate", "Deerfield", "Andover", "Exeter"]
SCHOOLS += ["Hotchkiss", "Lawrenceville", "St. Paul's", "Mt. Hermon"]
EFFECT = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
ERROR = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


@dataclasses.dataclass(frozen=True)
class Part:
    """One row of the table: a target, a kernel, and how much of it."""

    name: str
    title: str
    target: Any
    kernel: Any
    draws: int

    @property
    def store(self) -> str:
        """The name of the stored run."""
        return f"{self.name}.zarr"


def two_modes(x: Array) -> Array:
    """Return log of 3 exp(−(x+2)²/2) + exp(−(x−4)²/8), not normalized."""
    left, right = jnp.log(3.0) - (x[0] + 2) ** 2 / 2, -((x[0] - 4) ** 2) / 8
    return jnp.logaddexp(left, right)


class NetworkEnergy(eqx.Module):
    """A small neural network as an energy; the quadratic keeps it normalizable."""

    net: eqx.nn.MLP

    def __init__(self, seed: int = 5) -> None:
        self.net = eqx.nn.MLP(2, "scalar", 32, 2, jnp.sin, key=jax.random.key(seed))

    def __call__(self, x: Array) -> Array:
        """Return the energy at x."""
        return 7.0 * self.net(2.5 * x) + (x**2).sum() / 6


def eight_schools(error: np.ndarray, effect: np.ndarray | None = None) -> None:
    """Model coaching effects in eight schools (Rubin 1981), non-centered."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", len(error)):
        standard = numpyro.sample("theta_standard", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * standard)
        numpyro.sample("effect", dist.Normal(theta, error), obs=effect)


def parts(*, quick: bool) -> list[Part]:
    """Return what the demo samples."""
    few = 50 if quick else 1
    banana = sk.targets.banana()
    schools = sk.from_numpyro(eight_schools, ERROR, effect=EFFECT)
    schools = schools.labeled(coords={"school": SCHOOLS})
    walk, mala, nuts = sk.RandomWalk(), sk.MALA(), sk.NUTS(target_accept=0.95)
    return [
        Part("two-modes", "two modes", sk.from_log_density(two_modes, 1), walk, 100_000 // few),
        Part("banana-mala", "banana", banana, mala, 50_000 // few),
        Part("banana-nuts", "banana", banana, nuts, 5000 // few),
        Part("network", "neural network", sk.from_energy(NetworkEnergy(), 2), nuts, 5000 // few),
        Part("eight-schools", "eight schools", schools, nuts, 5000 // few),
    ]


def run_demo(folder: Path, *, quick: bool = False, seed: int = 0) -> bool:
    """Sample everything, print the table; return whether nothing was interrupted."""
    from matplotlib import rc_context
    from rich.console import Console

    console = Console(highlight=False)
    todo = parts(quick=quick)
    figures = {
        "two-modes.png": (draw_two_modes, ["two-modes"]),
        "banana.png": (draw_banana, ["banana-mala", "banana-nuts"]),
        "network.png": (draw_network, ["network"]),
        "eight-schools.png": (draw_schools, ["eight-schools"]),
    }
    claim_folder(folder, stores=[p.store for p in todo], figures=[*figures])
    table, runs, finished = new_table(console), {}, True
    for number, part in enumerate(todo, 1):
        kernel = type(part.kernel).__name__
        console.print(f"[bold]{number}/{len(todo)}[/] {part.title} by {kernel}")
        how = {"draws": part.draws, "warmup": 1000, "seed": seed, "store": folder / part.store}
        try:
            run = sk.sample(part.target, part.kernel, **how)
        except KeyboardInterrupt:  # while compiling: there is no run yet
            if not runs:
                raise
            finished = False
            break
        runs[part.name] = run
        table.add_row(*row(part, run))
        finished = not run.sampler.attrs["interrupted"]
        if not finished:
            break
    console.print(table)
    # An interrupted demo draws what it has.
    ready = {name for name, run in runs.items() if run.posterior.sizes["draw"] > 1}
    written = [file for file, (_, needs) in figures.items() if ready.issuperset(needs)]
    with rc_context(STYLE):
        for file in written:
            draw, needs = figures[file]
            draw(*(runs[name] for name in needs)).savefig(folder / file)
    say_where(console, folder, written, [f"{name}.zarr" for name in runs])
    if not finished:
        console.print("Interrupted: a stored run goes on with sk.resume.")
    return finished


# The folder ---------------------------------------------------------------------------------


def claim_folder(folder: Path, *, stores: Sequence[str], figures: Sequence[str]) -> None:
    """Make the folder ready; remove what an earlier demo wrote there, and nothing else."""
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{str(folder)!r} is a file. Choose another folder with --output.")
    present = [name for name in (*stores, *figures) if _there(folder / name)]
    marker = folder / MARKER
    try:
        ours = set(json.loads(marker.read_text(encoding="utf-8"))["wrote"])
    except FileNotFoundError:
        ours = set()
    except (ValueError, LookupError, TypeError) as error:
        raise StoreError(
            f"{str(marker)!r} is not the list that samplekit demo writes. Choose another folder "
            "with --output."
        ) from error
    foreign = [n for n in present if n not in ours or not _looks_ours(folder / n)]
    if foreign:
        raise StoreError(
            f"{str(folder)!r} holds {', '.join(foreign)}, not written by an earlier demo. Choose "
            "another folder with --output, or move them away."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        marker.write_text(json.dumps({"wrote": [*stores, *figures]}) + "\n", encoding="utf-8")
    except OSError as error:
        why = error.strerror or error
        raise StoreError(
            f"cannot write into {str(folder)!r}: {why}. Choose another folder with --output."
        ) from error
    for name in present:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _looks_ours(path: Path) -> bool:
    """Tell a figure or a stored run of samplekit from something else of that name."""
    if path.is_symlink():
        return False
    if not path.is_dir():
        return path.suffix == ".png"
    try:
        root = json.loads((path / "zarr.json").read_text(encoding="utf-8"))
        return root["attributes"]["inference_library"] == "samplekit"
    except (OSError, ValueError, LookupError, TypeError):
        return not any(path.iterdir())


def say_where(
    console: "Console", folder: Path, figures: Sequence[str], stores: Sequence[str]
) -> None:
    """Say what was written, and how to open it."""
    console.print(f"Written to [bold]{folder}[/]:", soft_wrap=True)
    console.print(f"  figures  {', '.join(figures) or 'none'}", soft_wrap=True)
    console.print(f"  runs     {', '.join(stores)}", soft_wrap=True)
    last = folder / stores[-1]
    console.print(
        f'Open one:  python -c "import arviz; print(arviz.from_zarr({str(last)!r}))"',
        soft_wrap=True,
        markup=False,
    )


# The table ----------------------------------------------------------------------------------


def new_table(console: "Console") -> "Table":
    """Return the empty summary table."""
    from rich import box
    from rich.table import Table

    ascii_only = not console.encoding.startswith("utf")
    table = Table(
        title="samplekit demo",
        caption="Draws of 4 chains; worst R-hat and ESS of all scalars. Compile: little when\n"
        "cached by an earlier run. Sample: warm-up and draws.",
        box=box.ASCII2 if ascii_only else box.SIMPLE_HEAD,
        caption_justify="left",
        title_justify="left",
        title_style="bold",
        padding=(0, 1, 0, 0),
    )
    for name in ("target", "kernel"):
        table.add_column(name, no_wrap=True)
    for name in ("draws", "R-hat", "ESS\nbulk", "ESS\ntail", "compile\n(s)", "sample\n(s)"):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def row(part: Part, run: "xr.DataTree") -> list[str]:
    """Return one line of the table."""
    draws = {str(name): array.values for name, array in run.posterior.data_vars.items()}
    worst = summarize(draws)
    seconds = json.loads(run.sampler.attrs["seconds"])
    color = "green" if worst.rhat < 1.01 else "yellow" if worst.rhat < 1.05 else "red"
    sizes = run.posterior.sizes
    return [
        part.title,
        type(part.kernel).__name__,
        f"{sizes['chain'] * sizes['draw']:,}",
        f"[{color}]{worst.rhat:.3f}[/]",
        f"{worst.ess_bulk:,.0f}",
        f"{worst.ess_tail:,.0f}",
        f"{seconds.get('compiling', 0.0):.2f}",
        f"{seconds.get('warm-up', 0.0) + seconds.get('sampling', 0.0):.2f}",
    ]


# The figures --------------------------------------------------------------------------------


def canvas(columns: int = 1, **options: Any) -> "tuple[Figure, list[Axes]]":
    """Return a figure, made without touching pyplot's state, and its axes in a row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    size = options.pop("size", (4.2 * columns + 0.6, 3.8))
    figure = Figure(figsize=size, dpi=STYLE["figure.dpi"], layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, squeeze=False, **options)
    return figure, list(axes[0])


def contours(ax: "Axes", log_density: Callable[[Any], Any], box: Sequence[float]) -> None:
    """Shade a density on the plane; box is left, right, bottom, top."""
    x, y = np.linspace(box[0], box[1], 160), np.linspace(box[2], box[3], 160)
    grid = np.stack(np.meshgrid(x, y), axis=-1).astype(np.float32)
    value = np.asarray(jax.jit(jax.vmap(jax.vmap(log_density)))(jnp.asarray(grid)))
    density = np.exp(value - value.max())
    # Levels hold 20, 40, 60, 80 and 95 percent of the mass.
    ordered = np.sort(density.ravel())[::-1]
    share = np.cumsum(ordered) / ordered.sum()
    levels = sorted(ordered[np.searchsorted(share, [0.95, 0.8, 0.6, 0.4, 0.2])])
    ax.contourf(x, y, density, levels=[*levels, 1.01], cmap="Blues", alpha=0.75)
    ax.contour(x, y, density, levels=levels, colors=BLUE, linewidths=0.6)
    ax.set(xlim=box[:2], ylim=box[2:])


def scatter(ax: "Axes", draws: np.ndarray, count: int = 1500) -> None:
    """Show some draws of all chains."""
    flat = draws.reshape(-1, draws.shape[-1])
    flat = flat[:: max(1, len(flat) // count)]
    ax.plot(flat[:, 0], flat[:, 1], ".", ms=2.2, color=VERMILION, alpha=0.55, mew=0)


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
