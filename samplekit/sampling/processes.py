"""Several processes, one run: what they say to each other, in files beside the store.

Chains are dealt to the processes in blocks. Each process runs the one loop over its own chains and
appends their draws to the store; at the end of a round all exchange the states of their chains,
and process 0 alone commits. So all chains are at the same draw in every commit, whoever dies when;
and a run goes on with any number of processes.

The only thing that processes do together is `Crew.gather`: each writes a message and reads those
of the others. Nobody waits for a process whose heart has stopped beating, and a dead process
cannot hang the others, as it could in a collective of JAX.
"""

import atexit
import ctypes
import functools
import io
import json
import os
import secrets
import shutil
import signal
import socket
import struct
import sys
import threading
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, Self

import jax
import numpy as np

from samplekit.core.errors import ProcessError, SettingsError
from samplekit.sampling.store_layout import explained, write_file

type Message = dict[str, Any]

# Seconds between two beats of a process, and of silence after which it is taken for dead.
BEAT, SILENCE = 1.0, 15.0
# Seconds in which all processes must have come: as long as JAX waits for them.
PATIENCE = 300.0
# Seconds between two looks at a file: short against a round of the loop (0.3 s).
LOOK, SLOWEST_LOOK = 0.0005, 0.005
_HEADER = struct.Struct("<16sQQI")  # crew, number of the message, bytes, checksum


_left_behind = threading.Event()  # whether another process is gone
_last_words: list[str] = []  # what to say if JAX aborts this process in the middle of a run


class Alone:
    """One process, which has nobody to talk to."""

    index, count, hosts = 0, 1, 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        pass

    def share(self, parts: Sequence[int]) -> Sequence[int]:
        """Return the parts that are run here."""
        return parts

    def gather(self, message: Message) -> list[Message]:
        """Return what every process says."""
        return [message]

    def agree(self, value: Any) -> np.ndarray:
        """Return what process 0 says."""
        return np.asarray(self.gather({"value": np.asarray(value)})[0]["value"])


