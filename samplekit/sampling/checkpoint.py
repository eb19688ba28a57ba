"""Going on with a run: read its checkpoint, make sure it fits, rebuild the loop's parts."""

import dataclasses
import importlib
import os
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from samplekit.core.errors import ResumeError, SettingsError
from samplekit.core.protocols import DensityTarget
from samplekit.kernels.metric import initial_metric
from samplekit.sampling.carries import leaf_name
from samplekit.sampling.engine import Engine
from samplekit.sampling.labels import label
from samplekit.sampling.processes import Alone
from samplekit.sampling.record import Record
from samplekit.sampling.run import SCHEMA, blocks_of, open_tree, sampler_state
from samplekit.sampling.settings import check_fit, describe_kernel, make_settings, make_words
from samplekit.sampling.starts import ensure_space
from samplekit.sampling.stop import Converged
from samplekit.sampling.store import Store
from samplekit.sampling.task import ONE_BY_ONE, Task
from samplekit.sampling.view import View, evaluate, with_space

if TYPE_CHECKING:
    import xarray as xr

# How a stored metric is made again; its numbers come from the checkpoint.
_METRIC_SETTING = {
    "Identity": None,
    "Diagonal": "diagonal",
    "Dense": "dense",
    "LowRank": "low_rank",
    "NoneType": None,
}
# Kernels that are made again from their numbers alone, and their modules.
_KERNEL_HOME = {
    "Barker": "langevin",
    "Cycle": "cycle",
    "Gibbs": "gibbs",
    "GibbsWithGradients": "discrete",
    "HMC": "hamiltonian",
    "Langevin": "langevin",
    "MALA": "langevin",
    "MCLMC": "mclmc",
    "NUTS": "nuts",
    "RandomWalk": "metropolis",
    "ScoreMALA": "score_mala",
    "Tempering": "tempering",
}
# Another program rounds otherwise: the log density must agree to this part of its size.
SAME_TARGET = {"float32": 2e-3, "float64": 1e-6}


def reopen(
    run_or_path: Any,
    target: Any,
    *,
    draws: int | None,
    kernel: Any,
    devices: Any,
    crew: Alone,
) -> tuple[Engine, Record]:
    """Return the engine and the record of a run as they were at its last checkpoint."""
    store, tree, arrays, attrs = _load(run_or_path)
    _check_schema(attrs)
    original, prepared = _rebuild_kernel(kernel, attrs)
    check_fit(target, original)
    settings = _settings(attrs, draws)
    init = None if getattr(target, "space", None) is not None else like_run(tree)
    space = ensure_space(target, init)
    target = with_space(target, space)
    if space.size != attrs["dim"]:
        raise ResumeError(
            f"The run has {attrs['dim']} coordinates, this target {space.size}. Resume with the "
            "target that the run was made with."
        )
    dtype = np.dtype(attrs["dtype"])
    _check_dtype(dtype)
    view = View(target, bool(getattr(original, "flat", False)))
    stats = tuple(attrs["stats"])
    key = jax.random.wrap_key_data(jnp.asarray(arrays["key"]), impl=attrs["key_impl"])
    words = make_words(key)
    what = (view, prepared, original, settings, words, stats, space.size, dtype, devices)
    task = Task(*what, layout=attrs["layout"])
    engine = Engine(task)
    _restore(engine, arrays, attrs, compare=kernel is not None)
    if engine.started:
        _check_target(engine)
    record = Record(settings, label(target, engine.shown), engine.stats, crew)
    _check_variables(record, tree)
    record.tick = int(attrs["tick"])
    record.restarts = list(attrs["restarts"])
    record.calm = bool(attrs.get("calm", False))
    record.gaps = {int(chain): gap for chain, gap in attrs.get("gaps", {}).items()}
    record.anchor, record.starts = arrays["anchor"], arrays["starts"]
    record.given = bool(attrs["given"])
    record.seconds.update(attrs["seconds"])
    record.finished = bool(attrs["finished"]) and draws is None
    record.store = store
    if record.in_memory:
        groups = record.group_variables()
        blocks = {g: blocks_of(tree, g, list(held)) for g, held in groups.items()}
        record.preload(blocks, len(engine.parts))
    return engine, record


