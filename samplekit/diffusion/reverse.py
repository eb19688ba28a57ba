"""`reverse`: from noise to data by the reverse SDE."""

import dataclasses
import functools
import json
import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from samplekit.core.errors import SettingsError, TargetError
from samplekit.diffusion.cloud import as_tree, begin
from samplekit.diffusion.processes import Process
from samplekit.diffusion.reverse_program import Cloud, Plan, Route, adapt, correct, descend
from samplekit.diffusion.scores import Problem, Score, check_count, make_times
from samplekit.kernels.base import unlearned
from samplekit.sampling.cache import use_cache
from samplekit.sampling.devices import deal, read_devices, row_mesh
from samplekit.sampling.progress import Progress
from samplekit.sampling.settings import check_fit, describe_kernel, make_key
from samplekit.sampling.view import with_space

if TYPE_CHECKING:
    import xarray as xr

SOLVERS = ("exponential", "euler", "ancestral", "adaptive")
# A call of the program takes about this long, so that progress is seen and Ctrl-C is heard.
CALL_SECONDS = 0.5
# Noise below this part of the data's cannot be what a corrector's step is measured by.
LEAST_NOISE = 1e-6


def reverse(
    process: Process,
    score: Score,
    *,
    solver: str = "exponential",
    steps: int | ArrayLike = 500,
    particles: int = 1000,
    seed: Any = 0,
    corrector: Any = None,
    corrector_steps: int = 1,
    keep: bool = False,
    denoise: bool = True,
    start: Any = None,
    dim: Any = None,
    t_min: float | None = None,
    t_max: float | None = None,
    tolerance: float = 2e-2,
    devices: Any = None,
    cache: bool = True,
    progress: bool = True,
) -> "xr.DataTree":
    """Sample by the reverse SDE of a process; return an ArviZ DataTree.

    Parameters
    ----------
    process
        `VE(sigma_min, sigma_max)` or `VP()`.
    score
        A family of targets over noise levels, `family.at(sigma)`, which serves every process; or a
        function score(x, t) of one position of the process and its time.
    solver
        "exponential" integrates all but the score exactly; "euler" is Euler–Maruyama; "ancestral"
        is the step of DDPM; "adaptive" is Diffrax's ShARK, whose steps follow its
        error.
    steps
        Steps from t_max to t_min, of equal length; or the times themselves, falling. With
        "adaptive" they only say which times `keep` shows.
    particles
        Particles; they are the chains of the result.
    seed
        An integer or a JAX key; the same seed gives the same particles.
    corrector
        A kernel that moves the particles after each step, at the law of that time: `Langevin`,
        `ScoreMALA()`, and `MALA()` and the rest where the family's targets have densities. A step
        size means t_min and grows with the noise, as in `anneal`; one left open is tuned on the
        way.
    corrector_steps
        Its steps at each time.
    keep
        Keep the positions x_t at all times, in the group `path_posterior` (one draw for each).
    denoise
        End by Tweedie's formula, which removes the noise left at t_min.
    start
        Positions at t_max, along the first axis, or a function of (key, n); None is the prior.
    dim
        Number of coordinates or shape of a position, where the score does not say.
    t_min, t_max
        Times to end and to begin at. None is 0 and 1, or, where the family has `levels`, the times
        of the smallest and the largest: a network knows nothing beyond them.
    tolerance
        Of "adaptive": error of a step, relative to the position and absolute.
    devices, cache, progress
        As in `sample`.

    Returns
    -------
    A DataTree: `posterior` (chain = particle, one draw) with the data, x/a where they are not
    denoised; `path`, one row a step with the statistics of the corrector; for "adaptive" the
    attribute `steps`, the number taken. The attribute `nonfinite_particles` counts those lost.

    Notes
    -----
    dx = [f x − g² ∇log p_t(x)] dt + g dW̄ backward in time (Anderson 1982,
    doi:10.1016/0304-4149(82)90051-5; Song et al. 2021, arXiv:2011.13456). The law found is off in
    total variation by that of the prior, e^{−T} for VP, by the steps, and by √T times the error of
    the score (Chen et al. 2023, arXiv:2209.11215); example 31 measures all three.

    Examples
    --------
    >>> import samplekit as sk
    >>> from samplekit import diffusion
    >>> family = sk.targets.noised_mixture([1, 4], [[-5.0, -5.0], [5.0, 5.0]])
    >>> out = diffusion.reverse(diffusion.VE(0.01, 30.0), family, steps=100, progress=False)
    >>> out["posterior"]["x"].shape
    (1000, 1, 2)
    """
    if solver not in SOLVERS:
        raise SettingsError(f"solver={solver!r} is not known. Give one of {', '.join(SOLVERS)}.")
    problem, times = make_times(process, score, steps, dim=dim, t_min=t_min, t_max=t_max)
    key_start, key = jax.random.split(make_key(seed))
    if cache:
        use_cache()
    x = begin(problem, start, check_count("particles", particles), key_start)
    mesh = row_mesh(read_devices(devices), len(x))
    x = deal(x, mesh)
    plan = Plan(len(x), problem.space, keep, corrects=corrector is not None)
    since = time.perf_counter()
    facts: dict[str, Any] = {"solver": solver}
    if solver == "adaptive":
        if corrector is not None:
            raise SettingsError(
                'solver="adaptive" chooses its times on the way, so no corrector can work at '
                'them. Take "exponential", or leave the corrector out.'
            )
        route = _route(problem, "euler", times, key)
        frames, facts["steps"] = _adaptive(plan, route, x, tolerance)
        cloud = Cloud(frames[-1], None, frames, {})
    else:
        plan, kernel = _fitted(problem, plan, corrector, times)
        count = check_count("corrector_steps", corrector_steps)
        route = _route(problem, solver, times, key, corrector_steps=count)
        cloud = _fixed(plan, route, (x, deal(kernel, mesh, axis=None)), mesh, enabled=progress)
    seconds, frames = time.perf_counter() - since, cloud.frames if keep else None
    tree = as_tree(problem, cloud.x, denoise=denoise, frames=frames, seconds=seconds, facts=facts)
    if corrector is not None:
        tree["sampler"].attrs["corrector"] = json.dumps(describe_kernel(cloud.kernel))
        tree["path"] = _path(problem.process, times, cloud.stats)
    return tree


