"""Data as chunks of one shape: arrays, memory maps, data frames, iterators; threads and devices.

One compiled program serves every chunk: the buffer has a fixed shape, the number of blocks that
hold data is an argument, and the last block is filled up with rows of weight zero. Chunks of an
iterator are cut anew, so its own chunking has no influence.
"""

import collections
import contextlib
import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, PartitionSpec
from numpy.typing import NDArray

from samplekit.core.errors import EstimatorError
from samplekit.estimators.domains import name_rows
from samplekit.estimators.moments import Block, Model, accumulate, block_size, finite_rows
from samplekit.sampling.cache import use_cache
from samplekit.sampling.threads import make_pool

# Numbers in the buffer of one chunk on one device: 4 MiB in float64.
CHUNK_NUMBERS = 2**19


class Chunk(NamedTuple):
    """Some rows, their weights, and the number of the first."""

    rows: NDArray[np.float64]
    weights: NDArray[np.float64]
    start: int


def chunk_rows(dim: int, multiple: int = 1) -> int:
    """Return the rows per chunk: a power of two, at least `multiple`."""
    rows = max(CHUNK_NUMBERS // dim, 1)
    return max(1 << (rows.bit_length() - 1), multiple)


def array_chunks(
    rows: NDArray[Any], weights: NDArray[np.float64] | None, size: int
) -> Iterator[Chunk]:
    """Cut an array into chunks of `size` rows, converted to float64 one at a time."""
    for start in range(0, rows.shape[0], size):
        part = np.asarray(rows[start : start + size], np.float64)
        yield Chunk(part, _part(weights, start, part.shape[0]), start)


def stream_chunks(parts: Iterable[Chunk], size: int) -> Iterator[Chunk]:
    """Cut a stream of chunks anew, into chunks of `size` rows."""
    held: list[Chunk] = []
    count = start = 0
    for part in parts:
        held.append(part)
        count += part.rows.shape[0]
        while count >= size:
            joined = _join(held, start)
            yield Chunk(joined.rows[:size], joined.weights[:size], start)
            start, count = start + size, count - size
            held = [Chunk(joined.rows[size:], joined.weights[size:], start)]
    if count:
        yield _join(held, start)


def _join(parts: Sequence[Chunk], start: int) -> Chunk:
    if len(parts) == 1:
        return parts[0]._replace(start=start)
    rows, weights = (np.concatenate([p[i] for p in parts]) for i in (0, 1))
    return Chunk(rows, weights, start)


def _part(weights: NDArray[np.float64] | None, start: int, rows: int) -> NDArray[np.float64]:
    return np.ones(rows) if weights is None else weights[start : start + rows]


@functools.partial(jax.jit, static_argnames=("block", "size", "mesh"))
def _sum_program(
    block: Block, model: Model, theta: Array, *, data: tuple[Array, ...], size: int, mesh: Mesh
) -> Any:
    """Add up the blocks of every device's part; the result has a leading device axis."""

    def local(model: Model, theta: Array, data: tuple[Array, ...]) -> Any:
        rows, weights, blocks = (part[0] for part in data)
        sums = accumulate(block, model, theta, rows=rows, weights=weights, blocks=blocks, size=size)
        return jax.tree.map(lambda a: a[None], sums)

    split = PartitionSpec("rows")
    specs = (PartitionSpec(), PartitionSpec(), split)
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)(
        model, theta, data
    )


@functools.partial(jax.jit, static_argnames=("function", "size"))
def _row_program(function: Any, model: Model, theta: Array, *, rows: Array, size: int) -> Array:
    """Return one number per row, block after block."""
    blocks = rows.reshape(-1, size, rows.shape[1])
    return jax.lax.map(lambda block: function(model, theta, block), blocks).reshape(-1)


