"""Where a fresh samplekit process spends its time: `python -m tests.bench.profile_cold schools`.

Imports come from `python -X importtime`, phases from a child process with the loop's functions
under a clock and JAX's own events, call counts from cProfile (`--calls`). Each child runs several
times and the least of each number is shown: other programs only ever make it larger.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.bench.harness import HIDDEN, ROOT

# JAX's events, each with the name of the jitted function. Tracing times of inner functions are
# part of those of outer ones.
EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
    "/jax/compilation_cache/cache_retrieval_time_sec": "cache read",
}
# Functions of samplekit under the clock, from outermost to innermost: module, owner, name.
WATCHED = (
    ("samplekit.sampling.engine", "Engine", "__init__"),
    ("samplekit.sampling.api", "", "label"),
    ("samplekit.sampling.loop", "Loop", "begin"),
    ("samplekit.sampling.loop", "Loop", "run"),
    ("samplekit.sampling.record", "Record", "checkpoint"),
    ("samplekit.sampling.record", "Record", "tree"),
)


class Clock:
    """Wall and processor seconds of named phases, in the order they ended."""

    def __init__(self) -> None:
        self.phases: dict[str, list[float]] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of a block to a phase."""
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            spent = self.phases.setdefault(name, [0.0, 0.0])
            spent[0] += time.perf_counter() - wall
            spent[1] += time.process_time() - cpu

    def watch(self, module: str, owner: str, name: str) -> None:
        """Put a function under the clock."""
        holder = sys.modules[module]
        holder = getattr(holder, owner) if owner else holder
        inner: Callable[..., Any] = getattr(holder, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.phase(f"{owner}.{name}".strip(".")):
                return inner(*args, **kwargs)

        setattr(holder, name, timed)


def child(model_name: str, *, cache: bool, calls: bool) -> None:
    """Sample once under the clock; the last line of stdout is the result."""
    clock, events = Clock(), {}
    with clock.phase("import jax"):
        import jax
    with clock.phase("import numpyro"):
        import numpyro  # noqa: F401
    with clock.phase("import samplekit, its sample, from_numpyro and NUTS"):
        import samplekit as sk

        _ = sk.sample, sk.from_numpyro, sk.NUTS
    from tests.bench import models

    def hear(event: str, duration: float, **facts: Any) -> None:
        if event in EVENTS:
            kind = f"{EVENTS[event]} {facts.get('fun_name', '')}".strip()
            events.setdefault(kind, []).append(duration)

    jax.monitoring.register_event_duration_secs_listener(hear)
    for where in WATCHED:
        clock.watch(*where)
    model, data = models.build(model_name)
    with clock.phase("start of JAX's backend"):
        jax.devices()
    with _profiled(calls):
        with clock.phase("from_numpyro"):
            target = sk.from_numpyro(model, *data)
        with clock.phase("sample"):
            sk.sample(target, cache=cache, progress=False)
    # What follows is not part of the cold start, and must not be added to it.
    phases = {name: list(spent) for name, spent in clock.phases.items()}
    programs = {k: [sum(v), len(v)] for k, v in events.items()}
    with clock.phase("second call"):
        sk.sample(target, cache=cache, progress=False, seed=1)
    phases["second call of sample"] = clock.phases["second call"]
    print(json.dumps({"phases": phases, "programs": programs}), flush=True)


@contextlib.contextmanager
def _profiled(on: bool) -> Iterator[None]:
    """Print the functions that cost most, by their own time and with what they call."""
    if not on:
        yield
        return
    import cProfile
    import pstats

    profile = cProfile.Profile()
    with profile:
        yield
    table = pstats.Stats(profile, stream=sys.stderr).strip_dirs()
    table.sort_stats("cumulative").print_stats(70)
    table.sort_stats("tottime").print_stats(30)


def _run(arguments: list[str], folder: str, *options: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(HIDDEN)}
    env = {**kept, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": folder}
    command = [sys.executable, *options, "-m", "tests.bench.profile_cold", *arguments, "--child"]
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True)


def _least(tables: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    names = dict.fromkeys(name for table in tables for name in table)
    rows = {name: [t[name] for t in tables if name in t] for name in names}
    return {name: [min(column) for column in zip(*row, strict=True)] for name, row in rows.items()}


def _imports(text: str) -> dict[str, list[float]]:
    """Return own and cumulative milliseconds, and the depth, of each imported module."""
    found = {}
    for own, total, indent, name in re.findall(
        r"import time:\s+(\d+) \|\s+(\d+) \|( +)(\S+)", text
    ):
        found[name] = [int(own) / 1e3, int(total) / 1e3, float(len(indent) // 2)]
    return found


def show(arguments: list[str], repeats: int, least_ms: float, *, calls: bool) -> None:
    """Run the children and print what they say."""
    with tempfile.TemporaryDirectory() as folder:
        if "--cache" in arguments:
            _run(arguments, folder)
        results = []
        for _ in range(repeats):
            lines = _run(arguments, folder).stdout.strip().splitlines()
            results.append(json.loads(lines[-1]))
        imports = _least(
            [_imports(_run(arguments, folder, "-X", "importtime").stderr) for _ in range(repeats)]
        )
        profile = _run([*arguments, "--calls"], folder).stderr if calls else ""
    print(f"least of {repeats}; load average {os.getloadavg()[0]:.1f}\n\n{'wall':>8} {'cpu':>8}  s")
    for name, (wall, cpu) in _least([r["phases"] for r in results]).items():
        print(f"{wall:8.3f} {cpu:8.3f}  {name}")
    print(f"\n{'seconds':>8} {'times':>5}  JAX programs (traces of inner functions nest)")
    programs = _least([r["programs"] for r in results])
    for name, (seconds, times) in sorted(programs.items(), key=lambda item: -item[1][0]):
        if seconds > 0.005:
            print(f"{seconds:8.3f} {times:5.0f}  {name}")
    total = sum(len(r) for r in programs.values())
    print(f"\n{'own':>8} {'all':>8}  ms, imports from {least_ms:g} ms ({total} program events)")
    for name, (own, cumulative, depth) in imports.items():
        if cumulative >= least_ms and depth < 8:
            print(f"{own:8.1f} {cumulative:8.1f}  {'  ' * int(depth)}{name}")
    print(profile)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.profile_cold")
    parser.add_argument("model", choices=("schools", "logistic", "banana"))
    parser.add_argument("--cache", action="store_true", help="with a warm compilation cache")
    parser.add_argument("--calls", action="store_true", help="add a cProfile of the first run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--least", type=float, default=20.0, help="milliseconds of shown imports")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.model, cache=given.cache, calls=given.calls)
        return
    arguments = [given.model, *(["--cache"] if given.cache else [])]
    show(arguments, given.repeats, given.least, calls=given.calls)


if __name__ == "__main__":
    main()
