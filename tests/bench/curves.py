"""How time and memory grow with dimension, chains, draws and rows: a figure and exponents."""

import dataclasses
import math

import numpy as np

from tests.bench.harness import Contender, Outcome, measure_living
from tests.bench.report import Bar, Options, Section, number, with_range

NOTES = (
    "Each point is a process of its own, compiled before it is timed. The exponent is the slope of "
    "log seconds (log MiB above the start) over the last three sizes. Theory: a gradient of the "
    "Gaussian costs d and a draw d^(1/4) of them; of the regression n·d; chains, draws and rows "
    "cost alike, and draws that go to a store, as rows that come in chunks (of 100,000), take no "
    "memory that grows."
)


METRICS = {"time": "wall_s", "memory": "peak_mib"}
LEAST_MIB = 10.0  # less is the noise of an allocator


@dataclasses.dataclass(frozen=True)
class Curve:
    """Sizes, and the exponents of time and memory that theory gives."""

    title: str
    unit: str
    sizes: tuple[str, ...]
    time: float
    memory: float


# A factor √2 between sizes a hundred times apart is noise.
NOISE = 0.15
CURVES = {
    "gaussian": Curve("Gaussian, NUTS", "dimension", ("10", "1e2", "1e3", "1e4"), 1.25, 1.0),
    "logistic": Curve("regression, NUTS", "dimension", ("10", "1e2", "1e3", "1e4"), 1.25, 1.0),
    "chains": Curve("mixture, MALA", "chains", ("1", "10", "1e2", "1e3", "1e4", "1e5"), 1.0, 1.0),
    "draws": Curve("banana into a store", "draws", ("1e4", "1e5", "1e6", "1e7"), 1.0, 0.0),
    "rows": Curve("gamma, closed form", "rows", ("1e6", "1e7", "1e8"), 1.0, 0.0),
}


def measure(options: Options) -> Section:
    """Measure all curves, draw them, and compare their exponents with theory."""
    section = Section("Cost curves", NOTES)
    for name, curve in CURVES.items():
        print(f"curves, {name}", flush=True)
        sizes = curve.sizes[:2] if options.quick else curve.sizes
        found = [Contender.worker(size, "curves", name, size) for size in sizes]
        outcomes = measure_living(found, min(options.rounds, 3), options.log)
        section.outcomes[name] = outcomes
        for what, metric in METRICS.items():
            slope, limit = exponent(outcomes, metric), getattr(curve, what) + NOISE
            section.bars.append(Bar(f"{name}: exponent of {what}", slope, limit, noise=0.2))
        rows = [
            (o.name, with_range(o, "wall_s"), number(level(o, "peak_mib")))
            for o in outcomes.values()
        ]
        section.table(f"{curve.title}", (curve.unit, "seconds", "MiB over the start"), rows)
    draw(section, options)
    return section


def level(outcome: Outcome, metric: str) -> float:
    """Return the median time, but the most memory: later rounds find the first one's free."""
    if metric == "peak_mib":
        return max(outcome.values(metric), default=math.nan)
    return outcome.median(metric)


def exponent(outcomes: dict[str, Outcome], metric: str) -> float:
    """Return the slope over the last three sizes; memory below 10 MiB counts as 10."""
    return fitted(outcomes, metric)[0]


def fitted(outcomes: dict[str, Outcome], metric: str) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the slope over the last three sizes, these, and the line there."""
    last = list(outcomes.values())[-3:]
    sizes = np.asarray([float(o.name) for o in last])
    values = np.asarray([level(o, metric) for o in last])
    if np.isnan(values).any():
        return math.nan, sizes, values
    values = np.maximum(values, LEAST_MIB if metric == "peak_mib" else 0.0)
    slope, height = np.polyfit(np.log(sizes), np.log(values), 1)
    return float(slope), sizes, np.exp(height) * sizes**slope


def draw(section: Section, options: Options) -> None:
    """Write the figure: time above, memory below, one column a curve."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    from samplekit.diagnostics.plot_style import BLUE, INK, ORANGE, STYLE

    units = {"time": "seconds", "memory": "MiB above the start"}
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(2, len(CURVES), figsize=(13, 5.4), layout="constrained")
        for column, (name, curve) in zip(axes.T, CURVES.items(), strict=True):
            outcomes = section.outcomes[name]
            sizes = np.asarray([float(size) for size in outcomes])
            for axis, (what, metric) in zip(column, METRICS.items(), strict=True):
                values = np.asarray([level(o, metric) for o in outcomes.values()])
                slope, last, line = fitted(outcomes, metric)
                axis.loglog(last, line, "--", color=ORANGE, linewidth=1.5)
                axis.loglog(sizes, np.maximum(values, 1e-3), "o-", color=BLUE)
                theory = getattr(curve, what)
                axis.set_title(f"exponent {slope:.2f}, theory {theory:g}", fontsize=9, color=INK)
                if axis is column[0]:
                    axis.annotate(curve.title, (0.5, 1.2), xycoords="axes fraction", ha="center")
                if axis in axes[:, 0]:
                    axis.set_ylabel(units[what])
            column[1].set_ylim(bottom=1, top=max(100.0, column[1].get_ylim()[1]))
            column[1].set_xlabel(curve.unit)
        figure.savefig(options.folder / "curves.png", dpi=110)
        plt.close(figure)
