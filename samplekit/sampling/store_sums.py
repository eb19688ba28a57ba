"""Checksums of a stored run: a byte that changed on the disk is noticed before it is believed."""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from samplekit.sampling.store_layout import StoredArray

# Of each array, for every block of chains that share a file: the CRC-32 of its draws, in the order
# of the disk, and how many draws that covers. Arrays that do not grow have one, over all they hold.
type Table = dict[str, np.ndarray]


class Sums:
    """The checksums of what is committed, and of what has been appended since.

    Draws are summed as they are appended, one after the other. What comes otherwise, such as single
    chains of a block, is not summed, nor is what follows: the sum stays that of the draws before.
    """

    def __init__(
        self, committed: str | Mapping[str, Sequence[Sequence[int]]] | None = None
    ) -> None:
        known = json.loads(committed) if isinstance(committed, str) else committed or {}
        self.committed: Table = {path: np.asarray(rows, np.int64) for path, rows in known.items()}
        self.appended: Table = {}

    def append(self, array: StoredArray, block: int, start: int, draws: np.ndarray) -> None:
        """Take in draws of all chains of a block, (draw, chain, *event)."""
        blocks = -(-array.shape[0] // array.chunk[0])
        before = self.committed.setdefault(array.path, np.zeros((blocks, 2), np.int64))
        rows = self.appended.setdefault(array.path, before.copy())
        for found in (rows[block], before[block]):
            if found[1] == start:
                rows[block] = checksum(draws, int(found[0])), start + len(draws)
                return

    def whole(self, array: StoredArray, values: np.ndarray) -> None:
        """Take in an array that does not grow."""
        self.appended[array.path] = np.asarray([[checksum(values), 0]], np.int64)

    def adopt(self, others: Sequence[Mapping[str, Any]]) -> None:
        """Take over what other processes have appended: of each block what covers most draws."""
        for other in others:
            for path, theirs in other.items():
                rows = np.asarray(theirs, np.int64)
                ours = self.appended.get(path, self.committed.get(path, 0 * rows))
                self.appended[path] = np.where(rows[:, 1:] > ours[:, 1:], rows, ours)

    def at(self, lengths: Mapping[str, int]) -> Table:
        """Return the checksums for a commit of so many draws of each group."""
        found = dict(self.committed)
        for path, rows in self.appended.items():
            most = lengths.get(path.split("/")[0], 0)
            before = self.committed.get(path, rows)
            found[path] = np.where(rows[:, 1:] <= most, rows, before)
        return found


def checksum(values: np.ndarray, before: int = 0) -> int:
    """Return the CRC-32 of an array's bytes after those of another."""
    return zlib.crc32(memoryview(np.ascontiguousarray(values).reshape(-1).view(np.uint8)), before)


def as_json(table: Table) -> str:
    """Return checksums as they stand in the metadata: as text, for netCDF takes no tables there."""
    return json.dumps({path: rows.tolist() for path, rows in table.items()})


def changed_block(rows: np.ndarray, chunks: Callable[[int], Iterator[np.ndarray]]) -> int | None:
    """Return the first block of chains whose bytes are not those that were summed.

    `chunks(block)` reads the files of a block in order, each as (draw, chain, *event).
    """
    for block, (wanted, draws) in enumerate(rows.tolist()):
        found, left = 0, draws
        for chunk in chunks(block) if draws else ():
            part = chunk[:left]
            found, left = checksum(part, found), left - len(part)
            if not left:
                break
        if left or found != wanted:
            return block
    return None
