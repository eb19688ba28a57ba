"""What the checks of targets and kernels share: positions, comparisons, exact facts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from samplekit.core.errors import SettingsError
from samplekit.core.protocols import Position

type PyTree = Any
type Target = Any  # has log_density, score or both
type Facts = tuple[list[str], np.ndarray, np.ndarray]  # names, values (draw, scalar), exact means

FEW = 4


def type_name(thing: object) -> str:
    """Return the name that messages use."""
    return type(thing).__name__


def check_pytree(thing: PyTree, what: str) -> None:
    """Assert that a target or kernel can be an argument of one compiled program."""
    leaves, structure = jax.tree.flatten(thing)
    if any(leaf is thing for leaf in leaves):
        raise AssertionError(
            f"{type_name(thing)} is no pytree. A {what} is an argument of compiled programs: "
            "make it a samplekit.core.pytree.pytree class or an Equinox module."
        )
    strange = [leaf for leaf in leaves if not _is_number(leaf)]
    if strange:
        raise AssertionError(
            f"{type_name(thing)} has leaves that are no arrays: {strange}. Declare such fields "
            "static."
        )
    hash(structure)
    if jax.tree.structure(jax.tree.unflatten(structure, leaves)) != structure:
        raise AssertionError(f"{type_name(thing)} is another {what} after flatten and unflatten.")


def _is_number(leaf: object) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | float | int | complex)


def row(stack: PyTree, i: int) -> PyTree:
    """Return one of the stacked positions, cut by NumPy: indexing in JAX would be compiled."""

    def cut(a: Array) -> Array:
        return (
            a[i] if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else jnp.asarray(np.asarray(a)[i])
        )

    return jax.tree.map(cut, stack)


def positions(target: Target, key: Array, x: Position | None, draws: PyTree) -> PyTree:
    """Return a few positions, stacked: exact draws if there are any, or noise."""
    if x is None and draws is not None:
        return jax.tree.map(lambda a: jnp.asarray(np.asarray(a)[:FEW]), draws)
    if x is None and getattr(target, "space", None) is None:
        raise SettingsError(f"{type_name(target)} has neither draw nor space: give a position x.")
    if x is None:
        x = target.space.unravel(jnp.zeros(target.space.size, jnp.result_type(float)))
    vector, unravel = ravel_pytree(jax.tree.map(jnp.asarray, x))
    noise = jax.random.normal(key, (FEW, vector.size), vector.dtype)
    return jax.vmap(unravel)(vector[None, :] + 0.5 * noise)


def assert_same_type(out: PyTree, like: PyTree, what: str) -> None:
    """Compare structures, shapes and dtypes."""

    def types(tree: PyTree) -> tuple[PyTree, list[str]]:
        leaves, structure = jax.tree.flatten(tree)
        return structure, [f"{jnp.result_type(a)}{list(np.shape(a))}" for a in leaves]

    if types(out) != types(like):
        raise AssertionError(f"{what} has {types(out)} where {types(like)} is needed.")


def assert_close(got: PyTree, want: PyTree, what: str) -> None:
    """Compare to rounding: the root of the machine precision, relative to the largest entry."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        a, b = np.asarray(a), np.asarray(b)
        if a.dtype.kind != "f":
            same = np.array_equal(a, b)
        else:
            size = np.max(np.abs(b), initial=1.0, where=np.isfinite(b))
            with np.errstate(invalid="ignore"):  # inf − inf
                close = np.abs(a - b) <= np.sqrt(np.finfo(a.dtype).eps) * size
            same = np.all(close | (a == b) | (np.isnan(a) & np.isnan(b)))
        if not same:
            raise AssertionError(f"{what}: {a} and {b}.")


def flat(stack: PyTree) -> np.ndarray:
    """Return stacked positions as (position, scalar), in NumPy."""
    leaves = [np.asarray(a) for a in jax.tree.leaves(stack)]
    return np.concatenate([a.reshape(len(a), -1) for a in leaves], axis=1)


def facts(target: Target, stack: PyTree) -> Facts:
    """Return what is known exactly of a target's expectations, evaluated at positions."""
    x = flat(stack).astype(np.float64)
    mean, variance = np.ravel(target.mean), np.ravel(target.variance)
    each = [f"[{i}]" for i in range(x.shape[1])]
    names, columns, exact = [], [], []
    if np.isfinite(mean).all() and np.isfinite(variance).all():
        names += [f"x{i}" for i in each]
        columns.append(x)
        exact.append(mean)
    if not getattr(target, "heavy_tailed", False):
        names += [f"(x − mean)²{i}" for i in each]
        columns.append((x - mean) ** 2)
        exact.append(variance)
        if hasattr(target, "covariance") and x.shape[1] > 1:
            u = np.random.default_rng(0).standard_normal(x.shape[1]) / np.sqrt(variance)
            names.append("((x − mean) · u)², u fixed")
            columns.append((((x - mean) @ u) ** 2)[:, None])
            exact.append(np.array([u @ np.asarray(target.covariance) @ u]))
    known = dict(getattr(target, "expectations", {}))
    if known:
        names += list(known)
        each_of = jax.jit(jax.vmap(lambda x: [fn(x) for fn, _ in known.values()]))(stack)
        columns += [np.asarray(a, np.float64)[:, None] for a in each_of]
        exact.append(np.array([value for _, value in known.values()]))
    return names, np.concatenate(columns, axis=1), np.concatenate(exact)
