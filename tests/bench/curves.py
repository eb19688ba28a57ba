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
    "cost alike, and draws that go to a store, as rows that come in chunks, take no memory."
)


@dataclasses.dataclass(frozen=True)
class Curve:
    """Sizes, and the largest exponents that theory allows, with the noise of three points."""

    title: str
    unit: str
    sizes: tuple[str, ...]
    time: float
    memory: float


# 0.15 of each limit is for noise: a factor √2 between sizes a hundred times apart.
CURVES = {
    "gaussian": Curve("Gaussian, NUTS", "dimension", ("10", "1e2", "1e3", "1e4"), 1.4, 1.15),
    "logistic": Curve("regression, NUTS", "dimension", ("10", "1e2", "1e3", "1e4"), 1.4, 1.15),
    "chains": Curve("mixture, MALA", "chains", ("1", "10", "1e2", "1e3", "1e4", "1e5"), 1.15, 1.15),
    "draws": Curve("banana into a store", "draws", ("1e4", "1e5", "1e6", "1e7"), 1.15, 0.15),
    "rows": Curve("gamma, closed form", "rows", ("1e6", "1e7", "1e8"), 1.15, 0.15),
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
        time, memory = (exponent(outcomes, metric) for metric in ("wall_s", "peak_mib"))
        section.bars.append(Bar(f"{name}: exponent of time", time, curve.time, noise=0.2))
        section.bars.append(Bar(f"{name}: exponent of memory", memory, curve.memory, noise=0.2))
        rows = [
            (o.name, with_range(o, "wall_s"), number(o.median("peak_mib")))
            for o in outcomes.values()
        ]
        section.table(f"{curve.title}", (curve.unit, "seconds", "MiB over the start"), rows)
    draw(section, options)
    return section


def exponent(outcomes: dict[str, Outcome], metric: str) -> float:
    """Return the slope over the last three sizes; memory below 10 MiB counts as 10."""
    last = list(outcomes.values())[-3:]
    if any(math.isnan(o.median(metric)) for o in last):
        return math.nan
    least = 10.0 if metric == "peak_mib" else 0.0
    values = [max(o.median(metric), least) for o in last]
    return float(np.polyfit(np.log([float(o.name) for o in last]), np.log(values), 1)[0])


def draw(section: Section, options: Options) -> None:
    """Write the figure: time above, memory below, one column a curve."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    from samplekit.diagnostics.plot_style import BLUE, INK, STYLE

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(2, len(CURVES), figsize=(13, 5), layout="constrained")
        for column, (name, curve) in zip(axes.T, CURVES.items(), strict=True):
            outcomes = section.outcomes[name]
            sizes = np.asarray([float(size) for size in outcomes])
            for axis, metric, unit in zip(
                column, ("wall_s", "peak_mib"), ("seconds", "MiB above the start"), strict=True
            ):
                values = np.asarray([o.median(metric) for o in outcomes.values()])
                axis.loglog(sizes, np.maximum(values, 1e-3), "o-", color=BLUE)
                slope = exponent(outcomes, metric)
                axis.set_title(f"exponent {slope:.2f}", fontsize=9, color=INK)
                if axis is column[0]:
                    axis.annotate(curve.title, (0.5, 1.2), xycoords="axes fraction", ha="center")
                if axis in axes[:, 0]:
                    axis.set_ylabel(unit)
            column[1].set_ylim(bottom=1)
            column[1].set_xlabel(curve.unit)
        figure.savefig(options.folder / "curves.png", dpi=110)
        plt.close(figure)
