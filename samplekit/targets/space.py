"""The space of a target: positions, flat vectors, and the named values a run shows.

A *position* is the unconstrained pytree that kernels move. `Space` knows its leaves by name,
the constraint on each, and the dimensions and coordinates that label the run. It is static and
hashable: two targets with equal spaces share a compiled program.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from samplekit.core.errors import TargetError

type PyTree = Any
type Dims = Mapping[str, Sequence[str]] | Sequence[str] | None
type Coords = Mapping[str, Sequence[Any]] | None


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One named array of a position."""

    name: str
    shape: tuple[int, ...]  # unconstrained: what kernels move
    dims: tuple[str, ...] | None = None  # of the constrained value; None = <name>_dim_<i>
    dtype: str | None = None  # None = floating, of whatever precision the start has
    support: "Support | None" = None
    values: tuple[int, int] | None = None  # the two values of a discrete array, low and high


@dataclasses.dataclass(frozen=True, eq=False)
class Support:
    """A NumPyro constraint made hashable, with its bijection from the reals."""

    constraint: Any
    key: tuple[Any, ...]

    @classmethod
    def of(cls, constraint: Any) -> "Support":
        """Wrap a constraint; its bounds, by value, are part of its identity."""
        leaves, treedef = jax.tree.flatten(constraint)
        values = tuple(
            (np.asarray(v).tobytes(), np.shape(v)) if not callable(v) else v for v in leaves
        )
        return cls(constraint, (type(constraint).__name__, str(treedef), values))

    def __eq__(self, other: object) -> bool:
        """Compare by value."""
        return isinstance(other, Support) and self.key == other.key

    def __hash__(self) -> int:
        """Hash by value."""
        return hash(self.key)

    @property
    def bijector(self) -> Any:
        """The map from the reals onto the support."""
        from samplekit.targets.numpyro_import import mend_numpyro

        mend_numpyro()
        from numpyro.distributions.transforms import biject_to

        return biject_to(self.constraint)


@dataclasses.dataclass(frozen=True)
class Space:
    """Names, shapes, supports and labels of a target's positions."""

    treedef: Any
    leaves: tuple[Leaf, ...]
    coords: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def __repr__(self) -> str:
        """Show names and shapes."""
        return ", ".join(f"{leaf.name}{list(leaf.shape)}" for leaf in self.leaves)

    @property
    def discrete(self) -> bool:
        """Whether some of the positions are integers or booleans."""
        return any(leaf.dtype is not None for leaf in self.leaves)

    @property
    def size(self) -> int:
        """Number of scalars that a kernel moves."""
        return sum(math.prod(leaf.shape) for leaf in self.leaves)

    def ravel(self, position: PyTree) -> Array:
        """Return the position as one vector."""
        return ravel_pytree(position)[0]

    def unravel(self, vector: Array) -> PyTree:
        """Return the position of one vector, without concatenating anything."""
        if len(self.leaves) == 1:
            return self._build([vector.reshape(self.leaves[0].shape)])
        ends = np.cumsum([math.prod(leaf.shape) for leaf in self.leaves])
        parts = [
            vector[end - math.prod(leaf.shape) : end].reshape(leaf.shape)
            for leaf, end in zip(self.leaves, ends, strict=True)
        ]
        return self._build(parts)

    def _build(self, arrays: Sequence[Array]) -> PyTree:
        cast = [_cast(a, leaf) for a, leaf in zip(arrays, self.leaves, strict=True)]
        return jax.tree.unflatten(self.treedef, cast)

    def to_support(self, position: PyTree) -> tuple[PyTree, Array | float]:
        """Return the constrained value and the log-Jacobian of the map to it."""
        if all(leaf.support is None for leaf in self.leaves):
            return position, 0.0
        values, log_jacobian = [], 0.0
        for x, leaf in zip(jax.tree.leaves(position), self.leaves, strict=True):
            if leaf.support is None:
                values.append(x)
                continue
            bijector = leaf.support.bijector
            y = bijector(x)
            log_jacobian = log_jacobian + jnp.sum(bijector.log_abs_det_jacobian(x, y))
            values.append(y)
        return jax.tree.unflatten(self.treedef, values), log_jacobian

    def from_support(self, value: PyTree) -> PyTree:
        """Return the unconstrained position of a constrained value."""
        position = [
            y if leaf.support is None else leaf.support.bijector.inv(y)
            for y, leaf in zip(jax.tree.leaves(value), self.leaves, strict=True)
        ]
        return jax.tree.unflatten(self.treedef, position)

    def named(self, value: PyTree) -> dict[str, Array]:
        """Return the arrays of a (constrained) value by the names that the run uses."""
        arrays = jax.tree.leaves(value)
        return {leaf.name: a for leaf, a in zip(self.leaves, arrays, strict=True)}

    def relabel(self, dims: Dims = None, coords: Coords = None) -> "Space":
        """Return the same space with other dimension names and coordinates."""
        leaves = tuple(
            dataclasses.replace(leaf, dims=_dims_of(leaf.name, dims) or leaf.dims)
            for leaf in self.leaves
        )
        return Space(self.treedef, leaves, _freeze(coords) or self.coords)


