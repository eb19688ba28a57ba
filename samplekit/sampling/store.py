"""Keep the draws of a run in a Zarr 3 folder that survives kill -9 at any instant.

1. An append writes beyond the visible length, into sparse chunk files of full size.
2. The sampler's state goes into the slot (0 or 1) that is not the current one.
3. A commit is one ``os.replace`` of the root ``zarr.json``. It holds the metadata of all groups
   and arrays (consolidated: what xarray and ArviZ open a folder by), so that all lengths, the
   slot and all attributes change in the same instant. The ``zarr.json`` files below the root,
   for readers that ignore the consolidated ones, are brought up to date by `Store.close`.

POSIX only (``os.pwrite``). One process may write; any number may read meanwhile.
"""

import errno
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from samplekit.core.errors import StoreError

type Json = bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None

BLOCK_DRAWS = 1000  # draws in a chunk file: few files, yet little to load for one draw
CHUNK_BYTES = 64 * 2**20  # readers load whole chunks, so this bounds their memory
_VERSION = 1
_SAMPLER = "sampler"
_LENGTH = "\0"  # stands for the number of draws: JSON text never holds a bare NUL
_FILL = {"b": False, "f": "NaN", "c": ["NaN", "NaN"], "U": ""}  # of dtype kinds; others: 0
_DTYPES = frozenset(np.dtype(c).name for c in "?bhilBHILefdFD")
_RIGHTS = ("you have no right to write there", "change the permissions of the folder")
_REASONS = {
    errno.ENOSPC: ("the disk is full", "free some space"),
    errno.EDQUOT: ("the disk quota is used up", "free some space"),
    errno.EFBIG: ("a file would exceed the size limit", "raise it (ulimit -f)"),
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: ("the disk is read-only", "make it writable"),
    errno.ENOENT: ("the folder or a part of it has vanished", "put it back"),
}


@dataclass(frozen=True)
class Variable:
    """Describe one draw of a variable: its shape, dtype and the names of its dimensions."""

    shape: tuple[int, ...]
    dtype: np.dtype
    dims: tuple[str, ...]


@dataclass(frozen=True)
class _Array:
    """A Zarr array: sizes of a chunk's first axes (it has all of the others), growing axis."""

    path: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    lead: tuple[int, ...] = ()
    axis: int | None = None

    def __post_init__(self) -> None:
        if len(self.dims) != len(self.shape) or len(set(self.dims)) < len(self.dims):
            why = f"dimensions {self.dims} do not name each axis of {self.shape}"
            raise _refusal(self.path, why, "Give every axis a name of its own")

    @classmethod
    def parse(cls, path: str, meta: Mapping[str, Any], *, growing: bool) -> Self:
        kind, dims = meta["data_type"], tuple(meta["dimension_names"])
        if not isinstance(kind, str):
            kind = f"U{kind['configuration']['length_bytes'] // 4}"
        axis = dims.index("draw") if growing and "draw" in dims else None
        lead = tuple(meta["chunk_grid"]["configuration"]["chunk_shape"])
        return cls(path, dims, tuple(meta["shape"]), np.dtype(kind).newbyteorder("<"), lead, axis)

    @cached_property
    def chunk(self) -> tuple[int, ...]:
        return (*self.lead, *(max(1, size) for size in self.shape[len(self.lead) :]))

    @cached_property
    def text(self) -> str:
        """The metadata as JSON in which `_LENGTH` stands for the growing size."""
        sizes = [_LENGTH if i == self.axis else str(s) for i, s in enumerate(self.shape)]
        kind, codecs = self.dtype.name, [_named("bytes", endian="little")]
        if self.dtype.kind == "U":
            kind = _named("fixed_length_utf32", length_bytes=self.dtype.itemsize)
        if self.axis == 1 and self.chunk[0] > 1:  # draws outermost on disk
            codecs.insert(0, _named("transpose", order=[1, 0, *range(2, len(self.chunk))]))
        rest = {
            "zarr_format": 3,
            "node_type": "array",
            "data_type": kind,
            "chunk_grid": _named("regular", chunk_shape=self.chunk),
            "chunk_key_encoding": _named("default", separator="."),
            "fill_value": _FILL.get(self.dtype.kind, 0),
            "codecs": codecs,
            "dimension_names": self.dims,
            "attributes": {},
        }
        return f'{{"shape":[{",".join(sizes)}],{json.dumps(rest)[1:]}'


