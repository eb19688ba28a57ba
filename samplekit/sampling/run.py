"""The run: draws and statistics as an ArviZ DataTree that is its own checkpoint."""

import functools
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from samplekit.sampling.labels import Labels
from samplekit.sampling.store import Variable

if TYPE_CHECKING:
    import xarray as xr

# Bumped when what a checkpoint holds changes.
SCHEMA = 2
type Block = dict[str, np.ndarray]


class Draws:
    """Blocks of one group, in memory, (chain, draw, ...) once joined."""

    def __init__(self) -> None:
        self._parts: dict[int, list[Block]] = {}  # of the number of their first chain

    def add(self, first_chain: int, block: Block) -> None:
        """Append a block whose first chain is `first_chain`."""
        self._parts.setdefault(first_chain, []).append(block)

    def clear(self) -> None:
        """Forget everything."""
        self._parts.clear()

    def joined(self) -> Block:
        """Return one array a variable, (chain, draw, ...); joins in place, so it is cheap twice."""
        for blocks in self._parts.values():
            if len(blocks) > 1:
                names = blocks[0]
                blocks[:] = [{n: np.concatenate([b[n] for b in blocks], axis=1) for n in names}]
        parts = [blocks[0] for _, blocks in sorted(self._parts.items())]
        if not parts:
            return {}
        if len(parts) == 1:  # JAX's own memory is read-only; a user's draws are the user's
            return {n: a if a.flags.writeable else a.copy() for n, a in parts[0].items()}
        return {n: np.concatenate([p[n] for p in parts], axis=0) for n in parts[0]}


def safe_name(name: str) -> str:
    """Return a name that a DataTree can hold: '/' would mean a subgroup."""
    return name.replace("/", ".")


def build_tree(
    groups: Mapping[str, Block],
    labels: Labels,
    *,
    sampler: Mapping[str, np.ndarray],
    sampler_attrs: Mapping[str, Any],
    attrs: Mapping[str, Any],
) -> "xr.DataTree":
    """Put draws, statistics, data and checkpoint together."""
    import xarray as xr

    datasets = {"/": xr.Dataset(attrs=dict(attrs))}
    for group, block in groups.items():
        known = labels.variables if group.endswith("posterior") else {}
        datasets[group] = _dataset(block, known, labels.coords, attrs)
    if labels.observed:
        arrays = {safe_name(n): (dims, values) for n, (dims, values) in labels.observed.items()}
        used = {d for dims, _ in labels.observed.values() for d in dims}
        coords = {d: np.asarray(list(v)) for d, v in labels.coords.items() if d in used}
        datasets["observed_data"] = xr.Dataset(arrays, coords=coords, attrs=dict(attrs))
    arrays = {n: np.asarray(a) for n, a in sampler.items()}
    own = {n: tuple(f"{n}_dim_{i}" for i in range(a.ndim)) for n, a in arrays.items()}
    plain = {k: _jsonable(v) for k, v in sampler_attrs.items()}
    datasets["sampler"] = _filled(arrays, own, {}, plain)
    # Not `from_dict`, which copies every node as often as the tree grows, nor given to the root as
    # it is made, which copies each once.
    tree = xr.DataTree(datasets.pop("/"))
    tree.children = {name: xr.DataTree(data) for name, data in datasets.items()}
    return tree


def _dataset(
    block: Block, known: Mapping[str, Variable], coords: Mapping[str, Any], attrs: Mapping[str, Any]
) -> "xr.Dataset":
    arrays = {safe_name(name): values for name, values in block.items()}
    inner = {
        safe_name(name): known[name].dims
        if name in known
        else tuple(f"{name}_dim_{i}" for i in range(values.ndim - 2))
        for name, values in block.items()
    }
    used = {d for dims in inner.values() for d in dims}
    chains, draws = next(iter(block.values())).shape[:2]
    labels = {d: v for d, v in coords.items() if d in used}
    labels |= {"chain": range(chains), "draw": range(draws)}
    dims = {name: ("chain", "draw", *own) for name, own in inner.items()}
    return _filled(arrays, dims, labels, attrs)


def _filled(
    arrays: Mapping[str, np.ndarray],
    dims: Mapping[str, tuple[str, ...]],
    labels: Mapping[str, Any],
    attrs: Mapping[str, Any],
) -> "xr.Dataset":
    """Return a Dataset; one like it, if there was one, is copied, which takes a fifth of the time.

    Labels that are counted are part of its form, others are put in.
    """
    counted = {d: v for d, v in labels.items() if isinstance(v, range)}
    form = tuple((name, dims[name], values.shape) for name, values in arrays.items())
    data = _form(form, tuple(counted.items())).copy(data=dict(arrays))
    others = {d: np.asarray(list(v)) for d, v in labels.items() if d not in counted}
    data = data.assign_coords(others) if others else data
    data.attrs = dict(attrs)
    return data


@functools.lru_cache(maxsize=32)
def _form(
    variables: tuple[tuple[str, tuple[str, ...], tuple[int, ...]], ...],
    labels: tuple[tuple[str, range], ...],
) -> "xr.Dataset":
    """Return a Dataset of zeros that take no memory."""
    import xarray as xr

    empty = {name: (dims, np.broadcast_to(0.0, shape)) for name, dims, shape in variables}
    return xr.Dataset(empty, coords={dim: np.asarray(values) for dim, values in labels})


def open_tree(path: Any) -> "xr.DataTree":
    """Open a run that `sample` stored. Its draws are counted anew: their labels take no memory."""
    import pandas as pd
    import xarray as xr
    from xarray.indexes import PandasIndex

    tree = xr.open_datatree(path, engine="zarr", drop_variables="draw")
    for node in tree.children.values():
        if "draw" in node.dims:
            labels = PandasIndex(pd.RangeIndex(node.sizes["draw"]), "draw")
            node.coords.update(xr.Coordinates.from_xindex(labels))
    return tree


def _jsonable(value: Any) -> Any:
    """Keep plain attributes plain, so that netCDF and Zarr both take them."""
    if isinstance(value, bool | int | float | str):
        return int(value) if isinstance(value, bool) else value
    return json.dumps(value)


@functools.cache
def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("samplekit")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "unknown"


def group_attrs(seconds: Mapping[str, float], settings: Any) -> dict[str, Any]:
    """Return the attributes that ArviZ expects of a group."""
    return {
        "created_at": datetime.now(UTC).isoformat(),
        "inference_library": "samplekit",
        "inference_library_version": _version(),
        "sampling_time": float(seconds.get("sampling", 0.0)),
        "tuning_steps": int(settings.warmup),
    }


def sampler_state(tree: "xr.DataTree") -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the checkpoint of a run: its arrays, and its attributes decoded."""
    group = tree["sampler"].to_dataset()
    attrs = {k: _decoded(v) for k, v in group.attrs.items()}
    arrays = {str(n): np.asarray(v.values) for n, v in group.data_vars.items()}
    if "slot" in attrs:  # stored runs keep two states, and name the good one
        slot = int(attrs["slot"])
        arrays = {n: a[slot] for n, a in arrays.items() if n != "slot"}
    return arrays, attrs


def _decoded(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in "[{n":
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value.item() if isinstance(value, np.generic) else value


def blocks_of(tree: "xr.DataTree", group: str, names: Sequence[str]) -> Block:
    """Return the arrays of a group by their original names."""
    if group not in tree.children:
        return {}
    data = tree[group].to_dataset()
    return {n: np.asarray(data[safe_name(n)].values) for n in names if safe_name(n) in data}
