"""The compiled program of `anneal`: all levels, all steps, all particles.

`descend` goes down any number of levels in one loop; the host calls it again only to show how far
it is and to take the frames of a kept trajectory away.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from samplekit.core.protocols import Numbers, Stats
from samplekit.core.pytree import pytree
from samplekit.kernels.base import Base, NoiseKernel, improved, library_rules
from samplekit.sampling.compiled import compiled
from samplekit.sampling.view import View, with_space

# What is kept of the steps of a level, over all particles.
WATCHED = ("acceptance_rate", "diverging", "n_steps", "nonfinite", "step_size")


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that is fixed at compile time."""

    particles: int
    flat: bool  # whether the kernel moves flat vectors
    space: Any
    noise: bool  # whether levels are noise, so that steps scale with them
    weighted: bool  # whether particles carry importance weights
    resamples: bool
    goal: float | None  # acceptance rate that an open step size is tuned to
    tunes: bool
    keep: bool  # whether the positions at the end of each level are wanted
    capacity: int  # levels that one call can return


@pytree
class Route:
    """Where to go and by what rules; all of it data."""

    path: Any
    levels: Numbers
    key: Numbers
    steps: Numbers
    threshold: Numbers  # resample when ESS falls below this part of the particles


@pytree
class Cloud:
    """The particles; what goes from level to level."""

    position: Any
    kernel: Any  # its lengths are those of the last level
    # weights of a tempered path; log_z collects what resampling takes out of them
    log_weight: Numbers
    log_z: Numbers
    origin: Numbers  # the particle of the start that each one descends from
    resampled: Numbers  # how often


def view_at(plan: Plan, path: Any, level: Any) -> View:
    """Return the target at a level as the kernel sees it."""
    return View(with_space(path.at(level), plan.space), plan.flat)


@functools.partial(jax.jit, static_argnums=0)
def begin(plan: Plan, path: Any, key: Array) -> tuple[Any, Array]:
    """Return the positions that the path begins with, as the kernel moves them, and a key."""
    start_key, step_key = jax.random.split(key)
    x = path.start(start_key, plan.particles)
    return jax.vmap(plan.space.ravel)(x) if plan.flat else x, step_key


@functools.partial(jax.jit, static_argnums=0)
def finish(plan: Plan, path: Any, level: Numbers, x: Any) -> dict[str, Array]:
    """Return the named, constrained values of positions; Tweedie's x + σ²s(x) if a level is given.

    E[clean | noisy] = x + σ² ∇log p_σ(x): Efron 2011, doi:10.1198/jasa.2011.tm11181.
    """
    if level is not None:
        target = view_at(plan, path, level).for_kernel
        score = jax.vmap(target.score)(x)
        x = jax.tree.map(lambda a, s: a + jnp.asarray(level, a.dtype) ** 2 * s, x, score)
    show = View(with_space(path.at(_last(path)), plan.space), plan.flat).shown
    return jax.vmap(show)(x)


def _last(path: Any) -> Array:
    return jnp.asarray(path.levels, jnp.result_type(float))[-1]


@compiled(static_argnums=0, donate_argnums=2)
def descend(plan: Plan, route: Route, cloud: Cloud, bounds: Array) -> tuple[Cloud, Any]:
    """Go through the levels from bounds[0] up to bounds[1]; return what each level said."""
    first, end = bounds[0], bounds[1]
    one = jax.eval_shape(functools.partial(_level, plan), route, cloud, first)[1]
    rows = jax.tree.map(lambda s: jnp.zeros((plan.capacity, *s.shape), s.dtype), one)

    def body(i: Array, loop: tuple[Cloud, Any]) -> tuple[Cloud, Any]:
        cloud, rows = loop
        cloud, row = _level(plan, route, cloud, i)
        return cloud, jax.tree.map(lambda all_, new: all_.at[i - first].set(new), rows, row)

    return jax.lax.fori_loop(first, end, body, (cloud, rows))


def _level(plan: Plan, route: Route, cloud: Cloud, i: Array) -> tuple[Cloud, Any]:
    """Weigh and resample on a tempered path, then move by `steps` steps of the kernel."""
    level = route.levels[i]
    view = view_at(plan, route.path, level)
    key = jax.random.fold_in(route.key, i.astype(jnp.uint32))
    # Steps take the numbers after these. A split would draw keys that most kernels do not use.
    key_init, key_resample = jax.random.fold_in(key, 0), jax.random.fold_in(key, 1)
    weights: Stats = {}
    if plan.weighted:
        before = view_at(plan, route.path, route.levels[i - 1])
        cloud = _weigh(cloud, view.for_kernel, before.for_kernel)
        weights = _evidence(cloud)
        if plan.resamples:
            few = weights["ess"] < route.threshold * plan.particles
            last = i == route.levels.size - 1  # so that the result is unweighted
            draw = functools.partial(_resample, key_resample)
            cloud = jax.lax.cond(few | last, draw, lambda c: c, cloud)
    factor = level / route.levels[-1] if plan.noise else jnp.ones_like(level)
    kernel = rescaled(cloud.kernel, factor)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key_init, jnp.arange(plan.particles))
    target = view.for_kernel
    state = jax.vmap(lambda k, x: kernel.init(k, x, target))(keys, cloud.position)
    state, kernel, stats = walk(plan, view, (state, kernel), (key, route.steps))
    new = dataclasses.replace(
        cloud, position=state.position, kernel=rescaled(kernel, 1 / factor) if plan.tunes else
        cloud.kernel,
    )  # fmt: skip
    row: dict[str, Any] = {"stats": stats | weights}
    if plan.keep:
        row["position"] = new.position
    return new, row


