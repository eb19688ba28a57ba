"""The one compiled program: begin, warm up, sample, for one chain or for a batch of chains.

`advance` runs any number of steps up to a fixed number of draws, tunes or not, starts or not, all
decided by the data in `Job`: warm-up and sampling, short and long runs share one program.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from samplekit.adaptation import Tuning, record, tune
from samplekit.core.keys import fold_in_two, from_words, quick, row_of
from samplekit.core.protocols import Numbers, Stats
from samplekit.core.pytree import pytree
from samplekit.core.stats import combine
from samplekit.kernels.base import NoiseKernel
from samplekit.sampling.columns import UnreadableError, map_columns
from samplekit.sampling.compiled import Compiled
from samplekit.sampling.packing import Packing
from samplekit.sampling.view import View

# From this many chains on, in at most so many coordinates, moves are worked out column by column.
MANY_CHAINS, FEW_COORDINATES = 256, 8


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that is fixed at compile time."""

    chains: int | None  # chains in the batch, or None for a program of one chain
    capacity: int  # draws that one call can return
    stats: tuple[tuple[str, tuple[int, ...], str], ...]  # name, shape of one step, dtype
    goal: float | None
    records: bool  # whether warm-up keeps draws to learn a metric
    tunes: bool
    joined: bool  # whether small arrays travel as one of each type (`Packing`)
    block: bool  # whether the batch is one block of a larger one


@pytree
class Job:
    """What one call of the program is to do; all of it data."""

    key: Numbers  # two words
    chain: Numbers  # index of this chain; of all chains in a batch
    # where chains begin, one entry a chain in a batch
    begin: Numbers
    start: Numbers  # flat
    attempt: Numbers  # how often this chain tried before
    # first step, draws, thin, tuning, recording, keep: one array, for each array costs a transfer
    clock: Numbers

    @property
    def first_step(self) -> Array:
        """Absolute number of the first step."""
        return self.clock[0]

    @property
    def draws(self) -> Array:
        """Draws to make."""
        return self.clock[1].astype(jnp.int32)

    @property
    def thin(self) -> Array:
        """Steps for each draw."""
        return self.clock[2].astype(jnp.int32)

    @property
    def tuning(self) -> Array:
        """Whether to learn."""
        return self.clock[3] > 0

    @property
    def recording(self) -> Array:
        """Whether to keep draws for the metric."""
        return self.clock[4] > 0

    @property
    def keep(self) -> Array:
        """Whether the values of the draws are wanted."""
        return self.clock[5] > 0


