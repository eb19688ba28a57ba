"""Draws of a run where the target's score lives: flat, unconstrained, with their scores."""

import dataclasses
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from samplekit.core.errors import SettingsError, TargetError
from samplekit.core.protocols import DensityTarget, ScoreTarget
from samplekit.diagnostics.evidence import Evidence, gather
from samplekit.sampling.run import safe_name
from samplekit.sampling.view import View, with_space
from samplekit.targets.space import Space, make_space

# Scores evaluated at once: enough for BLAS in a network, and a few megabytes of intermediates.
_BATCH = 4096


class NonfiniteError(TargetError):
    """Draws, or scores at draws, are not finite."""


@dataclasses.dataclass(frozen=True)
class Placed:
    """Draws in the coordinates that kernels move, and the target on those coordinates.

    Attributes
    ----------
    positions
        Unconstrained draws (chain, draw, dim), float64.
    names
        One label a coordinate: the run's own where map and variable have the same shape.
    flat
        The target on flat vectors.
    """

    positions: np.ndarray
    names: tuple[str, ...]
    flat: Any

    def scores(self) -> np.ndarray:
        """Return ∇ log p at every draw, shaped as `positions`."""
        rows = self.positions.reshape(-1, self.positions.shape[-1])
        scores = score_rows(self.flat, rows)
        bad = int((~np.isfinite(scores).all(1)).sum())
        if bad:
            raise NonfiniteError(
                f"The score is not finite at {bad} of {len(rows)} draws, so the draws cannot have "
                "come from this target, or were rounded onto the edge of its support. Look at "
                "target.score there; a run in float64 (JAX_ENABLE_X64=1) rounds less."
            )
        return scores.reshape(self.positions.shape)


def place(run: Any, target: Any, max_draws: int | None = None) -> Placed:
    """Map the draws of a run to the unconstrained coordinates of its target.

    Parameters
    ----------
    run
        Anything that `gather` takes, or its `Evidence`; or an array of positions as kernels move
        them (unconstrained), of shape (draw, dim) or (chain, draw, dim).
    target
        Has a score, or a log density to differentiate.
    max_draws
        Thin to at most so many, evenly; None keeps all.
    """
    if not has_score(target):
        raise TargetError(
            f"{type(target).__name__} has no score ∇ log p to compare draws with: it has neither "
            "score nor log_density, or its positions are discrete. Give the continuous target that "
            "was sampled (sk.from_score, sk.from_log_density, sk.from_numpyro, ...)."
        )
    if max_draws is not None and max_draws < 2:
        raise SettingsError(f"max_draws={max_draws} leaves nothing to compare. Give 2 or more.")
    if isinstance(run, np.ndarray | jax.Array | list):
        space = getattr(target, "space", None) or make_space(np.shape(run)[-1])
        target = with_space(target, space)
        positions = thin(_array(run, space.size), max_draws)
        names = [n for leaf in space.leaves for n in _numbered(leaf.name, leaf.shape)]
    else:
        evidence = run if isinstance(run, Evidence) else gather(run)
        target = with_space(target, _space(target, evidence))
        positions, names = _from_run(evidence, target, max_draws)
    bad = int((~np.isfinite(positions).all(axis=2)).sum())
    if bad:
        raise NonfiniteError(
            f"{bad} of {positions.shape[0] * positions.shape[1]} draws are not finite, or were "
            "rounded onto the edge of the support, where unconstrained coordinates are infinite. "
            "Remove them first, or sample in float64 (JAX_ENABLE_X64=1)."
        )
    return Placed(positions, tuple(names), View(target, flat=True).for_kernel)


def has_score(target: Any) -> bool:
    """Tell whether a target has a score, its own or that of a log density, to compare with."""
    space = getattr(target, "space", None)
    discrete = space is not None and any(leaf.dtype is not None for leaf in space.leaves)
    return isinstance(target, ScoreTarget | DensityTarget) and not discrete