def is_path(run_or_path: Any) -> bool:
    """Tell whether a run is given by its path."""
    return isinstance(run_or_path, str | os.PathLike)


def _load(
    run_or_path: Any,
) -> tuple[Store | None, "xr.DataTree", dict[str, np.ndarray], dict[str, Any]]:
    import xarray as xr

    if is_path(run_or_path):
        store = Store.open(run_or_path)
        store.check()
        tree = open_tree(store.path)
        if not store.state():
            raise ResumeError(
                f"The run at {str(run_or_path)!r} was stopped before its chains had started, so "
                "there is nothing to go on with. Delete the folder and sample again."
            )
        _, attrs = sampler_state(tree)
        return store, tree, store.state(), attrs
    if not isinstance(run_or_path, xr.DataTree):
        raise ResumeError(
            f"resume takes a run (the DataTree of sk.sample) or the path of a stored one, not "
            f"{type(run_or_path).__name__}."
        )
    if "sampler" not in run_or_path.children:
        raise ResumeError(
            "This run has no group 'sampler', so it was not made by sk.sample (or was cut down). "
            "Only runs that carry their sampler's state can be continued."
        )
    return None, run_or_path, *sampler_state(run_or_path)


def _check_schema(attrs: dict[str, Any]) -> None:
    if attrs.get("schema") != SCHEMA:
        raise ResumeError(
            f"The run was written with schema {attrs.get('schema')}, this samplekit writes and "
            f"reads schema {SCHEMA}. Use the version of samplekit that wrote it."
        )


def _check_dtype(dtype: np.dtype) -> None:
    if dtype.itemsize == 8 and not jax.config.jax_enable_x64:
        raise ResumeError(
            "The run is float64 but JAX is set to float32. Call "
            'jax.config.update("jax_enable_x64", True) first.'
        )


def _settings(attrs: dict[str, Any], more: int | None) -> Any:
    """Return the settings of the run, with `more` draws after those it has."""
    total = int(attrs["draws"])
    if more is not None:
        whole = isinstance(more, int | np.integer) and not isinstance(more, bool)
        if not whole or more < 1:
            raise SettingsError(f"draws={more!r} is not a positive integer.")
        total = max(0, int(attrs["tick"]) - int(attrs["warmup"])) + int(more)
    until = Converged(**attrs["until"]) if attrs["until"] and more is None else None
    return make_settings(
        draws=total,
        warmup=int(attrs["warmup"]),
        chains=int(attrs["chains"]),
        thin=int(attrs["thin"]),
        keep_warmup=bool(attrs["keep_warmup"]),
        until=until,
    )


def like_run(tree: "xr.DataTree") -> Any:
    """Return positions as the run shows them: an array, or dicts in dicts by the dots in names."""
    data = tree["posterior"].to_dataset()
    shapes = {str(n): (v.shape[:1] + v.shape[2:], v.dtype) for n, v in data.data_vars.items()}
    arrays = {n: np.zeros(shape, dtype) for n, (shape, dtype) in shapes.items()}
    if set(arrays) == {"x"}:
        return arrays["x"]
    nested: dict[str, Any] = {}
    for name, array in arrays.items():
        *folders, last = name.split(".")
        inner = nested
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[last] = array
    if any(part.isdigit() for name in arrays for part in name.split(".")):
        raise ResumeError(
            f"The run's variables {sorted(arrays)} do not tell whether its positions are tuples or "
            "lists. Give the target a `space`, as sk.from_log_density(..., like=...) does."
        )
    return nested


