"""Engines: the compiled program on all cores or devices, chain by chain or as one batch.

On a CPU with few chains, one program of one chain is called from a pool of threads: no chain waits
for another, one compilation serves any number of chains, and the draws of a chain do not depend on
how many others there are, to the bit. Elsewhere, and for many chains, all chains are one batch
sharded over the devices, or, on a CPU where they learn nothing from each other, blocks of it that
run like single chains; a few cheap chains in lockstep are one batch too, on one device (`Task`).
"""

import dataclasses
import time
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from samplekit.adaptation import finish_window, start_tuning, windows
from samplekit.core.keys import host_uniform
from samplekit.core.stats import choose
from samplekit.sampling.carries import divided, joined, leaf_name, own_copy
from samplekit.sampling.devices import deal, row_mesh
from samplekit.sampling.packing import Packing
from samplekit.sampling.program import (
    Carry,
    Job,
    Plan,
    Program,
    advance,
    advance_alone,
    draw_bytes,
)
from samplekit.sampling.spread import Spread, spans_processes
from samplekit.sampling.task import Task

type Block = dict[str, np.ndarray]

# One call returns at most this many draws; the calls that run at the same time, so many bytes: a
# batch is one call, of chains or blocks one by one about four are under way. 16,384 chains in 64
# dimensions with every draw kept take 0.65 times as long as with 8 MiB; more memory brings no more.
MOST_DRAWS = 1000
CALL_BYTES, AT_ONCE = 32 * 2**20, 4
# Numbers of a leaf that is not joined to others: the program would write all when one changes.
LONG_LEAF = 1000
# Starts are tried this often before a chain gives up, and are uniform on ±2 in unconstrained space,
# as in Stan and NumPyro.
MOST_STARTS, START_RADIUS = 100, 2.0
# What the progress bar shows of a warm-up that is not kept.
WATCHED = ("acceptance_rate", "step_size")
# Programs that have run, by their hash; JAX's own cache keeps them alive, and forgets them.
_compiled: weakref.WeakValueDictionary[int, Program] = weakref.WeakValueDictionary()
# Whether the starts of those take next to no time, where that is known.
_quick: weakref.WeakKeyDictionary[Program, bool] = weakref.WeakKeyDictionary()