def score_rows(flat: Any, rows: np.ndarray) -> np.ndarray:
    """Return the scores of flat positions (n, dim) in float64, so many at a time."""
    size = min(len(rows), _BATCH)
    out = np.empty(rows.shape)
    for start in range(0, len(rows), size):
        # The last batch looks back, so that all have one size and compile once.
        part = slice(min(start, len(rows) - size), min(start, len(rows) - size) + size)
        out[part] = _score(flat, rows[part])
    return out


@jax.jit
def _score(flat: Any, x: jax.Array) -> jax.Array:
    return jax.vmap(flat.score)(x)


@jax.jit
def _free(target: Any, values: Any) -> jax.Array:
    free = getattr(target, "unconstrain", target.space.from_support)
    return jax.vmap(lambda value: target.space.ravel(free(value)))(values)


def _space(target: Any, evidence: Evidence) -> Space:
    """Return the target's space; a target of the user's own class takes its shape from the run."""
    space = getattr(target, "space", None)
    if space is not None:
        return space
    from samplekit.sampling.checkpoint import like_run

    return make_space(like=jax.tree.map(lambda a: np.asarray(a)[0], like_run(evidence.tree)))


def _array(run: ArrayLike, dim: int) -> np.ndarray:
    positions = np.asarray(run, dtype=np.float64)
    if positions.ndim == 2:
        positions = positions[None]
    if positions.ndim != 3 or positions.shape[2] != dim:
        raise SettingsError(
            f"The draws have shape {list(np.shape(run))}, but this target has {dim} coordinates. "
            "Give an array of shape (draw, dim) or (chain, draw, dim), or a run."
        )
    return positions


def _from_run(
    evidence: Evidence, target: Any, max_draws: int | None
) -> tuple[np.ndarray, list[str]]:
    """Return unconstrained draws (chain, draw, dim) and their labels."""
    space: Space = target.space
    direct = not hasattr(target, "unconstrain") and all(x.support is None for x in space.leaves)
    labels = iter(evidence.names)
    shown = {n: [next(labels) for _ in range(a[0, 0].size)] for n, a in evidence.variables.items()}
    arrays: list[np.ndarray] = []
    names: list[str] = []
    for leaf in space.leaves:
        name = safe_name(leaf.name)
        draws = evidence.variables.get(name)
        same = draws is not None and draws.shape[2:] == leaf.shape
        if draws is None or (direct and not same):
            shapes = {n: list(a.shape[2:]) for n, a in evidence.variables.items()}
            raise TargetError(
                f"The run is not of this target, which has {leaf.name!r} of shape "
                f"{list(leaf.shape)}; the run's variables have the shapes {shapes}. Give the "
                "target that the run was sampled from."
            )
        arrays.append(thin(draws, max_draws))
        names += shown[name] if same else _numbered(leaf.name, leaf.shape)
    lead = arrays[0].shape[:2]
    if direct:
        flat = [a.reshape(*lead, -1) for a in arrays]
        return np.concatenate(flat, axis=2, dtype=np.float64), names
    rows = [a.reshape(-1, *a.shape[2:]) for a in arrays]
    positions = np.asarray(_free(target, jax.tree.unflatten(space.treedef, rows)), np.float64)
    return positions.reshape(*lead, space.size), names


def thin(draws: np.ndarray, most: int | None) -> np.ndarray:
    """Keep at most `most` draws, evenly along the chains; of very many chains, some."""
    chains, length = draws.shape[:2]
    if most is None or chains * length <= most:
        return draws
    if chains > most:
        draws, chains = draws[np.linspace(0, chains - 1, most).astype(int)], most
    kept = max(1, most // chains)
    # The end of a chain is kept: a run that still moves is judged by where it is now.
    return draws[:, length - 1 - np.arange(kept)[::-1] * (length // kept)]


def _numbered(name: str, shape: tuple[int, ...]) -> list[str]:
    return [f"{name}[{', '.join(map(str, i))}]" if i else name for i in np.ndindex(*shape)]
