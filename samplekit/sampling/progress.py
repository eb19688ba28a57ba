"""The progress display of `sample`: one bar with live convergence numbers, on stderr.

The sampling loop only stores numbers (`Progress.update` is a handful of assignments); one
daemon thread draws them. So the display cannot slow the loop down, it stays alive while the
main thread compiles, and a run that ends within a second never opens it, nor imports rich.
"""

import collections
import io
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO, cast

from samplekit.sampling import progress_text
from samplekit.sampling.progress_text import Numbers

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

# Most runs are over by then; a bar that flashes up for a moment only disturbs.
_SHOW_AFTER = 1.0
# Seconds between frames: smooth for the eye at under 2 % of a core; in a notebook every frame
# is a message to the browser; a log file gets a line now and then.
_TERMINAL_EVERY, _NOTEBOOK_EVERY, _LOG_EVERY = 0.125, 0.5, 10.0
# The shortest run worth a line in a log file.
_LOG_AFTER = 2.0
# The share of time that convergence numbers may take, and how often they may change.
_NUMBERS_SHARE, _NUMBERS_EVERY = 0.05, 0.5
# The speed is taken over the last 40 marks at least 0.25 s apart: ten seconds or more.
_MARKS, _MARK_EVERY = 40, 0.25
# What stands in for stderr (pytest, IDEs) is often a TextIOBase and not called a TextIO.
_Stream = TextIO | io.TextIOBase


class Progress:
    """Show how far a run is and how well it mixes.

    Parameters
    ----------
    total_steps
        Steps of each chain, warm-up included.
    warmup
        Warm-up steps of each chain, the first of `total_steps`.
    chains
        The number of chains.
    enabled
        False shows nothing and costs nothing.
    thin
        Steps for each stored draw.
    unit
        What is counted.

    Notes
    -----
    Nothing appears before one second. Then there is a live bar in a terminal or notebook, and
    elsewhere (log files, CI) a plain line every ten seconds. A summary line stays.

    Examples
    --------
    >>> with Progress(2000, 1000, 4, enabled=False) as progress:
    ...     progress.phase("warm-up")
    ...     progress.update(500.0, acceptance=0.8)
    ...     progress.wants_numbers()
    False
    """

    def __init__(
        self,
        total_steps: int,
        warmup: int = 0,
        chains: int = 1,
        *,
        enabled: bool = True,
        thin: int = 1,
        unit: str = "draws",
    ) -> None:
        # Without a stderr (a windowed Python) there is nowhere to show anything.
        stream = sys.stderr
        self.enabled = enabled and stream is not None
        if not enabled or stream is None:
            return
        started = time.monotonic()
        self._numbers = Numbers(total_steps, warmup, chains, thin, started=started, unit=unit)
        self._marks: collections.deque[tuple[float, float]] = collections.deque(maxlen=_MARKS)
        self._cost, self._cost_at = 0.0, -math.inf
        self._ended = threading.Event()
        self._screen = _screen(stream)
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> "Progress":
        if self.enabled:
            self._numbers.started = time.monotonic()
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if not self.enabled:
            return
        self._numbers.failed = kind is not None
        self._ended.set()
        self._thread.join()
        if time.monotonic() - self._numbers.started >= self._screen.summary_after:
            _guarded(self._screen.close, self._numbers)

    def phase(self, text: str) -> None:
        """Name what is going on now in a word, such as "compiling" or "sampling"."""
        if not self.enabled or text == self._numbers.phase:
            return
        self._numbers.phase = text
        # The speed of one phase says little about the next; compiling is not sampling.
        self._marks.clear()
        self._marks.append((time.monotonic(), self._numbers.done))

    def update(
        self,
        done_steps: float | int,
        *,
        acceptance: float | None = None,
        divergences: int | None = None,
        step_size: float | None = None,
        rhat: float | int | None = None,
        ess: float | int | None = None,
        note: str | None = None,
    ) -> None:
        """Tell what has been done; a number that is left out keeps its last value.

        Parameters
        ----------
        done_steps
            Steps done so far, averaged over chains, warm-up included. A resumed run says where
            it starts before its first phase, or the speed would count old steps.
        acceptance, divergences, step_size
            Mean acceptance, number of divergences and mean step size over chains.
        rhat, ess
            The worst R-hat and effective sample size; see `wants_numbers`.
        note
            Anything else in a few words, such as the loss of a training.
        """
        if not self.enabled:
            return
        numbers, now = self._numbers, time.monotonic()
        numbers.done, numbers.done_at = done_steps, now
        new = {"acceptance": acceptance, "divergences": divergences, "step_size": step_size}
        for name, value in (new | {"rhat": rhat, "ess": ess, "note": note}).items():
            if value is not None:
                setattr(numbers, name, value)
        if rhat is not None or ess is not None:
            numbers.converged_at = done_steps
        if not self._marks or now - self._marks[-1][0] >= _MARK_EVERY:
            self._marks.append((now, done_steps))
            then, before = self._marks[0]
            if now > then and done_steps > before:
                numbers.rate = (done_steps - before) / (now - then)

    def wants_numbers(self, *, last: bool = False) -> bool:
        """Tell whether it is time to compute R-hat and ESS again.

        Parameters
        ----------
        last
            Ask for the final numbers, which the summary line shows.

        Notes
        -----
        With the cost c of the last computation (`numbers_cost`), the next one is due 19 c
        later, so that it takes at most 5 % of the time.
        """
        if not self.enabled:
            return False
        screen, now = self._screen, time.monotonic()
        elapsed = now - self._numbers.started
        if last:
            return elapsed >= screen.summary_after and self._cost <= _NUMBERS_SHARE * elapsed
        # A log shows a line now and then: numbers half as old as that are fresh enough.
        pause = max(_NUMBERS_EVERY, screen.every / 2, self._cost * (1 / _NUMBERS_SHARE - 1))
        due = elapsed >= max(_SHOW_AFTER, screen.first / 2) and now - self._cost_at >= pause
        if due:
            self._cost_at = now
        return due

    def numbers_cost(self, seconds: float) -> None:
        """Report the wall time that computing R-hat and ESS has just taken."""
        if self.enabled:
            self._cost, self._cost_at = seconds, time.monotonic()

    def _watch(self) -> None:
        wait = self._screen.first
        while not self._ended.wait(wait) and _guarded(self._screen.draw, self._numbers):
            wait = self._screen.every


