"""The cores of this machine: how many there are, and one thread for BLAS where all are busy."""

import contextlib
import functools
import os
import threading
from collections.abc import Generator
from typing import Any

_held = threading.Lock()


def cores() -> int:
    """Return the number of cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


@contextlib.contextmanager
def one_thread() -> Generator[None]:
    """Let BLAS and LAPACK compute on the thread that calls them, in the whole process.

    OpenBLAS wakes a thread for every core even for matrices of 50 rows, and these go on looking
    for work for a tenth of a second: beside a chain of a sampler they take its core away. What one
    thread computes also does not depend on the number of cores.

    Whoever enters first, of several, sets the limit and lifts it again; threadpoolctl takes neither
    from another thread. So enter where work is handed out, not in the threads that do it.

    Examples
    --------
    >>> import numpy as np
    >>> from samplekit.core.cores import one_thread
    >>> with one_thread():
    ...     values = np.linalg.eigvalsh(np.eye(50))
    """
    if not _held.acquire(blocking=False):
        yield
        return
    try:
        with _libraries().limit(limits=1, user_api="blas"):
            yield
    finally:
        _held.release()


@functools.cache
def _libraries() -> Any:
    """Return what callers have loaded, NumPy's above all; to look takes a millisecond: once."""
    from threadpoolctl import ThreadpoolController  # pyright: ignore[reportMissingTypeStubs]

    return ThreadpoolController()