class Runner:
    """Runs the programs of one model over chunks, on threads (one device) or on several devices."""

    def __init__(
        self, model: Model, dim: int, size: int, *, devices: Sequence[Any] | None = None
    ) -> None:
        use_cache()
        chosen = list(jax.local_devices() if devices is None else devices)
        self.mine = [d for d in chosen if d.process_index == jax.process_index()]
        self.everywhere = spans_processes(devices)
        self.mesh = Mesh(np.asarray(self.mine), ("rows",))
        # Float64 where it is cheap; accelerators have compensated float32.
        self.wide = self.mine[0].platform == "cpu"
        self.dtype = np.float64 if self.wide else np.float32
        self.block = block_size(dim, size)
        self.per_device = chunk_rows(dim, self.block)
        self.model = self.cast(model)

    @property
    def chunk(self) -> int:
        """Rows in a chunk, all devices together."""
        return self.per_device * len(self.mine)

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which the programs of this runner are called."""
        return jax.enable_x64(self.wide)

    def cast(self, tree: Any) -> Any:
        """Return a pytree with its floating arrays in the runner's precision, on the host."""

        def one(leaf: Any) -> Any:
            array = np.asarray(leaf)
            return array.astype(self.dtype) if np.issubdtype(array.dtype, np.floating) else array

        return jax.tree.map(one, tree)

    def total(
        self, block: Block, chunks: Iterable[Chunk], theta: NDArray[np.float64] | None = None
    ) -> tuple[NDArray[np.float64], ...]:
        """Add a block function up over all chunks, in their order, in float64."""
        values = self.cast(np.zeros(0) if theta is None else theta)
        sums: tuple[NDArray[np.float64], ...] = ()
        with self.precision():
            for part in _in_threads(
                lambda chunk: self._one(block, chunk, values), chunks, self._threads()
            ):
                sums = tuple(a + b for a, b in zip(sums, part, strict=True)) if sums else part
        return all_reduce(sums) if self.everywhere else sums

    def _threads(self) -> int:
        """One chunk per core, where one device would leave the others idle."""
        return len(os.sched_getaffinity(0)) if self.wide and len(self.mine) == 1 else 1

    def _one(self, block: Block, chunk: Chunk, theta: Any) -> tuple[NDArray[np.float64], ...]:
        sums, lost = _sum_program(
            block, self.model, theta, data=self._spread(chunk), size=self.block, mesh=self.mesh
        )
        parts = tuple(
            np.asarray(s, np.float64).sum(axis=0) + np.asarray(e, np.float64).sum(axis=0)
            for s, e in zip(sums, lost, strict=True)
        )
        if not all(np.isfinite(part).all() for part in parts):
            self.explain(chunk)
        return parts

    def _spread(self, chunk: Chunk) -> tuple[Any, Any, Any]:
        """Deal the rows out to the devices, filled up with rows of weight zero."""
        count, dim = chunk.rows.shape
        devices = len(self.mine)
        share = -(-count // (devices * self.block)) * self.block  # whole blocks
        rows = np.zeros((devices, self.per_device, dim), self.dtype)
        weights = np.zeros((devices, self.per_device), self.dtype)
        blocks = np.zeros(devices, np.int32)
        for i in range(devices):
            part = slice(i * share, min((i + 1) * share, count))
            filled = part.stop - part.start
            if filled <= 0:
                break
            blocks[i] = -(-filled // self.block)
            rows[i, :filled] = chunk.rows[part]
            rows[i, filled : blocks[i] * self.block] = chunk.rows[0]
            weights[i, :filled] = chunk.weights[part]
        return rows, weights, blocks

    def each(self, function: Any, chunk: Chunk, theta: NDArray[np.float64]) -> NDArray[Any]:
        """Return one number per row of a chunk."""
        count, dim = chunk.rows.shape
        size = min(self.block, 1 << max(count - 1, 0).bit_length())
        # Few shapes, hence few programs: blocks in powers of two.
        blocks = 1 << max(-(-count // size) - 1, 0).bit_length()
        rows = np.broadcast_to(chunk.rows[0], (blocks * size, dim)).astype(self.dtype)
        rows[:count] = chunk.rows
        with self.precision(), jax.default_device(self.mine[0]):
            values = _row_program(function, self.model, self.cast(theta), rows=rows, size=size)
            return np.asarray(values)[:count]

    def explain(self, chunk: Chunk) -> None:
        """Raise an error that names the rows because of which a sum is not finite."""
        refuse_non_finite(chunk)
        bad = ~self.each(finite_rows, chunk, np.zeros(0))
        if bad.any():
            raise EstimatorError(
                f"{name_rows(bad, chunk.start)} at which the statistics, the base or the weight "
                "have no finite derivatives. Remove them, or write the functions so that they are "
                "smooth there."
            )
        raise EstimatorError(
            "The sums of the fit are too large for floating point. Rescale the columns of X."
        )


def refuse_non_finite(chunk: Chunk) -> None:
    """Raise if there are NaN or infinite values, naming the rows."""
    bad = ~np.isfinite(chunk.rows).all(axis=1)
    if bad.any():
        raise EstimatorError(
            f"{name_rows(bad, chunk.start)} with NaN or infinity (inf). Remove them or fill the "
            "values in."
        )


def spans_processes(devices: Sequence[Any] | None) -> bool:
    """Tell whether devices of other processes were asked for."""
    return devices is not None and any(d.process_index != jax.process_index() for d in devices)


def all_reduce(sums: tuple[NDArray[np.float64], ...]) -> tuple[NDArray[np.float64], ...]:
    """Add up over the processes of `jax.distributed`; every process gets the same result."""
    from jax.experimental import multihost_utils

    with jax.enable_x64(True):  # noqa: FBT003
        gathered = multihost_utils.process_allgather(tuple(map(jnp.asarray, sums)))
    return tuple(np.asarray(g).sum(axis=0) for g in gathered)


def _in_threads(function: Any, items: Iterable[Any], workers: int) -> Iterator[Any]:
    """Map in order, with a few items under way at a time so that memory stays bounded."""
    if workers == 1:
        yield from map(function, items)
        return
    with make_pool(workers) as pool:
        waiting: collections.deque[Any] = collections.deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