def _cast(array: Array, leaf: Leaf) -> Array:
    """Give a part of a flat vector the type of its leaf; of two values, the nearer one."""
    if leaf.values is None:
        return array if leaf.dtype is None else array.astype(leaf.dtype)
    low, high = (jnp.asarray(v, leaf.dtype) for v in leaf.values)
    return jnp.where(array.astype(jnp.result_type(float)) > sum(leaf.values) / 2, high, low)


def make_space(
    dim: int | Sequence[int] | None = None,
    *,
    like: PyTree = None,
    support: Any = None,
    values: tuple[int, int] | None = None,
    name: str = "x",
    dims: Dims = None,
    coords: Coords = None,
) -> Space:
    """Describe the positions of a target; see `from_energy` for the arguments.

    `values` are the two that integers may take; booleans are 0 and 1.
    """
    value = _example(dim, like)
    paths, treedef = jax.tree_util.tree_flatten_with_path(value)
    supports = _supports(support, treedef)
    leaves = []
    for (path, array), constraint in zip(paths, supports, strict=True):
        wrapped = None if constraint is None else Support.of(constraint)
        shape = tuple(array.shape)
        if wrapped is not None:
            shape = tuple(wrapped.bijector.inverse_shape(shape))
        leaf_name = _leaf_name(path, name)
        floating = jnp.issubdtype(array.dtype, jnp.floating)
        dtype = None if floating else str(array.dtype)
        two = (0, 1) if dtype == "bool" else None if floating else values
        leaves.append(Leaf(leaf_name, shape, _dims_of(leaf_name, dims), dtype, wrapped, two))
    return Space(treedef, tuple(leaves), _freeze(coords))


def _example(dim: int | Sequence[int] | None, like: PyTree) -> PyTree:
    if (dim is None) == (like is None):
        raise TargetError(
            "The target's positions are not described. Give exactly one of dim= (an int or a "
            "shape) and like= (an example position: an array or a dict of arrays)."
        )
    if like is not None:
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), jnp.result_type(a)), like)
    shape = (dim,) if isinstance(dim, int | np.integer) else tuple(dim)  # pyright: ignore
    if any(not isinstance(n, int | np.integer) or n < 1 for n in shape):
        raise TargetError(f"dim={dim!r} is not a positive integer or a shape of them.")
    return jax.ShapeDtypeStruct(tuple(int(n) for n in shape), jnp.result_type(float))


def _supports(support: Any, treedef: Any) -> list[Any]:
    """Spread `support` over the leaves: one constraint for all, or a pytree of them."""
    from_numpyro = support is not None and hasattr(support, "event_dim")
    if support is None or from_numpyro:
        return [support] * treedef.num_leaves
    try:
        return treedef.flatten_up_to(support)
    except (ValueError, TypeError, KeyError) as error:
        raise TargetError(
            f"support={support!r} does not have the structure of the position. Give one NumPyro "
            "constraint, or a pytree like the position with a constraint (or None) per leaf."
        ) from error


def _leaf_name(path: tuple[Any, ...], name: str) -> str:
    parts = [str(getattr(p, "key", getattr(p, "name", getattr(p, "idx", p)))) for p in path]
    if not parts:
        return name
    return (
        ".".join(parts)
        if isinstance(getattr(path[0], "key", None), str)
        else ".".join([name, *parts])
    )


def _dims_of(name: str, dims: Dims) -> tuple[str, ...] | None:
    if dims is None:
        return None
    if isinstance(dims, Mapping):
        return tuple(dims[name]) if name in dims else None
    return tuple([dims] if isinstance(dims, str) else dims)


def _freeze(coords: Coords) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    return tuple((d, tuple(np.asarray(v).tolist())) for d, v in (coords or {}).items())