@pytree
class Carry:
    """What goes from call to call, and into a checkpoint."""

    state: Any
    kernel: Any
    tuning: Tuning
    started: Numbers  # whether a finite start was found


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A plan and how view, carry and job are packed: all that a compiled program depends on.

    Its hash is computed once. JAX would otherwise hash and compare the target's description, and
    rebuild kernels, at every call, which takes longer than a hundred draws of a small target.
    """

    plan: Plan
    view: Packing
    carry: Packing
    job: Packing
    _hash: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self._parts))

    @property
    def _parts(self) -> tuple[Any, ...]:
        return self.plan, self.view, self.carry, self.job

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Program) or self._hash != other._hash:
            return False
        return self._parts == other._parts


def _run(
    program: Program, view: list[Array], carry: list[Array], job: list[Array]
) -> tuple[list[Array], list[Array], list[Array]]:
    """Run a job; return the carry, the values of the draws and their statistics.

    All are packed: see `Program`, and `Packing` for why.
    """
    return _advance(program, program.view.unpack(view), carry, job)


# The carry is given away. For products of one chain's size XLA's own code is quicker than its
# library: NUTS on a regression of 1,000 × 25 takes 0.67 times as long, on one of 4,000 × 50 0.94
# times. A batch is as quick with the library.
advance = Compiled(_run, static_argnums=0, donate_argnums=2)
advance_alone = Compiled(_run, own_products=True, static_argnums=0, donate_argnums=2)


def _advance(
    program: Program, view: View, packed: list[Array], packed_job: list[Array]
) -> tuple[list[Array], list[Array], list[Array]]:
    # Carry and job stay packed between the parts of the program, each of which takes from them
    # what it needs: to take them apart out here would be a program of its own for every leaf.
    plan, keep = program.plan, program.job.unpack(packed_job).keep

    def begin(packed: list[Array]) -> list[Array]:
        # Starts take JAX's own keys, which are slower and shorter to compile.
        carry, job = program.carry.unpack(packed), program.job.unpack(packed_job)
        return program.carry.repack(packed, carry, _begin(plan, view, carry, job))

    starting = jnp.any(program.job.unpack(packed_job).begin)
    packed = jax.lax.cond(starting, begin, lambda p: p, packed)
    empty = {name: jnp.zeros(shape, dtype) for name, shape, dtype in plan.stats}
    packing = Packing.of(empty, joined=plan.joined)

    def blank(tree: Any) -> Any:
        return jax.tree.map(lambda a: jnp.zeros((plan.capacity, *a.shape), a.dtype), tree)

    def body(i: Array, loop: tuple[Any, ...]) -> tuple[Any, ...]:
        state, packed, folded, *rows = loop
        job = program.job.unpack(packed_job)
        job = dataclasses.replace(job, key=_step_key(plan, job))
        kernel = _present(plan, carry.kernel, program.carry.unpack(packed).kernel)
        state, stats = _one_step(plan, view, (kernel, state), (job, i))
        if plan.tunes:
            learn = functools.partial(_learn, program, (state, stats), job)
            packed = jax.lax.cond(job.tuning, learn, lambda p: p, packed)
        within = i % job.thin
        stats = {name: stats[name] for name in empty}
        folded = packing.pack(combine(packing.unpack(folded), stats, within == 0, within + 1))
        row = i // job.thin
        rows = jax.tree.map(lambda a, b: _put(a, b, row), rows, [state.position, folded])
        return state, packed, folded, *rows

    job, carry = program.job.unpack(packed_job), program.carry.unpack(packed)
    folded = packing.pack(empty)
    # What every step changes goes round by itself; what only warm-up changes stays packed.
    loop = (carry.state, packed, folded, blank(carry.state.position), blank(folded))
    loop = jax.lax.fori_loop(0, job.draws * job.thin, body, loop)
    state, packed, _, positions, stats = loop
    old = program.carry.unpack(packed)
    packed = program.carry.repack(packed, old, dataclasses.replace(old, state=state))
    show = jax.vmap(view.shown if plan.chains is None else jax.vmap(view.shown))
    shapes = jax.eval_shape(show, positions)
    values = jax.lax.cond(
        keep,
        show,
        lambda _: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes),
        positions,
    )
    one = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), shapes)
    return packed, Packing.of(one, joined=plan.joined).pack(values), stats


def _step_key(plan: Plan, job: Job) -> Array:
    """Return the key that steps draw from: that of its rows for a block of chains."""
    key = quick(from_words(job.key))
    if not plan.block or plan.chains is None:
        return key
    return row_of(key, jnp.asarray(job.chain)[0] // plan.chains)


def _put(rows: Array, row: Array, at: Array) -> Array:
    """Write a row; `rows.at[at].set(row)` would first ask whether there is such a row."""
    return jax.lax.dynamic_update_index_in_dim(rows, row.astype(rows.dtype), at, 0)


def _present(plan: Plan, before: Any, now: Any) -> Any:
    """Return the kernel of this step, of which all that no step changes comes from before the loop.

    Metrics change between calls only, on the host.
    """
    if not plan.tunes:
        return before
    same = hasattr(now, "metric")
    return dataclasses.replace(now, metric=before.metric) if same else now


def _one_step(
    plan: Plan, view: View, now: tuple[Any, Any], at: tuple[Job, Array]
) -> tuple[Any, Stats]:
    """Take step `first_step + i` with a kernel from a state."""
    (job, i), (kernel, state) = at, now
    if plan.tunes:
        kernel = kernel.tuning(on=job.tuning)
    at_step = (job.key, job.first_step + i.astype(jnp.uint32), job.chain)
    return take_step(plan.chains, view, kernel, state, at=at_step)


def _learn(program: Program, seen: tuple[Any, Stats], job: Job, packed: list[Array]) -> list[Array]:
    """Return the carry after learning from a step of warm-up."""
    (state, stats), plan, old = seen, program.plan, program.carry.unpack(packed)
    pair = old.kernel, old.tuning
    kernel, tuning = _like(pair, tune(*pair, stats, plan.goal))
    new = dataclasses.replace(old, kernel=kernel, tuning=tuning)
    packed = program.carry.repack(packed, old, new)

    def remember(packed: list[Array]) -> list[Array]:
        old = program.carry.unpack(packed)
        tuning = record(old.tuning, state, plan.chains)
        return program.carry.repack(packed, old, dataclasses.replace(old, tuning=tuning))

    return jax.lax.cond(job.recording, remember, lambda p: p, packed) if plan.records else packed


def _like(old: Any, new: Any) -> Any:
    """Keep dtypes, so that both branches of a cond agree; what did not change stays the same."""
    return jax.tree.map(lambda a, b: a if b is a else jnp.asarray(b, jnp.result_type(a)), old, new)


def move_chains(
    chains: int | None,
    view: View,
    kernel: Any,
    state: Any,
    *,
    at: tuple[Array, Array, Array],
) -> tuple[Any, Stats]:
    """Take one step with the noise of (seed, absolute step, chain), for one chain or all."""
    (key, number, chain), target = at, view.for_kernel
    if isinstance(kernel, NoiseKernel):
        key, x = jax.random.fold_in(key, number), state.position
        if chains is not None:
            rows, shared = kernel.noise(key, jax.tree.map(lambda a: a[0], x), (chains,))
            return _move_all(kernel, (rows, shared), state, target)
        return kernel.move(kernel.noise(row_of(key, chain), x), state, target)
    if chains is not None:
        every = jnp.arange(1, chains + 1)
        keys = jax.vmap(fold_in_two, (None, 0, None))(key, every, number)
        return jax.vmap(kernel.step, (0, 0, None))(keys, state, target)
    return kernel.step(fold_in_two(key, jnp.asarray(chain) + 1, number), state, target)


def _move_all(kernel: Any, noise: Any, state: Any, target: Any) -> tuple[Any, Stats]:
    """Move a batch of chains: by columns where positions are small, else under vmap."""
    rows, shared = noise
    chains, *shape = jax.tree.leaves(state.position)[0].shape
    if chains >= MANY_CHAINS and math.prod(shape) <= FEW_COORDINATES:

        def move(own: Any, common: Any) -> Any:
            (row, state), (kernel, shared, target) = own, common
            return kernel.move((row, shared), state, target)

        try:
            return map_columns(move, (rows, state), (kernel, shared, target))
        except UnreadableError:
            pass
    return jax.vmap(kernel.move, in_axes=((0, None), 0, None))((rows, shared), state, target)


# Jitted, so that learning the shapes of a step and compiling it trace the kernel once.
take_step = functools.partial(jax.jit, static_argnums=0, inline=True)(move_chains)


def _begin(plan: Plan, view: View, carry: Carry, job: Job) -> Carry:
    """Evaluate the starts of the chains that begin, and tell which can be used."""
    if plan.chains is None:
        state, fine = _start(view, carry, job)
        return dataclasses.replace(carry, state=_like(carry.state, state), started=fine)
    axes = Job(None, 0, 0, 0, 0, None)
    in_axes = (Carry(0, None, None, 0), axes)  # pyright: ignore
    state, fine = jax.vmap(functools.partial(_start, view), in_axes=in_axes)(carry, job)

    # A chain that is started again, in vain, stays where it was.
    taken = job.begin & (fine | ~carry.started)

    def pick(new: Array, old: Array) -> Array:
        chosen = taken.reshape((-1,) + (1,) * (new.ndim - 1))
        return jnp.where(chosen, new, old).astype(old.dtype)

    state, started = jax.tree.map(pick, (state, fine), (carry.state, carry.started))
    return dataclasses.replace(carry, state=state, started=started)


def _start(view: View, carry: Carry, job: Job) -> tuple[Any, Array]:
    """Return the state at the start, and whether log density and score are finite there."""
    # On keys of its own: fold in a number no step can have.
    own = np.uint32(2**32 - 1) - jnp.asarray(job.chain).astype(jnp.uint32)
    key = jax.random.fold_in(jax.random.fold_in(from_words(job.key), own), job.attempt)
    state = start_state(view, carry.kernel, key, job.start)
    finite = [jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves(state)]
    return state, jnp.all(jnp.stack(finite))


@functools.partial(jax.jit, inline=True)
def start_state(view: View, kernel: Any, key: Array, vector: Array) -> Any:
    """Return the kernel's state at a flat start; jitted for the same reason as `take_step`."""
    return kernel.init(key, view.position(vector), view.for_kernel)


