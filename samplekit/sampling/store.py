"""Keep the draws of a run in a Zarr 3 folder that survives kill -9 at any instant.

1. An append writes beyond the visible length, into sparse chunk files of full size.
2. The sampler's state goes into the slot (0 or 1) that is not the current one.
3. A commit is one ``os.replace`` of the root ``zarr.json``. It holds the metadata of all groups
   and arrays (consolidated: what xarray and ArviZ open a folder by), so that all lengths, the
   slot and all attributes change in the same instant. The ``zarr.json`` files below the root,
   for readers that ignore the consolidated ones, are brought up to date by `Store.close`.

POSIX only (``os.pwrite``). One process commits; others may append chains of their own until then
(`samplekit.sampling.processes`), and any number may read meanwhile.
"""

import errno
import functools
import itertools
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np

from samplekit.core.errors import StoreError
from samplekit.sampling.store_layout import (
    LENGTH,
    SAMPLER,
    VERSION,
    StoredArray,
    Variable,
    attributes,
    explained,
    group_text,
    node_entries,
    plain,
    plan,
    refusal,
    state_array,
    sync_path,
    write_file,
)
from samplekit.sampling.store_sums import Sums, Table, as_json, changed_block, checksum


class Store:
    """Append draws to a folder and show them, all at once, by `commit`.

    ``lengths`` (draws of each growing group), ``attrs`` (of the root) and ``sampler_attrs`` are
    those of the last commit; ``path`` is the folder. Made by `create` and `open`.
    """

    def __init__(self, path: Path, arrays: dict, group_attrs: dict, attrs: dict) -> None:
        self.path, self.attrs, self.durable = path, attrs, False
        self.sampler_attrs: dict[str, Any] = group_attrs.pop(SAMPLER)
        self._slot: int = self.sampler_attrs.pop("slot")
        self._arrays: dict[str, dict[str, StoredArray]] = arrays
        self._groups = {group: group_text(own) for group, own in group_attrs.items()}
        self._templates = {g: node_entries(g, text, arrays[g]) for g, text in self._groups.items()}
        growing = [g for g, found in arrays.items() if any(a.axis == 0 for a in found.values())]
        self.lengths: dict[str, int] = {g: arrays[g]["draw"].shape[0] for g in growing}
        self._written = {}  # draws of each chain that are in the files, visible or not
        for group, length in self.lengths.items():
            some = any(a.axis == 1 for a in arrays[group].values())
            self._written[group] = np.full(arrays[group]["chain"].shape, length if some else 2**62)
        self._sized: set[str] = set()  # chunk files known to have their full size
        self.sums = Sums(self.sampler_attrs.pop("sums", None))

    @classmethod
    def create(
        cls,
        path: str | os.PathLike,
        *,
        chains: int,
        groups: Mapping[str, Mapping[str, Variable]],
        coords: Mapping[str, Sequence] | None = None,
        constants: Mapping[str, Mapping[str, tuple[Sequence[str], Any]]] | None = None,
        attrs: Mapping[str, Any] | None = None,
        group_attrs: Mapping[str, Mapping[str, Any]] | None = None,
        chain_block: int = 1,
        state: Mapping[str, Any] | None = None,
        sampler_attrs: Mapping[str, Any] | None = None,
        durable: bool = False,
    ) -> Self:
        """Make a store in a new or empty folder, which appears when it is complete.

        Parameters
        ----------
        groups, constants
            Groups that grow with the draws; groups written once, as (dimension names, values).
        coords
            Labels of dimensions, put into each group that uses them. Chains are counted from 0
            unless they are labelled here, draws always.
        chain_block
            Chains that share a chunk file; append them together, or it is slow.
        state, sampler_attrs
            Of a first commit, without which there is nothing to resume from.
        durable
            Survive power loss as well: fsync whatever is written.
        """
        target = Path(os.path.realpath(path))
        labels = {"chain": range(chains), **(coords or {})}
        labels.pop("draw", None)  # always counted from 0
        arrays, values = plan(groups, constants or {}, labels, chain_block)
        clean = {g: attributes(g, (group_attrs or {}).get(g, {})) for g in arrays}
        clean[SAMPLER]["slot"] = 1  # the first commit goes into slot 0
        draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        store = cls(draft, arrays, clean, attributes("run", attrs or {}))
        store.durable = durable
        with explained(target, then="start again"):
            if target.exists() and (not target.is_dir() or any(target.iterdir())):
                raise StoreError(
                    f"cannot start a run at {str(target)!r}: something is there already. "
                    "Choose another path, delete it, or continue the run there with sk.resume."
                )
            shutil.rmtree(draft, ignore_errors=True)
            try:
                for folder in (*arrays, *(a.path for g in arrays.values() for a in g.values())):
                    (draft / folder).mkdir(parents=True)  # parents of the run as well
                for array in (a for found in arrays.values() for a in found.values()):
                    if array.path in values:
                        store._write(array, (), [(0, values[array.path])])
                        store.sums.whole(array, values[array.path])
                store._save_nodes()
                own = store.sampler_attrs
                store._publish(store.lengths, 1, attrs=store.attrs, sampler_attrs=own, state={})
                if state:
                    store.commit({}, state, sampler_attrs=sampler_attrs or {})
                os.rename(draft, target)
                if durable:
                    sync_path(str(target.parent))
            except BaseException:
                shutil.rmtree(draft, ignore_errors=True)
                raise
        store.path = target
        return store

    @classmethod
    def open(cls, path: str | os.PathLike, *, durable: bool = False) -> Self:
        """Reopen a store to append; what was written after the last commit is forgotten."""
        folder = Path(os.path.realpath(path))
        try:
            root = json.loads((folder / "zarr.json").read_bytes())
            nodes = root["consolidated_metadata"]["metadata"]
            if nodes[SAMPLER]["attributes"].pop("store_version") != VERSION:
                raise ValueError("another version of samplekit wrote it")
            attrs = {k: n["attributes"] for k, n in nodes.items() if n["node_type"] == "group"}
            arrays: dict[str, dict[str, StoredArray]] = {group: {} for group in attrs}
            for key in (key for key in nodes if key not in attrs):
                group, name = key.split("/")
                grows = nodes.get(f"{group}/draw", {}).get("dimension_names") == ["draw"]
                arrays[group][name] = StoredArray.parse(key, nodes[key], growing=grows)
            store = cls(folder, arrays, attrs, root["attributes"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            what = f"cannot open {str(folder)!r}: there is no run of samplekit that can be read"
            remedy = "Give the folder that sk.sample(store=...) wrote."
            raise StoreError(f"{what} ({error!r}). {remedy}") from error
        store.durable = durable
        return store

    @property
    def chain_block(self) -> int:
        """Chains that share a file."""
        arrays = [a for found in self._arrays.values() for a in found.values()]
        return max((a.chunk[0] for a in arrays if a.axis == 1), default=1)

    def append(self, group: str, start: int, chains: slice, data: Mapping[str, Any]) -> None:
        """Write draws from ``start`` on of some chains, unseen before the next `commit`.

        ``data[name]`` has the shape (chains, draws, *event). Threads may append other chains.
        """
        first, stop, _ = chains.indices(len(self._written[group]))
        arrays = {name: a for name, a in self._arrays[group].items() if a.axis == 1}
        values = {name: np.asarray(value) for name, value in data.items()}
        if values.keys() != arrays.keys() or chains.step not in (None, 1):
            raise refusal(group, f"got {sorted(values)} of {chains}", f"Give {sorted(arrays)}")
        count = min((v.shape[1] for v in values.values() if v.ndim > 1), default=0)
        for name, array in arrays.items():
            got, want = values[name], (stop - first, count, *array.shape[2:])
            if got.shape != want or not np.can_cast(got.dtype, array.dtype, "safe"):
                why = f"it is {got.dtype}{got.shape}, not {array.dtype}{want}"
                raise refusal(array.path, why, "Give what the store was made for")
        seen, written = self.lengths[group], self._written[group][first:stop].min(initial=2**62)
        if not seen <= start <= written:
            why = f"draws {seen} to {written} can come next, not {start}"
            raise refusal(group, why, "Append without a gap after what is committed")
        with explained(self.path):
            for name, array in arrays.items():
                if array.dtype.itemsize * math.prod(array.shape[2:]):
                    self._put(array, first, start, values[name].astype(array.dtype, copy=False))
        self._written[group][first:stop] = start + count

    def _put(self, array: StoredArray, first: int, start: int, values: np.ndarray) -> None:
        """Write (chain, draw, *event) values, a file for each block of chains and of draws."""
        block, per = array.chunk[:2]
        stop, end = first + values.shape[0], start + values.shape[1]
        row = math.prod(array.shape[2:]) * array.dtype.itemsize
        for b in range(first // block, -(-stop // block)):
            low, high = max(first, b * block), min(stop, (b + 1) * block)
            for k in range(start // per, -(-end // per)):
                a, z = max(start, k * per), min(end, (k + 1) * per)
                part = values[low - first : high - first, a - start : z - start].swapaxes(0, 1)
                at = ((a - k * per) * block + low - b * block) * row
                if (low, high) == (b * block, min((b + 1) * block, array.shape[0])):
                    part = np.ascontiguousarray(part)
                    self.sums.append(array, b, a, part)
                whole = high - low == block
                spread = ((at + i * block * row, draw) for i, draw in enumerate(part))
                self._write(array, (b, k), [(at, part)] if whole else spread)

    def _file(self, array: StoredArray, index: tuple[int, ...]) -> str:
        index += (0,) * (len(array.chunk) - len(index))
        return f"{self.path}/{array.path}/{'.'.join(('c', *map(str, index)))}"

    def _write(self, array: StoredArray, index: tuple[int, ...], parts: Iterable) -> None:
        """Write into a chunk file, which gets its full size when it is first used."""
        path = self._file(array, index)
        new = path not in self._sized
        write_file(path, parts, math.prod(array.chunk) * array.dtype.itemsize if new else 0)
        self._sized.add(path)
        if self.durable:
            sync_path(path)
            if new:
                sync_path(os.path.dirname(path))

    def _replace(self, folder: str, text: str) -> None:
        """Put a new ``zarr.json`` in place in one instant."""
        path, raw = f"{self.path}/{folder}/zarr.json", np.frombuffer(text.encode(), np.uint8)
        write_file(f"{path}.tmp", [(0, raw)], raw.size)
        if self.durable:
            sync_path(f"{path}.tmp")
        os.replace(f"{path}.tmp", path)
        if self.durable:
            sync_path(f"{self.path}/{folder}")

    def commit(
        self,
        lengths: Mapping[str, int],
        state: Mapping[str, Any],
        *,
        sampler_attrs: Mapping[str, Any],
        attrs: Mapping[str, Any] | None = None,
        shared: bool = False,
    ) -> None:
        """Show the draws up to ``lengths``, the state and the attributes, all in one instant.

        The first commit fixes names, shapes and types of the state. A group that ``lengths``
        leaves out keeps its own, as the root keeps its attributes if ``attrs`` is None. The
        chains that other processes append, if ``shared``, must be there by now.
        """
        for group, length in lengths.items() if shared else ():
            self._written[group] = np.maximum(self._written[group], length)
        for group, length in lengths.items():
            low, high = self.lengths[group], self._written[group].min()
            if not low <= length <= high:
                why = f"it can have {low} to {high} draws now, not {length}"
                raise refusal(group, why, "Append the draws of every chain first")
        values = {name: plain(f"{SAMPLER}/{name}", value) for name, value in state.items()}
        arrays = {name: state_array(name, value) for name, value in values.items()}
        known = self._arrays[SAMPLER]
        kinds = {a.path: (str(a.dtype), a.shape[1:]) for a in known.values()}
        if known and kinds != {a.path: (str(a.dtype), a.shape[1:]) for a in arrays.values()}:
            why = "names, shapes or types of the state are not those of the first commit"
            raise refusal(SAMPLER, why, f"Give {kinds}")
        arrays = known or arrays  # the known ones have their text ready
        own = attributes(SAMPLER, sampler_attrs)
        root = self.attrs if attrs is None else attributes("run", attrs)
        with explained(self.path):
            for name, array in arrays.items():
                if not known:
                    with suppress(FileExistsError):  # left by a commit that failed
                        os.mkdir(f"{self.path}/{array.path}")
                        if self.durable:
                            sync_path(f"{self.path}/{SAMPLER}")
                self._write(array, (1 - self._slot,), [(0, values[name])])
                self.sums.whole(array, values[name])
            for group, length in lengths.items():
                array = self._arrays[group]["draw"]
                per = array.chunk[0]
                for k in range(-(-self.lengths[group] // per), -(-length // per)):
                    counts = np.arange(k * per, (k + 1) * per, dtype=array.dtype)
                    self._write(array, (k,), [(0, counts)])
            new = {**self.lengths, **lengths}
            slot = 1 - self._slot
            self._publish(new, slot, attrs=root, sampler_attrs=own, state=arrays)

    def _publish(
        self, lengths: dict[str, int], slot: int, *, attrs: dict, sampler_attrs: dict, state: dict
    ) -> None:
        """Replace the root's metadata, the one instant in which a commit happens."""
        parts = [t.replace(LENGTH, str(lengths.get(g, 0))) for g, t in self._templates.items()]
        sums = self.sums.at(lengths)
        own = self._own_text(sampler_attrs, slot, sums)
        inline = '"consolidated_metadata":{"kind":"inline","must_understand":false,"metadata":{'
        nodes = ",\n".join([*parts, node_entries(SAMPLER, own, state)])
        self._replace(".", f"{group_text(attrs)[:-1]},{inline}\n{nodes}}}}}}}")
        self.lengths, self._slot, self._arrays[SAMPLER] = lengths, slot, state
        self.attrs, self.sampler_attrs, self.sums.committed = attrs, sampler_attrs, sums

    def _own_text(self, sampler_attrs: dict, slot: int, sums: Table) -> str:
        own = {"slot": slot, "store_version": VERSION, "sums": as_json(sums)}
        return group_text({**sampler_attrs, **own})

    def read(self, group: str, length: int) -> dict[str, np.ndarray]:
        """Return the first draws of a group, (chain, draw, *event), committed or not."""
        found = {}
        arrays = {name: a for name, a in self._arrays[group].items() if a.axis == 1}
        for name, array in arrays.items():
            (block, per), event = array.chunk[:2], array.shape[2:]
            found[name] = out = np.zeros((array.shape[0], length, *event), array.dtype)
            for b in range(-(-len(out) // block) if out.size else 0):
                for k, part in zip(range(-(-length // per)), self._chunks(array, b), strict=False):
                    into = out[b * block : (b + 1) * block, k * per : (k + 1) * per]
                    into[:] = part.swapaxes(0, 1)[:, : into.shape[1]]
        return found

    def _chunks(self, array: StoredArray, b: int) -> Iterator[np.ndarray]:
        """Read the files of a block of chains one after the other, as (draw, chain, *event)."""
        (block, per), event = array.chunk[:2], array.shape[2:]
        for k in itertools.count():
            file = self._file(array, (b, k))
            with explained(self.path):
                raw = np.fromfile(file, array.dtype)
                if raw.size != math.prod(array.chunk):
                    raise OSError(errno.EIO, "the file is not of its full size", file)
            yield raw.reshape(per, block, *event)[:, : array.shape[0] - b * block]

    def check(self) -> None:
        """Read all that was committed, and refuse a run of which a byte has changed since."""
        arrays = {a.path: a for found in self._arrays.values() for a in found.values()}
        for path, rows in self.sums.committed.items():
            array = arrays[path]
            if array.axis == 1:
                changed = changed_block(rows, functools.partial(self._chunks, array))
            else:
                slot = (self._slot,) if path.startswith(f"{SAMPLER}/") else ()
                shape = array.shape[1:] if slot else array.shape
                changed = None if checksum(self._values(array, slot, shape)) == rows[0, 0] else 0
            if changed is not None:
                raise StoreError(
                    f"the run at {str(self.path)!r} is damaged: {path} (files of block {changed}) "
                    "does not hold the bytes that were written. Take a copy of the run that is "
                    "whole, or sample again; the disk deserves a check."
                )

    def _values(self, array: StoredArray, index: tuple[int, ...], shape: Sequence[int]) -> Any:
        """Read an array that does not grow."""
        file = self._file(array, index)
        with explained(self.path):
            values = np.fromfile(file, array.dtype, math.prod(shape))
            if values.size < math.prod(shape):
                raise OSError(errno.EIO, "the file is too short", file)
        return values.reshape(shape)

    def state(self) -> dict[str, np.ndarray]:
        """Return the sampler's state at the last commit; empty before the first."""
        arrays = self._arrays[SAMPLER].items()
        return {name: self._values(a, (self._slot,), a.shape[1:]) for name, a in arrays}

    def close(self) -> None:
        """Bring the metadata below the root up to date; the store can still be used after."""
        with explained(self.path):
            self._save_nodes()

    def _save_nodes(self) -> None:
        own = self._own_text(self.sampler_attrs, self._slot, self.sums.committed)
        for group, text in {**self._groups, SAMPLER: own}.items():
            length = str(self.lengths.get(group, 0))
            for array in self._arrays[group].values():
                self._replace(array.path, array.text.replace(LENGTH, length))
            self._replace(group, text)


def check_path(path: str | os.PathLike) -> None:
    """Refuse a run at a path of which a byte has changed; let pass what `Store` did not write."""
    root = Path(path, "zarr.json")
    while _is_own(root):
        before = root.read_bytes()
        try:
            Store.open(path).check()
            break
        except StoreError:
            if root.read_bytes() == before:
                raise
            # It is being written: a state that we were about to read has been replaced.


def _is_own(root: Path) -> bool:
    try:
        nodes = json.loads(root.read_bytes())["consolidated_metadata"]["metadata"]
        encoding = nodes[f"{SAMPLER}/key"]["chunk_key_encoding"]
    except (OSError, ValueError, LookupError, TypeError):
        return False
    # A copy by xarray has the attributes as well, but other files.
    return encoding["configuration"]["separator"] == "."
