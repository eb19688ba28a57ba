"""Parameters in one vector: an optimizer is then a few long loops, quick to compile and to run."""

import dataclasses
import itertools
import math
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

type PyTree = Any


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the arrays of a pytree lie in one vector; hashable, and code to a compiled program.

    Parameters
    ----------
    structure
        Of the pytree.
    shapes
        Of its arrays.

    Examples
    --------
    >>> import numpy as np
    >>> layout = Layout.of({"a": np.zeros((2, 2)), "b": np.zeros(1)})
    >>> layout.tree(np.arange(5.0))["b"].tolist()
    [4.0]
    """

    structure: Any
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, tree: PyTree) -> Self | None:
        """Return the layout of a pytree; None if its arrays do not go into one vector."""
        leaves, structure = jax.tree.flatten(tree)
        if len({leaf.dtype for leaf in leaves}) != 1:
            return None
        return cls(structure, tuple(leaf.shape for leaf in leaves))

    def vector(self, tree: PyTree) -> Any:
        """Return the numbers of a pytree in one vector: of NumPy, outside of a program."""
        leaves = jax.tree.leaves(tree)
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return jnp.concatenate([leaf.reshape(-1) for leaf in leaves])
        return np.concatenate([np.asarray(leaf).reshape(-1) for leaf in leaves])

    def tree(self, vector: Any) -> PyTree:
        """Return the pytree of a vector."""
        ends = itertools.accumulate(math.prod(shape) for shape in self.shapes)
        parts = [
            vector[end - math.prod(shape) : end].reshape(shape)
            for shape, end in zip(self.shapes, ends, strict=True)
        ]
        return jax.tree.unflatten(self.structure, parts)