class Engine:
    """Runs chains; `parts` are the units that may run at the same time."""

    def __init__(self, task: Task) -> None:
        self.task = task
        chains = task.settings.chains
        # Chains in a part; None: one, and no axis of chains.
        self.batch = None if task.chain_by_chain else task.block or chains
        self.parts = range(chains // (self.batch or 1))
        self.ends = windows(task.settings.warmup, task.original)
        lead = () if self.batch is None else (self.batch,)
        self.state_shape, self.shown, steps = task.step_shapes(self.batch)
        offered = [name for name in steps if not name.startswith("_")]
        kept = {name: steps[name] for name in choose(task.stats, offered)}
        self.stats = {
            n: jax.ShapeDtypeStruct(s.shape[len(lead) :], s.dtype) for n, s in kept.items()
        }
        one = draw_bytes(self.shown, self.state_shape, self.stats)
        several = AT_ONCE if task.chain_by_chain or task.block else 1
        at_once = max(1, one * (self.batch or 1) * several)
        self.plan = Plan(
            chains=self.batch,
            capacity=max(1, min(MOST_DRAWS, CALL_BYTES // at_once)),
            stats=tuple((n, s.shape, str(s.dtype)) for n, s in kept.items()),
            goal=task.goal,
            records=task.learns_metric,
            tunes=task.tunes,
            joined=self.batch is None or task.together,
            block=task.block is not None,
        )
        everywhere = not self._apart and spans_processes(task.devices)
        self._spread = Spread(task.devices or jax.devices(), chains) if everywhere else None
        # NumPy arrays, copied to the device by each first call: all chains may share them.
        blank, self._idle, joined = self._blank(), self._resting(), self.plan.joined
        view = jax.device_put(task.arranged)
        program = Program(
            self.plan,
            view=Packing.of(view, joined=False),
            carry=Packing.of(blank, joined=joined, most=LONG_LEAF),
            job=Packing.of(self._idle, joined=joined),
        )
        # The very object that ran before, if any: JAX need not compare the two at every call.
        self._hash = hash(program)
        known = _compiled.get(self._hash)
        self._program = known if known is not None and known == program else program
        shown = {n: jax.ShapeDtypeStruct((*lead, *s.shape), s.dtype) for n, s in self.shown.items()}
        self._values = Packing.of(shown, joined=joined), sorted(shown)
        self._stats = Packing.of(kept, joined=joined), sorted(kept)
        self._advance = advance_alone if self.batch is None else advance
        self._view = self._program.view.pack(view)
        if self._spread is not None:
            self._view = self._spread.put(self._view, split=False)
        self.blank = self._program.carry.pack(blank)
        self.carries: list[list[Any]] = [self.blank for _ in self.parts]  # packed
        self.warmed = [0.0 for _ in self.parts]  # when each ended its warm-up
        self.opening: np.ndarray | None = None  # starts that the first steps are to begin at

    @property
    def _apart(self) -> bool:
        """Whether a part runs on one device."""
        return self.plan.joined or self.plan.block

    def chains_of(self, part: int) -> Any:
        """Return where the chains of a part are among all: an index, or a slice of a batch."""
        if self.batch is None:
            return part
        return slice(part * self.batch, (part + 1) * self.batch)

    def first_of(self, part: int) -> int:
        """Return the first chain of a part."""
        return part * (self.batch or 1)

    def _blank(self) -> Carry:
        """Return the carry before the first call: shapes, and the kernel as prepared."""
        lead = () if self.batch is None else (self.batch,)
        state = jax.tree.map(lambda s: np.zeros((*lead, *s.shape), s.dtype), self.state_shape)
        tuning = start_tuning(
            self.task.kernel, self.state_shape, self.batch, metric=self.plan.records
        )
        # The program reuses the memory of its carry: never hand it the user's own arrays.
        kernel = jax.tree.map(own_copy, self.task.kernel)
        return Carry(state, kernel, tuning, np.zeros(lead, bool))

    def begin(
        self, parts: Sequence[int], starts: np.ndarray | None, tries: np.ndarray
    ) -> list[np.ndarray]:
        """Start the chains of parts whose number of tries is not negative; say which succeeded.

        Without starts, chains try random ones until log density and score are finite. A chain that
        is started again, in vain, stays where it was. All parts are under way before the first is
        waited for.
        """
        before = {part: self.carries[part] for part in parts}
        fine: dict[int, np.ndarray] = {}
        for attempt in range(MOST_STARTS if starts is None else 1):
            left = [part for part in parts if part not in fine or not fine[part].all()]
            if not left:
                break
            wanted = tries.copy()
            for part in fine if self.batch is not None else ():
                wanted[self.chains_of(part)][fine[part]] = -1  # these have begun
            numbers = np.maximum(tries, 0) * MOST_STARTS + attempt
            at = self._random_starts(numbers) if starts is None else starts
            begun = {part: self._start(part, at, wanted, numbers) for part in left}
            for part, carry in begun.items():
                now = np.atleast_1d(np.array(self._unpacked(carry).started))
                fine[part] = now
                self.carries[part] = carry
        for part in parts:
            if self.batch is None and tries[part] > 0 and not fine[part].all():
                self.carries[part] = before[part]
        return [fine[part] for part in parts]

    def begin_with_steps(self, starts: np.ndarray | None) -> None:
        """Let the first call of each part start its chains and go on from there.

        What it returns counts only if all of them began (`began`): else `forget` it, and `begin`.
        """
        zeros = np.zeros(self.task.settings.chains, int)
        at = self._random_starts(zeros) if starts is None else starts
        self.opening = at.astype(self.task.dtype)

    def began(self) -> bool:
        """Tell whether all chains began with their first steps; from now on they only go on."""
        self.opening = None
        return self.started

    def forget(self) -> None:
        """Put all chains back to where nothing was done."""
        self.carries = [self.blank for _ in self.parts]

    def lower(self) -> None:
        """Trace the program, so that a call has only to compile it."""
        self._advance.lower(*self._arguments(self.parts[0], self._idle))

    def _start(
        self, part: int, starts: np.ndarray, tries: np.ndarray, numbers: np.ndarray
    ) -> list[Any]:
        mine = self.chains_of(part)
        if self.batch is None and tries[part] > 0:
            self.carries[part] = self.blank
        job = dataclasses.replace(
            self._job(part, tick=0, draws=0),
            begin=np.asarray(tries[mine] >= 0),
            start=starts[mine].astype(self.task.dtype),
            attempt=np.asarray(numbers[mine], np.int32),
        )
        return self._call(part, job)[0]

    def _random_starts(self, numbers: np.ndarray) -> np.ndarray:
        """Return a start for each chain, of its own number and that of its attempt."""
        # Numbered from above: the numbers from below are those of steps.
        chains = 2**32 - 1 - np.arange(len(numbers))
        found = host_uniform(self.task.words, chains, numbers, self.task.dim)
        found *= 2 * START_RADIUS
        found -= START_RADIUS
        return found

    @property
    def started(self) -> bool:
        """Whether every chain has its start."""
        if all(carry is self.blank for carry in self.carries):
            return False
        return all(bool(np.all(c.started)) for c in self.unpacked())

    def _unpacked(self, packed: list[Any]) -> Carry:
        return self._program.carry.unpack(
            [np.asarray(a) for a in packed] if self.plan.joined else packed
        )

    def unpacked(self) -> list[Carry]:
        """Return the carries of all parts."""
        return [self._unpacked(leaves) for leaves in self.carries]

    @property
    def compiled(self) -> bool:
        """Whether this process has run the same program before."""
        return _compiled.get(self._hash) == self._program

    @property
    def quick(self) -> bool | None:
        """Whether starts took next to no time in an earlier run of the same program, if any."""
        return _quick.get(self._program)

    @quick.setter
    def quick(self, quick: bool) -> None:
        _quick[self._program] = quick

    def _arguments(self, part: int, job: Job) -> tuple[Any, ...]:
        carry, packed = self._placed(part), self._program.job.pack(job)
        if self._spread is not None:
            packed = self._spread.put(packed, split=False)
        return self._program, self._view, carry, packed

    def _call(self, part: int, job: Job) -> tuple[list[Any], list[Any], list[Any]]:
        out = self._advance(*self._arguments(part, job))
        _compiled[self._hash] = self._program
        return out if self._spread is None else self._spread.fetch(out)

    def _resting(self) -> Job:
        """Return a job that does nothing: most of a job never changes."""
        lead = () if self.batch is None else (self.batch,)
        return Job(
            key=self.task.words,
            chain=np.arange(self.batch or 1, dtype=np.int32).reshape(lead),  # of the first part
            begin=np.zeros(lead, bool),
            start=np.zeros((*lead, self.task.dim), self.task.dtype),
            attempt=np.zeros(lead, np.int32),
            clock=np.zeros(6, np.uint32),
        )

    def _job(self, part: int, *, tick: int, draws: int) -> Job:
        settings, warm = self.task.settings, tick < self.task.settings.warmup
        tuning = warm and self.plan.tunes
        # The last window settles the step size alone.
        recording = tuning and self.plan.records and tick < max(self.ends[:-1], default=0)
        keep = settings.keep_warmup or not warm
        thin = 1 if warm else settings.thin
        clock = (settings.step_at(tick), draws, thin, tuning, recording, keep)
        new: dict[str, Any] = {"clock": np.asarray(clock, np.uint32)}
        if part:
            new["chain"] = self._idle.chain + np.int32(self.first_of(part))
        if self.opening is not None and tick == 0:
            start = self.opening[self.chains_of(part)]
            new |= {"start": start, "begin": np.ones_like(self._idle.begin)}
        return dataclasses.replace(self._idle, **new)

    def _placed(self, part: int) -> list[Any]:
        """Return the carry on its device, or sharded over the devices of a batch."""
        leaves, devices = self.carries[part], self.task.devices
        if self._apart:
            if devices is None:
                return leaves
            here = [d for d in devices if d.process_index == jax.process_index()]
            return jax.device_put(leaves, here[part % len(here)])
        if self._spread is not None:
            carry, put = self._unpacked(leaves), self._spread.put
            state, started = put((carry.state, carry.started), split=True)
            kernel, tuning = put((carry.kernel, carry.tuning), split=False)
            return self._program.carry.pack(Carry(state, kernel, tuning, started))
        mesh = row_mesh(devices, self.task.settings.chains)
        if mesh is None:
            return leaves
        carry = self._unpacked(leaves)
        state, started = deal((carry.state, carry.started), mesh)
        kernel, tuning = deal((carry.kernel, carry.tuning), mesh, axis=None)
        return self._program.carry.pack(Carry(state, kernel, tuning, started))

    def run(self, part: int, tick: int, until: int) -> list[tuple[int, Block, Block]]:
        """Run a part from one tick to another; return its blocks of (tick, values, statistics)."""
        blocks, settings = [], self.task.settings
        while tick < until:
            stops = [until, tick + self.plan.capacity]
            stops += [end for end in (*self.ends, settings.warmup) if end > tick]
            end = min(stops)
            job = self._job(part, tick=tick, draws=end - tick)
            self.carries[part], values, stats = self._call(part, job)
            keep = settings.keep_warmup or tick >= settings.warmup
            drawn = self._rows(self._values, values, end - tick) if keep else {}
            told = self._rows(self._stats, stats, end - tick, None if keep else WATCHED)
            blocks.append((tick, drawn, told))
            tick = end
            if tick in self.ends and tick <= settings.warmup and self.plan.tunes:
                self._finish_window(part, last=tick == settings.warmup)
            if tick == settings.warmup:
                self.warmed[part] = time.perf_counter()
        return blocks

    def _rows(
        self,
        kind: tuple[Packing, Sequence[str]],
        packed: list[Any],
        count: int,
        some: Sequence[str] | None = None,
    ) -> Block:
        """Return the filled rows, or some of them, as NumPy arrays with the chains in front."""
        packing, names = kind
        alone = self.batch is None
        arrays = [np.asarray(a) for a in packed] if self.plan.joined else packed
        rows = {
            name: np.asarray(packing.leaf(arrays, i))[:count]
            for i, name in enumerate(names)
            if some is None or name in some
        }
        if 2 * count < self.plan.capacity:  # or a few rows would keep all of the memory
            rows = {name: a.copy() for name, a in rows.items()}
        return {name: a[None] if alone else np.moveaxis(a, 1, 0) for name, a in rows.items()}

    def _finish_window(self, part: int, *, last: bool) -> None:
        packed = [np.array(a) for a in self.carries[part]]
        carry = self._program.carry.unpack(packed)  # views, to be written to
        setting = getattr(self.task.original, "metric", None)
        forced = isinstance(setting, str) and setting in ("dense", "low_rank")
        kernel, tuning = finish_window(
            carry.kernel,
            carry.tuning,
            self.plan.goal,
            metric=self.plan.records and not last,
            force=forced,
        )
        old, new = jax.tree.leaves((carry.kernel, carry.tuning)), jax.tree.leaves((kernel, tuning))
        for view, value in zip(old, new, strict=True):
            if value is not view:
                view[...] = value
        self.carries[part] = packed

    def arrays(self) -> list[np.ndarray]:
        """Return the leaves of all carries, chains in front."""
        return [np.array(leaf) for leaf in jax.tree.leaves(self.joined())]

    def restore(self, arrays: Sequence[np.ndarray]) -> None:
        """Put leaves back that `arrays` gave."""
        packing = self._program.carry
        found = divided(jax.tree.unflatten(packing.treedef, arrays), len(self.parts), self.batch)
        self.carries = [packing.pack(carry) for carry in found]

    def joined(self) -> Carry:
        """Return the carries of all parts as one."""
        return joined(self.unpacked(), self.batch)

    def leaf_names(self) -> list[str]:
        """Return a readable name for each leaf of a carry."""
        paths, _ = jax.tree_util.tree_flatten_with_path(self._unpacked(self.blank))
        return [leaf_name(path) for path, _ in paths]

    def positions(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return where all chains are (chain, dim), and their log densities, if known."""
        where: Any = self.rows_of("position")
        density = self.rows_of("log_density")
        # Integers and booleans too: flat vectors have one type.
        where = where.astype(self.task.dtype, copy=False)
        return where, None if density is None else density[:, 0]

    def rows_of(self, name: str) -> np.ndarray | None:
        """Return a part of the states of all chains, a flat row for each; None if there is none."""
        columns = jax.tree.leaves(getattr(self.joined().state, name, None))
        count = self.task.settings.chains
        # Copied, once: the program reuses the memory of a batch.
        rows = [np.reshape(np.asarray(a), (count, -1)) for a in columns]
        return np.concatenate(rows, axis=1) if rows else None