def _guarded(draw: Callable[[Numbers], None], numbers: Numbers) -> bool:
    """Draw; a closed pipe or terminal must not end the run it reports on."""
    try:
        draw(numbers)
    except (OSError, ValueError):
        return False
    return True


class _Terminal:
    """A live bar that leaves a summary line."""

    def __init__(self, stream: _Stream) -> None:
        self.first, self.every, self.summary_after = _SHOW_AFTER, _TERMINAL_EVERY, _SHOW_AFTER
        self._stream = stream
        self._live: Live | None = None

    def draw(self, numbers: Numbers) -> None:
        live = self._live = self._live or self._open()
        live.update(progress_text.frame(numbers, live.console), refresh=True)

    def close(self, numbers: Numbers) -> None:
        live = self._live = self._live or self._open()
        live.update(progress_text.ending(numbers, live.console))
        live.stop()

    def _open(self) -> "Live":
        from rich.console import Console
        from rich.live import Live

        # What is printed meanwhile appears above the bar, unless stdout goes elsewhere.
        console = Console(file=cast("TextIO", self._stream), highlight=False)
        shared = sys.stdout is not None and sys.stdout.isatty()
        live = Live(console=console, auto_refresh=False, redirect_stdout=shared)
        live.start()
        return live


class _Notebook:
    """The same bar as an output of the cell; rich's own would need ipywidgets."""

    def __init__(self) -> None:
        self.first, self.every, self.summary_after = _SHOW_AFTER, _NOTEBOOK_EVERY, _SHOW_AFTER
        self._handle: Any = None

    def draw(self, numbers: Numbers) -> None:
        self._show(progress_text.frame, numbers)

    def close(self, numbers: Numbers) -> None:
        self._show(progress_text.ending, numbers)

    def _show(self, render: "Callable[[Numbers, Console], Text]", numbers: Numbers) -> None:
        from IPython.display import HTML, display  # pyright: ignore[reportMissingImports]
        from rich.console import Console

        console = Console(file=io.StringIO(), record=True, width=100, force_jupyter=False)
        console.print(render(numbers, console))
        template = "<pre style='line-height:normal'>{code}</pre>"
        page = HTML(console.export_html(inline_styles=True, code_format=template))
        if self._handle is None:
            self._handle = display(page, display_id=True)
        else:
            self._handle.update(page)


class _Log:
    """Plain lines, for files and CI."""

    def __init__(self, stream: _Stream) -> None:
        self.first, self.every, self.summary_after = _LOG_EVERY, _LOG_EVERY, _LOG_AFTER
        self._stream = stream

    def draw(self, numbers: Numbers) -> None:
        known = (text for text, _ in progress_text.parts(numbers))
        start = f"{numbers.phase} {progress_text.percent(numbers)}"
        self._write(start, progress_text.speed(numbers), *known, progress_text.time_left(numbers))

    def close(self, numbers: Numbers) -> None:
        known = (text for text, _ in progress_text.parts(numbers, last=True))
        self._write(progress_text.counts(numbers, progress_text.ASCII[3]), *known)

    def _write(self, *parts: str) -> None:
        self._stream.write("samplekit: " + ", ".join(filter(None, parts)) + "\n")
        self._stream.flush()


def _screen(stream: _Stream) -> _Terminal | _Notebook | _Log:
    """Choose where to draw."""
    # Whoever runs in a notebook has imported IPython already; nobody else should pay for it.
    ipython = sys.modules.get("IPython")
    if hasattr(ipython and ipython.get_ipython(), "kernel"):
        return _Notebook()
    return _Terminal(stream) if stream.isatty() and os.getenv("TERM") != "dumb" else _Log(stream)
