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
from samplekit.core.keys import quick
from samplekit.core.protocols import Numbers, Stats
from samplekit.core.pytree import pytree
from samplekit.core.stats import combine
from samplekit.kernels.base import NoiseKernel
from samplekit.sampling.columns import UnreadableError, map_columns
from samplekit.sampling.packing import Packing
from samplekit.sampling.view import View

# Starts are tried this often before a chain gives up, as in Stan.
MOST_STARTS = 100
# Starts are uniform on ±2 in unconstrained space, as in Stan and NumPyro.
START_RADIUS = 2.0
# From this many chains on, in at most so many coordinates, moves are worked out column by column.
MANY_CHAINS, FEW_COORDINATES = 256, 8


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that is fixed at compile time."""

    chains: int | None  # chains in the batch, or None for a program of one chain
    rows: int  # rows of noise drawn a step (of which one chain takes its own)
    capacity: int  # draws that one call can return
    stats: tuple[tuple[str, tuple[int, ...], str], ...]  # name, shape of one step, dtype
    goal: float | None
    records: bool  # whether warm-up keeps draws to learn a metric
    tunes: bool
    joined: bool  # whether small arrays travel as one of each type (`Packing`)


@pytree
class Job:
    """What one call of the program is to do; all of it data."""

    key: Numbers
    chain: Numbers  # index of this chain; of all chains in a batch
    # where chains begin, one entry a chain in a batch
    begin: Numbers
    start: Numbers  # flat start, used where `given`
    given: Numbers
    attempt: Numbers  # how often this chain was started before
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


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def advance(
    program: Program, view: list[Array], carry: list[Array], job: list[Array]
) -> tuple[list[Array], list[Array], list[Array]]:
    """Run a job; return the carry, the values of the draws and their statistics.

    All are packed: see `Program`, and `Packing` for why.
    """
    new, values, stats = _advance(
        program.plan,
        program.view.unpack(view),
        program.carry.unpack(carry),
        program.job.unpack(job),
    )
    return program.carry.pack(new), values, stats


def _advance(
    plan: Plan, view: View, carry: Carry, job: Job
) -> tuple[Carry, list[Array], list[Array]]:
    job = dataclasses.replace(job, key=quick(job.key))
    starting = jnp.any(job.begin)
    carry = jax.lax.cond(starting, lambda c: _begin(plan, view, c, job), lambda c: c, carry)
    empty = {name: jnp.zeros(shape, dtype) for name, shape, dtype in plan.stats}
    packing = Packing.of(empty, joined=plan.joined)

    def blank(tree: Any) -> Any:
        return jax.tree.map(lambda a: jnp.zeros((plan.capacity, *a.shape), a.dtype), tree)

    def body(i: Array, loop: tuple[Any, ...]) -> tuple[Any, ...]:
        carry, folded, *rows = loop
        carry, new = _one_step(plan, view, carry, (job, i))
        within = i % job.thin
        folded = combine(folded, {name: new[name] for name in empty}, within == 0, within + 1)
        row = i // job.thin
        new = [carry.state.position, packing.pack(folded)]
        return carry, folded, *jax.tree.map(lambda a, b: _put(a, b, row), rows, new)

    rows = blank(carry.state.position), blank(packing.pack(empty))
    loop = jax.lax.fori_loop(0, job.draws * job.thin, body, (carry, empty, *rows))
    carry, _, positions, stats = loop
    show = jax.vmap(view.shown if plan.chains is None else jax.vmap(view.shown))
    shapes = jax.eval_shape(show, positions)
    values = jax.lax.cond(
        job.keep,
        show,
        lambda _: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes),
        positions,
    )
    one = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), shapes)
    return carry, Packing.of(one, joined=plan.joined).pack(values), stats


def _put(rows: Array, row: Array, at: Array) -> Array:
    """Write a row; `rows.at[at].set(row)` would first ask whether there is such a row."""
    return jax.lax.dynamic_update_index_in_dim(rows, row.astype(rows.dtype), at, 0)


def _one_step(plan: Plan, view: View, carry: Carry, at: tuple[Job, Array]) -> tuple[Carry, Stats]:
    """Take step `first_step + i`, and learn from it during warm-up."""
    job, i = at
    kernel = carry.kernel
    if plan.tunes:
        kernel = kernel.tuning(on=job.tuning)
    key = jax.random.fold_in(job.key, job.first_step + i.astype(jnp.uint32))
    size = (plan.chains, plan.rows)
    state, stats = take_step(size, view, kernel, carry.state, at=(key, job.chain))
    tuning = carry.tuning
    if plan.tunes:

        def learn(pair: tuple[Any, Tuning]) -> tuple[Any, Tuning]:
            kernel, tuning = tune(*pair, stats, plan.goal)
            if plan.records:
                tuning = jax.lax.cond(
                    job.recording, lambda t: record(t, state, plan.chains), lambda t: t, tuning
                )
            return _like(pair, (kernel, tuning))

        kernel, tuning = jax.lax.cond(job.tuning, learn, lambda pair: pair, (kernel, tuning))
    return Carry(state, kernel, tuning, carry.started), stats


def _like(old: Any, new: Any) -> Any:
    """Keep dtypes, so that both branches of a cond agree."""
    return jax.tree.map(lambda a, b: jnp.asarray(b, jnp.result_type(a)), old, new)


def move_chains(
    size: tuple[int | None, int],
    view: View,
    kernel: Any,
    state: Any,
    *,
    at: tuple[Array, Array],
) -> tuple[Any, Stats]:
    """Take one step with the noise of (seed, chain, absolute step), for one chain or all."""
    (chains, total), (key, chain) = size, at
    target = view.for_kernel
    if isinstance(kernel, NoiseKernel):
        x = state.position
        if chains is not None:
            rows, shared = kernel.noise(key, jax.tree.map(lambda a: a[0], x), (chains,))
            return _move_all(kernel, (rows, shared), state, target)
        rows, shared = kernel.noise(key, x, (total,))
        mine = jax.tree.map(lambda a: a[chain], rows)
        return kernel.move((mine, shared), state, target)
    if chains is not None:
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(chains))
        return jax.vmap(kernel.step, (0, 0, None))(keys, state, target)
    return kernel.step(jax.random.fold_in(key, chain), state, target)


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
    """Find finite starts for the chains that begin."""
    if plan.chains is None:
        state, fine = _find_start(view, carry, job)
        return dataclasses.replace(carry, state=_like(carry.state, state), started=fine)
    axes = Job(None, 0, 0, 0, 0, 0, None)
    in_axes = (Carry(0, None, None, 0), axes)  # pyright: ignore
    state, fine = jax.vmap(functools.partial(_find_start, view), in_axes=in_axes)(carry, job)

    # A chain that is started again, in vain, stays where it was.
    taken = job.begin & (fine | ~carry.started)

    def pick(new: Array, old: Array) -> Array:
        chosen = taken.reshape((-1,) + (1,) * (new.ndim - 1))
        return jnp.where(chosen, new, old).astype(old.dtype)

    state, started = jax.tree.map(pick, (state, fine), (carry.state, carry.started))
    return dataclasses.replace(carry, state=state, started=started)


def _find_start(view: View, carry: Carry, job: Job) -> tuple[Any, Array]:
    """Try the given start, or uniform ones until log density and score are finite."""
    # Starts live on keys of their own: fold in a number no step can have.
    key = jax.random.fold_in(jax.random.fold_in(job.key, np.uint32(2**32 - 1)), job.chain)
    key = jax.random.fold_in(key, job.attempt)

    def more(loop: tuple[Array, Any, Array]) -> Array:
        tries, _, fine = loop
        return ~fine & (tries < jnp.where(job.given, 1, MOST_STARTS))

    def attempt(loop: tuple[Array, Any, Array]) -> tuple[Array, Any, Array]:
        tries, old, _ = loop
        key_x, key_state = jax.random.split(jax.random.fold_in(key, tries))
        x = jax.random.uniform(key_x, job.start.shape, job.start.dtype, -START_RADIUS, START_RADIUS)
        start = jnp.where(job.given, job.start, x)
        state = start_state(view, carry.kernel, key_state, start)
        finite = [jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves(state)]
        return tries + 1, _like(old, state), jnp.all(jnp.stack(finite))

    tries = jnp.zeros((), jnp.int32)
    _, state, fine = jax.lax.while_loop(more, attempt, (tries, carry.state, jnp.zeros((), bool)))
    return state, fine


@functools.partial(jax.jit, inline=True)
def start_state(view: View, kernel: Any, key: Array, vector: Array) -> Any:
    """Return the kernel's state at a flat start; jitted for the same reason as `take_step`."""
    return kernel.init(key, view.position(vector), view.for_kernel)


def state_shape(view: View, kernel: Any, start: Any) -> Any:
    """Return the shapes of a kernel's state without running it."""
    return jax.eval_shape(start_state, view, kernel, any_key(), start)


def any_key() -> Any:
    """Return the shape of a key as `advance` hands it on, so that all of it is traced once."""
    return jax.eval_shape(lambda: quick(jax.random.key(0)))


def stats_shape(size: tuple[int | None, int], view: View, kernel: Any, state: Any) -> Stats:
    """Return the shapes of a step's statistics, of all chains in a batch, without running it."""
    chain = jax.ShapeDtypeStruct(() if size[0] is None else (size[0],), np.int32)
    step = functools.partial(take_step, size)
    return jax.eval_shape(step, view, kernel, state, at=(any_key(), chain))[1]


def draw_bytes(shown: dict[str, Any], state: Any, stats: dict[str, Any]) -> int:
    """Return the bytes that one draw of one chain takes in the program's output."""
    leaves = [*jax.tree.leaves(state.position), *shown.values(), *stats.values()]
    return sum(math.prod(a.shape) * a.dtype.itemsize for a in leaves)
