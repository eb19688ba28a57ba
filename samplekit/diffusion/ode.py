"""The compiled program of the probability-flow ODE, with or without its divergence."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from samplekit.core.errors import SettingsError, TargetError
from samplekit.core.protocols import Numbers
from samplekit.core.pytree import pytree
from samplekit.diffusion.scores import OverTime, Problem, flat_score
from samplekit.kernels.base import library_rules
from samplekit.sampling.devices import ROWS, read_devices, row_mesh

# An adaptive solution gives up after this many steps, and says so.
MOST_STEPS = 4096
# Numbers held at once by the derivatives of a batch; more rows are solved one batch after another.
BATCH_NUMBERS = 2**22
# Errors of a step, relative and absolute, that single and double precision carry without waste.
TOLERANCE = {np.dtype("float32"): 1e-5, np.dtype("float64"): 1e-9}


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that is fixed at compile time."""

    space: Any
    solver: Any  # of Diffrax
    adaptive: bool
    keep: bool
    divergence: str  # "none", "exact" or "hutchinson"
    batch: int
    mesh: Any = None  # rows are dealt to its devices


def choose_solver(solver: Any) -> tuple[Any, bool]:
    """Return a solver of Diffrax, and whether it chooses its own steps."""
    import diffrax

    if solver == "adaptive":
        return diffrax.Tsit5(), True
    if solver == "heun":
        return diffrax.Heun(), False
    if isinstance(solver, diffrax.AbstractAdaptiveSolver):
        return solver, True
    raise SettingsError(
        f'solver={solver!r} is not known. Give "adaptive", "heun" or a solver of Diffrax that '
        "estimates its error, such as diffrax.Dopri5()."
    )


@pytree
class Way:
    """What flow to follow, from times[0] to times[-1], and how closely; all of it data."""

    path: OverTime
    times: Numbers
    tolerance: Numbers


@functools.partial(jax.jit, static_argnums=0)
def solve(plan: Plan, way: Way, rows: tuple[Array, Any]) -> tuple[Array, Any, Array]:
    """Follow the flow.

    `rows` are positions and, for each, directions (probe, size) or None. Return positions
    (particle, time, size) at the times, or the last one if they are not kept; the integral of the
    divergence, one for each probe, if wanted; and whether the solution arrived.
    """
    import diffrax

    times, tolerance = way.times, way.tolerance
    controller: Any = diffrax.StepTo(ts=times)
    if plan.adaptive:
        controller = diffrax.PIDController(tolerance, tolerance)

    def one(way: Way, start: tuple[Array, Any]) -> tuple[Array, Any, Array]:
        x, probes = start
        count = 1 if probes is None else len(probes)
        change = None if plan.divergence == "none" else jnp.zeros(count, x.dtype)
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(functools.partial(_field, plan, way.path)),
            plan.solver,
            times[0],
            times[-1],
            None,
            (x, change),
            args=probes,
            saveat=diffrax.SaveAt(ts=times) if plan.keep else diffrax.SaveAt(t1=True),
            stepsize_controller=controller,
            max_steps=MOST_STEPS if plan.adaptive else len(times),
            throw=False,
        )
        x, change = solution.ys  # pyright: ignore[reportGeneralTypeIssues]
        change = None if change is None else change[-1]
        return x, change, solution.result == diffrax.RESULTS.successful

    def all_(way: Way, rows: tuple[Array, Any]) -> tuple[Array, Any, Array]:
        return jax.lax.map(functools.partial(one, way), rows, batch_size=plan.batch)

    with library_rules():
        if plan.mesh is None:
            return all_(way, rows)
        split, whole = PartitionSpec(ROWS), PartitionSpec()
        specs = {"in_specs": (whole, split), "out_specs": split, "check_vma": False}
        return jax.shard_map(all_, mesh=plan.mesh, **specs)(way, rows)


def _field(plan: Plan, path: OverTime, *now: Any) -> tuple[Array, Any]:
    """Return f x − ½ g² ∇log p_t(x) and its divergence, now at (t, state, probes)."""
    t, (x, _), probes = now
    score, process = flat_score(path, plan.space, t), path.process

    def velocity(y: Array) -> Array:
        return process.drift(y, t) - process.diffusion(t) ** 2 / 2 * score(y)

    if plan.divergence == "none":
        return velocity(x), None
    v, slope = jax.linearize(velocity, x)
    exact = plan.divergence == "exact"
    directions = jnp.eye(x.size, dtype=x.dtype) if exact else probes
    bends = jax.vmap(lambda e: jnp.sum(e * slope(e)))(directions)
    return v, jnp.sum(bends, keepdims=True) if exact else bends


def follow(
    problem: Problem,
    rows: Array,
    times: np.ndarray,
    *,
    solver: Any,
    tolerance: float | None,
    keep: bool = False,
    divergence: str = "none",
    probes: Array | None = None,
    devices: Any = None,
) -> tuple[Array, Any]:
    """Follow the flow; return the positions (time, particle, size) and the divergences."""
    scheme, adaptive = choose_solver(solver)
    error = TOLERANCE[problem.dtype] if tolerance is None else tolerance
    if not (np.isfinite(error) and error > 0):
        raise SettingsError(f"tolerance={tolerance!r} is not a positive number.")
    size = rows.shape[1]
    width = size * (probes.shape[1] if probes is not None else size if divergence == "exact" else 1)
    batch = min(len(rows), max(1, BATCH_NUMBERS // width))
    mesh = row_mesh(read_devices(devices), len(rows))
    batch = min(batch, len(rows) // (1 if mesh is None else mesh.size))
    plan = Plan(problem.space, scheme, adaptive, keep, divergence, batch, mesh)
    number = functools.partial(np.asarray, dtype=rows.dtype)
    way = Way(problem.path, number(times), number(error))
    x, change, arrived = solve(plan, way, (rows, probes))
    arrived = np.asarray(arrived)
    if not arrived.all():
        raise TargetError(
            f"{int((~arrived).sum())} of {len(rows)} solutions of the flow gave up after "
            f"{MOST_STEPS} steps: the score is too steep, or not finite somewhere. Take a larger "
            'tolerance= or t_min=, or solver="heun" with enough steps.'
        )
    return jnp.asarray(np.moveaxis(np.asarray(x), 1, 0)), change
