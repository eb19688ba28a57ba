"""The carries of all parts of an engine as one, chains in front, and back."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from samplekit.sampling.program import Carry


def joined(carries: Sequence[Carry], batch: int | None) -> Carry:
    """Return one carry of all chains.

    Chains that run one by one have a kernel each; the blocks of a batch all have the same.
    """
    if batch is None:
        return jax.tree.map(lambda *leaves: np.stack(leaves), *carries)
    first = carries[0]
    if len(carries) == 1:
        return first
    own = [(carry.state, carry.started) for carry in carries]
    state, started = jax.tree.map(lambda *leaves: np.concatenate(leaves), *own)
    return Carry(state, first.kernel, first.tuning, started)


def divided(carry: Carry, parts: int, batch: int | None) -> list[Carry]:
    """Return the carries of parts that `joined` made one of."""
    if batch is None:
        return [jax.tree.map(lambda leaf, i=i: leaf[i], carry) for i in range(parts)]

    def rows(tree: Any, part: int) -> Any:
        return jax.tree.map(lambda leaf: leaf[part * batch : (part + 1) * batch], tree)

    return [
        Carry(rows(carry.state, i), carry.kernel, carry.tuning, rows(carry.started, i))
        for i in range(parts)
    ]


def leaf_name(path: Sequence[Any]) -> str:
    """Return a readable name for a leaf of a pytree."""
    return ".".join(str(getattr(k, "name", getattr(k, "key", getattr(k, "idx", k)))) for k in path)


def own_copy(leaf: Any) -> np.ndarray:
    """Return a copy of the type that JAX will give it: a Python float becomes float32."""
    return np.array(leaf, jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype))
