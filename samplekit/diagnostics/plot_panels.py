# SPDX-License-Identifier: Apache-2.0
"""The panels of `plot_mixing`: each shows one thing about one scalar, or about the whole run."""

import dataclasses
import itertools
from statistics import NormalDist
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from samplekit.diagnostics.evidence import Evidence
from samplekit.diagnostics.numbers import ebfmi
from samplekit.diagnostics.plot_style import (
    BLUE,
    COLORS,
    GREEN,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    VERMILION,
)
from samplekit.sampling.ranks import autocovariance

# Points of a line: more than the pixels of a panel.
_POINTS = 400
# Bins of a rank plot at most, and the draws of a chain that a bin needs at least.
_RANK_BINS, _DRAWS_A_BIN = 20, 10
# Bins of the values at most, and the part of a chain that they hold.
_VALUE_BINS, _BULK = 60, (0.02, 0.98)
# A chain stands still when nothing changes for this part of the run, and this many draws.
_STILL_SHARE, _STILL_DRAWS = 0.05, 50
_NORMAL_95 = NormalDist().inv_cdf(0.975)


@dataclasses.dataclass(frozen=True)
class Chains:
    """How chains are told apart: a color for each if they are few, else for the strangest."""

    colors: tuple[str, ...]
    named: tuple[int, ...]  # chains with a color of their own

    @classmethod
    def of(cls, scores: np.ndarray) -> "Chains":
        """Color chains by how strange they are, (chain,)."""
        count = len(scores)
        if count < len(COLORS):
            return cls(COLORS[:count], tuple(range(count)))
        strangest = np.argsort(-np.nan_to_num(scores, nan=np.inf, posinf=np.inf), kind="stable")
        named = tuple(int(c) for c in strangest[:3])
        chosen = dict(zip(named, (VERMILION, BLUE, GREEN), strict=True))
        return cls(tuple(chosen.get(c, PALE) for c in range(count)), named)

    def lines(self) -> list[tuple[int, dict[str, Any]]]:
        """Return chains in the order to draw them, with the look of their lines."""
        few = len(self.named) == len(self.colors)
        others = [c for c in range(len(self.colors)) if c not in self.named]
        thin = {"lw": 0.5, "alpha": 0.7, "zorder": 1.5}
        return [(c, {"color": self.colors[c], **thin}) for c in others] + [
            (c, {"color": self.colors[c], "lw": 1.1 if few else 1.3, "zorder": 2})
            for c in self.named
        ]


@dataclasses.dataclass(frozen=True)
class Scalar:
    """One scalar of a run."""

    draws: np.ndarray  # (chain, draw)
    effective: float  # draws of one chain, by its own autocorrelation
    lag: float  # draws to one effective draw, differences between chains included
    valleys: tuple[float, ...]  # where its modes part

    @property
    def finite(self) -> np.ndarray:
        """Which draws are finite."""
        return np.isfinite(self.draws)


def strangeness(draws: np.ndarray) -> np.ndarray:
    """Say how far each chain is from the others in location or spread, (chain,)."""
    ok = np.isfinite(draws)
    if not ok.all(axis=1).any():
        return np.full(len(draws), np.inf)
    middle = np.median(draws[ok])
    spread = np.median(np.abs(draws[ok] - middle)) or 1.0
    score = np.full(len(draws), np.inf)  # what is not finite is strangest
    whole = ok.all(axis=1)
    z = (draws[whole] - middle) / spread
    z = z / (1 + np.abs(z))  # a single far draw counts as one
    score[whole] = np.abs(z.mean(axis=1)) + np.abs(z.std(axis=1) - np.median(z.std(axis=1)))
    return score


# One scalar -------------------------------------------------------------------------------------


