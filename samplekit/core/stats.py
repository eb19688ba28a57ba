"""The one table of statistics: their names are ArviZ's where it has one."""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from samplekit.core.errors import SettingsError
from samplekit.core.protocols import Stats


@dataclasses.dataclass(frozen=True)
class Statistic:
    """One row of `sample_stats`: its meaning, and what a thinned draw keeps of its steps."""

    meaning: str
    thinned: str = "last"  # "last", "mean", "any" or "sum" over the steps of one draw
    costly: bool = False  # kept only where `stats=` names it; else XLA drops its computation


STATISTICS: dict[str, Statistic] = {
    "lp": Statistic("log density of the draw, unconstrained, up to a constant"),
    "acceptance_rate": Statistic("acceptance probability of the step", "mean"),
    "accepted": Statistic("whether the proposal was taken", "any"),
    "diverging": Statistic("whether the simulated energy ran away", "any"),
    "energy": Statistic("Hamiltonian of the draw; Hamiltonian kernels only"),
    "energy_error": Statistic("change of the energy over the step; 0 is exact", "last"),
    "n_steps": Statistic("gradient evaluations of the step", "sum"),
    "tree_depth": Statistic("doublings of the trajectory; NUTS only"),
    "reached_max_treedepth": Statistic("whether the tree was cut; NUTS only", "any"),
    "step_size": Statistic("step size η used"),
    "swap_rate": Statistic("probability that neighbours swap, coldest first; Tempering", "mean"),
    "round_trips": Statistic("arrivals at the target from the hottest copy; Tempering", "sum"),
    "closed_loop_work": Statistic(
        "∮ s·dx around a loop as wide as the step; ScoreMALA", costly=True
    ),
    "nonfinite": Statistic("proposals that were not finite, all rejected", "sum"),
}


def combine(previous: Stats, new: Stats, first: Array, count: Array) -> Stats:
    """Fold the statistics of one more step into those of a thinned draw.

    `first` says that `new` opens the draw; `count` is how many steps it holds by now.
    """

    def fold(name: str, old: Array, now: Array) -> Array:
        rule = STATISTICS[name].thinned if name in STATISTICS else "last"
        if rule == "mean":
            joined = old + (now - old) / count.astype(now.dtype)
        elif rule == "any":
            joined = old | now
        elif rule == "sum":
            joined = old + now
        else:
            return now
        return jnp.where(first, now, joined)

    return {name: fold(name, previous[name], new[name]) for name in new}


def choose(wanted: Sequence[str] | None, offered: Sequence[str]) -> tuple[str, ...]:
    """Return the names to keep, or say which name the kernel does not offer.

    None keeps all but the costly ones.
    """
    if wanted is None:
        return tuple(n for n in offered if n not in STATISTICS or not STATISTICS[n].costly)
    if isinstance(wanted, str):
        wanted = (wanted,)
    unknown = [name for name in wanted if name not in offered]
    if unknown:
        raise SettingsError(
            f"stats={list(wanted)!r} asks for {', '.join(map(repr, unknown))}, which this kernel "
            f"does not report. Choose from: {', '.join(offered)}."
        )
    return tuple(name for name in offered if name in wanted)
