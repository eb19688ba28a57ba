"""Say what the files of a stored run look like: arrays, metadata, names, errors of the disk."""

import errno
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
VERSION = 1
SAMPLER = "sampler"
LENGTH = "\0"  # stands for the number of draws: JSON text never holds a bare NUL
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
class StoredArray:
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
            raise refusal(self.path, why, "Give every axis a name of its own")

    @classmethod
    def parse(cls, path: str, meta: Mapping[str, Any], *, growing: bool) -> Self:
        """Read the metadata that `text` wrote."""
        kind, dims = meta["data_type"], tuple(meta["dimension_names"])
        if not isinstance(kind, str):
            kind = f"U{kind['configuration']['length_bytes'] // 4}"
        axis = dims.index("draw") if growing and "draw" in dims else None
        lead = tuple(meta["chunk_grid"]["configuration"]["chunk_shape"])
        return cls(path, dims, tuple(meta["shape"]), np.dtype(kind).newbyteorder("<"), lead, axis)

    @cached_property
    def chunk(self) -> tuple[int, ...]:
        """The shape of a chunk."""
        return (*self.lead, *(max(1, size) for size in self.shape[len(self.lead) :]))

    @cached_property
    def text(self) -> str:
        """The metadata as JSON in which `LENGTH` stands for the growing size."""
        sizes = [LENGTH if i == self.axis else str(s) for i, s in enumerate(self.shape)]
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


def group_text(attrs: Mapping[str, Any]) -> str:
    """Return the metadata of a group."""
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attrs})


def refusal(what: str, why: str, remedy: str) -> StoreError:
    """Make the error for what cannot be stored."""
    return StoreError(f"{what!r} cannot be stored: {why}. {remedy}.")


def plain(where: str, values: ArrayLike) -> np.ndarray:
    """Return little-endian values of a type that Zarr can store."""
    array = np.asarray(values)
    if array.dtype.kind in "OT" and all(isinstance(v, str) for v in array.flat):
        array = array.astype(str)
    dtype = array.dtype
    if dtype.kind != "U" and dtype.name not in _DTYPES:
        raise refusal(where, f"Zarr has no type for {dtype}", "Convert it to plain numbers")
    little = "<U1" if dtype == "U0" else dtype.newbyteorder("<")
    return array.astype(little, order="C", copy=False)


def _jsonable(where: str, value: object) -> Json:
    """Return strict JSON: NaN and infinities become the strings that Zarr uses."""
    if isinstance(value, Mapping):
        return attributes(where, value)
    if isinstance(value, list | tuple):
        return [_jsonable(where, v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, np.generic | np.ndarray) or hasattr(value, "__array__"):  # JAX too
        return _jsonable(where, np.asarray(value).astype(object).tolist())
    raise refusal(where, f"JSON has no type for {type(value).__name__}", "Give numbers or strings")


def attributes(where: str, attrs: Mapping[str, object]) -> dict[str, Json]:
    """Return attributes as strict JSON."""
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
        raise refusal(f"{group}/{name}", f"{why}only dots, empty or above 255 bytes", remedy)
    return name


@contextmanager
def explained(path: Path, then: str = "continue with sk.resume") -> Iterator[None]:
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


def write_file(path: str, parts: Iterable[tuple[int, np.ndarray]], size: int) -> None:
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


def sync_path(path: str) -> None:
    """Bring a file or folder safely to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _growing(path: str, variable: Variable, chains: int, chain_block: int) -> StoredArray:
    dtype = plain(path, np.empty(0, variable.dtype)).dtype
    draw_bytes = max(1, chain_block * math.prod(variable.shape) * dtype.itemsize)
    lead = (chain_block, max(1, min(BLOCK_DRAWS, CHUNK_BYTES // draw_bytes)))
    shape, dims = (chains, 0, *variable.shape), ("chain", "draw", *variable.dims)
    return StoredArray(path, dims, shape, dtype, lead, 1)


def plan(
    groups: Mapping[str, Any], constants: Mapping[str, Any], coords: Mapping[str, Any], block: int
) -> tuple[dict[str, dict[str, StoredArray]], dict[str, np.ndarray]]:
    """Return the arrays of every group, and the values of those that never change."""
    arrays: dict[str, dict[str, StoredArray]] = {SAMPLER: {}}
    values: dict[str, np.ndarray] = {}

    def fix(path: str, dims: Sequence[str], given: ArrayLike) -> StoredArray:
        values[path] = plain(path, given)
        return StoredArray(path, tuple(dims), values[path].shape, values[path].dtype)

    for group, members in (*groups.items(), *constants.items()):
        if _safe("", group) in arrays:
            raise refusal(group, "another group has that name", "Rename the group")
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
            found["draw"] = StoredArray(f"{group}/draw", ("draw",), (0,), *counts)
    return arrays, values


def _check_dims(found: Mapping[str, StoredArray], coords: Mapping[str, Any]) -> set[str]:
    """Return the dimensions of a group, after a check that its arrays agree on them."""
    sizes = {dim: len(labels) for dim, labels in coords.items()}
    used = {dim for array in found.values() for dim in array.dims}
    for name, array in found.items():
        for dim, size in zip(array.dims, array.shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                why = f"its dimension {dim!r} has size {size}, elsewhere {sizes[dim]}"
                raise refusal(array.path, why, "Rename the dimension or mend its coordinate")
        if name in used | {"draw"}:
            raise refusal(array.path, "a dimension has that name", "Rename one of them")
    return used


def state_array(name: str, values: np.ndarray) -> StoredArray:
    """Return an array with two slots for a part of the sampler's state."""
    dims = ("slot", *(f"{name}_dim_{i}" for i in range(values.ndim)))
    path = f"{SAMPLER}/{_safe(SAMPLER, name)}"
    return StoredArray(path, dims, (2, *values.shape), values.dtype, (1,))


def node_entries(group: str, text: str, arrays: Mapping[str, StoredArray]) -> str:
    """Return a group's part of the consolidated metadata."""
    nodes = {group: text, **{array.path: array.text for array in arrays.values()}}
    return ",\n".join(f"{json.dumps(key)}:{node}" for key, node in nodes.items())
