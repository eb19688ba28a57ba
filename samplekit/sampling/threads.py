"""Threads that work under the JAX settings of the thread that starts them."""

import concurrent.futures as futures
import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import jax

# JAX keeps these for each thread: `with jax.enable_x64(True)` would not reach a worker.
_SETTINGS = {
    "jax_enable_x64": jax.enable_x64,
    "jax_default_device": jax.default_device,
    "jax_default_matmul_precision": jax.default_matmul_precision,
    "jax_numpy_dtype_promotion": jax.numpy_dtype_promotion,
    "jax_numpy_rank_promotion": jax.numpy_rank_promotion,
    "jax_debug_nans": jax.debug_nans,
}
_mine = threading.local()
# Pools that wait for the next caller: to start threads takes longer than a small run has to spare.
_idle: dict[tuple[Any, ...], futures.ThreadPoolExecutor] = {}


@contextlib.contextmanager
def make_pool(workers: int) -> Iterator[futures.ThreadPoolExecutor]:
    """Lend a pool of threads that work under the settings of this one.

    Give it back with nothing left to do.
    """
    wanted = tuple(getattr(jax.config, name) for name in _SETTINGS)
    key = os.getpid(), workers, wanted  # a fork has no threads
    pool = _idle.pop(key, None)
    if pool is None:
        pool = futures.ThreadPoolExecutor(workers, initializer=_adopt, initargs=wanted)
    try:
        yield pool
    except BaseException:
        pool.shutdown()
        raise
    if _idle.setdefault(key, pool) is not pool:  # somebody else gave one back meanwhile
        pool.shutdown()


class Here(futures.Executor):
    """Works at once, in the thread that asks: one part needs no other."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        """Do it, and return what came out."""
        done: futures.Future[Any] = futures.Future()
        done.set_result(fn(*args, **kwargs))
        return done


def _adopt(*wanted: Any) -> None:
    """Enter the contexts of all settings, until the thread ends."""
    _mine.stack = contextlib.ExitStack()
    for context, value in zip(_SETTINGS.values(), wanted, strict=True):
        _mine.stack.enter_context(context(value))
