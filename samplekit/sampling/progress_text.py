"""The words of the progress display: what is known about a run, as one or two lines."""

import dataclasses
import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

# Full and half bar, separator, times: beyond ASCII only where the stream can.
SIGNS, ASCII = ("━", "╸", " · ", "×"), ("=", "-", ", ", "x")


@dataclasses.dataclass(slots=True)
class Numbers:
    """What is known about the run; written by the main thread, read by the display's."""

    total: int
    warmup: int
    chains: int
    thin: int
    started: float
    phase: str = "starting"
    done: float = 0.0
    done_at: float = 0.0
    rate: float | None = None
    acceptance: float | None = None
    divergences: int | None = None
    step_size: float | None = None
    rhat: float | None = None
    ess: float | None = None
    # Steps done when R-hat and ESS were computed: the summary does not show older ones.
    converged_at: float | None = None
    failed: bool = False
    # What is counted, and what else there is to say, as of a training's epochs and loss.
    unit: str = "draws"
    note: str = ""


def frame(numbers: Numbers, console: "Console") -> "Text":
    """Draw phase, bar, share, speed and time on one line, the numbers on the next."""
    from rich.text import Text

    full, half, dot, _ = SIGNS if console.encoding.startswith("utf") else ASCII
    phase = f"{numbers.phase:<11}"
    end = f"  {percent(numbers):>4}  {speed(numbers):>14}  {time_left(numbers):>12}"
    width = max(0, min(60, console.width - len(phase) - len(end)))
    halves = int(2 * width * min(1.0, numbers.done / max(1, numbers.total)))
    bar = full * (halves // 2) + half * (halves % 2)
    color = "yellow" if numbers.done < numbers.warmup else "green"
    rest = full * (width - len(bar))
    line = Text.assemble((phase, "bold"), (bar, color), (rest, "bright_black"), end)
    known = _join(parts(numbers), dot, console.width - len(phase))
    return line.append("\n" + " " * len(phase)).append_text(known) if known else line


def ending(numbers: Numbers, console: "Console") -> "Text":
    """Sum the run up in the one line that stays."""
    _, _, dot, times = SIGNS if console.encoding.startswith("utf") else ASCII
    done = (counts(numbers, times), "bold")
    return _join([done, *parts(numbers, last=True)], dot, console.width)


def _join(parts: list[tuple[str, str]], dot: str, width: int) -> "Text":
    """Join as many parts as fit; the most important come first."""
    from rich.text import Text

    line = Text(no_wrap=True, overflow="ellipsis")
    for text, style in parts:
        if line and len(line) + len(dot) + len(text) > width:
            break
        line.append(dot if line else "", "bright_black").append(text, style)
    return line


def parts(numbers: Numbers, *, last: bool = False) -> list[tuple[str, str]]:
    """Word the numbers that are known, each with its color, in order of importance."""
    known = [(numbers.note, "")] if numbers.note else []
    stale = last and numbers.converged_at != numbers.done
    if (rhat := numbers.rhat) is not None and not stale:
        # Comparisons with NaN are false: undefined is red.
        color = "green" if rhat < 1.01 else "yellow" if rhat < 1.05 else "red"
        value = f"{rhat:.3f}" if rhat < 10 else f"{rhat:.2g}"
        known.append((f"R-hat {'undefined' if math.isnan(rhat) else value}", color))
    if (ess := numbers.ess) is not None and not stale:
        known.append(("ESS undefined", "red") if math.isnan(ess) else (f"ESS {ess:,.0f}", ""))
    if (count := numbers.divergences) is not None:
        known.append((f"{count:,} divergence{'s' * (count != 1)}", "red" if count else ""))
    if numbers.acceptance is not None:
        known.append((f"accept {numbers.acceptance:.2f}", ""))
    if numbers.step_size is not None:
        known.append((f"step {numbers.step_size:.3g}", ""))
    return known


def percent(numbers: Numbers) -> str:
    """Say the share that is done."""
    # Rounded down: 100 % is said only when all is done.
    return f"{math.floor(100 * numbers.done / max(1, numbers.total))}%"


def speed(numbers: Numbers) -> str:
    """Say how much is done a second."""
    if numbers.rate is None:
        return ""
    warm = numbers.done >= numbers.warmup
    rate = numbers.rate * numbers.chains / (numbers.thin if warm else 1)
    return f"{rate:{',.0f' if rate >= 10 else '.2g'}} {numbers.unit if warm else 'steps'}/s"


def time_left(numbers: Numbers) -> str:
    """Say how long it still takes, or how long it has taken."""
    now = time.monotonic()
    if numbers.rate is None:
        return f"{_clock(now - numbers.started)} so far"
    left = (numbers.total - numbers.done) / numbers.rate - (now - numbers.done_at)
    return f"{_clock(max(0.0, left))} left"


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def counts(numbers: Numbers, times: str) -> str:
    """Say what was done and how long it took."""
    done, wanted, unit = int(numbers.done), numbers.warmup, "warm-up steps"
    if numbers.done >= numbers.warmup:
        done = int((numbers.done - numbers.warmup) / numbers.thin)
        wanted, unit = (numbers.total - numbers.warmup) // numbers.thin, numbers.unit
    share = f"{done:,}" if done >= wanted else f"{done:,} of {wanted:,}"
    seconds = time.monotonic() - numbers.started
    took = f"{seconds:.1f} s" if seconds < 60 else _clock(seconds)
    chains = f"{numbers.chains} chain{'s' * (numbers.chains != 1)} {times} "
    what = chains if numbers.unit == "draws" else ""
    return f"{'stopped: ' * numbers.failed}{what}{share} {unit} in {took}"