def ranks(ax: Axes, scalar: Scalar, chains: Chains) -> None:
    """Draw how the ranks of each chain spread over all ranks, against what chance would do."""
    draws, lines, halves = scalar.draws, chains.lines(), len(scalar.draws) == 1
    if halves:  # one chain has all ranks: compare its halves
        half = draws.shape[1] // 2
        draws = np.stack([draws[0, :half], draws[0, -half:]]) if half else draws
        lines = [Chains((BLUE, VERMILION), (0, 1)).lines()[i] for i in range(len(draws))]
    ok = np.isfinite(draws)
    if ok.sum() < 2:
        return nothing(ax, "nothing to compare")
    if np.ptp(draws[ok]) == 0:
        return nothing(ax, "all draws are equal")
    bins = int(np.clip(draws.shape[1] // _DRAWS_A_BIN, 2, _RANK_BINS))
    edges = np.linspace(0, 1, bins + 1)
    rank = np.full(draws.shape, np.nan)
    rank[ok] = _ranked(draws[ok])
    top = 2.0
    effective = scalar.effective / (2 if halves else 1)
    level = NormalDist().inv_cdf(1 - 0.025 / (bins * len(draws)))
    if np.isfinite(effective):
        width = level * np.sqrt((bins - 1) * (1 - 1 / len(draws)) / effective)
        ax.axhspan(max(0, 1 - width), 1 + width, color=PALE, alpha=0.35, lw=0)
        top = max(top, min(1.1 * (1 + width), len(draws)))
    for chain, look in lines:
        share, _ = np.histogram(rank[chain][ok[chain]], edges)
        height = share * bins / max(1, ok[chain].sum())
        ax.stairs(height, edges, baseline=None, **look)
        top = max(top, min(height.max(), len(draws)) * 1.1)
    ax.axhline(1, color=INK, lw=0.6)
    ax.set(xlim=(0, 1), ylim=(0, top), xlabel="rank of all draws", ylabel="share")
    ax.set_xticks([0, 0.5, 1])
    if halves:
        note(ax, "first and second half")
    return None


def _ranked(values: np.ndarray) -> np.ndarray:
    """Return ranks between 0 and 1; equal values share theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - (counts - 1) / 2 - 0.5) / values.size)[inverse]


def running_mean(ax: Axes, scalar: Scalar, chains: Chains) -> None:
    """Draw the mean of each chain so far, and where 95 % of such means would lie."""
    draws, ok = scalar.draws, scalar.finite
    if not ok.any():
        return nothing(ax, "no finite draws")
    count = draws.shape[1]
    at = np.unique(np.linspace(1, count, min(count, _POINTS)).astype(int))
    seen = np.cumsum(ok, axis=1)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        so_far = np.cumsum(np.where(ok, draws, 0.0), axis=1) / seen
        mean = draws[ok].mean()
        spread = np.sqrt(np.mean([x[k].var() for x, k in zip(draws, ok, strict=True) if k.any()]))
        width = _NORMAL_95 * spread / np.sqrt(scalar.effective * at / count)
    if np.isfinite(width).all():
        ax.fill_between(at, mean - width, mean + width, color=PALE, alpha=0.35, lw=0)
    for chain, look in chains.lines():
        ax.plot(at, so_far[chain, at - 1], **look)
    ax.axhline(mean, color=INK, lw=0.6)
    # The first draws jump about; what matters comes later.
    late = so_far[:, at[at > count // 20] - 1]
    late = np.concatenate([late[np.isfinite(late)], mean + width[at > count // 10], [mean]])
    late = late[np.isfinite(late)]
    half = np.abs(late - mean).max() if late.size else 0.0
    if half > 0 and np.isfinite(half):
        ax.set_ylim(mean - 1.15 * half, mean + 1.15 * half)
    ax.set(xlim=(0, count), xlabel="draw")
    return None


def autocorrelation(ax: Axes, scalar: Scalar, chains: Chains) -> None:
    """Draw the autocorrelation of each chain about its own mean."""
    draws = scalar.draws
    count = draws.shape[1]
    lag = scalar.lag if np.isfinite(scalar.lag) else 20.0
    last = int(np.clip(5 * lag, min(20, count - 1), max(count // 2, 1)))
    ax.axhspan(
        -_NORMAL_95 / np.sqrt(count), _NORMAL_95 / np.sqrt(count), color=PALE, alpha=0.35, lw=0
    )
    ax.axhline(0, color=INK, lw=0.6)
    still = []
    for chain, look in chains.lines():
        row = draws[chain]
        if not np.isfinite(row).all() or np.ptp(row) == 0:
            still.append(chain)
            continue
        scaled = (row - row.mean()) / np.abs(row - row.mean()).max()
        covariance = autocovariance(scaled[None, None])[0, : last + 1]
        ax.plot(np.arange(len(covariance)), covariance / covariance[0], **look)
    if still:
        note(ax, f"{plural(len(still), 'chain')} frozen or not finite")
    ax.set(xlim=(0, max(last, 1)), ylim=(-0.3, 1.03), xlabel="lag")


def occupancy(ax: Axes, scalar: Scalar, chains: Chains) -> None:
    """Draw where each chain was, one row a chain, with the share of each mode."""
    draws, ok = scalar.draws, scalar.finite
    if not ok.any():
        return nothing(ax, "no finite draws")
    # The bulk of every chain: a chain far off must be seen, a heavy tail need not.
    bulk = [np.quantile(x[k], _BULK) for x, k in zip(draws, ok, strict=True) if k.any()]
    low, high = np.min(bulk), np.max(bulk)
    pad = 0.12 * (high - low) or 0.5 * (abs(low) or 1.0)
    bins = int(np.clip(1.2 * np.sqrt(draws.shape[1]), 12, _VALUE_BINS))
    edges = np.linspace(low - pad, high + pad, bins + 1)
    table = np.array([np.histogram(x[k], edges)[0] for x, k in zip(draws, ok, strict=True)])
    share = table / np.maximum(1, ok.sum(axis=1))[:, None]
    count = len(draws)
    # One frozen chain must not pale the others.
    top = np.median(share.max(axis=1)[share.max(axis=1) > 0]) * 1.3
    ax.pcolormesh(edges, np.arange(count + 1) - 0.5, share, cmap="Blues", vmin=0, vmax=top)
    ax.set(ylim=(count - 0.5, -0.5), ylabel="chain")
    few = len(chains.named) == count
    ticks = [c for i, c in enumerate(chains.named)
             if few or all(abs(c - d) > count / 12 for d in chains.named[:i])]  # fmt: skip
    ax.set_yticks(ticks)
    for chain, text in zip(ticks, ax.get_yticklabels(), strict=True):
        text.set(color=chains.colors[chain], fontweight="bold")
    if few:
        ax.hlines(np.arange(1, count) - 0.5, edges[0], edges[-1], color="white", lw=1.5)
        _mode_shares(ax, scalar, edges)
    return None


def _mode_shares(ax: Axes, scalar: Scalar, edges: np.ndarray) -> None:
    """Write the share of each mode in each chain."""
    cuts = sorted(scalar.valleys)
    for left, right in itertools.pairwise([edges[0], *cuts, edges[-1]] if cuts else []):
        low = -np.inf if left == edges[0] else left
        high = np.inf if right == edges[-1] else right
        for chain, (row, ok) in enumerate(zip(scalar.draws, scalar.finite, strict=True)):
            if ok.any():
                share = ((row[ok] >= low) & (row[ok] < high)).mean()
                back = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.8}
                ax.text((left + right) / 2, chain, f"{share:.0%}", ha="center", va="center",
                        size=8, color=INK, bbox=back)  # fmt: skip


# The whole run ----------------------------------------------------------------------------------


def acceptance(ax: Axes, evidence: Evidence, chains: Chains) -> None:
    """Draw the acceptance rate of each chain, of tenths of it, and the goal of warm-up."""
    rates = acceptance_rates(evidence)
    if rates is None:
        return
    goal = evidence.sampler.target_accept
    if goal is not None:
        ax.axhline(goal, color=INK, lw=0.8, ls="--")
        ax.set_title(f"{ax.get_title(loc='left')}, goal {goal:g}", size=9, weight="normal")
    tenths = np.array_split(rates, min(10, rates.shape[1]), axis=1)
    parts = np.stack([t.mean(axis=1) for t in tenths], axis=1)
    place = np.arange(len(rates))
    ax.vlines(place, parts.min(axis=1), parts.max(axis=1), color=chains.colors, lw=1.4)
    ax.scatter(place, rates.mean(axis=1), c=list(chains.colors), s=26 if len(place) < 20 else 10,
               zorder=3)  # fmt: skip
    ax.set(ylim=(-0.03, 1.03), xlim=(-0.6, len(place) - 0.4), xlabel="chain")
    if len(place) < len(COLORS):
        ax.set_xticks(place)


def acceptance_rates(evidence: Evidence) -> np.ndarray | None:
    """Return acceptance rates (chain, draw), of whichever statistic tells them."""
    for name in ("acceptance_rate", "accepted"):
        if name in evidence.stats:
            return evidence.stats[name].astype(float)
    return None


def events(ax: Axes, evidence: Evidence, chains: Chains) -> None:
    """Mark when something went wrong in which chain."""
    still, broken = _standstill(evidence)
    marks = {
        "divergence": (_flag(evidence, "diverging"), VERMILION),
        "cut tree": (_flag(evidence, "reached_max_treedepth"), ORANGE),
        "draw not finite": (broken, PURPLE),
        "draw standing still": (still, INK),
    }
    count = evidence.chains
    few = count < len(COLORS)
    ax.hlines(range(count) if few else [], 0, evidence.draws, color=PALE, lw=0.5, zorder=1)
    for name, (where, color) in marks.items():
        if where is None or not where.any():
            continue
        for chain in np.flatnonzero(where.any(axis=1)):
            # A line around the bar: one draw may be narrower than a pixel.
            ax.broken_barh(_stretches(where[chain]), (chain - 0.35, 0.7), color=color, lw=0.8)
        ax.plot([], [], "s", ms=5, color=color, label=plural(int(where.sum()), name))
    found = ax.get_legend_handles_labels()[0]
    room = 0.1 * count * (1 + -(-len(found) // 2))
    ax.set(ylim=(count - 0.4, -0.6 - room), xlim=(0, evidence.draws), xlabel="draw")
    if few:
        ax.set_yticks(range(count))
    if found:
        ax.legend(loc="upper left", ncols=2, fontsize=8, handletextpad=0.1, borderaxespad=0,
                  columnspacing=0.8, labelspacing=0.2)  # fmt: skip
    else:
        note(ax, "nothing")


def _stretches(marked: np.ndarray) -> list[tuple[float, float]]:
    """Return (start, length) of every stretch of marked draws."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marked, [False]]).astype(int)))
    return [(float(a), float(b - a)) for a, b in edges.reshape(-1, 2)]


def _flag(evidence: Evidence, name: str) -> np.ndarray | None:
    return evidence.stats[name].astype(bool) if name in evidence.stats else None


def _standstill(evidence: Evidence) -> tuple[np.ndarray, np.ndarray]:
    """Return which draws belong to a long stretch without any change, and which are not finite."""
    shape = (evidence.chains, evidence.draws)
    moved, broken = np.zeros(shape, bool), np.zeros(shape, bool)
    for _, rows in evidence.scalars():
        moved[:, 1:] |= (rows[:, :, 1:] != rows[:, :, :-1]).any(axis=0)
        broken |= ~np.isfinite(rows).all(axis=0)
    still = np.zeros(shape, bool)
    least = max(_STILL_DRAWS, _STILL_SHARE * shape[1])
    moved[:, 0] = True
    for chain in range(shape[0]):
        starts = np.flatnonzero(moved[chain])
        for start, stop in zip(starts, [*starts[1:], shape[1]], strict=True):
            still[chain, start:stop] = stop - start > max(1, min(least, shape[1] - 1))
    return still & ~broken, broken


def energy(ax: Axes, evidence: Evidence, chains: Chains) -> None:
    """Draw the energies against their changes: alike, momenta carry a chain anywhere."""
    values = evidence.stats["energy"].astype(float)
    lowest = np.asarray(ebfmi(values), float)
    with np.errstate(invalid="ignore"):
        each = values - values.mean(axis=1, keepdims=True)
        change = np.diff(values, axis=1)
    shown = [a[np.isfinite(a)] for a in (each, change)]
    if min(a.size for a in shown) < 2 or np.ptp(np.concatenate(shown)) == 0:
        return nothing(ax, "energies undefined")
    low, high = np.quantile(np.concatenate(shown), [0.001, 0.999])
    edges = np.linspace(low, high, 40)
    if low == high:
        return nothing(ax, "energies constant")
    for data, label, look in (
        (shown[0], "energy", {"fill": True, "color": PALE, "alpha": 0.6}),
        (shown[1], "change in a step", {"color": BLUE, "lw": 1.3}),
    ):
        height = np.histogram(data, edges)[0] / data.size / np.diff(edges)
        ax.stairs(height, edges, label=label, **look)
    worst = np.nan if np.isnan(lowest).any() else lowest.min(initial=np.inf)
    note(ax, f"E-BFMI {worst:.2f}" if np.isfinite(worst) else "E-BFMI undefined")
    ax.set(ylim=(0, ax.get_ylim()[1] * 1.35), xlabel="energy about its mean")
    ax.set_yticks([])
    ax.legend(loc="upper left", fontsize=8, handlelength=1.2, borderaxespad=0.1)
    return None


def log_density(ax: Axes, evidence: Evidence, chains: Chains) -> None:
    """Draw the log density along each chain, averaged over short stretches."""
    values = evidence.stats["lp"].astype(float)
    count = min(100, values.shape[1])
    parts = np.array_split(np.arange(values.shape[1]), count)
    middle = np.array([p.mean() for p in parts])
    means = np.stack([values[:, p].mean(axis=1) for p in parts], axis=1)
    means[~np.isfinite(means)] = np.nan
    for chain, look in chains.lines():
        ax.plot(middle, means[chain], **{**look, "lw": 0.9})
    ax.set(xlim=(0, evidence.draws), xlabel="draw")


# Words ------------------------------------------------------------------------------------------


def plural(count: int, noun: str) -> str:
    """Count things in words."""
    many = noun.replace("draw ", "draws ", 1) if noun.startswith("draw ") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else many}"


def note(ax: Axes, text: str) -> None:
    """Write a remark into the upper right corner."""
    ax.text(0.99, 0.98, text, transform=ax.transAxes, ha="right", va="top", size=8, color=INK)


def nothing(ax: Axes, why: str) -> None:
    """Say why a panel is empty."""
    ax.text(0.5, 0.5, why, transform=ax.transAxes, ha="center", va="center", size=9, color=INK)
    ax.set_xticks([])
    ax.set_yticks([])