def state_shape(view: View, kernel: Any, start: Any) -> Any:
    """Return the shapes of a kernel's state without running it."""
    return jax.eval_shape(start_state, view, kernel, any_key(), start)


def any_key() -> Any:
    """Return the shape of a key as starts get it, so that all of it is traced once."""
    return jax.eval_shape(lambda: jax.random.key(0))


def stats_shape(
    chains: int | None, view: View, kernel: Any, state: Any, *, block: bool = False
) -> Stats:
    """Return the shapes of a step's statistics, of all chains in a batch, without running it."""
    chain = jax.ShapeDtypeStruct(() if chains is None else (chains,), np.int32)
    step = functools.partial(take_step, chains)
    key = jax.eval_shape(lambda key: row_of(quick(key), 0) if block else quick(key), any_key())
    number = jax.ShapeDtypeStruct((), np.uint32)
    return jax.eval_shape(step, view, kernel, state, at=(key, number, chain))[1]


def draw_bytes(shown: dict[str, Any], state: Any, stats: dict[str, Any]) -> int:
    """Return the bytes that one draw of one chain takes in the program's output."""
    leaves = [*jax.tree.leaves(state.position), *shown.values(), *stats.values()]
    return sum(math.prod(a.shape) * a.dtype.itemsize for a in leaves)
