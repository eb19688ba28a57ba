"""Starts: the user's, checked; and the rescue of chains lost in a hopeless region."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from samplekit.core.errors import TargetError
from samplekit.core.protocols import DensityTarget, ScoreTarget
from samplekit.sampling.task import FEW_CHAINS
from samplekit.sampling.view import View, evaluate
from samplekit.targets.space import make_space

# A chain is lost when its energy is far above that of the others, and it moved less than this part
# of the distance between them between two looks.
HARDLY_MOVED = 1e-3
FAR_ABOVE = 25.0
# Or when it has come less than a third of the way down. Of 12 runs of `HMC` on a mixture of two
# normals (low_dim_gauss_mix), 3 ended with a chain 400 above the others, wandering about.
STILL_ABOVE = 2 / 3


def ensure_space(target: Any, init: Any) -> Any:
    """Return the target's space; a target without one takes its shape from `init`."""
    space = getattr(target, "space", None)
    if space is not None:
        return space
    if init is None:
        raise TargetError(
            f"{type(target).__name__} does not say what its positions look like. Give it a `space` "
            "(as sk.from_log_density does) or pass init= with one start per chain."
        )
    leaves = jax.tree.leaves(init)
    if not leaves or any(np.size(a) == 0 or np.ndim(a) == 0 for a in leaves):
        raise TargetError(
            "init= has no chain axis: give an array, or a pytree of arrays, whose first axis holds "
            "one start per chain."
        )
    space = make_space(like=jax.tree.map(lambda a: np.asarray(a)[0], init))
    _check_output(target, space)
    return space


def _check_output(target: Any, space: Any) -> None:
    """Refuse a target of the user's own whose values have another form than they must."""
    flat = jax.ShapeDtypeStruct((space.size,), jnp.result_type(float))
    example = jax.eval_shape(space.unravel, flat)
    if isinstance(target, DensityTarget):
        what, wanted, fn = "log density", [()], target.log_density
    elif isinstance(target, ScoreTarget):
        what, fn = "score", target.score
        wanted = [leaf.shape for leaf in space.leaves]
    else:  # Gibbs compares its states, which are positions and no more
        return
    out = jax.eval_shape(lambda x: fn(x), example)
    shapes = [a.shape for a in jax.tree.leaves(out)]
    if shapes != wanted:
        name = type(target).__name__
        raise TargetError(
            f"The {what} of {name} returns {_shapes(shapes)} for a position of "
            f"{_shapes([leaf.shape for leaf in space.leaves])}. A log density is one number per "
            "position, a score one per coordinate: reduce or reshape it."
        )


def _shapes(shapes: list[tuple[int, ...]]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes)


def flat_starts(
    target: Any,
    space: Any,
    init: Any,
    chains: int,
    *,
    floats: bool = True,
) -> np.ndarray | None:
    """Return the user's starts as flat unconstrained vectors (chain, dim); None for our own.

    `init` holds constrained values with a leading chain axis. Shape, dtype (`floats` are needed by
    most kernels) and finiteness are checked here, before the sampler is compiled.
    """
    if init is None:
        return None
    if hasattr(target, "unconstrain"):
        _check_arrays(init, chains)
    else:
        _check_structure(space, init, chains, floats=floats)
    starts = np.asarray(_to_flat(target, jax.tree.map(jnp.asarray, init)))
    if starts.dtype.kind != "f":  # starts are real vectors, from which positions take their values
        starts = starts.astype(jnp.result_type(float))
    bad = ~np.isfinite(starts).all(1)
    if bad.any():
        raise TargetError(
            f"init= for chain {int(np.argmax(bad))} is not finite, or lies outside the support, at "
            f"{_short(jax.tree.map(lambda a: np.asarray(a)[int(np.argmax(bad))], init))}. Start "
            "inside the support."
        )
    _check_density(target, starts)
    return starts


@jax.jit
def _to_flat(target: Any, init: Any) -> jax.Array:
    """Return unconstrained vectors; the target is an argument, so this is compiled once."""
    free = getattr(target, "unconstrain", target.space.from_support)
    return jax.vmap(lambda value: target.space.ravel(free(value)))(init)