def _rebuild_kernel(given: Any, attrs: dict[str, Any]) -> tuple[Any, Any]:
    """Return the kernel as the user would have given it, and as prepared for the target."""
    stored, tunes = attrs["kernel"], attrs["tunes"]
    dim, dtype = int(attrs["dim"]), np.dtype(attrs["dtype"])
    if given is not None:
        prepared = given.prepare(dim, dtype) if hasattr(given, "prepare") else given
        now = describe_kernel(prepared)
        for part in ("name", "settings", "metric", "parts"):
            if now[part] != stored.get(part, []):
                raise ResumeError(
                    f"The run was made with kernel {part} {stored.get(part)!r}, now given is "
                    f"{now[part]!r}. Resume with the same kernel, or leave kernel= out."
                )
        for what, was in (("step", tunes["step"]), ("metric", tunes["metric"])):
            if getattr(given, f"tunes_{what}", False) != was:
                words = {True: "tuned", False: "given"}
                raise ResumeError(
                    f"The run's {what}{' size' * (what == 'step')} was {words[was]}, in this "
                    f"kernel it is {words[not was]}. Resume with the same kernel, or leave "
                    "kernel= out."
                )
        return given, prepared
    if stored.get("parts"):
        kernel = _assembled(stored, dim, dtype)
        return kernel, kernel.prepare(dim, dtype)
    kernel, metric = _bare_kernel(stored, dim, dtype)
    if metric is not None:
        # A metric that was given, or a step that was, is not tuned again.
        original = dataclasses.replace(
            kernel,
            metric=tunes["setting"] if tunes["metric"] else metric,
            step_size=None if tunes["step"] else 1.0,
        )
        return original, dataclasses.replace(original.prepare(dim, dtype), metric=metric)
    return kernel, kernel.prepare(dim, dtype)


def _bare_kernel(stored: dict[str, Any], dim: int, dtype: Any) -> tuple[Any, Any]:
    """Return a kernel of the stored class and settings, and its metric if it has one."""
    cls = _kernel_class(stored["name"])
    kernel = cls(**{k: v for k, v in stored["settings"].items() if v is not None} | _required(cls))
    if not hasattr(kernel, "metric"):
        return kernel, None
    metric = initial_metric(_METRIC_SETTING[stored["metric"]], dim, dtype)
    if hasattr(metric, "always"):
        metric = dataclasses.replace(metric, always=stored["always_dense"])  # pyright: ignore
    return kernel, metric


def _assembled(stored: dict[str, Any], dim: int, dtype: Any) -> Any:
    """Return a kernel made of kernels, or one of these, as the user would have given it."""
    if stored["parts"]:
        parts = [_assembled(part, dim, dtype) for part in stored["parts"]]
        cls: Any = _kernel_class(stored["name"])
        return cls.rebuilt(parts, stored["settings"])
    kernel, metric = _bare_kernel(stored, dim, dtype)
    numbers = {} if metric is None else {"metric": metric}
    if hasattr(kernel, "step_size"):
        numbers["step_size"] = None if stored["tunes"] else 1.0
    return dataclasses.replace(kernel, **numbers)


def _required(cls: type) -> dict[str, Any]:
    return {"step_size": 1.0} if cls.__name__ == "Langevin" else {}


def _kernel_class(name: str) -> type:
    if name not in _KERNEL_HOME:
        raise ResumeError(
            f"The kernel {name} holds functions, which are not stored. Give it again: "
            "sk.resume(run, target, kernel=...)."
        )
    return getattr(importlib.import_module(f"samplekit.kernels.{_KERNEL_HOME[name]}"), name)


