"""The only loop: rounds of compiled work, and between them everything a host does.

A run is driven by ticks: one warm-up step or one draw. In each round all chains advance by the same
number of ticks, chosen so that a round takes about a third of a second, or a whole one where nobody
looks on. Between rounds the loop shows progress, appends to the store, asks the stop rule, and, at
fixed ticks of warm-up, restarts lost chains. Draws depend on ticks only, never on how rounds were
cut.
"""

import concurrent.futures as futures
import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from samplekit.core.cores import cores, one_thread
from samplekit.core.errors import TargetError
from samplekit.sampling import convergence
from samplekit.sampling.engine import MOST_STARTS, Block, Engine
from samplekit.sampling.processes import exchange
from samplekit.sampling.progress import Progress
from samplekit.sampling.record import Record
from samplekit.sampling.starts import gaps_above, lost_chains
from samplekit.sampling.threads import Here, make_pool

ROUND_SECONDS = 0.3
# Where nothing is shown, stored or shared, rounds are so many times as long: the chains of a round
# wait for its slowest. Four chains on two cores: 0.92 times the time of a run of half a second.
UNSEEN = 3.0
# The first round is short, unless a start (one gradient, compiled) took next to no time; then
# rounds grow as far as their speed allows.
FIRST_ROUND, QUICK_ROUND, QUICK_START = 4.0, 150.0, 10e-3
ROUND_GROWTH = 100
# Lost chains are looked for at these parts of warm-up; a chain restarted at the last has time left.
RESCUE_AT = (0.15, 0.4)
# A stop rule is asked at these draws: from 100 on, growing, so that looking costs little.
FIRST_LOOK, LOOK_GROWTH = 100, 1.25
# Up to this many rows BLAS computes products with the draws of a window on one thread by itself.
FEW_ROWS = 10


