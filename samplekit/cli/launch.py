"""`samplekit launch`: one command in several processes, which live and die together."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from samplekit.cli.errors import INTERRUPTED, explained
from samplekit.core.errors import ProcessError, SettingsError, StoreError

commands = typer.Typer()
# What can be shared by several processes.
SHARED = ("sample", "resume")
# Seconds that processes are given to end by themselves, once one has: a mistake ends them all.
TOGETHER = 2.0
_SHOW_CURSOR = "\x1b[?25h"


@commands.command("launch", context_settings={"ignore_unknown_options": True})
def _launch(
    *,
    processes: Annotated[
        int, typer.Option("--processes", "-p", metavar="N", min=1, help="Processes to start.")
    ],
    coordinator: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where JAX's processes meet; without it, a free port of this machine.",
        ),
    ] = None,
    words: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND", help="samplekit's sample or resume, as it would be."),
    ],
) -> None:
    """Share a run between several processes on this machine.

    Example: samplekit launch --processes 2 -- sample model.py:target --store run.zarr

    The chains are dealt to the processes, and the draws are those of one process.
    When a process dies, all end; samplekit resume goes on with the run, launched with
    any number of processes or none. On a cluster, let its scheduler start
    samplekit sample ... --distributed instead.
    """
    with explained():
        if words[0] not in SHARED:
            raise SettingsError(
                f"{words[0]!r} cannot be shared by processes. Launch samplekit sample or resume: "
                "samplekit launch --processes 2 -- sample model.py:target --store run.zarr"
            )
        if words[0] == "sample" and _option(words, "--store", "-s") is None:
            raise SettingsError("A run of several processes needs a place: add --store run.zarr.")
        with _started(words, processes, coordinator or _free_address()) as team:
            code = team.watch()
        raise typer.Exit(code)


def _option(words: Sequence[str], *names: str) -> str | None:
    """Return the value of an option in a command line."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else after
    return None


def _free_address() -> str:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return f"localhost:{free.getsockname()[1]}"


class Team:
    """The processes of a launch. Process 0 talks to the user, the others to a file."""

    def __init__(self, words: Sequence[str], count: int, address: str) -> None:
        self.words = list(words)
        self.said: list[IO[bytes]] = []
        self.members: list[subprocess.Popen[bytes]] = []
        self.interrupted = threading.Event()
        for index in range(count):
            said: Any = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process
            self.said.append(said)
            own = {"SAMPLEKIT_PROCESS": f"{index}/{count}", "JAX_COORDINATOR_ADDRESS": address}
            first = index == 0
            self.members.append(
                subprocess.Popen(
                    [sys.executable, "-m", "samplekit.cli", *words, "--distributed"],
                    env=os.environ | own,
                    stdin=subprocess.DEVNULL,
                    stdout=None if first else subprocess.DEVNULL,
                    stderr=None if first else said,
                    process_group=0,  # Ctrl-C comes to them through `interrupt` alone
                )
            )

    def interrupt(self, *signal_and_frame: Any) -> None:
        """Pass Ctrl-C on."""
        self.interrupted.set()
        self._send(signal.SIGINT)

    def _send(self, number: signal.Signals) -> None:
        for member in self.members:
            if member.poll() is None:
                member.send_signal(number)

    def watch(self) -> int:
        """Wait for the end of all, or of one before its time; return the exit code."""
        while True:
            codes = [member.poll() for member in self.members]
            if all(code is not None for code in codes):
                break
            # One that ends well waits for the others by itself.
            if any(codes):
                self._wait_for_all(TOGETHER)
                break
            time.sleep(0.02)
        alive = [member.poll() is None for member in self.members]
        codes = [member.poll() or 0 for member in self.members]
        self.end()
        told = codes[0] > 0 and min(codes) >= 0 and not any(alive)  # process 0 has said why
        if told or self.interrupted.is_set() or not any(codes):
            return INTERRUPTED if self.interrupted.is_set() and any(codes) else codes[0]
        # Others may have seen that one is gone: the first cause is a signal, then an error.
        dead = min((i for i, c in enumerate(codes) if c), key=lambda i: codes[i])
        raise ProcessError(self._obituary(dead, codes[dead]))

    def _wait_for_all(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        for member in self.members:
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.wait(max(0.0, until - time.monotonic()))

    def end(self) -> None:
        """End whoever is still there: what is stored is whole at any instant."""
        if any(member.poll() is None for member in self.members):
            self._send(signal.SIGKILL)  # JAX makes SIGTERM a mere notice
            self._wait_for_all(TOGETHER)
            if sys.stderr.isatty():
                sys.stderr.write(f"{_SHOW_CURSOR}\n")  # the progress bar hid it

    def _obituary(self, dead: int, code: int) -> str:
        """Say who died of what, what is stored, and how to go on."""
        how = f"ended with exit code {code}"
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            how += " (out of memory?)" if code == -signal.SIGKILL else ""
        self.said[dead].seek(0)
        last = self.said[dead].read().decode(errors="replace").strip().splitlines()[-10:]
        quoted = "".join(f"\n    {line}" for line in last) if code > 0 else ""
        count = len(self.members)
        return f"process {dead} of {count} {how}; the others were ended.{quoted}\n{self._stored()}"

    def _stored(self) -> str:
        from samplekit.cli.output import command
        from samplekit.sampling.store import Store

        sampling = self.words[0] == "sample"
        place = _option(self.words, "--store", "-s") if sampling else _first(self.words[1:])
        try:
            known = Store.open(Path(place or "")).sampler_attrs
        except StoreError:
            return f"No run is stored at {place!r}. Start it again."
        draws = max(0, int(known["tick"]) - int(known["warmup"]))
        count = len(self.members)
        model = _first(self.words[1:]) if sampling else "MODEL"
        again = command("launch", "--processes", count, "--", "resume", place, model)
        return (
            f"{place} holds {draws} of {known['draws']} draws of each chain. Go on, with this or "
            f"any number of processes:  {again}"
        )


def _first(words: Sequence[str]) -> str:
    """Return the first word that is neither an option nor likely to be the value of one."""
    before = ["", *words]
    free = (
        w for b, w in zip(before, words, strict=False) if not w.startswith("-") and b[:1] != "-"
    )
    return next(free, "")


@contextlib.contextmanager
def _started(words: Sequence[str], count: int, address: str) -> Iterator[Team]:
    """Start the processes; whatever happens, none outlives this one."""
    team = Team(words, count, address)
    before = signal.signal(signal.SIGINT, team.interrupt)
    asked = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield team
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, asked)
        team.end()
        for said in team.said:
            said.close()