class Crew(Alone):
    """All processes of a run; entered by each of them, it waits until all are there.

    A message is overwritten by the one after the next: nobody writes that before all others have
    written the next one, hence read this one.
    """

    def __init__(self, store: str | os.PathLike[str], index: int, count: int) -> None:
        self.store = Path(os.path.realpath(store))
        self.folder = meeting_place(store)
        self.index, self.count = index, count
        self._number = 0
        self._name = b""
        self._ended = threading.Event()
        # Of each process the last beat, when it was last looked for, and how long it has been old.
        self._heard: dict[int, tuple[bytes, float, float]] = {}

    def share(self, parts: Sequence[int]) -> Sequence[int]:
        """Return the block of parts that are run here."""
        total = len(parts)
        if total < self.count:
            raise SettingsError(
                f"chains={total} cannot be dealt to {self.count} processes: some would have "
                f"nothing to do. Ask for at least {self.count} chains, or start fewer processes."
            )
        return parts[self.first(total, self.index) : self.first(total, self.index + 1)]

    def first(self, total: int, index: int) -> int:
        """Return where the block of a process begins."""
        return index * total // self.count

    def __enter__(self) -> Self:
        me, since = secrets.token_hex(16), time.monotonic()
        if self.index == 0:
            shutil.rmtree(self.folder, ignore_errors=True)  # left by a run that was killed
            self.folder.mkdir(parents=True)
        while not self._joined(me):
            if time.monotonic() - since > PATIENCE:
                raise ProcessError(
                    f"Not all of the {self.count} processes of the run at {str(self.store)!r} came "
                    f"together within {PATIENCE:.0f} seconds. Check that all of them run, and that "
                    "they share the file system of the store."
                )
            time.sleep(0.02)
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        if jax.process_count() > 1:
            _last_words[:] = [self._go_on()]
            _catch_aborts()
        return self

    def _joined(self, me: str) -> bool:
        """Say hello, and tell whether process 0 has heard all: a list of old names is not ours."""
        hello, listing = self.folder / f"hello.{self.index}", self.folder / "crew"
        with suppress(OSError, ValueError, LookupError):
            if not hello.exists():
                _replace(hello, json.dumps([me, socket.gethostname()]))
            if self.index == 0 and not listing.exists():
                files = [self.folder / f"hello.{i}" for i in range(self.count)]
                _replace(listing, json.dumps([json.loads(f.read_text()) for f in files]))
            crew = json.loads(listing.read_text())
            if crew[self.index][0] != me:
                hello.unlink(missing_ok=True)  # an old one: say it again
                return False
            self._name = bytes.fromhex(crew[0][0])
            self.hosts = len({host for _, host in crew})
            return True
        return False

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._ended.set()
        _last_words.clear()
        if error is not None and isinstance(
            error, jax.errors.JaxRuntimeError
        ):  # a collective without one of us?
            self._look_for_the_dead(error)
        with suppress(OSError):
            if error is not None:
                text = f"{type(error).__name__}: {error}"
                _replace(self.folder / f"end.{self.index}", text)
                return
            (self.folder / f"hello.{self.index}").unlink()
            since = time.monotonic()
            while self.index == 0 and time.monotonic() - since < SILENCE:
                if not any(self.folder.glob("hello.*")):  # all have read the last message
                    break
                time.sleep(LOOK)
            if self.index == 0:
                shutil.rmtree(self.folder)

    def _beat(self) -> None:
        count = 0
        while not self._ended.wait(BEAT if count else 0):
            count += 1
            with suppress(OSError):
                write_file(f"{self.folder}/beat.{self.index}", [(0, np.array([count]))], 8)

    def gather(self, message: Message) -> list[Message]:
        """Say something, and return what every process says, in their order."""
        self._number += 1
        held = io.BytesIO()
        np.savez(held, **message)
        raw = held.getvalue()
        # In place, for a file that is replaced is seen late on network file systems.
        parts = [(_HEADER.size, raw), (0, self._header(raw))]
        arrays = [(at, np.frombuffer(part, np.uint8)) for at, part in parts]
        with explained(self.store):
            write_file(str(self._file(self.index)), arrays, _HEADER.size + len(raw))
        return [message if i == self.index else self._hear(i) for i in range(self.count)]

    def _file(self, index: int) -> Path:
        return self.folder / f"says.{index}.{self._number % 2}"

    def _header(self, raw: bytes) -> bytes:
        return _HEADER.pack(self._name, self._number, len(raw), zlib.crc32(raw))

    def _hear(self, peer: int) -> Message:
        pause = LOOK
        self._heard.pop(peer, None)  # silence counts from now on
        while True:
            with suppress(OSError):
                raw = self._file(peer).read_bytes()
                size = _HEADER.unpack_from(raw)[2] if len(raw) >= _HEADER.size else 0
                body = raw[_HEADER.size : _HEADER.size + size]
                if raw[: _HEADER.size] == self._header(body):
                    return dict(np.load(io.BytesIO(body), allow_pickle=False))
            self._check(peer)
            time.sleep(pause)
            pause = min(SLOWEST_LOOK, 1.2 * pause)

    def _check(self, peer: int) -> None:
        """Give up on a process that has said that it ends, or that says nothing any more."""
        with suppress(FileNotFoundError):
            text = (self.folder / f"end.{peer}").read_text()
            self._give_up(f"Process {peer} of {self.count} ended: {text}")
        now, beat = time.monotonic(), b""
        with suppress(OSError):
            beat = (self.folder / f"beat.{peer}").read_bytes()
        last, before, silent = self._heard.get(peer, (beat, now, 0.0))
        # A clock that jumps, or a machine that was asleep, adds no more than a beat.
        silent = silent + min(now - before, BEAT) if beat == last else 0.0
        self._heard[peer] = beat, now, silent
        if silent > SILENCE:
            self._give_up(
                f"Process {peer} of {self.count} has not been heard of for {SILENCE:.0f} seconds: "
                "it was killed, or its machine is gone."
            )

    def _look_for_the_dead(self, error: BaseException) -> None:
        """Wait as long as a process may be silent; if one is, that is the cause of an error."""
        until = time.monotonic() + SILENCE + 2 * BEAT
        self._heard.clear()
        try:
            while time.monotonic() < until:
                for peer in (i for i in range(self.count) if i != self.index):
                    self._check(peer)
                time.sleep(BEAT / 4)
        except ProcessError as found:
            raise found from error

    def _give_up(self, why: str) -> NoReturn:
        _left_behind.set()
        raise ProcessError(f"{why} {self._go_on()}")

    def _go_on(self) -> str:
        return (
            f"What was committed before is in {str(self.store)!r}: go on with sk.resume "
            "(samplekit resume), with any number of processes."
        )