class Loop:
    """One run in the making."""

    def __init__(self, engine: Engine, record: Record, progress: Progress) -> None:
        self.engine, self.record, self.progress = engine, record, progress
        self.settings = engine.task.settings
        self.crew = record.crew
        # Of several processes each runs its own parts; a batch is one program of them all.
        self.mine = self.crew.share(engine.parts) if engine.batch is None else engine.parts
        self.tick = record.tick
        self._asked = threading.Event()  # whether the user asked for the end
        self._quantum = FIRST_ROUND
        self._barriers = self._fixed_ticks()
        self._acceptance: list[float] = []
        self._divergences = 0

    def _fixed_ticks(self) -> dict[int, str]:
        """Return the ticks at which all chains must stand still, whatever the clock says."""
        settings = self.settings
        ticks: dict[int, str] = {settings.ticks: "end"}
        if settings.until is not None:
            draws = FIRST_LOOK
            while draws < settings.draws:
                ticks[settings.warmup + draws] = "look"
                draws = int(np.ceil(draws * LOOK_GROWTH))
        if settings.warmup >= 100 and self.engine.plan.tunes and not self.record.calm:
            ticks |= {round(part * settings.warmup): "rescue" for part in RESCUE_AT}
        return ticks

    def begin(self, pool: futures.Executor, starts: np.ndarray | None) -> None:
        """Compile, and start every chain at a finite place."""
        quick = self.engine.quick
        if quick is not None and self.engine.task.view.flat and self.crew.count == 1:
            self._quantum = QUICK_ROUND if quick else FIRST_ROUND
            self.engine.begin_with_steps(starts)
        else:
            self._begin_alone(pool, starts)

    def _begin_alone(self, pool: futures.Executor, starts: np.ndarray | None) -> None:
        """Start the chains by calls that take no step; the first of them compiles."""
        self.progress.phase("compiling")
        since = time.perf_counter()
        attempts = np.zeros(self.settings.chains, int)
        first = 0 if self.engine.compiled else 1  # one chain compiles, the others wait for it
        if first:
            self.engine.lower()  # Python's work; the compiler's leaves Python to others
        job = pool.submit(self.engine.begin, self.mine[:first], starts, attempts)
        import xarray  # noqa: F401  # needed at the end; takes its third of a second here

        results = job.result()
        began = time.perf_counter()
        results += self.engine.begin(self.mine[first:], starts, attempts)
        for part, fine in zip(self.mine, results, strict=True):
            if not fine.all():
                chain = self.engine.first_of(part) + int(np.argmin(fine))
                self._no_start(chain, given=starts is not None)
        now = time.perf_counter()
        timed = len(results) > first  # some chain began without compiling
        slow = not timed or now - began >= QUICK_START
        slow = any(note["slow"] for note in exchange(self.crew, self.engine, {"slow": slow}))
        if not slow:
            self._quantum = QUICK_ROUND
        if timed:
            self.engine.quick = not slow
        self.record.seconds["compiling"] = now - since
        self.record.starts = self.record.anchor = self.engine.positions()[0]

    def _no_start(self, chain: int, *, given: bool) -> None:
        (x, log_density), score = self.engine.positions(), self.engine.rows_of("score")
        last = [] if log_density is None else [f"log density {log_density[chain]}"]
        last += [] if score is None else [f"score {_short(score[chain])}"]
        where = f"{' and '.join(last)} at x = {_short(x[chain])}"
        if given:
            raise TargetError(
                f"The start of chain {chain} cannot be used: {where} (unconstrained), and not all "
                "of that is finite. Choose another init= for it, or leave init= out."
            )
        raise TargetError(
            f"No start with finite log density and score was found for chain {chain} in "
            f"{MOST_STARTS} tries, uniform on ±2 in unconstrained space; the last gave {where}. "
            "Give starts with init=, or check the target for NaN: a log of a negative number, a "
            "missing support=."
        )

    def pool(self) -> contextlib.AbstractContextManager[futures.Executor]:
        """Return the threads that chains run in."""
        # One part and nothing to import meanwhile; a Ctrl-C that is not held would lose its draws.
        if len(self.mine) == 1 and self.engine.compiled and _may_hold():
            return Here()
        # More than cores: one computes while another talks, and four chains end together on two.
        return make_pool(min(len(self.mine), 2 * cores()))

    def run(self, pool: futures.Executor, asked: threading.Event) -> None:
        """Advance to the end, the stop rule or Ctrl-C (`asked`); the record is always whole."""
        self._asked = asked
        self.progress.update(float(self.settings.step_at(self.tick)))
        # Metrics are learned by the threads of some chains while others go on.
        learns = self.tick < self.settings.warmup and self.engine.plan.records
        many = learns and self.engine.task.dim > FEW_ROWS
        with one_thread() if many else contextlib.nullcontext():
            self._advance(pool)
        if not self.record.interrupted:
            self.record.settle()

    def _advance(self, pool: futures.Executor) -> None:
        while self.tick < self.settings.ticks and not self.record.finished:
            interrupted = self._round(pool)
            alone = self.crew.count == 1  # several processes end after the same round
            stopped = interrupted or (alone and self._asked.is_set())
            if stopped and self.tick < self.settings.ticks:
                self.record.interrupted = not self.record.finished
                break

    def _round(self, pool: futures.Executor) -> bool:
        """Advance all chains by one round; tell whether the user interrupted it."""
        warm = self.tick < self.settings.warmup
        self.progress.phase("warm-up" if warm else "sampling")
        barrier = min(t for t in self._barriers if t > self.tick)
        end = min(barrier, self.tick + max(1, int(self._quantum)))
        since = time.perf_counter()
        jobs = [pool.submit(self.engine.run, part, self.tick, end) for part in self.mine]
        interrupted = _wait(jobs)
        done = time.perf_counter()
        spent = done - since
        results = [job.result() for job in jobs]
        if not self._began(pool):
            return interrupted
        self._count_seconds(since, done, end)
        for part, blocks in zip(self.mine, results, strict=True):
            for tick, values, stats in blocks:
                self.record.add(self.engine.first_of(part), tick, (values, stats))
        before, self.tick, self.record.tick = self.tick, end, end
        self.record.flush(self.engine)
        notes = {"spent": spent, "stop": interrupted or self._asked.is_set()}
        notes = exchange(self.crew, self.engine, notes)
        self._adapt_round(end - before, max(float(note["spent"]) for note in notes))
        self._watch(results)
        self._at_barrier(self._barriers.get(end, ""))
        self.record.commit(self.engine)
        return any(note["stop"] for note in notes)

    def _began(self, pool: futures.Executor) -> bool:
        """Tell whether what was done counts: not if chains should have begun, and one did not."""
        starts = self.engine.opening
        if starts is None:
            return True
        if self.engine.began():
            self.record.starts = self.record.anchor = starts
            return True
        self.engine.forget()
        self._begin_alone(pool, self.record.anchor if self.record.given else None)
        return False

    def _count_seconds(self, since: float, done: float, end: int) -> None:
        """Divide the time of a round: warm-up lasts until the last chain has ended it."""
        warm = end <= self.settings.warmup
        warmed = done if warm else max(since, *(self.engine.warmed[p] for p in self.mine))
        for phase, spent in (("warm-up", warmed - since), ("sampling", done - warmed)):
            if spent > 0:
                self.record.seconds[phase] += spent

    def _adapt_round(self, ticks: int, spent: float) -> None:
        """Aim for the wanted length of a round, never growing too fast on little evidence."""
        unseen = not self.progress.enabled and self.record.store is None and self.crew.count == 1
        length = ROUND_SECONDS * (UNSEEN if unseen else 1.0)
        wanted = ticks * length / max(spent, 1e-6)
        self._quantum = min(wanted, ROUND_GROWTH * max(self._quantum, ticks))

    def _at_barrier(self, kind: str) -> None:
        if kind == "rescue":
            self._rescue()
        elif kind == "look" and self.settings.until is not None:
            first = self.crew.index == 0
            met = first and self.settings.until.met(self.record.posterior())
            self.record.finished = bool(self.crew.agree(met))

    def _rescue(self) -> None:
        """Restart chains that are far above the others in energy, and stay there."""
        now, log_density = self.engine.positions()
        gaps = gaps_above(now, log_density)
        lost = lost_chains(self.record.anchor, now, log_density, self.record.gaps)
        calm, *lost = self.crew.agree([not gaps, *lost]).tolist()
        if calm and not lost:  # a second look would only hold the chains up
            self.record.calm = True
            self._barriers = {t: kind for t, kind in self._barriers.items() if kind != "rescue"}
        if lost:
            attempts = np.full(self.settings.chains, -1)
            for chain in lost:
                attempts[chain] = 1 + sum(r["chain"] == chain for r in self.record.restarts)
            parts: Sequence[int] = lost if self.engine.batch is None else [0]
            self.engine.begin(sorted(set(parts).intersection(self.mine)), None, attempts)
            exchange(self.crew, self.engine, {})
            before, now = now, self.engine.positions()[0]
            moved = [c for c in lost if np.any(now[c] != before[c])]  # the others found no start
            self.record.restarts += [{"chain": c, "step": self.tick} for c in moved]
            self.record.starts = self.record.starts.copy()
            self.record.starts[moved] = now[moved]
        self.record.anchor, self.record.gaps = now, gaps

    def _watch(self, results: Sequence[list[tuple[int, Block, Block]]]) -> None:
        """Tell the progress bar, if there is one, what happened in this round."""
        if not self.progress.enabled:
            return
        done = float(self.settings.step_at(self.tick))
        numbers: dict[str, Any] = {}
        stats = [s for blocks in results for tick, _, s in blocks if tick >= self.settings.warmup]
        if not stats:
            stats = [blocks[-1][2] for blocks in results if blocks]
        elif "diverging" in stats[0]:
            self._divergences += sum(int(s["diverging"].sum()) for s in stats)
            numbers["divergences"] = self._divergences
        if stats and "acceptance_rate" in stats[0]:
            numbers["acceptance"] = float(np.mean([s["acceptance_rate"].mean() for s in stats]))
        if stats and "step_size" in stats[0]:
            numbers["step_size"] = float(np.mean([s["step_size"][:, -1].mean() for s in stats]))
        last = self.tick == self.settings.ticks
        drawn = self.tick - self.settings.warmup
        if drawn >= 20 and self.settings.chains > 1 and self.progress.wants_numbers(last=last):
            since = time.perf_counter()
            worst = convergence.summarize(self.record.posterior())
            ess = np.minimum(worst.ess_bulk, worst.ess_tail)  # NaN stays NaN
            numbers |= {"rhat": float(worst.rhat), "ess": float(ess)}
            self.progress.numbers_cost(time.perf_counter() - since)
        self.progress.update(done, **numbers)


@contextlib.contextmanager
def hold_ctrl_c() -> Iterator[threading.Event]:
    """Let Ctrl-C ask for the end of the present round, so that no draw is lost.

    A second one goes through, and so does one whose handler the user has chosen.
    """
    asked = threading.Event()

    def ask(number: int, frame: Any) -> None:
        if asked.is_set():
            signal.default_int_handler(number, frame)
        asked.set()

    if not _may_hold():
        yield asked
        return
    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _may_hold() -> bool:
    """Tell whether Ctrl-C is Python's own affair, and comes to this thread."""
    main = threading.current_thread() is threading.main_thread()
    return main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _short(values: np.ndarray) -> str:
    return np.array2string(values, threshold=8, precision=4)


def _wait(jobs: Sequence[futures.Future[Any]]) -> bool:
    """Wait for all jobs; on Ctrl-C let the round finish, so that no draw is lost."""
    try:
        futures.wait(jobs)
    except KeyboardInterrupt:
        futures.wait(jobs)  # a second Ctrl-C goes through
        return True
    return False
