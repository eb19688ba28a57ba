"""The compiled programs of `reverse`: fixed steps with a corrector, and adaptive ones."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from samplekit.core.protocols import Numbers, Stats
from samplekit.core.pytree import pytree
from samplekit.diffusion.scores import OverTime, flat_score
from samplekit.kernels.base import library_rules
from samplekit.sampling.anneal_program import rescaled, walk
from samplekit.sampling.compiled import compiled
from samplekit.sampling.view import View, with_space

# An adaptive solution gives up after this many steps, and says so.
MOST_STEPS = 2**14
# The Brownian path is known at this part of the time; a finer one costs a draw for each halving.
FINEST = 2.0**-12


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that is fixed at compile time."""

    particles: int
    space: Any
    keep: bool
    corrects: bool
    flat: bool = True  # whether the corrector moves flat vectors
    tunes: bool = False
    goal: float | None = None  # acceptance rate that an open step size is tuned to


@pytree
class Route:
    """Where to go and by what rules; all of it data."""

    path: OverTime
    times: Numbers  # falling
    coefficients: Numbers  # (step, 3): x' = r x + w · score + c z
    noise: Numbers  # of each time over that of the last: how lengths scale
    corrector_steps: Numbers
    key: Numbers


@pytree
class Cloud:
    """The particles and what is kept of their way."""

    x: Numbers  # (particle, size)
    kernel: Any  # the corrector; its lengths are those of the last time
    frames: Numbers  # (time, particle, size), or nothing
    stats: Any  # of the corrector, one number a time


@compiled(static_argnums=0, donate_argnums=2)
def descend(plan: Plan, route: Route, cloud: Cloud, bounds: Numbers) -> Cloud:
    """Take the steps from bounds[0] up to bounds[1]."""
    step = functools.partial(_step, plan, route)
    return jax.lax.fori_loop(bounds[0], bounds[1], step, cloud)


def _step(plan: Plan, route: Route, i: Array, cloud: Cloud) -> Cloud:
    """Go from one time to the next by the reverse SDE, then correct there."""
    key_noise, key_walk = jax.random.split(jax.random.fold_in(route.key, i.astype(jnp.uint32)))
    score = jax.vmap(flat_score(route.path, plan.space, route.times[i]))(cloud.x)
    r, w, c = route.coefficients[i]
    x = r * cloud.x + w * score + c * jax.random.normal(key_noise, score.shape, score.dtype)
    kernel, stats = cloud.kernel, cloud.stats
    if plan.corrects:
        x, kernel, row = correct(plan, route, (x, kernel), (key_walk, i + 1))
        stats = {name: all_.at[i].set(row[name]) for name, all_ in stats.items()}
    frames = cloud.frames.at[i + 1].set(x) if plan.keep else cloud.frames
    return Cloud(x, kernel, frames, stats)


def correct(
    plan: Plan, route: Route, now: tuple[Array, Any], clock: tuple[Array, Numbers]
) -> tuple[Array, Any, Stats]:
    """Move by the corrector, whose target is the law at the time of this index."""
    (x, kernel), (key, index) = now, clock
    target = with_space(route.path.at(route.times[index]), plan.space)
    view = View(target, plan.flat)
    factor = route.noise[index]
    wide = rescaled(kernel, factor)
    key_init, key_step = jax.random.split(key)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key_init, jnp.arange(plan.particles))
    start = x if plan.flat else jax.vmap(plan.space.unravel)(x)
    state = jax.vmap(lambda k, p: wide.init(k, p, view.for_kernel))(keys, start)
    # `walk` reads particles, tunes and goal of a plan, which this one has as well.
    state, wide, stats = walk(plan, view, (state, wide), (key_step, route.corrector_steps))  # pyright: ignore
    x = state.position if plan.flat else jax.vmap(plan.space.ravel)(state.position)
    return x, rescaled(wide, 1 / factor) if plan.tunes else kernel, stats


@functools.partial(jax.jit, static_argnums=0)
def adapt(plan: Plan, route: Route, x: Array, tolerance: Numbers) -> tuple[Any, Array, Array]:
    """Solve the reverse SDE by Diffrax, with steps that all particles share.

    Return the positions at the route's times (the last one if they are not kept), whether the
    solution arrived, and its number of steps. ShARK: Foster, dos Reis and Strange 2023,
    arXiv:2302.00545, order 1.5 for noise that does not depend on x.
    """
    import diffrax
    import lineax

    first, length = route.times[0], route.times[0] - route.times[-1]
    process, zero = route.path.process, jnp.zeros_like(length)

    def drift(u: Any, y: Any, _: Any) -> Array:
        t = first - u
        score = jax.vmap(flat_score(route.path, plan.space, t))(y)
        return process.diffusion(t) ** 2 * score - process.drift(y, t)

    def spread(u: Any, y: Any, _: Any) -> Any:
        return lineax.DiagonalLinearOperator(jnp.full_like(y, process.diffusion(first - u)))

    with library_rules():
        noise = diffrax.VirtualBrownianTree(
            zero, length, FINEST * length, x.shape, route.key, diffrax.SpaceTimeLevyArea
        )
        solution = diffrax.diffeqsolve(
            diffrax.MultiTerm(diffrax.ODETerm(drift), diffrax.ControlTerm(spread, noise)),
            diffrax.ShARK(),
            zero,
            length,
            length / 100,
            x,
            saveat=diffrax.SaveAt(ts=first - route.times) if plan.keep else diffrax.SaveAt(t1=True),
            # Weak control, as errors of a random path are not smooth in the step.
            stepsize_controller=diffrax.PIDController(
                tolerance, tolerance, pcoeff=0.1, icoeff=0.3, dtmin=2 * FINEST * length
            ),
            max_steps=MOST_STEPS,
            throw=False,
        )
    arrived = solution.result == diffrax.RESULTS.successful
    return solution.ys, arrived, solution.stats["num_steps"]
