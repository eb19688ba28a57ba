"""`flow` and `encode`: from noise to data and back by the probability-flow ODE."""

import time
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.typing import ArrayLike

from samplekit.diffusion.cloud import as_tree, begin
from samplekit.diffusion.ode import follow
from samplekit.diffusion.processes import Process
from samplekit.diffusion.scores import (
    Problem,
    Score,
    check_count,
    flat_rows,
    make_times,
    scale_rows,
    shape_of,
    unflat_rows,
)
from samplekit.sampling.cache import use_cache
from samplekit.sampling.settings import make_key

if TYPE_CHECKING:
    import xarray as xr


def flow(
    process: Process,
    score: Score,
    *,
    solver: Any = "adaptive",
    steps: int | ArrayLike = 100,
    particles: int = 1000,
    seed: Any = 0,
    keep: bool = False,
    denoise: bool = False,
    start: Any = None,
    dim: Any = None,
    t_min: float | None = None,
    t_max: float | None = None,
    tolerance: float | None = None,
    devices: Any = None,
    cache: bool = True,
) -> "xr.DataTree":
    """Sample by the probability-flow ODE of a process; return an ArviZ DataTree.

    Only the start is random: the same start gives the same data, and `encode` leads back to it.

    Parameters
    ----------
    process, score, particles, seed, keep, start, dim, t_min, t_max, devices, cache
        As in `reverse`.
    solver
        "adaptive" is Diffrax's Tsit5, another adaptive solver may be given; "heun" takes `steps`
        of equal length.
    steps
        Steps of "heun" from t_max to t_min, or the times themselves; adaptive solvers take their
        own, and these only say which times `keep` shows.
    denoise
        End by Tweedie's formula, which removes the noise left at t_min; `encode` cannot undo it.
    tolerance
        Error of a step, relative and absolute; None is 1e-5, in double precision 1e-9.

    Notes
    -----
    dx/dt = f x − ½ g² ∇log p_t(x) has the same law at every time as the SDE (Song et al. 2021,
    arXiv:2011.13456).

    Examples
    --------
    >>> import samplekit as sk
    >>> from samplekit import diffusion
    >>> family = sk.targets.noised_mixture([1, 4], [[-5.0, -5.0], [5.0, 5.0]])
    >>> out = diffusion.flow(diffusion.VE(0.01, 30.0), family, particles=200)
    >>> out["posterior"]["x"].shape
    (200, 1, 2)
    """
    problem, times = make_times(process, score, steps, dim=dim, t_min=t_min, t_max=t_max)
    if cache:
        use_cache()
    key, _ = jax.random.split(make_key(seed))
    x = begin(problem, start, check_count("particles", particles), key)
    since = time.perf_counter()
    frames, _ = follow(
        problem, x, times, solver=solver, tolerance=tolerance, keep=keep, devices=devices
    )
    return as_tree(
        problem, frames[-1], denoise=denoise, frames=frames if keep else None,
        seconds=time.perf_counter() - since, facts={"solver": str(solver)},
    )  # fmt: skip


def encode(
    process: Process,
    score: Score,
    X: Any,  # noqa: N803
    *,
    solver: Any = "adaptive",
    steps: int | ArrayLike = 100,
    t_min: float | None = None,
    t_max: float | None = None,
    tolerance: float | None = None,
    devices: Any = None,
) -> Any:
    """Return the noise that the probability-flow ODE makes of data: the inverse of `flow`.

    Parameters
    ----------
    process, score, solver, steps, t_min, t_max, tolerance, devices
        As in `flow`.
    X
        Data, along the first axis.

    Returns
    -------
    Positions at t_max, shaped as the data; `flow(..., start=encode(...))` gives the data back.

    Notes
    -----
    The ODE of `flow`, solved from t_min to t_max (Song et al. 2021, arXiv:2011.13456).

    Examples
    --------
    >>> import jax.numpy as jnp, samplekit as sk
    >>> from samplekit import diffusion
    >>> family = sk.targets.noised_mixture([1.0], [[0.0]], 1.0)  # N(0, 1), which VP keeps
    >>> f"{diffusion.encode(diffusion.VP(), family, jnp.array([[0.7]]))[0, 0]:.3f}"
    '0.700'
    """
    dim = shape_of(X)
    problem, times = make_times(process, score, steps, dim=dim, t_min=t_min, t_max=t_max)
    start, back = data_rows(problem, X), times[::-1]
    rows, _ = follow(problem, start, back, solver=solver, tolerance=tolerance, devices=devices)
    return unflat_rows(problem.space, rows[-1])


def data_rows(problem: Problem, data: Any) -> jax.Array:
    """Return data as rows of the process at t_min, a(t_min) times the data."""
    rows = flat_rows(problem.space, data, problem.dtype)
    return scale_rows(problem.process, rows, np.asarray(problem.t_min, rows.dtype), inward=True)