@functools.partial(jax.jit, static_argnums=1)
def _tables(process: Process, solver: str, times: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return r, w and c of every step (step, 3), and the noise sd at every time."""
    parts = getattr(process, solver)(times[:-1], times[1:])
    full = [jnp.broadcast_to(part, times[1:].shape) for part in parts]
    return jnp.stack(full, axis=1), process.marginal(times)[1]


def tables(process: Process, solver: str, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return r, w and c of every step x' = r x + w · score + c z, and the noise sd at every time.

    In double precision: differences of neighbouring times lose the digits of single precision.
    """
    with jax.enable_x64(True):  # noqa: FBT003
        steps, sd = _tables(process, solver, np.asarray(times, np.float64))
        return np.asarray(steps), np.asarray(sd)


def _route(
    problem: Problem, solver: str, times: np.ndarray, key: Any, *, corrector_steps: int = 0
) -> Route:
    steps, sd = tables(problem.process, solver, times)
    return Route(
        problem.path,
        times.astype(problem.dtype),
        steps.astype(problem.dtype),
        (sd / max(sd[-1], LEAST_NOISE)).astype(problem.dtype),
        np.int32(corrector_steps),
        key,
    )


def _fitted(problem: Problem, plan: Plan, corrector: Any, times: np.ndarray) -> tuple[Plan, Any]:
    """Fit the corrector to the score, and plan the program."""
    if corrector is None:
        return plan, None
    sd = float(problem.process.marginal(times[-1])[1])
    if sd < LEAST_NOISE:
        raise SettingsError(
            f"At t_min={times[-1]:g} there is no noise, but a corrector's step is scaled by it. "
            "Give t_min= a little above 0, such as t_min=1e-3."
        )
    check_fit(with_space(problem.path.at(jnp.asarray(times[-1])), problem.space), corrector)
    corrector = unlearned(corrector)
    ours, size = hasattr(corrector, "prepare"), problem.space.size
    kernel = corrector.prepare(size, problem.dtype) if ours else corrector
    tunes = bool(getattr(corrector, "tunes_step", False))
    plan = dataclasses.replace(
        plan,
        flat=bool(getattr(corrector, "flat", False)),
        tunes=tunes,
        goal=corrector.goal(size) if tunes else None,
    )
    return plan, jax.tree.map(jnp.array, kernel)


def _fixed(plan: Plan, route: Route, start: tuple[Any, Any], mesh: Any, *, enabled: bool) -> Cloud:
    """Take all the steps, some at a time."""
    x, kernel = jnp.array(start[0]), start[1]  # a copy: the program takes its argument's memory
    steps = len(route.times) - 1
    rows = {}
    if plan.corrects:
        clock = (route.key, np.int32(1))
        one = jax.eval_shape(functools.partial(correct, plan), route, start, clock)[2]
        rows = {name: np.zeros((steps, *s.shape), s.dtype) for name, s in one.items()}
    frames = np.zeros((steps + 1 if plan.keep else 0, *x.shape), x.dtype)
    frames[:1] = x
    cloud, at, count = Cloud(x, kernel, deal(frames, mesh, axis=1), rows), 0, 1.0
    with Progress(steps, enabled=enabled, unit="steps") as bar:
        bar.phase("compiling")
        while at < steps:
            end = min(steps, at + max(1, int(count)))
            began = time.perf_counter()
            cloud = descend(plan, route, cloud, np.asarray([at, end], np.int32))
            jax.block_until_ready(cloud.x)
            # The first call compiles: it says only how long a step takes at most.
            speed = (end - at) / max(time.perf_counter() - began, 1e-6)
            count = min(max(CALL_SECONDS * speed, 2.0), 16.0 * (end - at))
            at = end
            bar.phase("sampling")
            bar.update(at)
    return cloud


def _adaptive(plan: Plan, route: Route, x: jax.Array, tolerance: float) -> tuple[jax.Array, int]:
    """Solve adaptively; return the positions at the kept times and the number of steps."""
    if not (np.isfinite(tolerance) and tolerance > 0):
        raise SettingsError(f"tolerance={tolerance!r} is not a positive number.")
    frames, arrived, steps = adapt(plan, route, x, np.asarray(tolerance, x.dtype))
    if not arrived:
        raise TargetError(
            f"The adaptive solution gave up after {int(steps)} steps: the score is too steep, or "
            "not finite somewhere. Take a larger tolerance=, a larger t_min=, or "
            'solver="exponential".'
        )
    return frames, int(steps)


def _path(process: Process, times: np.ndarray, stats: Any) -> "xr.DataTree":
    """Return what the corrector did after each step."""
    import xarray as xr

    rows = {name: ("time", np.asarray(a)) for name, a in stats.items()}
    sigma = np.asarray(process.noise(times[1:]), np.float64)
    return xr.DataTree(xr.Dataset({"noise": ("time", sigma), **rows}, coords={"time": times[1:]}))
