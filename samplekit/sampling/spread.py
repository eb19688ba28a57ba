"""One batch of chains over the devices of several processes.

Every process calls the same programs at the same time, and gets all of what comes out: draws are
gathered once a call, so that checkpoints, stop rules and the store need not know of it.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from samplekit.core.errors import SettingsError
from samplekit.sampling.devices import by_process, put


class Spread:
    """Puts arrays on the devices of all processes, and fetches them to each."""

    def __init__(self, devices: Sequence[Any], chains: int) -> None:
        homes = by_process(devices)
        processes, least = len(homes), min(map(len, homes))
        fitting = [n for n in range(1, least + 1) if chains % (n * processes) == 0]
        if not fitting or processes < jax.process_count():
            raise SettingsError(
                f"chains={chains} run as one batch, which {processes} of {jax.process_count()} "
                "processes cannot share equally. Ask for a multiple of the number of processes, "
                "with devices of every process."
            )
        chosen = [d for own in homes for d in own[: max(fitting)]]
        mesh = Mesh(np.asarray(chosen), ("chains",))
        self.split = NamedSharding(mesh, PartitionSpec("chains"))
        self.whole = NamedSharding(mesh, PartitionSpec())

    def put(self, tree: Any, *, split: bool) -> Any:
        """Return a pytree, equal in all processes, on all devices: by chains, or whole on each."""
        sharding = self.split if split else self.whole
        return jax.tree.map(lambda leaf: put(leaf, sharding), tree)

    def fetch(self, tree: Any) -> Any:
        """Return a pytree as NumPy arrays, whole in every process."""
        return jax.tree.map(np.asarray, _gather(self.whole)(tree))


@functools.cache
def _gather(whole: NamedSharding) -> Any:
    return jax.jit(lambda tree: tree, out_shardings=whole)


def spans_processes(devices: Sequence[Any] | None) -> bool:
    """Tell whether the devices, by default all, are those of several processes."""
    if devices is None:
        return jax.process_count() > 1
    return any(d.process_index != jax.process_index() for d in devices)