def meeting_place(store: str | os.PathLike[str]) -> Path:
    """Return the folder of the messages about a run; it is there only while the run grows."""
    path = Path(os.path.realpath(store))
    return path.with_name(f".{path.name}.processes")


def _replace(path: Path, text: str) -> None:
    draft = path.with_suffix(f"{path.suffix}.{os.getpid()}")
    draft.write_text(text)
    os.replace(draft, path)


def find_crew(store: str | os.PathLike[str] | None, devices: Any) -> Alone:
    """Return the processes that a run is shared by: all that JAX knows, unless told otherwise."""
    count, here = jax.process_count(), jax.process_index()
    if count == 1 or (devices is not None and all(d.process_index == here for d in devices)):
        return Alone()
    if store is None:
        raise SettingsError(
            f"{count} processes share this run, so its draws must meet in a store. Give store=, a "
            "path that all processes see, or devices=jax.local_devices() to sample in each "
            "process by itself."
        )
    return Crew(store, here, count)


def exchange(crew: Alone, engine: Any, notes: Message) -> list[Message]:
    """Bring the states of all chains to every process; return the notes of all."""
    if not isinstance(crew, Crew):
        return [notes]
    if engine.batch is not None:  # one program spans all processes, each of which has all states
        return crew.gather(notes)
    mine = crew.share(engine.parts)
    columns = zip(*(engine.carries[part] for part in mine), strict=True)
    states = {f"state{i}": np.stack(column) for i, column in enumerate(columns)}
    heard = crew.gather(notes | states)
    for peer, message in enumerate(heard):
        if peer == crew.index:
            continue
        arrays = [message[name] for name in states]
        first = crew.first(len(engine.parts), peer)
        for i in range(len(arrays[0])):
            engine.carries[first + i] = [a[i] for a in arrays]
    return heard


def connect() -> None:
    """Join the processes that `samplekit launch`, SLURM, Kubernetes, ... started, as JAX does.

    Call it before anything else is computed. It is `jax.distributed.initialize`, which does as
    well, and in addition ends this process at once, in good order, where another one is gone.
    """
    own: Message = {}
    if "SAMPLEKIT_PROCESS" in os.environ:
        index, count = os.environ["SAMPLEKIT_PROCESS"].split("/")
        own = {"process_id": int(index), "num_processes": int(count)}
    try:
        # The first to end waits for the last, which may still be at its diagnosis.
        jax.distributed.initialize(**own, shutdown_timeout_seconds=3600)
    except (ValueError, RuntimeError) as error:
        raise ProcessError(
            f"The processes could not be brought together: {error} Start them with "
            "`samplekit launch`, by SLURM, Open MPI or Kubernetes, or call "
            "jax.distributed.initialize(address, processes, index) yourself."
        ) from error
    atexit.register(_leave)  # called before what JAX has registered


@functools.cache
def _catch_aborts() -> Any:
    """Let this process say how to go on where JAX aborts it, as it does once process 0 is gone.

    A handler of Python's own would come too late, and JAX's callback cannot be a Python function
    (std::bad_cast in jaxlib 0.12). Returned, hence cached, so that nobody collects the handler.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def aborted(number: int) -> None:
        if not _last_words:  # not in a run: abort as ever
            libc.signal(number, signal.SIG_DFL)
            return
        why = "This process was aborted, see above: most likely process 0 is gone."
        os.write(2, f"samplekit: {why} {_last_words[0]}\n".encode())
        os._exit(2)

    libc.signal(signal.SIGABRT, ctypes.cast(aborted, ctypes.c_void_p))
    return aborted


def _leave() -> None:
    """End at once where another process is gone: JAX would wait for it, then abort with pages."""
    if _left_behind.is_set():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(2)