def rescaled(kernel: Any, factor: Array) -> Any:
    """Return the kernel for a target that is wider; one of the user's own stays as it is."""
    if not isinstance(kernel, Base):
        return kernel
    changed = kernel.rescaled(factor)
    return jax.tree.map(lambda a, b: jnp.asarray(b, jnp.result_type(a)), kernel, changed)


def walk(
    plan: Plan, view: View, start: tuple[Any, Any], clock: tuple[Array, Array]
) -> tuple[Any, Any, Stats]:
    """Take the steps of one level; an open step size is tuned in the first half of them.

    The noise of a step is drawn in the one before, beside its scores: on one thread, where the
    scores wait for it, it would keep the others idle.
    """
    key, steps = clock
    target = view.for_kernel

    def draw(j: Array) -> Any:
        one = jax.random.fold_in(key, j.astype(jnp.uint32) + 2)
        if isinstance(start[1], NoiseKernel):
            first = jax.tree.map(lambda a: a[0], start[0].position)
            return start[1].noise(one, first, (plan.particles,))
        return jax.vmap(jax.random.fold_in, (None, 0))(one, jnp.arange(plan.particles))

    def step(state: Any, kernel: Any, j: Array, drawn: Any) -> tuple[Any, Any, Stats]:
        learning = 2 * j < steps
        if plan.tunes:
            kernel = kernel.tuning(on=learning)
        if isinstance(kernel, NoiseKernel):
            move = jax.vmap(kernel.move, in_axes=((0, None), 0, None))
        else:
            move = jax.vmap(kernel.step, in_axes=(0, 0, None))
        state, stats = move(drawn, state, target)
        if plan.tunes:

            def learn(kernel: Any) -> Any:
                better = improved(kernel, stats, j + 1, plan.goal)
                return jax.tree.map(lambda a, b: jnp.asarray(b, a.dtype), kernel, better)

            kernel = jax.lax.cond(learning, learn, lambda k: k, kernel)
        return state, kernel, _pooled(stats)

    kernel = jax.tree.map(jnp.asarray, start[1])
    j = jnp.zeros((), jnp.int32)
    drawn = draw(j)
    shapes = jax.eval_shape(step, start[0], kernel, j, drawn)[2]
    empty = {name: jnp.zeros(s.shape, s.dtype) for name, s in shapes.items()}

    def body(j: Array, loop: tuple[Any, Any, Stats, Any]) -> tuple[Any, Any, Stats, Any]:
        state, kernel, folded, drawn = loop
        following = jax.lax.cond(j + 1 < steps, draw, lambda _: drawn, j + 1)
        state, kernel, new = step(state, kernel, j, drawn)
        summed = {name: folded[name] + new[name] for name in new}
        return state, kernel, summed | {n: new[n] for n in new if n == "step_size"}, following

    begun = (start[0], kernel, empty, drawn)
    state, kernel, stats, _ = jax.lax.fori_loop(0, steps, body, begun)
    rates = {n: stats[n] / steps.astype(stats[n].dtype) for n in stats if n == "acceptance_rate"}
    return state, kernel, stats | rates


def _pooled(stats: Stats) -> Stats:
    """Return the statistics of a step over all particles: sums of what went wrong, else means."""
    bad = ("diverging", "nonfinite")
    return {
        name: jnp.sum(stats[name].astype(jnp.int32))
        if name in bad
        else jnp.mean(stats[name].astype(jnp.result_type(float)))
        for name in WATCHED
        if name in stats
    }


def _weigh(cloud: Cloud, target: Any, before: Any) -> Cloud:
    """Multiply the weights by p_k(x) / p_{k−1}(x)."""
    new, old = (jax.vmap(t.log_density)(cloud.position) for t in (target, before))
    # Where the new density is zero the weight is, whatever the old one says.
    change = jnp.where(new == -jnp.inf, -jnp.inf, new - old)
    log_weight = cloud.log_weight + change.astype(cloud.log_weight.dtype)
    return dataclasses.replace(cloud, log_weight=log_weight)


def _evidence(cloud: Cloud) -> Stats:
    """Return log Z so far without that of the base, its error, and the size of the weights.

    The error: Lee and Whiteley 2018, doi:10.1093/biomet/asy028; see `anneal`.
    """
    n, log_weight = cloud.log_weight.size, cloud.log_weight
    w = jax.nn.softmax(log_weight)
    once = jnp.sum(w * w)  # 1 / ESS
    families = jax.ops.segment_sum(w, cloud.origin, n)
    same = jnp.sum(families * families)
    excess = jnp.expm1((cloud.resampled + 1).astype(w.dtype) * np.log1p(1 / (n - 1)))
    # 1 − (1 + c)(1 − S) without the cancellation; by chance it may fall below its last part.
    variance = jnp.maximum(same - excess + excess * same, once - 1 / n)
    return {
        "log_z": cloud.log_z + _log_mean(log_weight),
        "log_z_error": jnp.sqrt(jnp.maximum(variance, 0.0)),
        "ess": 1 / once,
        "resampled": cloud.resampled,
    }


def _resample(key: Array, cloud: Cloud) -> Cloud:
    """Draw particles anew by their weights."""
    from blackjax.smc.resampling import multinomial

    with library_rules():
        n = cloud.log_weight.size
        chosen = multinomial(key, jax.nn.softmax(cloud.log_weight), n)
    position, origin = jax.tree.map(lambda a: a[chosen], (cloud.position, cloud.origin))
    return dataclasses.replace(
        cloud,
        position=position,
        origin=origin,
        log_weight=jnp.zeros_like(cloud.log_weight),
        log_z=cloud.log_z + _log_mean(cloud.log_weight),
        resampled=cloud.resampled + 1,
    )


def _log_mean(log_weight: Array) -> Array:
    return jax.nn.logsumexp(log_weight) - np.log(log_weight.size)
