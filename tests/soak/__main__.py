"""Mixed work under kills, Ctrl-C, full and read-only disks, flipped bits and jumping clocks.

`python -m tests.soak [--minutes 10]`. Every trial does the same work as an undisturbed run and must
end with the same draws, bit for bit, or with a clear error; and a process that makes ten thousand
small runs must not grow.
"""

import argparse
import collections
import concurrent.futures as futures
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
MOST_GROWTH = 0.05
PATIENCE = 300.0  # seconds: no step of a trial takes that long, unless the machine is busy


@dataclasses.dataclass
class Soak:
    """Where the trials work, and what an undisturbed run gives."""

    folder: Path
    environment: dict[str, str]
    patience: float = PATIENCE
    whole: int = 0
    trained: np.ndarray | None = None

    def start(self, *words: object, namespace: bool = False) -> subprocess.Popen[str]:
        """Start a worker."""
        command = [sys.executable, "-m", "tests.soak.worker", *map(str, words)]
        if namespace:
            command = ["unshare", "--user", "--map-root-user", "--mount", *command]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=ROOT, env=self.environment, **pipes)

    def finish(self, *words: object, namespace: bool = False) -> tuple[str, str]:
        """Run a worker to its end; return what it said, and its errors if it failed."""
        process = self.start(*words, namespace=namespace)
        said, errors = process.communicate(timeout=self.patience)
        return said, errors if process.returncode else ""

    def must(self, *words: object, namespace: bool = False) -> str:
        """Run a worker that may not fail."""
        said, errors = self.finish(*words, namespace=namespace)
        if errors:
            raise AssertionError(f"{' '.join(map(str, words))}: {errors[-500:]}")
        return said

    def stopped(self, store: Path, seconds: float, number: signal.Signals) -> bool:
        """Begin a run, or go on with it, and send it a signal; tell whether it was still there."""
        process = self.start("sample", store, 5)
        while process.poll() is None and not store.exists():
            time.sleep(0.01)
        time.sleep(seconds)
        running = process.poll() is None
        if running:
            process.send_signal(number)
        process.communicate(timeout=self.patience)
        return running

    def check(self, store: Path) -> None:
        """Compare a finished run with the undisturbed one."""
        found = json.loads(self.must("digest", store))
        assert found == {"digest": self.whole, "finished": True}, "the draws are not the same"


def disturbed(soak: Soak, place: Path, random: np.random.Generator, number: signal.Signals) -> str:
    """Disturb a run up to three times, and let it end."""
    store = place / "run.zarr"
    times = 0
    for _ in range(int(random.integers(1, 4))):
        times += soak.stopped(store, float(random.uniform(0, 4.0)), number)
        if store.exists():
            json.loads(soak.must("digest", store))  # whole at every instant
    soak.must("sample", store, 5)
    soak.check(store)
    soak.must("report", store)
    return f"{times} times"


def killed(soak: Soak, place: Path, random: np.random.Generator) -> str:
    """Kill -9."""
    return disturbed(soak, place, random, signal.SIGKILL)


def interrupted(soak: Soak, place: Path, random: np.random.Generator) -> str:
    """Ctrl-C."""
    return disturbed(soak, place, random, signal.SIGINT)


def trained(soak: Soak, place: Path, random: np.random.Generator) -> str:
    """Kill a training, and let it go on from its checkpoint."""
    model = place / "model"
    process = soak.start("train", model, 3)
    time.sleep(float(random.uniform(2.0, 8.0)))
    process.kill()
    process.communicate()
    soak.must("train", model, 3)
    np.testing.assert_array_equal(np.load(f"{model}.npy"), soak.trained)
    return "the same weights"


def disk(soak: Soak, place: Path, kind: str) -> str:
    """Fill the disk, or make it read-only; then set it right."""
    place.joinpath("disk").mkdir()
    found = json.loads(soak.must("disk", place / "disk", 5, kind, namespace=True).splitlines()[-1])
    assert "sk.resume" in found["error"] or "start again" in found["error"], found["error"]
    assert found["digest"] == soak.whole, "the draws are not the same"
    return "a clear error, then the same draws"


def full(soak: Soak, place: Path, random: np.random.Generator) -> str:
    """A full disk."""
    del random
    return disk(soak, place, "full")


def read_only(soak: Soak, place: Path, random: np.random.Generator) -> str:
    """A store that cannot be written to."""
    del random
    return disk(soak, place, "read-only")


