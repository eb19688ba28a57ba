"""Pytrees of small arrays as one array of each type.

A call of a compiled program costs some 10 µs for each array that goes in or comes out, whatever its
size. A chain of a small target has fifty of them, which would take longer than its draws. And the
parameters of a model as one vector make an optimizer a few long loops, quick to compile and to run.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


@dataclasses.dataclass(frozen=True)
class Packing:
    """How the leaves of a pytree lie in arrays; hashable, so that a program may depend on it.

    Examples
    --------
    >>> import numpy as np
    >>> from samplekit.sampling.packing import Packing
    >>> tree = {"a": np.zeros(3), "b": np.ones(()), "c": np.zeros((2, 2), bool)}
    >>> packing = Packing.of(tree, joined=True)
    >>> [a.shape for a in packing.pack(tree)]
    [(4,), (2, 2)]
    """

    treedef: Any
    leaves: tuple[tuple[tuple[int, ...], Any], ...]  # shape and dtype
    joined: bool  # or every leaf stays an array of its own
    columns: bool = False  # whether matrices lie column by column
    most: float = math.inf  # numbers of a leaf that is joined to others

    @classmethod
    def of(cls, tree: Any, *, joined: bool, **options: Any) -> "Packing":
        """Return the packing of pytrees like this one, of arrays or of their shapes."""
        leaves, treedef = jax.tree.flatten(tree)
        shapes = tuple((tuple(np.shape(a)), _dtype(a)) for a in leaves)
        return cls(treedef, shapes, joined, **options)

    @functools.cached_property
    def _groups(self) -> list[list[int]]:
        """The leaves of each array."""
        if not self.joined:
            return [[i] for i in range(len(self.leaves))]
        groups: dict[Any, list[int]] = {}
        for i, (shape, dtype) in enumerate(self.leaves):
            alone = math.prod(shape) > self.most
            groups.setdefault(i if alone else dtype, []).append(i)
        return list(groups.values())

    def pack(self, tree: Any) -> list[Any]:
        """Return the arrays; leaves may have further axes in front, the same in all of them."""
        leaves = jax.tree.leaves(tree)
        return [self._joined(group, leaves) for group in self._groups]

    def repack(self, arrays: Sequence[Any], old: Any, new: Any) -> list[Any]:
        """Return the arrays, which hold `old`, with those leaves of `new` that are others.

        Inside a program: leaves are written in place, and what stays is not touched.
        """
        before, after = jax.tree.leaves(old), jax.tree.leaves(new)
        packed = list(arrays)
        for i, (number, begin, _) in enumerate(self._places):
            if after[i] is before[i]:
                continue
            if len(self._groups[number]) == 1:
                packed[number] = after[i]
                continue
            flat = jnp.asarray(after[i], self.leaves[i][1]).reshape(-1)
            packed[number] = jax.lax.dynamic_update_slice(packed[number], flat, (begin,))
        return packed

    def _joined(self, group: Sequence[int], leaves: Sequence[Any]) -> Any:
        if len(group) == 1:
            leaf = leaves[group[0]]
            return leaf.swapaxes(-1, -2) if self._turned(self.leaves[group[0]][0]) else leaf
        # Of NumPy outside of a program: JAX would compile one to join them.
        numbers = jnp if any(isinstance(leaves[i], Tracer) for i in group) else np
        flat = []
        for i in group:
            leaf, (shape, dtype) = leaves[i], self.leaves[i]
            front = np.shape(leaf)[: np.ndim(leaf) - len(shape)]
            array = numbers.asarray(leaf, dtype)
            if self._turned(shape):
                array = array.swapaxes(-1, -2)
            flat.append(array.reshape((*front, math.prod(shape))))
        return numbers.concatenate(flat, axis=-1)

    def _turned(self, shape: tuple[int, ...]) -> bool:
        return self.columns and len(shape) == 2

    @functools.cached_property
    def _places(self) -> list[tuple[int, int, int]]:
        """The array of each leaf, and where it begins and ends there."""
        places = [(0, 0, 0)] * len(self.leaves)
        for number, group in enumerate(self._groups):
            end = 0
            for i in group:
                begin, end = end, end + math.prod(self.leaves[i][0])
                places[i] = number, begin, end
        return places

    def leaf(self, arrays: Sequence[Any], i: int) -> Any:
        """Return one leaf."""
        number, begin, end = self._places[i]
        array, shape = arrays[number], self.leaves[i][0]
        if len(self._groups[number]) == 1:
            return array.swapaxes(-1, -2) if self._turned(shape) else array
        if self._turned(shape):
            part = array[..., begin:end].reshape((*array.shape[:-1], *shape[::-1]))
            return part.swapaxes(-1, -2)
        if array.ndim == 1:
            return array[begin:end].reshape(shape)
        return array[..., begin:end].reshape((*array.shape[:-1], *shape))

    def unpack(self, arrays: Iterable[Any]) -> Any:
        """Return the pytree; its leaves are views where the arrays are NumPy's."""
        found = list(arrays)
        leaves = [self.leaf(found, i) for i in range(len(self.leaves))]
        return jax.tree.unflatten(self.treedef, leaves)


def _dtype(leaf: Any) -> Any:
    dtype = np.asarray(leaf).dtype if not hasattr(leaf, "dtype") else leaf.dtype
    is_key = jnp.issubdtype(dtype, jax.dtypes.prng_key)
    return dtype if is_key else jax.dtypes.canonicalize_dtype(dtype)