def _named(name: str, **configuration: Json) -> dict[str, Json]:
    return {"name": name, "configuration": configuration}


def _group_text(attrs: Mapping[str, Any]) -> str:
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attrs})


def _refusal(what: str, why: str, remedy: str) -> StoreError:
    return StoreError(f"{what!r} cannot be stored: {why}. {remedy}.")


def _plain(where: str, values: ArrayLike) -> np.ndarray:
    """Return little-endian values of a type that Zarr can store."""
    array = np.asarray(values)
    if array.dtype.kind in "OT" and all(isinstance(v, str) for v in array.flat):
        array = array.astype(str)
    dtype = array.dtype
    if dtype.kind != "U" and dtype.name not in _DTYPES:
        raise _refusal(where, f"Zarr has no type for {dtype}", "Convert it to plain numbers")
    little = "<U1" if dtype == "U0" else dtype.newbyteorder("<")
    return array.astype(little, order="C", copy=False)


def _jsonable(where: str, value: object) -> Json:
    """Return strict JSON: NaN and infinities become the strings that Zarr uses."""
    if isinstance(value, Mapping):
        return _attributes(where, value)
    if isinstance(value, list | tuple):
        return [_jsonable(where, v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, np.generic | np.ndarray) or hasattr(value, "__array__"):  # JAX too
        return _jsonable(where, np.asarray(value).astype(object).tolist())
    raise _refusal(where, f"JSON has no type for {type(value).__name__}", "Give numbers or strings")


def _attributes(where: str, attrs: Mapping[str, object]) -> dict[str, Json]:
    return {str(key): _jsonable(f"{where}.{key}", value) for key, value in attrs.items()}


def _safe(group: str, name: str) -> str:
    """Return ``name`` if Zarr, xarray and the file system keep it as it is."""
    size = len(name.encode(errors="surrogatepass"))
    lone = any("\ud800" <= c <= "\udfff" for c in name)  # half a character has no UTF-8
    odd = name.startswith("__") or name == "zarr.json" or not name.strip(".")
    if odd or lone or size > 255 or any(c in "/\\\0" for c in name):
        why = "Zarr and xarray refuse a name that has a slash, begins with '__', is 'zarr.json', "
        better = name.replace("/", ".").replace("\\", ".").strip("._")[:40] or "x"
        remedy = f"Rename it, for example to {better!r}"
        raise _refusal(f"{group}/{name}", f"{why}only dots, empty or above 255 bytes", remedy)
    return name


@contextmanager
def _explained(path: Path, then: str = "continue with sk.resume") -> Iterator[None]:
    """Turn an error of the system into a StoreError that says what, why and what to do."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        why, remedy = _REASONS.get(error.errno or 0, ("the system refused", "mend that"))
        raise StoreError(
            f"cannot write or read the run at {str(path)!r}: {why} ({error}). "
            f"All that was committed before is kept: {remedy}, then {then}."
        ) from error


def _write(path: str, parts: Iterable[tuple[int, np.ndarray]], size: int) -> None:
    """Write each array at its offset; a size above 0 makes the file and gives it that size."""
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC | (os.O_CREAT if size else 0), 0o666)
    try:
        if size:
            os.ftruncate(handle, size)
        for offset, values in parts:
            view = memoryview(np.ascontiguousarray(values).reshape(-1).view(np.uint8))
            while view:  # the system may write less than it was given
                done = os.pwrite(handle, view, offset)
                view, offset = view[done:], offset + done
    finally:
        os.close(handle)


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _growing(path: str, variable: Variable, chains: int, chain_block: int) -> _Array:
    dtype = _plain(path, np.empty(0, variable.dtype)).dtype
    draw_bytes = max(1, chain_block * math.prod(variable.shape) * dtype.itemsize)
    lead = (chain_block, max(1, min(BLOCK_DRAWS, CHUNK_BYTES // draw_bytes)))
    shape, dims = (chains, 0, *variable.shape), ("chain", "draw", *variable.dims)
    return _Array(path, dims, shape, dtype, lead, 1)


def _layout(
    groups: Mapping[str, Any], constants: Mapping[str, Any], coords: Mapping[str, Any], block: int
) -> tuple[dict[str, dict[str, _Array]], dict[str, np.ndarray]]:
    """Return the arrays of every group, and the values of those that never change."""
    arrays: dict[str, dict[str, _Array]] = {_SAMPLER: {}}
    values: dict[str, np.ndarray] = {}

    def fix(path: str, dims: Sequence[str], given: ArrayLike) -> _Array:
        values[path] = _plain(path, given)
        return _Array(path, tuple(dims), values[path].shape, values[path].dtype)

    for group, members in (*groups.items(), *constants.items()):
        if _safe("", group) in arrays:
            raise _refusal(group, "another group has that name", "Rename the group")
        found = arrays[group] = {}
        for name, item in members.items():
            path = f"{group}/{_safe(group, name)}"
            if group in groups:
                found[name] = _growing(path, item, len(coords["chain"]), block)
            else:
                found[name] = fix(path, *item)
        used = _check_dims(found, coords) | ({"chain"} if group in groups else set())
        for dim in (dim for dim in coords if dim in used):
            found[dim] = fix(f"{group}/{_safe(group, dim)}", (dim,), coords[dim])
        if group in groups:
            counts = (np.dtype("<i8"), (BLOCK_DRAWS,), 0)
            found["draw"] = _Array(f"{group}/draw", ("draw",), (0,), *counts)
    return arrays, values


def _check_dims(found: Mapping[str, _Array], coords: Mapping[str, Any]) -> set[str]:
    """Return the dimensions of a group, after a check that its arrays agree on them."""
    sizes = {dim: len(labels) for dim, labels in coords.items()}
    used = {dim for array in found.values() for dim in array.dims}
    for name, array in found.items():
        for dim, size in zip(array.dims, array.shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                why = f"its dimension {dim!r} has size {size}, elsewhere {sizes[dim]}"
                raise _refusal(array.path, why, "Rename the dimension or mend its coordinate")
        if name in used | {"draw"}:
            raise _refusal(array.path, "a dimension has that name", "Rename one of them")
    return used


def _state_array(name: str, values: np.ndarray) -> _Array:
    dims = ("slot", *(f"{name}_dim_{i}" for i in range(values.ndim)))
    path = f"{_SAMPLER}/{_safe(_SAMPLER, name)}"
    return _Array(path, dims, (2, *values.shape), values.dtype, (1,))


def _entries(group: str, text: str, arrays: Mapping[str, _Array]) -> str:
    """Return a group's part of the consolidated metadata."""
    nodes = {group: text, **{array.path: array.text for array in arrays.values()}}
    return ",\n".join(f"{json.dumps(key)}:{node}" for key, node in nodes.items())


class Store:
    """Append draws to a folder and show them, all at once, by `commit`.

    ``lengths`` (draws of each growing group), ``attrs`` (of the root) and ``sampler_attrs`` are
    those of the last commit; ``path`` is the folder. Made by `create` and `open`.
    """

    def __init__(self, path: Path, arrays: dict, group_attrs: dict, attrs: dict) -> None:
        self.path, self.attrs, self.durable = path, attrs, False
        self.sampler_attrs: dict[str, Any] = group_attrs.pop(_SAMPLER)
        self._slot: int = self.sampler_attrs.pop("slot")
        self._arrays: dict[str, dict[str, _Array]] = arrays
        self._groups = {group: _group_text(own) for group, own in group_attrs.items()}
        self._templates = {g: _entries(g, text, arrays[g]) for g, text in self._groups.items()}
        growing = [g for g, found in arrays.items() if any(a.axis == 0 for a in found.values())]
        self.lengths: dict[str, int] = {g: arrays[g]["draw"].shape[0] for g in growing}
        self._written = {}  # draws of each chain that are in the files, visible or not
        for group, length in self.lengths.items():
            some = any(a.axis == 1 for a in arrays[group].values())
            self._written[group] = np.full(arrays[group]["chain"].shape, length if some else 2**62)
        self._sized: set[str] = set()  # chunk files known to have their full size

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
        durable
            Survive power loss as well: fsync whatever is written.
        """
        target = Path(os.path.realpath(path))
        labels = {"chain": range(chains), **(coords or {})}
        labels.pop("draw", None)  # always counted from 0
        arrays, values = _layout(groups, constants or {}, labels, chain_block)
        clean = {g: _attributes(g, (group_attrs or {}).get(g, {})) for g in arrays}
        clean[_SAMPLER]["slot"] = 1  # the first commit goes into slot 0
        draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        store = cls(draft, arrays, clean, _attributes("run", attrs or {}))
        store.durable = durable
        with _explained(target, then="start again"):
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
                store._save_nodes()
                own = store.sampler_attrs
                store._publish(store.lengths, 1, attrs=store.attrs, sampler_attrs=own, state={})
                os.rename(draft, target)
                if durable:
                    _sync(str(target.parent))
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
            if nodes[_SAMPLER]["attributes"].pop("store_version") != _VERSION:
                raise ValueError("another version of samplekit wrote it")
            attrs = {k: n["attributes"] for k, n in nodes.items() if n["node_type"] == "group"}
            arrays: dict[str, dict[str, _Array]] = {group: {} for group in attrs}
            for key in (key for key in nodes if key not in attrs):
                group, name = key.split("/")
                grows = nodes.get(f"{group}/draw", {}).get("dimension_names") == ["draw"]
                arrays[group][name] = _Array.parse(key, nodes[key], growing=grows)
            store = cls(folder, arrays, attrs, root["attributes"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            what = f"cannot open {str(folder)!r}: there is no run of samplekit that can be read"
            remedy = "Give the folder that sk.sample(store=...) wrote."
            raise StoreError(f"{what} ({error!r}). {remedy}") from error
        store.durable = durable
        return store

    def append(self, group: str, start: int, chains: slice, data: Mapping[str, Any]) -> None:
        """Write draws from ``start`` on of some chains, unseen before the next `commit`.

        ``data[name]`` has the shape (chains, draws, *event). Threads may append other chains.
        """
        first, stop, _ = chains.indices(len(self._written[group]))
        arrays = {name: a for name, a in self._arrays[group].items() if a.axis == 1}
        values = {name: np.asarray(value) for name, value in data.items()}
        if values.keys() != arrays.keys() or chains.step not in (None, 1):
            raise _refusal(group, f"got {sorted(values)} of {chains}", f"Give {sorted(arrays)}")
        count = min((v.shape[1] for v in values.values() if v.ndim > 1), default=0)
        for name, array in arrays.items():
            got, want = values[name], (stop - first, count, *array.shape[2:])
            if got.shape != want or not np.can_cast(got.dtype, array.dtype, "safe"):
                why = f"it is {got.dtype}{got.shape}, not {array.dtype}{want}"
                raise _refusal(array.path, why, "Give what the store was made for")
        seen, written = self.lengths[group], self._written[group][first:stop].min(initial=2**62)
        if not seen <= start <= written:
            why = f"draws {seen} to {written} can come next, not {start}"
            raise _refusal(group, why, "Append without a gap after what is committed")
        with _explained(self.path):
            for name, array in arrays.items():
                if array.dtype.itemsize * math.prod(array.shape[2:]):
                    self._put(array, first, start, values[name].astype(array.dtype, copy=False))
        self._written[group][first:stop] = start + count

    def _put(self, array: _Array, first: int, start: int, values: np.ndarray) -> None:
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
                whole = high - low == block
                spread = ((at + i * block * row, draw) for i, draw in enumerate(part))
                self._write(array, (b, k), [(at, part)] if whole else spread)

    def _file(self, array: _Array, index: tuple[int, ...]) -> str:
        index += (0,) * (len(array.chunk) - len(index))
        return f"{self.path}/{array.path}/{'.'.join(('c', *map(str, index)))}"

    def _write(self, array: _Array, index: tuple[int, ...], parts: Iterable) -> None:
        """Write into a chunk file, which gets its full size when it is first used."""
        path = self._file(array, index)
        new = path not in self._sized
        _write(path, parts, math.prod(array.chunk) * array.dtype.itemsize if new else 0)
        self._sized.add(path)
        if self.durable:
            _sync(path)
            if new:
                _sync(os.path.dirname(path))

    def _replace(self, folder: str, text: str) -> None:
        """Put a new ``zarr.json`` in place in one instant."""
        path, raw = f"{self.path}/{folder}/zarr.json", np.frombuffer(text.encode(), np.uint8)
        _write(f"{path}.tmp", [(0, raw)], raw.size)
        if self.durable:
            _sync(f"{path}.tmp")
        os.replace(f"{path}.tmp", path)
        if self.durable:
            _sync(f"{self.path}/{folder}")

    def commit(
        self,
        lengths: Mapping[str, int],
        state: Mapping[str, Any],
        *,
        sampler_attrs: Mapping[str, Any],
        attrs: Mapping[str, Any] | None = None,
    ) -> None:
        """Show the draws up to ``lengths``, the state and the attributes, all in one instant.

        The first commit fixes names, shapes and types of the state. A group that ``lengths``
        leaves out keeps its own, as the root keeps its attributes if ``attrs`` is None.
        """
        for group, length in lengths.items():
            low, high = self.lengths[group], self._written[group].min()
            if not low <= length <= high:
                why = f"it can have {low} to {high} draws now, not {length}"
                raise _refusal(group, why, "Append the draws of every chain first")
        values = {name: _plain(f"{_SAMPLER}/{name}", value) for name, value in state.items()}
        arrays = {name: _state_array(name, value) for name, value in values.items()}
        known = self._arrays[_SAMPLER]
        kinds = {a.path: (str(a.dtype), a.shape[1:]) for a in known.values()}
        if known and kinds != {a.path: (str(a.dtype), a.shape[1:]) for a in arrays.values()}:
            why = "names, shapes or types of the state are not those of the first commit"
            raise _refusal(_SAMPLER, why, f"Give {kinds}")
        arrays = known or arrays  # the known ones have their text ready
        own = _attributes(_SAMPLER, sampler_attrs)
        root = self.attrs if attrs is None else _attributes("run", attrs)
        with _explained(self.path):
            for name, array in arrays.items():
                if not known:
                    with suppress(FileExistsError):  # left by a commit that failed
                        os.mkdir(f"{self.path}/{array.path}")
                        if self.durable:
                            _sync(f"{self.path}/{_SAMPLER}")
                self._write(array, (1 - self._slot,), [(0, values[name])])
            for group, length in lengths.items():
                for k in range(-(-self.lengths[group] // BLOCK_DRAWS), -(-length // BLOCK_DRAWS)):
                    counts = np.arange(k * BLOCK_DRAWS, (k + 1) * BLOCK_DRAWS, dtype="<i8")
                    self._write(self._arrays[group]["draw"], (k,), [(0, counts)])
            new = {**self.lengths, **lengths}
            slot = 1 - self._slot
            self._publish(new, slot, attrs=root, sampler_attrs=own, state=arrays)

    def _publish(
        self, lengths: dict[str, int], slot: int, *, attrs: dict, sampler_attrs: dict, state: dict
    ) -> None:
        """Replace the root's metadata, the one instant in which a commit happens."""
        parts = [t.replace(_LENGTH, str(lengths.get(g, 0))) for g, t in self._templates.items()]
        own = _group_text({**sampler_attrs, "slot": slot, "store_version": _VERSION})
        inline = '"consolidated_metadata":{"kind":"inline","must_understand":false,"metadata":{'
        nodes = ",\n".join([*parts, _entries(_SAMPLER, own, state)])
        self._replace(".", f"{_group_text(attrs)[:-1]},{inline}\n{nodes}}}}}}}")
        self.lengths, self._slot, self._arrays[_SAMPLER] = lengths, slot, state
        self.attrs, self.sampler_attrs = attrs, sampler_attrs

    def state(self) -> dict[str, np.ndarray]:
        """Return the sampler's state at the last commit; empty before the first."""
        found = {}
        with _explained(self.path):
            for name, array in self._arrays[_SAMPLER].items():
                shape = array.shape[1:]
                file = self._file(array, (self._slot,))
                values = np.fromfile(file, array.dtype, math.prod(shape))
                if values.size < math.prod(shape):
                    raise OSError(errno.EIO, "the file is too short", file)
                found[name] = values.reshape(shape)
        return found

    def close(self) -> None:
        """Bring the metadata below the root up to date; the store can still be used after."""
        with _explained(self.path):
            self._save_nodes()

    def _save_nodes(self) -> None:
        own = _group_text({**self.sampler_attrs, "slot": self._slot, "store_version": _VERSION})
        for group, text in {**self._groups, _SAMPLER: own}.items():
            length = str(self.lengths.get(group, 0))
            for array in self._arrays[group].values():
                self._replace(array.path, array.text.replace(_LENGTH, length))
            self._replace(group, text)
