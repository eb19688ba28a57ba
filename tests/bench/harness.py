"""The driver's side: start workers, take turns round by round, and summarise.

Only one worker computes at any moment, and every round goes through all contenders (every other
round backwards), so that all of them see the same noise of the machine.
"""

import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# A worker that says nothing for this long is ended: it hangs.
MOST_SECONDS = 900.0
# Seconds before a contender's turn: threads of BLAS and OpenMP go on looking for work for a tenth
# of a second or two, on a core that the next one needs.
PAUSE = 0.3
# What would change a contender behind our back.
HIDDEN = ("JAX_", "XLA_", "XDG_CACHE_HOME", "OMP_NUM_THREADS", "PYTHONPATH")


@dataclasses.dataclass(frozen=True)
class Contender:
    """A program to be measured."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rounds: int | None = None  # a slow one may take part in the first rounds only

    @classmethod
    def worker(
        cls,
        name: str,
        module: str,
        *arguments: object,
        python: str = "",
        rounds: int | None = None,
        **env: str,
    ) -> "Contender":
        """Return the contender that a module of `tests.bench.workers` runs."""
        command = (python or sys.executable, "-m", f"tests.bench.workers.{module}")
        return cls(name, (*command, *map(str, arguments)), env, rounds)


@dataclasses.dataclass
class Outcome:
    """What a contender did: facts of its set-up, and the metrics of each round."""

    name: str
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    rounds: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    error: str = ""

    def values(self, metric: str) -> list[float]:
        """Return a metric over the rounds."""
        return [float(r[metric]) for r in self.rounds if r.get(metric) is not None]

    def median(self, metric: str) -> float:
        """Return the median over the rounds; NaN where there is none."""
        values = self.values(metric)
        return statistics.median(values) if values else float("nan")

    def ratio(self, metric: str, baseline: "Outcome") -> float:
        """Return the ratio of medians to another contender of the same run."""
        base = baseline.median(metric)
        return self.median(metric) / base if base else float("nan")

    def spread(self, metric: str, baseline: "Outcome") -> tuple[float, float]:
        """Return the least and the largest ratio of a round."""
        pairs = zip(self.rounds, baseline.rounds, strict=False)
        ratios = [a[metric] / b[metric] for a, b in pairs if a.get(metric) and b.get(metric)]
        return (min(ratios), max(ratios)) if ratios else (float("nan"), float("nan"))


class Worker:
    """A process that answers in JSON lines."""

    def __init__(self, contender: Contender, log: Path) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(HIDDEN)}
        env = {**kept, "PYTHONPATH": str(ROOT), **contender.env}
        self.log = log
        self.since = time.perf_counter()
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                contender.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env=env,
                text=True,
            )

    def ask(self, line: str | None = None) -> dict[str, Any]:
        """Send a line, if any, and return the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        guard = threading.Timer(MOST_SECONDS, self.process.kill)
        guard.start()
        try:
            if line is not None:
                self.process.stdin.write(line + "\n")
                self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            guard.cancel()
        if not answer:
            return {"error": f"the worker died; see {self.log}"}
        return json.loads(answer)

    def close(self) -> None:
        """End the worker."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _turns(count: int, rounds: int) -> Iterable[tuple[int, int]]:
    for number in range(rounds):
        order = range(count) if number % 2 == 0 else reversed(range(count))
        yield from ((number, i) for i in order)


def measure_fresh(contenders: Sequence[Contender], rounds: int, log: Path) -> dict[str, Outcome]:
    """Start a new process for every measurement; `wall_s` is from its start to its answer."""
    outcomes = [Outcome(c.name) for c in contenders]
    for _, i in _turns(len(contenders), rounds):
        if outcomes[i].error:
            continue
        worker = Worker(contenders[i], log)
        answer = worker.ask()
        wall = time.perf_counter() - worker.since
        worker.close()
        if "error" in answer:
            outcomes[i].error = answer["error"]
        else:
            outcomes[i].rounds.append({"wall_s": wall, **answer})
            _say(f"  {contenders[i].name}: {wall:.2f} s")
    return {o.name: o for o in outcomes}


def measure_living(contenders: Sequence[Contender], rounds: int, log: Path) -> dict[str, Outcome]:
    """Start a process for each contender, set all up (compile), then take turns."""
    outcomes = [Outcome(c.name) for c in contenders]
    workers: list[Worker] = []
    try:
        for contender, outcome in zip(contenders, outcomes, strict=True):
            workers.append(Worker(contender, log))
            outcome.facts = workers[-1].ask()
            outcome.error = outcome.facts.pop("error", "")
            _say(f"  {contender.name}: ready {_brief(outcome.facts)} {outcome.error}")
        for number, i in _turns(len(contenders), rounds):
            if outcomes[i].error or number >= (contenders[i].rounds or rounds):
                continue
            time.sleep(PAUSE)
            answer = workers[i].ask(str(number))
            outcomes[i].error = answer.pop("error", "")
            if not outcomes[i].error:
                outcomes[i].rounds.append(answer)
    finally:
        for worker in workers:
            worker.close()
    for outcome in outcomes:
        _say(f"  {outcome.name}: {outcome.median('wall_s'):.4g} s {outcome.error}")
    return {o.name: o for o in outcomes}


def _brief(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v:.3g}" for k, v in facts.items() if isinstance(v, float))


def _say(text: str) -> None:
    print(text.rstrip(), flush=True)