def flipped(soak: Soak, place: Path, random: np.random.Generator) -> str:
    """Flip a bit of a run: nobody may believe it, until it is flipped back."""
    store = place / "run.zarr"
    soak.stopped(store, float(random.uniform(1.0, 4.0)), signal.SIGKILL)
    files = sorted(store.glob("*posterior/x/c.*"))
    if not files:
        return "killed before there was anything to flip"
    file = random.choice(files)
    at = int(random.integers(64))  # among the first draws, which are committed

    def flip() -> None:
        with open(file, "r+b") as handle:
            handle.seek(at)
            byte = handle.read(1)
            handle.seek(at)
            handle.write(bytes([byte[0] ^ 1]))

    lengths = json.loads((store / "zarr.json").read_text())["consolidated_metadata"]["metadata"]
    group = Path(file).relative_to(store).parts[0]
    if lengths[f"{group}/x"]["shape"][1] < 100:
        return "killed before there was anything to flip"
    flip()
    for words in (("sample", store, 5), ("report", store)):
        _, errors = soak.finish(*words)
        assert "damaged" in errors, f"{words[0]} believed it: {errors[-300:]}"
    flip()
    soak.must("sample", store, 5)
    soak.check(store)
    return "refused, then mended"


def clock(soak: Soak, place: Path, random: np.random.Generator) -> str:
    """Jumping clocks."""
    del random
    soak.must("clock", place / "run.zarr", 5)
    soak.check(place / "run.zarr")
    return "the same draws"


TRIALS: dict[str, Callable[[Soak, Path, np.random.Generator], str]] = {
    "kill -9": killed,
    "Ctrl-C": interrupted,
    "training killed": trained,
    "full disk": full,
    "read-only disk": read_only,
    "flipped bit": flipped,
    "jumping clocks": clock,
}


def tiny(soak: Soak, count: int) -> tuple[list[tuple[int, float]], str]:
    """Make many small runs in one process; return its memory on the way."""
    process = soak.start("tiny", count)
    assert process.stdout is not None
    rows = [json.loads(line) for line in process.stdout]
    errors = process.communicate()[1] if process.wait() else ""
    return [(row["runs"], row["mib"]) for row in rows], errors


def attempt(soak: Soak, number: int) -> tuple[str, str, str]:
    """Make one trial; return its kind, how it went, and what was wrong."""
    random = np.random.default_rng(number)
    kind = list(TRIALS)[number % len(TRIALS)]
    place = Path(tempfile.mkdtemp(dir=soak.folder))
    try:
        return kind, TRIALS[kind](soak, place, random), ""
    except Exception as error:
        return kind, "", f"trial {number}: {type(error).__name__}: {error}"
    finally:
        shutil.rmtree(place, ignore_errors=True)


def prepare(folder: Path, patience: float) -> Soak:
    """Make the undisturbed runs, compiled once for all trials."""
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "cache")}
    cache["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    soak = Soak(folder, {**os.environ, **cache, "PYTHONPATH": str(ROOT)}, patience)
    soak.must("sample", folder / "whole.zarr", 5)
    soak.whole = json.loads(soak.must("digest", folder / "whole.zarr"))["digest"]
    soak.must("train", folder / "whole", 3)
    soak.trained = np.load(folder / "whole.npy")
    return soak


def main() -> int:
    """Soak, and print what happened."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--tiny", type=int, default=10_000, help="small runs in one process")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds for a step")
    given = parser.parse_args()
    since = time.monotonic()
    left = threading.Event()
    went: dict[str, collections.Counter[str]] = {kind: collections.Counter() for kind in TRIALS}
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        soak = prepare(Path(name), given.patience)
        with futures.ThreadPoolExecutor(3) as pool:
            memory = pool.submit(tiny, soak, given.tiny)

            def work(first: int) -> None:
                number = first
                while time.monotonic() - since < 60 * given.minutes and not left.is_set():
                    kind, how, error = attempt(soak, number)
                    went[kind]["failed" if error else how] += 1
                    if error:
                        wrong.append(error)
                    print(f"{time.monotonic() - since:6.0f} s  {kind}: {how or error}", flush=True)
                    number += 2

            jobs = [pool.submit(work, first) for first in (0, 1)]
            try:
                futures.wait(jobs)
            except KeyboardInterrupt:
                left.set()
            for job in jobs:
                job.result()
            sizes, errors = memory.result()
    return conclude(went, wrong, (sizes, errors), time.monotonic() - since)


def conclude(
    went: dict[str, collections.Counter[str]],
    wrong: list[str],
    memory: tuple[list[tuple[int, float]], str],
    seconds: float,
) -> int:
    """Print the table; return the exit code."""
    sizes, errors = memory
    print(
        f"\n{seconds / 60:.1f} minutes\n\n| disturbance | trials | how they went |\n|---|---|---|"
    )
    for kind, how in went.items():
        words = ", ".join(f"{text}: {count}" for text, count in how.items())
        print(f"| {kind} | {sum(how.values())} | {words} |")
    # The first quarter fills caches; after it memory must stay.
    later = [mib for _, mib in sizes[len(sizes) // 4 :]]
    growth = later[-1] / later[0] - 1 if later else float("nan")
    total = sizes[-1][0] if sizes else 0
    print(f"| small runs in one process | {total} | memory {growth:+.1%} after the first quarter |")
    if errors:
        wrong.append(f"small runs: {errors[-500:]}")
    if not growth < MOST_GROWTH:
        wrong.append(f"small runs: memory grew by {growth:.1%}: {sizes}")
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