def _restore(
    engine: Engine, arrays: dict[str, np.ndarray], attrs: dict[str, Any], *, compare: bool
) -> None:
    """Put the stored state into the engine; `compare` its kernel, where given, with the run's."""
    layout = ONE_BY_ONE if engine.batch is None else "batch"
    names = engine.leaf_names()
    missing = [n for n in names if n not in arrays]
    if layout != attrs["layout"] or missing:
        raise ResumeError(
            f"The run's state ({attrs['layout']}) does not fit this sampler ({layout}"
            f"{', missing ' + ', '.join(missing) if missing else ''}). Resume on the same kind of "
            "machine with the kernel the run was made with."
        )
    blank = engine.arrays()
    for name, old, new in zip(names, blank, (arrays[n] for n in names), strict=True):
        if old.shape != new.shape or old.dtype != new.dtype:
            raise ResumeError(
                f"The run's {name} is {new.dtype}{list(new.shape)}, here it would be "
                f"{old.dtype}{list(old.shape)}. Resume with the same target, kernel and dtype."
            )
        if compare and not _learned(name, attrs) and not np.array_equal(old, new):
            raise ResumeError(
                f"The run was made with a kernel whose {name.removeprefix('kernel.')} is "
                f"{_short(new)}, now given is {_short(old)}. Resume with the same kernel, or leave "
                "kernel= out."
            )
    engine.restore([arrays[n] for n in names])


def _learned(name: str, attrs: dict[str, Any]) -> bool:
    """Tell whether a leaf of the state may differ from the kernel that the user gave."""
    tunes = attrs["tunes"]
    if not name.startswith("kernel."):
        return True
    if name == "kernel.step_size":
        return tunes["step"]
    if name.startswith("kernel.metric."):
        return tunes["metric"]
    if attrs["kernel"].get("parts"):  # tuned by the kernel that holds them
        return tunes["step"]
    return name in ("kernel.turn_time", "kernel.learning")  # warm-up times HMC's trajectories


def _short(values: np.ndarray) -> str:
    flat = values.ravel()  # chains have equal numbers: one is enough
    return str(flat[0]) if flat.size and np.all(flat == flat[0]) else np.array2string(values)


def _check_target(engine: Engine) -> None:
    """Refuse another target: compare its values at the stored states."""
    view, dtype = engine.task.view, str(np.dtype(engine.task.dtype))
    state = engine.joined().state
    target: Any = view.for_kernel
    if isinstance(target, DensityTarget) and hasattr(state, "log_density"):
        what, known = "log_density", state.log_density
    elif hasattr(state, "score"):
        what, known = "score", state.score
    else:
        return
    each = evaluate(target, state.position, what=what, one_by_one=engine.batch is None)
    now, stored = (
        np.concatenate([np.reshape(a, (len(a), -1)) for a in jax.tree.leaves(tree)], axis=1)
        for tree in (each, known)
    )
    error = np.abs(now - stored) / np.maximum(1.0, np.abs(stored))
    if not np.all(error <= SAME_TARGET.get(dtype, 2e-3)):
        chain = int(np.unravel_index(np.argmax(np.nan_to_num(error, nan=np.inf)), error.shape)[0])
        raise ResumeError(
            f"This is another target: at the stored state of chain {chain} its "
            f"{what.replace('_', ' ')} is {_short(now[chain])}, the run's was "
            f"{_short(stored[chain])}. Resume with the target (and the data) "
            "that the run was made with."
        )


def _check_variables(record: Record, tree: "xr.DataTree") -> None:
    """Refuse a target that would store other variables than the run has."""
    stored = set(map(str, tree["posterior"].to_dataset().data_vars))
    now = {n.replace("/", ".") for n in record.labels.variables}
    if stored != now:
        raise ResumeError(
            f"The run stores the variables {sorted(stored)}, this target {sorted(now)}. Resume "
            "with the target that the run was made with."
        )


def tuned_kernel(run: Any) -> Any:
    """Return the kernel of the chain with the median step size."""
    _, _, arrays, attrs = _load(run)
    _check_schema(attrs)
    _, prepared = _rebuild_kernel(None, attrs)
    paths, treedef = jax.tree_util.tree_flatten_with_path(prepared)
    names = ["kernel." + leaf_name(path) for path, _ in paths]
    leaves = [arrays[n] for n in names]
    if attrs["layout"] == ONE_BY_ONE:
        steps = arrays.get("kernel.step_size", np.zeros(int(attrs["chains"])))
        chain = int(np.argsort(steps, kind="stable")[(len(steps) - 1) // 2])
        leaves = [leaf[chain] for leaf in leaves]
    return jax.tree.unflatten(treedef, leaves)
