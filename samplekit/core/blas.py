"""Linear algebra of NumPy on one thread, beside programs that keep all cores busy."""

import contextlib
import functools
import threading
from collections.abc import Generator
from typing import Any

_lock = threading.Lock()
_inside = 0
_limit: Any = None


@contextlib.contextmanager
def one_thread() -> Generator[None]:
    """Let BLAS and LAPACK compute on the thread that calls them.

    OpenBLAS wakes a thread for every core even for matrices of 50 rows, and these go on looking
    for work for a tenth of a second: beside a chain of a sampler they take its core away. What one
    thread computes also does not depend on the number of cores. May be entered by several threads
    at once; what held before holds again when the last has left.

    Examples
    --------
    >>> import numpy as np
    >>> from samplekit.core.blas import one_thread
    >>> with one_thread():
    ...     values = np.linalg.eigvalsh(np.eye(50))
    """
    global _inside, _limit
    with _lock:
        if _inside == 0:
            _limit = _libraries().limit(limits=1, user_api="blas")
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _limit.restore_original_limits()


@functools.cache
def _libraries() -> Any:
    """Return what callers have loaded, NumPy's above all; to look takes a millisecond: once."""
    from threadpoolctl import ThreadpoolController  # pyright: ignore[reportMissingTypeStubs]

    return ThreadpoolController()
