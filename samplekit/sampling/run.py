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

    def __init__(self, chains: int) -> None:
        self._parts: list[list[Block]] = [[] for _ in range(chains)]

    def add(self, first_chain: int, block: Block) -> None:
        """Append a block whose first chain is `first_chain`."""
        self._parts[first_chain].append(block)

    def clear(self) -> None:
        """Forget everything."""
        for blocks in self._parts:
            blocks.clear()

    def joined(self) -> Block:
        """Return one array a variable, (chain, draw, ...); joins in place, so it is cheap twice."""
        for blocks in self._parts:
            if len(blocks) > 1:
                names = blocks[0]
                blocks[:] = [{n: np.concatenate([b[n] for b in blocks], axis=1) for n in names}]
        parts = [blocks[0] for blocks in self._parts if blocks]
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
    plain = {
        n: xr.Variable(*_anonymous(n, np.asarray(a)), fastpath=True) for n, a in sampler.items()
    }
    datasets["sampler"] = xr.Dataset(
        plain, attrs={k: _jsonable(v) for k, v in sampler_attrs.items()}
    )
    # Not `from_dict`, which copies every node as often as the tree grows, nor given to the root as
    # it is made, which copies each once.
    tree = xr.DataTree(datasets.pop("/"))
    tree.children = {name: xr.DataTree(data) for name, data in datasets.items()}
    return tree


def _dataset(
    block: Block, known: Mapping[str, Variable], coords: Mapping[str, Any], attrs: Mapping[str, Any]
) -> "xr.Dataset":
    import xarray as xr

    arrays, used = {}, set()
    for name, values in block.items():
        dims = (
            known[name].dims
            if name in known
            else tuple(f"{name}_dim_{i}" for i in range(values.ndim - 2))
        )
        arrays[safe_name(name)] = xr.Variable(("chain", "draw", *dims), values, fastpath=True)
        used.update(dims)
    first = next(iter(block.values()))
    labels = {d: np.asarray(list(v)) for d, v in coords.items() if d in used}
    labels |= {"chain": np.arange(first.shape[0]), "draw": np.arange(first.shape[1])}
    # As Coordinates: from a dictionary xarray takes twice as long.
    return xr.Dataset(arrays, coords=xr.Coordinates(labels), attrs=attrs)


def _anonymous(name: str, values: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    return tuple(f"{name}_dim_{i}" for i in range(values.ndim)), values


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
