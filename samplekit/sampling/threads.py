"""Threads that work under the JAX settings of the thread that starts them."""

import concurrent.futures as futures
import contextlib
import threading
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


def make_pool(workers: int) -> futures.ThreadPoolExecutor:
    """Return a pool of threads with the settings of this one."""
    wanted = {name: getattr(jax.config, name) for name in _SETTINGS}
    return futures.ThreadPoolExecutor(workers, initializer=_adopt, initargs=(wanted,))


class Here(futures.Executor):
    """Works at once, in the thread that asks: one part needs no other."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        """Do it, and return what came out."""
        done: futures.Future[Any] = futures.Future()
        done.set_result(fn(*args, **kwargs))
        return done


def _adopt(wanted: dict[str, Any]) -> None:
    """Enter the contexts that differ from what holds everywhere, until the thread ends."""
    _mine.stack = contextlib.ExitStack()
    for name, value in wanted.items():
        if getattr(jax.config, name) != value:
            _mine.stack.enter_context(_SETTINGS[name](value))
