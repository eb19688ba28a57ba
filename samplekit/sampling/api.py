"""`sample`, `resume` and `kernel_of`: the doors of the loop."""

import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from samplekit.core.errors import StoreError
from samplekit.kernels.base import Base
from samplekit.sampling.cache import use_cache
from samplekit.sampling.devices import read_devices
from samplekit.sampling.engine import Engine
from samplekit.sampling.labels import label
from samplekit.sampling.loop import Loop, hold_ctrl_c
from samplekit.sampling.processes import find_crew
from samplekit.sampling.progress import Progress
from samplekit.sampling.record import Record
from samplekit.sampling.settings import (
    check_fit,
    default_kernel,
    make_settings,
    make_words,
)
from samplekit.sampling.starts import ensure_space, flat_starts
from samplekit.sampling.stop import Converged
from samplekit.sampling.task import Task
from samplekit.sampling.view import View, with_space

if TYPE_CHECKING:
    import xarray as xr


def sample(
    target: Any,
    kernel: Any = None,
    *,
    draws: int = 1000,
    warmup: int = 1000,
    chains: int = 4,
    seed: Any = 0,
    init: Any = None,
    thin: int = 1,
    until: Converged | None = None,
    store: str | os.PathLike[str] | None = None,
    devices: Any = None,
    stats: Sequence[str] | None = None,
    keep_warmup: bool = False,
    cache: bool = True,
    progress: bool = True,
) -> "xr.DataTree":
    """Sample a target with a kernel; return an ArviZ DataTree.

    Parameters
    ----------
    target
        From `from_energy`, `from_log_density`, `from_score`, `from_numpyro`, the zoo, or any object
        with `log_density(x)`, `score(x)` or `gibbs(key, x)`.
    kernel
        None takes `HMC()` for a density, `ScoreMALA()` for a score, `Gibbs()` for a field.
    draws, warmup, chains, thin
        Stored draws, warm-up steps, chains, and steps per stored draw.
    seed
        An integer or a JAX key; the same seed gives the same draws.
    init
        Starts, constrained, with a leading chain axis; None looks for dispersed finite ones.
    until
        A stop rule such as `Converged()`; `draws` is then the most that is drawn.
    store
        Folder for a run that survives: appended while sampling, continued by `resume`. Several
        processes (`samplekit launch`, `jax.distributed`) need one that all of them see.
    devices
        Devices to use: a number, a list of JAX's devices or a mesh; None takes all.
    stats
        Names of the statistics to keep; None keeps all that the kernel reports, except those that
        cost extra scores (`closed_loop_work` of `ScoreMALA`).
    keep_warmup
        Keep warm-up in `warmup_posterior` and `warmup_sample_stats`.
    cache
        Keep compiled programs on disk for the next process (`samplekit.sampling.cache`).
    progress
        Show a progress bar on anything longer than a second.

    Examples
    --------
    >>> import samplekit as sk
    >>> target = sk.from_energy(lambda x: (x**2).sum() / 2, dim=2)
    >>> run = sk.sample(target, draws=100, progress=False)
    >>> run["posterior"]["x"].shape
    (4, 100, 2)
    """
    settings = make_settings(
        draws=draws, warmup=warmup, chains=chains, thin=thin, keep_warmup=keep_warmup, until=until
    )
    kernel = default_kernel(target) if kernel is None else kernel
    check_fit(target, kernel)
    devices = read_devices(devices)
    crew = find_crew(store, devices)
    words = make_words(seed)
    if cache:
        use_cache()
    space = ensure_space(target, init)
    target = with_space(target, space)
    floats = isinstance(kernel, Base) and not kernel.discrete
    starts = flat_starts(target, space, init, settings.chains, floats=floats)
    dtype = jnp.result_type(float) if starts is None else starts.dtype
    dim = space.size
    prepared = kernel.prepare(dim, dtype) if hasattr(kernel, "prepare") else kernel
    view = View(target, bool(getattr(kernel, "flat", False)))
    task = Task(view, prepared, kernel, settings, words, stats, dim, np.dtype(dtype), devices)
    engine = Engine(task)
    record = Record(settings, label(target, engine.shown), engine.stats, crew)
    record.start_at(starts, engine)
    with crew:
        if store is not None:
            record.open_store(store, engine)
        return _drive(engine, record, progress=progress and crew.index == 0)


def _drive(engine: Engine, record: Record, *, progress: bool) -> "xr.DataTree":
    """Run the loop from where the record stands to its end."""
    settings = engine.task.settings
    steps = settings.step_at(settings.ticks)
    bar = Progress(steps, settings.warmup, settings.chains, enabled=progress, thin=settings.thin)
    loop = Loop(engine, record, bar)
    with contextlib.ExitStack() as stack:
        try:
            with bar, loop.pool() as pool:
                if not engine.started:
                    loop.begin(pool, record.anchor if record.given else None)
                asked = stack.enter_context(hold_ctrl_c())
                loop.run(pool, asked)
            record.close(engine)
        except StoreError as error:
            record.checkpoint(engine)
            error.run = record.memory_tree()
            raise
        return record.tree()


def resume(
    run_or_path: Any,
    target: Any,
    *,
    draws: int | None = None,
    kernel: Any = None,
    progress: bool = True,
    devices: Any = None,
) -> "xr.DataTree":
    """Go on with a run, from memory or from its store, as if it had never stopped.

    Parameters
    ----------
    run_or_path
        The DataTree that `sample` returned, or the path of a stored run.
    target
        The same target as before: its values at the stored states are compared.
    draws
        None finishes what was asked for; a number adds that many draws.
    kernel
        Needed only where it holds functions (`MetropolisHastings`, `Independence`, your own).
    progress, devices
        As in `sample`.

    Examples
    --------
    >>> import samplekit as sk
    >>> target = sk.targets.gaussian(2)
    >>> run = sk.sample(target, draws=50, progress=False)
    >>> longer = sk.resume(run, target, draws=50, progress=False)
    >>> longer["posterior"].sizes["draw"]
    100
    """
    from samplekit.sampling.checkpoint import is_path, reopen

    devices = read_devices(devices)
    crew = find_crew(run_or_path if is_path(run_or_path) else None, devices)
    use_cache()
    engine, record = reopen(
        run_or_path, target, draws=draws, kernel=kernel, devices=devices, crew=crew
    )
    with crew:
        record.check_files(engine)
        return _drive(engine, record, progress=progress and crew.index == 0)


def kernel_of(run: Any) -> Any:
    """Return the tuned kernel of a run, ready for reuse.

    Chains that were tuned one by one have a kernel each; this is that of the chain with the median
    step size, so that its step size and its metric belong together.

    Examples
    --------
    >>> import samplekit as sk
    >>> target = sk.targets.gaussian(2)
    >>> kernel = sk.kernel_of(sk.sample(target, draws=50, progress=False))
    >>> again = sk.sample(target, kernel, warmup=0, draws=50, progress=False)
    """
    from samplekit.sampling.checkpoint import tuned_kernel

    return tuned_kernel(run)
