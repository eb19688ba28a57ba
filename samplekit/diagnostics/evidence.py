"""What a run tells: draws as arrays, statistics under one name each, and who made it.

Everything that `diagnose` knows of a run passes through here, so a run of NumPyro, PyMC, CmdStan or
emcee is looked at exactly as one of our own.
"""

import dataclasses
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from samplekit.core.errors import SettingsError, StoreError
from samplekit.diagnostics.origin import (
    Checkpoint,
    Sampler,
    read_checkpoint,
    read_sampler,
    read_seconds,
)

if TYPE_CHECKING:
    import xarray as xr

# Numbers of one block of `Evidence.scalars`: a few megabytes whatever the run. A scalar with more
# draws than this is a block of its own.
_BLOCK_NUMBERS = 2**19

# Names of other libraries (and of older ArviZ) → ours, which are ArviZ's of today. Not "accept" of
# PyMC's Metropolis: it is p(new)/p(old), above 1 as often as not; "accepted" is beside it.
_ALIASES = {
    "reached_max_tree_depth": "reached_max_treedepth",  # NumPyro
    "maxdepth_reached": "reached_max_treedepth",  # nutpie
    "divergent": "diverging",
    "divergent__": "diverging",
    "accept_prob": "acceptance_rate",
    "accept_stat": "acceptance_rate",
    "accept_stat__": "acceptance_rate",
    "acceptance_probability": "acceptance_rate",
    "mean_tree_accept": "acceptance_rate",  # PyMC 3
    "stepsize": "step_size",
    "stepsize__": "step_size",
    "treedepth": "tree_depth",
    "treedepth__": "tree_depth",
    "depth": "tree_depth",
    "n_leapfrog": "n_steps",
    "n_leapfrog__": "n_steps",
    "num_steps": "n_steps",
    "tree_size": "n_steps",
    "energy__": "energy",
    "lp__": "lp",
    "logp": "lp",  # nutpie
    "log_likelihood_total": "lp",
}


