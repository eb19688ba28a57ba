"""The progress display stays silent when it should and says the right things otherwise."""

import contextlib
import io
import os
import pty
import subprocess
import sys
import threading
import time
import types
from typing import Any

import pytest
from rich.console import Console

from samplekit.sampling import loop, progress, progress_text
from samplekit.sampling.progress import Progress


@pytest.fixture
def quick(monkeypatch):
    """Shorten all times, so that a run of a tenth of a second shows everything."""
    monkeypatch.setattr(progress, "_MARK_EVERY", 0.0)
    for name in ("_SHOW_AFTER", "_TERMINAL_EVERY", "_NOTEBOOK_EVERY", "_LOG_EVERY", "_LOG_AFTER"):
        monkeypatch.setattr(progress, name, 0.02)


@pytest.fixture
def clock(monkeypatch):
    """Turn time by hand; the display's thread ends at once."""
    now = [100.0]
    for module in (progress, progress_text):
        monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Progress, "_watch", lambda self: None)
    return now


@contextlib.contextmanager
def terminal(monkeypatch):
    """Make stderr a real (pseudo) terminal; the list fills with what was shown."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    reader, writer = pty.openpty()
    shown = []

    def pump():
        # Linux says by an error that the other side has closed.
        with contextlib.suppress(OSError):
            while data := os.read(reader, 4096):
                shown.append(data)

    pumping = threading.Thread(target=pump, daemon=True)
    pumping.start()
    with os.fdopen(writer, "w", encoding="utf-8") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        yield shown
    pumping.join(5)
    os.close(reader)


def numbers(**given):
    known = {"total": 2000, "warmup": 1000, "chains": 4, "thin": 1, "started": time.monotonic()}
    return progress_text.Numbers(**(known | given))


def console(width, encoding="utf-8"):
    return Console(file=io.TextIOWrapper(io.BytesIO(), encoding=encoding), width=width)


def run(bar):
    with bar:
        bar.phase("sampling")
        for step in range(1000, 2001, 100):
            bar.update(step, acceptance=0.8, divergences=3, step_size=0.5, rhat=1.2, ess=12)
            time.sleep(0.01)


def test_disabled_does_nothing(capfd):
    before = threading.active_count()
    with Progress(10, 0, 4, enabled=False) as bar:
        assert threading.active_count() == before
        bar.phase("sampling")
        bar.update(5)
        bar.numbers_cost(1.0)
        assert not bar.wants_numbers()
        assert not bar.wants_numbers(last=True)
    assert capfd.readouterr() == ("", "")


def test_short_runs_show_nothing_and_leave_no_thread(monkeypatch):
    with terminal(monkeypatch) as shown:
        before = threading.active_count()
        run(Progress(2000, 1000, 4))
        assert threading.active_count() == before
    assert not shown


def test_rich_is_not_imported_until_shown():
    code = (
        "import sys\n"
        "from samplekit.sampling.progress import Progress\n"
        "with Progress(10, 0, 4) as bar: bar.update(10)\n"
        "assert 'rich' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_terminal_shows_a_bar_on_stderr_and_keeps_a_summary(quick, monkeypatch, capsys):
    with terminal(monkeypatch) as pieces:
        run(Progress(2000, 1000, 4))
    shown = b"".join(pieces).decode()
    assert "━" in shown
    assert "left" in shown
    assert "R-hat 1.200" in shown
    last = shown.splitlines()[-2]  # then the cursor comes back
    assert "4 chains × 1,000 draws in 0." in last
    assert "3 divergences" in last
    assert "\x1b[31m" in last  # red: R-hat and divergences
    assert shown.endswith("\x1b[?25h")
    assert capsys.readouterr().out == ""


def test_a_log_gets_plain_lines(quick, capsys):
    run(Progress(2000, 1000, 4))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.isascii()
    assert "\x1b" not in err
    lines = err.splitlines()
    assert len(lines) > 2
    assert lines[0].startswith("samplekit: sampling ")
    assert "samplekit: 4 chains x 1,000 draws in 0." in lines[-1]
    assert "R-hat 1.200, ESS 12, 3 divergences, accept 0.80, step 0.5" in lines[-1]


def test_a_log_is_silent_for_two_seconds(capsys, clock):
    for seconds, silent in ((1.9, True), (2.1, False)):
        with Progress(10, 0, 1) as bar:
            clock[0] += seconds
            bar.update(10)
        assert (capsys.readouterr().err == "") == silent


def test_dumb_terminals_are_logs(monkeypatch):
    with terminal(monkeypatch):
        assert isinstance(progress._screen(sys.stderr), progress._Terminal)
        monkeypatch.setenv("TERM", "dumb")
        assert isinstance(progress._screen(sys.stderr), progress._Log)


def test_notebooks_get_a_cell_output_that_changes(quick, monkeypatch):
    pages = []
    handle = types.SimpleNamespace(update=pages.append)
    shell = types.SimpleNamespace(kernel=None)
    display = types.ModuleType("IPython.display")
    monkeypatch.setattr(display, "HTML", str, raising=False)
    monkeypatch.setattr(
        display, "display", lambda page, display_id: pages.append(page) or handle, raising=False
    )
    ipython = types.ModuleType("IPython")
    monkeypatch.setattr(ipython, "get_ipython", lambda: shell, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    run(Progress(2000, 1000, 4))
    assert "left" in pages[0] or "so far" in pages[0]
    assert pages[-1].startswith("<pre")
    assert "4 chains × 1,000 draws" in pages[-1]


def test_a_closed_stream_does_not_end_the_run(quick, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress(10, 0, 1) as bar:
        stream.close()
        time.sleep(0.05)
        bar.update(10)


def test_errors_pass_through_and_are_said(quick, capsys):
    def interrupted():
        with Progress(2000, 1000, 4) as bar:
            bar.update(1500)
            time.sleep(0.03)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "stopped: 4 chains x 500 of 1,000 draws in" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("screen", [progress._Terminal, progress._Log])
def test_numbers_take_at_most_a_twentieth(clock, screen, monkeypatch):
    monkeypatch.setattr(progress, "_screen", lambda _: screen(io.StringIO()))
    cost, spent = 0.3, 0.0
    with Progress(1000, 0, 4) as bar:
        assert not bar.wants_numbers()
        for _ in range(6000):
            clock[0] += 0.01
            if bar.wants_numbers():
                clock[0] += cost
                spent += cost
                bar.numbers_cost(cost)
        elapsed = clock[0] - 100
        assert 0.03 < spent / elapsed < 0.06
        assert bar.wants_numbers(last=True)
        bar.numbers_cost(elapsed)
        assert not bar.wants_numbers(last=True)


def test_numbers_without_a_reported_cost_are_limited_too(clock, monkeypatch):
    monkeypatch.setattr(progress, "_screen", lambda _: progress._Terminal(io.StringIO()))
    with Progress(1000, 0, 4) as bar:
        clock[0] += 2
        assert bar.wants_numbers()
        assert not bar.wants_numbers()
        clock[0] += 0.6
        assert bar.wants_numbers()


def test_speed_and_time_left_belong_to_the_phase(clock):
    bar = Progress(3000, 1000, 4, thin=2)
    with bar:
        clock[0] += 10
        assert progress_text.time_left(bar._numbers) == "0:10 so far"
        bar.phase("warm-up")
        clock[0] += 1
        bar.update(500)
        assert progress_text.speed(bar._numbers) == "2,000 steps/s"
        assert progress_text.time_left(bar._numbers) == "0:05 left"
        bar.update(1000)
        bar.phase("sampling")
        clock[0] += 1
        bar.update(1100)
        assert progress_text.speed(bar._numbers) == "200 draws/s"
        bar.phase("sampling")  # said again: nothing starts anew
        assert len(bar._marks) == 2
        clock[0] += 4
        assert progress_text.time_left(bar._numbers) == "0:15 left"
        assert progress_text.counts(bar._numbers, "x") == "4 chains x 50 of 1,000 draws in 16.0 s"


def test_a_resumed_run_does_not_count_old_steps(clock):
    with Progress(3000, 1000, 4) as bar:
        bar.update(2000)
        bar.phase("sampling")
        clock[0] += 1
        bar.update(2100)
        assert progress_text.speed(bar._numbers) == "400 draws/s"


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_lines_fit(width, encoding):
    known = numbers(
        done=1234.5, rate=99999.0, rhat=1.234, ess=123456.0, divergences=1234, acceptance=0.8,
        step_size=0.01234, converged_at=1234.5,
    )  # fmt: skip
    for render in (progress_text.frame, progress_text.ending):
        text = render(known, console(width, encoding)).plain
        assert max(len(line) for line in text.splitlines()) <= max(width, 49)
        assert text.isascii() == (encoding == "ascii")


@pytest.mark.parametrize(
    ("rhat", "color"),
    [(1.0, "green"), (1.01, "yellow"), (1.05, "red"), (float("nan"), "red"), (1e16, "red")],
)
def test_rhat_has_the_color_it_deserves(rhat, color):
    ((text, style),) = progress_text.parts(numbers(rhat=rhat))
    assert style == color
    assert ("undefined" in text) == (rhat != rhat)


def test_summary_shows_fresh_numbers_only():
    old = numbers(done=2000.0, rhat=1.3, ess=10.0, converged_at=1500.0, divergences=1)
    assert progress_text.parts(old, last=True) == [("1 divergence", "red")]


def test_the_bar_is_full_only_at_the_end():
    almost, done = numbers(done=1999.9), numbers(done=2000.0)
    assert progress_text.percent(almost) == "99%"
    assert progress_text.percent(done) == "100%"
    assert progress_text.percent(numbers(total=0, warmup=0)) == "0%"
    assert progress_text.frame(numbers(), console(80)).plain.startswith("starting   ━")
    assert [progress_text._clock(s) for s in (0.0, 59.6, 3725.0)] == ["0:00", "1:00", "1:02:05"]


def test_rounds_are_longer_where_nobody_looks_on():
    """A bar, a store or another process wants to hear of a run sooner."""

    def ticks(*, shown=False, store=None, processes=1):
        run: Any = types.SimpleNamespace(
            progress=types.SimpleNamespace(enabled=shown),
            record=types.SimpleNamespace(store=store),
            crew=types.SimpleNamespace(count=processes),
            _quantum=1e9,
        )
        loop.Loop._adapt_round(run, 100, 1.0)  # a hundred ticks took a second
        return run._quantum

    assert ticks() == pytest.approx(100 * loop.ROUND_SECONDS * loop.UNSEEN)
    for seen in ({"shown": True}, {"store": object()}, {"processes": 2}):
        assert ticks(**seen) == pytest.approx(100 * loop.ROUND_SECONDS)
