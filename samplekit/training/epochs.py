"""Epochs one after the other, without a pause between short ones."""

import collections
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

type Row = dict[str, float]
# An epoch that takes longer is waited for before the next begins: who presses Ctrl-C should not
# wait for two. Between epochs pass 0.1 ms.
SHORT = 0.05


class Epochs:
    """Begin epochs and read what they say; a short one begins before the last one's row is read.

    Parameters
    ----------
    run
        (state, (epoch, order of the batches)) ↦ (state, numbers), as `jax.jit` gives it: it returns
        before they are there. The state is given away.
    order
        Of the batches of an epoch.
    state
        What the first one begins with.
    rows
        The history so far, to which rows are added.

    Examples
    --------
    >>> import jax, numpy as np
    >>> run = jax.jit(lambda total, at: (total + at[0], {"loss": total}))
    >>> epochs = Epochs(run, lambda e: np.zeros(1), np.uint32(0), [])
    >>> for _ in range(3):
    ...     epochs.begin(3, ahead=True)
    ...     print(epochs.finish()["loss"])
    0.0
    0.0
    1.0
    """

    def __init__(
        self, run: Callable[..., Any], order: Callable[[int], Any], state: Any, rows: list[Row]
    ) -> None:
        self.state, self.rows, self.begun = state, rows, len(rows)
        self._run, self._order = run, order
        self._next = order(self.begun)
        self._unread: collections.deque[dict[str, Any]] = collections.deque()
        self._since, self._short = 0.0, False

    def begin(self, until: int, *, ahead: bool) -> None:
        """Begin the next epoch if it has not begun, and the one after it if epochs are short."""
        most = min(until, len(self.rows) + (2 if ahead and self._short else 1))
        while self.begun < most:
            if not self._unread:
                self._since = time.perf_counter()
            self.state, numbers = self._run(self.state, (np.uint32(self.begun), self._next))
            self._unread.append(numbers)
            self.begun += 1
            self._next = self._order(self.begun)  # while this epoch runs

    def finish(self) -> Row:
        """Wait for the first epoch that was not read, add its row to the history, return it."""
        numbers = jax.device_get(self._unread.popleft())
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        self._short = seconds < SHORT
        read = {name: float(value) for name, value in numbers.items()}
        self.rows.append({"epoch": len(self.rows) + 1} | read | {"seconds": seconds})
        return self.rows[-1]
