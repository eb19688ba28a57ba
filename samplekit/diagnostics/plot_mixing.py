# SPDX-License-Identifier: Apache-2.0
"""One figure that shows whether the chains mixed."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from samplekit.core.errors import SettingsError
from samplekit.diagnostics import plot_panels
from samplekit.diagnostics.check_draws import ess_wanted
from samplekit.diagnostics.check_mixing import RHAT
from samplekit.diagnostics.evidence import Evidence, gather
from samplekit.diagnostics.modes import find_valleys
from samplekit.diagnostics.numbers import Numbers, measure
from samplekit.diagnostics.plot_panels import Chains, Scalar, plural
from samplekit.diagnostics.plot_style import INK, VERMILION, Picture, styled

# Scalars shown: of all, and of those that were named.
_WORST, _MOST = 4, 8

_SCALAR_PANELS: dict[str, Callable[[Axes, Scalar, Chains], None]] = {
    "ranks": plot_panels.ranks,
    "running mean": plot_panels.running_mean,
    "autocorrelation": plot_panels.autocorrelation,
    "where each chain was": plot_panels.occupancy,
}


def plot_mixing(
    run: Any, var_names: str | Sequence[str] | None = None, *, worst: int | None = None
) -> Figure:
    """Draw whether the chains of a run mixed, the worst scalars first.

    Parameters
    ----------
    run
        A DataTree, or anything else that `diagnose` takes.
    var_names
        Variables ("theta") or scalars ("theta[3]") to choose from; all by default.
    worst
        How many of them to show, those of the largest R-hat and then of the smallest effective
        sample size: 4 of all, or up to 8 of those named.

    Returns
    -------
    A figure that stands alone (`savefig` writes it, notebooks show it): pyplot is not involved.

    Notes
    -----
    One row a scalar, one color a chain; of more than seven chains the three strangest have a color.

    *Ranks*: each chain's share of every stretch of the pooled ranks. In chains that agree it is one
    everywhere; 95 % of runs of such chains stay within the gray band as a whole (Bonferroni over
    bins and chains). The band takes each chain's own autocorrelation into account, not the
    differences between chains. Vehtari et al. (2021), doi:10.1214/20-BA1221.

    *Running mean*: the mean of the draws so far. The gray band, ±1.96 standard errors (MCSE) of one
    chain's mean, narrows as draws are added; chains that mix run into it and stay.

    *Autocorrelation*: about each chain's own mean; white noise stays in the band (95 %).

    *Where each chain was*: one row a chain, dark where it spent its time. Where the values fall
    into separate modes, the share of each is written: chains that mix agree on them.

    The strip below shows acceptance by chain (the bar spans tenths of the run) with warm-up's goal,
    what went wrong when, energies of Hamiltonian kernels (Betancourt 2016, arXiv:1604.00695), and
    the log density.

    Examples
    --------
    >>> import numpy as np
    >>> from samplekit.diagnostics.plot_mixing import plot_mixing
    >>> draws = np.random.default_rng(0).normal(size=(4, 500, 2))
    >>> figure = plot_mixing({"x": draws}, var_names="x[1]")
    >>> len(figure.axes)  # four panels of x[1], and what went wrong when
    5
    """
    evidence = gather(run)
    numbers = measure(evidence)
    rows = _chosen(evidence, numbers, var_names, worst)
    draws = _draws(evidence, rows)
    chains = Chains.of(np.max([plot_panels.strangeness(draws[i]) for i in rows], axis=0))
    with styled():
        figure = Picture((12.4, 2.15 * len(rows) + 2.9))
        figure.suptitle(_headline(evidence, numbers), weight="bold", size=12, x=0.01, ha="left")
        heights = [2.15] * len(rows) + [2.0]
        parts = figure.subfigures(len(rows) + 1, 1, squeeze=False, height_ratios=heights)[:, 0]
        for place, (i, part) in enumerate(zip(rows, parts, strict=False)):
            color = INK if _good(evidence, numbers, i) else VERMILION
            part.suptitle(_caption(evidence, numbers, i), x=0.012, ha="left", size=10, color=color,
                          parse_math=False)  # fmt: skip
            axes = part.subplots(1, len(_SCALAR_PANELS), width_ratios=[1, 1.15, 1, 1.3])
            scalar = _scalar(evidence, numbers, i, draws[i])
            for ax, (title, draw) in zip(axes, _SCALAR_PANELS.items(), strict=True):
                _title(ax, title if not place else "")
                draw(ax, scalar, chains)
        _strip(parts[-1], evidence, chains)
    return figure


def _chosen(
    evidence: Evidence, numbers: Numbers, var_names: str | Sequence[str] | None, worst: int | None
) -> list[int]:
    """Return the scalars to show, worst first."""
    if worst is not None and (not isinstance(worst, int | np.integer) or worst < 1):
        raise SettingsError(f"worst={worst!r} is not a number of scalars: give 1 or more.")
    among = np.arange(len(evidence.names))
    if var_names is not None:
        wanted = [var_names] if isinstance(var_names, str) else list(var_names)
        among = np.concatenate([_matching(evidence, name) for name in wanted or [""]])
        among = np.array(list(dict.fromkeys(among.tolist())))
    rhat = numbers.table["r_hat"].to_numpy()[among]
    ess = numbers.table[["ess_bulk", "ess_tail"]].to_numpy().min(axis=1)[among]
    # What is undefined comes first, but a constant, such as the diagonal of a correlation matrix,
    # last; R-hats that differ by less than their noise count as equal.
    undefined = np.isnan(rhat) if evidence.chains > 1 else np.isnan(ess)
    order = np.lexsort(
        [ess, -np.round(np.nan_to_num(rhat, posinf=1e9), 2), ~undefined, numbers.fixed[among]]
    )
    count = worst or (_WORST if var_names is None else _MOST)
    return [int(i) for i in among[order[:count]]]


def _matching(evidence: Evidence, name: str) -> np.ndarray:
    """Return the scalars of a variable, or the one of that label."""
    if name in evidence.names:
        return np.array([evidence.names.index(name)])
    start = 0
    for variable, values in evidence.variables.items():
        size = int(np.prod(values.shape[2:]))
        if variable == name:
            return np.arange(start, start + size)
        start += size
    known = ", ".join(map(repr, list(evidence.variables)[:12]))
    raise SettingsError(
        f"var_names= asks for {name!r}, which the run does not have. Its variables are {known}; "
        "a single scalar is written as in the table, such as 'x[0]'."
    )


def _draws(evidence: Evidence, rows: Sequence[int]) -> dict[int, np.ndarray]:
    """Return the draws (chain, draw) of some scalars."""
    found, start = {}, 0
    for values in evidence.variables.values():
        flat = values.reshape(*values.shape[:2], -1)
        stop = start + flat.shape[2]
        found |= {i: flat[:, :, i - start].astype(float) for i in rows if start <= i < stop}
        start = stop
    return found


def _scalar(evidence: Evidence, numbers: Numbers, i: int, draws: np.ndarray) -> Scalar:
    effective = float(numbers.halves.ess[0, i]) / evidence.chains
    lag = draws.size / float(numbers.table["ess_bulk"].iloc[i])
    alone = gather({"x": draws})
    valleys, _ = find_valleys(alone, measure(alone))
    return Scalar(draws, effective, lag, tuple(v.at for v in valleys))


def _strip(part: Any, evidence: Evidence, chains: Chains) -> None:
    """Draw the panels of the whole run that it has the numbers for."""
    panels: dict[str, Callable[[Axes, Evidence, Chains], None]] = {}
    if plot_panels.acceptance_rates(evidence) is not None:
        panels["acceptance by chain"] = plot_panels.acceptance
    panels["what went wrong when"] = plot_panels.events
    if evidence.sampler.hamiltonian and "energy" in evidence.stats:
        panels["energy"] = plot_panels.energy
    if "lp" in evidence.stats:
        panels["log density"] = plot_panels.log_density
    part.suptitle("the whole run", x=0.012, ha="left", size=10)
    axes = part.subplots(1, 4)
    for ax, (title, draw) in zip(axes, panels.items(), strict=False):
        _title(ax, title)
        draw(ax, evidence, chains)
    for ax in axes[len(panels) :]:
        ax.remove()


def _title(ax: Axes, text: str) -> None:
    ax.set_title(text, size=9, weight="normal", color=INK)
    ax.tick_params(labelsize=8)
    ax.xaxis.label.set_fontsize(8)
    ax.yaxis.label.set_fontsize(8)


def _headline(evidence: Evidence, numbers: Numbers) -> str:
    judged = ~numbers.fixed if (~numbers.fixed).any() else numbers.fixed
    columns = numbers.table[["r_hat", "ess_bulk", "ess_tail"]].to_numpy()[judged]
    rhat, bulk, tail = columns[:, 0].max(), columns[:, 1].min(), columns[:, 2].min()
    made_by = f"{evidence.sampler.name}: " if evidence.sampler.name else ""
    chains, draws = plural(evidence.chains, "chain"), plural(evidence.draws, "draw")
    words = _numbers(None if evidence.chains == 1 else rhat, bulk, tail, ("largest", "smallest"))
    return f"{made_by}{chains} of {draws} · {words}"


def _caption(evidence: Evidence, numbers: Numbers, i: int) -> str:
    row = numbers.table.iloc[i]
    rhat = None if evidence.chains == 1 else row["r_hat"]
    return f"{evidence.names[i]}   {_numbers(rhat, row['ess_bulk'], row['ess_tail'])}"


def _good(evidence: Evidence, numbers: Numbers, i: int) -> bool:
    """Tell whether the numbers of a scalar are those of chains that mixed."""
    row = numbers.table.iloc[i]
    enough = min(row["ess_bulk"], row["ess_tail"]) >= ess_wanted(evidence.chains)
    return bool(enough and (evidence.chains == 1 or row["r_hat"] <= RHAT))


def _numbers(
    rhat: float | None, bulk: float, tail: float, prefix: tuple[str, str] = ("", "")
) -> str:
    """Say R-hat and effective sample sizes; None: there is nothing to compare."""
    first, second = (f"{p} " if p else "" for p in prefix)
    said = "no R-hat of one chain" if rhat is None else f"{first}R-hat {_number(rhat, '.3f')}"
    return f"{said} · {second}ESS {_number(bulk, ',.0f')} bulk, {_number(tail, ',.0f')} tail"


def _number(value: float, form: str) -> str:
    if np.isnan(value):
        return "undefined"
    return "∞" if np.isinf(value) else format(value, form)
