"""How rows become batches: one random order, and slices of it."""

from typing import Any

import jax
import numpy as np

from samplekit.sampling.devices import take_rows


def shuffled(data: Any, batch: int, seed: int) -> Any:
    """Put the rows into one random order, the first of them once more at the end.

    A batch is then a slice, wherever it begins, and an epoch takes all slices in a new order from
    a new beginning. To gather rows one by one would cost as much as a small model's gradient.
    """
    order = np.random.default_rng(seed).permutation(count(data))
    order = np.concatenate([order, order[:batch]])
    return jax.tree.map(lambda a: take_rows(a, order), data)


def order(rows: int, batch: int, seed: tuple[int, int]) -> np.ndarray:
    """Return where the batches of an epoch begin, drawn here: a sort takes long to compile."""
    random = np.random.default_rng(seed)
    starts = random.integers(rows) + batch * random.permutation(rows // batch)
    return (starts % rows).astype(np.int32)


def count(data: Any) -> int:
    """Return the number of rows."""
    return jax.tree.leaves(data)[0].shape[0]