@dataclasses.dataclass(frozen=True)
class Evidence:
    """A run, opened: what every check looks at.

    Attributes
    ----------
    tree
        The run itself.
    names
        One label a scalar, as ArviZ writes it: "mu", "theta[Choate]", "x[0, 1]".
    variables
        Draws by variable, floating, of shape (chain, draw, *event).
    stats, warmup_stats
        Statistics of the draws and of warm-up, (chain, draw), under our names; empty if not kept.
    sampler
        Who made the run.
    starts
        Where the chains began, (chain, number), in whatever coordinates `ends` has; None: unknown.
    ends
        Where the chains are now, in the coordinates of `starts`.
    seconds
        Wall time of the draws, without warm-up and compilation.
    thin
        Steps of the sampler for one draw.
    """

    tree: "xr.DataTree"
    names: tuple[str, ...]
    variables: dict[str, np.ndarray]
    stats: dict[str, np.ndarray]
    warmup_stats: dict[str, np.ndarray]
    sampler: Sampler
    starts: np.ndarray | None
    ends: np.ndarray | None
    seconds: float | None
    thin: int = 1

    @property
    def chains(self) -> int:
        """Number of chains."""
        return next(iter(self.variables.values())).shape[0]

    @property
    def draws(self) -> int:
        """Draws of each chain."""
        return next(iter(self.variables.values())).shape[1]

    @property
    def discrete(self) -> bool:
        """Whether all variables that were sampled are integers or booleans."""
        held = self.tree["posterior"].to_dataset().data_vars.values()
        return all(v.dtype.kind in "biu" for v in held)

    def scalars(self) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
        """Yield blocks of labels and draws (scalar, chain, draw) in float64, of bounded memory."""
        size = max(1, _BLOCK_NUMBERS // max(1, self.chains * self.draws))
        waiting: list[np.ndarray] = []
        first = count = 0
        for values in self.variables.values():
            flat = values.reshape(*values.shape[:2], -1)
            for start in range(0, flat.shape[2], size):
                rows = flat[:, :, start : start + size].transpose(2, 0, 1)
                if waiting and count + len(rows) > size:
                    yield self.names[first : first + count], _joined(waiting)
                    first, count, waiting = first + count, 0, []
                waiting.append(rows)
                count += len(rows)
        if waiting:
            yield self.names[first : first + count], _joined(waiting)


def _joined(rows: list[np.ndarray]) -> np.ndarray:
    return np.ascontiguousarray(np.concatenate(rows), dtype=np.float64)


def open_run(run: Any) -> "xr.DataTree":
    """Return a run as a DataTree, whatever form it has.

    Parameters
    ----------
    run
        A DataTree, a Dataset of draws, a dict of arrays (chain, draw, *event), or the path of a
        netCDF file or a Zarr folder.

    Examples
    --------
    >>> import numpy as np
    >>> open_run({"x": np.zeros((4, 100))})["posterior"].sizes["draw"]
    100
    """
    import xarray as xr

    if isinstance(run, xr.DataTree):
        return run
    if isinstance(run, xr.Dataset):
        return xr.DataTree.from_dict({"posterior": run})
    if isinstance(run, str | os.PathLike):
        return _open_path(Path(run))
    if isinstance(run, Mapping):
        return _from_arrays(run)
    raise SettingsError(
        f"A {type(run).__name__} is not a run. Give the DataTree of sk.sample (or of ArviZ), a "
        "Dataset, a dict of arrays of shape (chain, draw, ...), or the path of a stored run."
    )


def _open_path(path: Path) -> "xr.DataTree":
    import xarray as xr

    from samplekit.sampling.store import check_path

    if not path.exists():
        raise StoreError(
            f"There is no run at {str(path)!r}. Give a Zarr folder (sk.sample(..., store=)) or a "
            "netCDF file (run.to_netcdf)."
        )
    engine = "zarr" if path.is_dir() or path.suffix == ".zarr" else "h5netcdf"
    check_path(path)
    try:
        with warnings.catch_warnings():
            # A folder without consolidated metadata opens more slowly, and just as well.
            warnings.filterwarnings("ignore", "Failed to open Zarr store", RuntimeWarning)
            return xr.open_datatree(path, engine=engine)
    except Exception as error:  # each reader has errors of its own for what it cannot read
        kind = "Zarr folder" if engine == "zarr" else "netCDF file"
        raise StoreError(
            f"{str(path)!r} cannot be read as a {kind} of a run ({type(error).__name__}: {error}). "
            "Give what sk.sample(..., store=), run.to_zarr or run.to_netcdf wrote."
        ) from error


def _from_arrays(run: Mapping[Any, Any]) -> "xr.DataTree":
    import xarray as xr

    from samplekit.sampling.run import safe_name

    variables = {}
    for name, values in run.items():
        array = np.asarray(values)
        if array.ndim < 2:
            raise SettingsError(
                f"The draws of {str(name)!r} have shape {list(array.shape)}, but chains are "
                "compared over draws: give arrays of shape (chain, draw, ...)."
            )
        name = safe_name(str(name))
        dims = ("chain", "draw", *(f"{name}_dim_{i}" for i in range(array.ndim - 2)))
        variables[name] = (dims, array)
    try:
        return xr.DataTree.from_dict({"posterior": xr.Dataset(variables)})
    except ValueError as error:
        shapes = {name: list(np.shape(values)) for name, values in run.items()}
        raise SettingsError(
            f"The variables have different numbers of chains or draws: {shapes}. Give each the "
            "same first two axes (chain, draw)."
        ) from error


def gather(run: Any) -> Evidence:
    """Open a run and take down what it tells.

    Parameters
    ----------
    run
        Anything that `open_run` takes.

    Examples
    --------
    >>> import numpy as np
    >>> gather({"x": np.zeros((4, 100, 2))}).names
    ('x[0]', 'x[1]')
    """
    tree = open_run(run)
    variables, names = _variables(tree)
    stats, warmup_stats = _both_stats(tree)
    checkpoint = read_checkpoint(tree)
    starts, ends = _ends(tree, checkpoint)
    return Evidence(
        tree=tree,
        names=names,
        variables=variables,
        stats=stats,
        warmup_stats=warmup_stats,
        sampler=read_sampler(tree, stats, checkpoint),
        starts=starts,
        ends=ends,
        seconds=read_seconds(tree, checkpoint),
        thin=int(checkpoint[1].get("thin", 1)),
    )


def _variables(
    tree: "xr.DataTree", group: str = "posterior"
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    if group not in tree.children:
        groups = ", ".join(tree.children) or "none"
        raise SettingsError(
            f"The run has no group 'posterior' (its groups: {groups}). Give a run as sk.sample, "
            "az.from_numpyro, az.from_emcee or pm.sample return it."
        )
    data = tree[group].to_dataset()
    if "draw" in data.dims and "chain" not in data.dims:
        data = data.expand_dims("chain")
    variables: dict[str, np.ndarray] = {}
    names: list[str] = []
    for name, values in data.data_vars.items():
        if not {"chain", "draw"} <= set(values.dims) or values.dtype.kind not in "biuf":
            continue
        ordered = values.transpose("chain", "draw", ...)
        array = np.asarray(ordered.values)
        variables[str(name)] = array if array.dtype.kind == "f" else array.astype(np.float64)
        names += _labels(str(name), ordered)
    if not names or not data.sizes["chain"] or not data.sizes["draw"]:
        raise SettingsError(
            "The run has no draws: its group 'posterior' holds no numbers with the dimensions "
            f"chain and draw (sizes {dict(data.sizes)}). Sample first, or look at what was stored."
        )
    return variables, tuple(names)


def _labels(name: str, values: "xr.DataArray") -> list[str]:
    """Label the scalars of a variable as ArviZ does."""
    axes = [
        [str(v) for v in (values.coords[d].values if d in values.coords else range(size))]
        for d, size in zip(values.dims[2:], values.shape[2:], strict=True)
    ]
    labels = [""]
    for axis in axes:
        labels = [f"{label}, {value}" if label else value for label in labels for value in axis]
    return [f"{name}[{label}]" for label in labels] if axes else [name]


def _stats(tree: "xr.DataTree", group: str) -> dict[str, np.ndarray]:
    """Return the statistics that are one number a draw, under our names."""
    if group not in tree.children:
        return {}
    data = tree[group].to_dataset()
    if "draw" in data.dims and "chain" not in data.dims:
        data = data.expand_dims("chain")
    found: dict[str, np.ndarray] = {}
    for name, values in data.data_vars.items():
        if set(values.dims) == {"chain", "draw"} and values.dtype.kind in "biuf":
            ours = _ALIASES.get(str(name), str(name))
            if ours == str(name) or ours not in found:  # the name of today wins over an alias
                found[ours] = np.asarray(values.transpose("chain", "draw").values)
    return found


def _both_stats(tree: "xr.DataTree") -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the statistics of the draws and of warm-up.

    Where CmdStan saved its warm-up, ArviZ parts it from the draws in the posterior only: the
    statistics of both come in one group, those of warm-up first.
    """
    stats, warmup = _stats(tree, "sample_stats"), _stats(tree, "warmup_sample_stats")
    if not stats or tree["sample_stats"].attrs.get("inference_library") != "cmdstanpy":
        return stats, warmup
    draw = tree["posterior"].to_dataset().get_index("draw")
    surplus = next(iter(stats.values())).shape[1] - len(draw)
    thinned = draw[-1] - draw[0] + 1 > len(draw)  # the posterior alone: all statistics are of draws
    if surplus <= 0 or thinned:
        return stats, warmup
    early = {name: values[:, :surplus] for name, values in stats.items()}
    return {name: values[:, surplus:] for name, values in stats.items()}, early


def _ends(tree: "xr.DataTree", checkpoint: Checkpoint) -> tuple[Any, Any]:
    """Return where the chains began and where they are; None where the run does not tell.

    Runs of others tell if they kept warm-up: its first draw.
    """
    arrays, _ = checkpoint
    starts, ends = arrays.get("starts"), arrays.get("state.position")
    if starts is not None and ends is not None and starts.size and starts.shape == ends.shape:
        return starts, ends
    if "warmup_posterior" not in tree.children:
        return None, None
    try:
        begun, drawn = _variables(tree, "warmup_posterior")[0], _variables(tree)[0]
    except SettingsError:  # an empty group
        return None, None
    common = [name for name in drawn if name in begun]
    chains = len(drawn[common[0]]) if common else 0
    pairs = [(begun[n][:, 0], drawn[n][:, -1]) for n in common]
    if not pairs or any(a.shape != b.shape for a, b in pairs):
        return None, None
    starts, ends = (
        np.hstack([a.reshape(chains, -1) for a in part]) for part in zip(*pairs, strict=True)
    )
    return starts, ends