def _check_arrays(init: Any, chains: int) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(init):
        name = jax.tree_util.keystr(path) or "init"
        array = np.asarray(leaf)
        if array.dtype.kind != "f":
            raise TargetError(
                f"init= has dtype {array.dtype} at {name}, but positions are floating numbers. "
                "Convert it with .astype(float)."
            )
        if array.ndim < 1 or array.shape[0] != chains:
            raise TargetError(
                f"init= has shape {list(array.shape)} at {name}, but chains={chains}: the first "
                "axis holds one start per chain. Stack one start for each."
            )


def _check_structure(space: Any, init: Any, chains: int, *, floats: bool) -> None:
    if jax.tree.structure(init) != space.treedef:
        raise TargetError(
            f"init= is structured as {jax.tree.structure(init)}, but a position is "
            f"{space.treedef}. Give the same pytree, each array with a leading chain axis."
        )
    if floats or not space.discrete:
        _check_arrays(init, chains)
    example = jax.eval_shape(
        lambda v: space.to_support(space.unravel(v))[0],
        jax.ShapeDtypeStruct((space.size,), jnp.result_type(float)),
    )
    for leaf, want, got in zip(
        space.leaves, jax.tree.leaves(example), jax.tree.leaves(init), strict=True
    ):
        if np.shape(got) != (chains, *want.shape):
            raise TargetError(
                f"init= has shape {list(np.shape(got))} for {leaf.name!r}; with chains={chains} it "
                f"must be {[chains, *want.shape]}: one start per chain in front."
            )
        if leaf.values is not None and not np.isin(np.asarray(got), leaf.values).all():
            raise TargetError(
                f"init= has other values than {leaf.values[0]} and {leaf.values[1]} for "
                f"{leaf.name!r}, which takes only these."
            )


def _check_density(target: Any, starts: np.ndarray) -> None:
    """Refuse starts where the target is not finite: which chain, which value."""
    if not isinstance(target, DensityTarget | ScoreTarget):
        return
    what = "log_density" if isinstance(target, DensityTarget) else "score"
    # Few chains run one by one: a density that cannot be batched is then fine.
    few = len(starts) <= FEW_CHAINS
    flat = View(target, flat=True).for_kernel
    values = evaluate(flat, starts, what=what, one_by_one=few)
    rows = np.concatenate(
        [np.asarray(a).reshape(len(starts), -1) for a in jax.tree.leaves(values)], axis=1
    )
    bad = ~np.isfinite(rows).all(1)
    if bad.any():
        chain = int(np.argmax(bad))
        value = rows[chain][~np.isfinite(rows[chain])][0]
        raise TargetError(
            f"The {what.replace('_', ' ')} is {value} at the start of chain {chain}, "
            f"x = {_short(starts[chain])} (unconstrained). A chain cannot leave such a place. "
            "Choose another init= for it, or leave init= out: samplekit then looks for "
            "finite starts."
        )


def _short(value: Any) -> str:
    text = (
        np.array2string(np.asarray(value), threshold=8, precision=4)
        if hasattr(value, "shape")
        else str(value)
    )
    return text if len(text) < 200 else text[:200] + "…"


def lost_chains(
    before: np.ndarray,
    now: np.ndarray,
    log_density: np.ndarray | None,
    gaps: Mapping[int, float] = MappingProxyType({}),
) -> list[int]:
    """Return the chains whose energy is far above that of the better half, and which do not come.

    They hardly moved since the last look, or were as far above (`gaps_above`) then, or nearly: a
    chain may wander about in a minor mode that has no weight at all.
    """
    high = gaps_above(now, log_density)
    if log_density is None or not high:
        return []
    better = now[_better(log_density)]
    spread = np.maximum(better.std(0), 1e-3 * np.abs(better).mean(0))
    moved = np.any(np.abs(now - before) > HARDLY_MOVED * spread, axis=1)
    return [c for c, gap in high.items() if not moved[c] or gap > STILL_ABOVE * gaps.get(c, np.inf)]


def gaps_above(now: np.ndarray, log_density: np.ndarray | None) -> dict[int, float]:
    """Return how far above the better half those chains are whose energy is far above it."""
    if log_density is None or len(now) < 2:
        return {}
    best = log_density[_better(log_density)]
    most = FAR_ABOVE + now.shape[1] + 3 * (best.max() - best.min())
    gaps = np.nan_to_num(best.min() - log_density, nan=np.inf)
    return {int(c): float(gaps[c]) for c in np.flatnonzero(gaps > most)}


def _better(log_density: np.ndarray) -> np.ndarray:
    lp = np.where(np.isnan(log_density), -np.inf, log_density)
    return lp >= np.median(lp)
