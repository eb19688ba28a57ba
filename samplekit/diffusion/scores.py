"""The score of a process at every time, from a family over noise levels or from a function."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from samplekit.core.errors import SettingsError, TargetError
from samplekit.core.protocols import (
    DensityTarget,
    Numbers,
    Position,
    Scalar,
    ScoreTarget,
    TargetFamily,
)
from samplekit.core.pytree import Function, as_function, pytree
from samplekit.diffusion.processes import Process
from samplekit.networks.predictions import denoised_from_score
from samplekit.sampling.view import as_pytree
from samplekit.targets.space import Space, make_space

type Score = TargetFamily[Any] | Callable[[Array, Array], Array]


@pytree
class Scaled:
    """The law of a·y, where y follows a target known by its score."""

    target: Any
    scale: Any

    def _inner(self, x: Position) -> Position:
        return jax.tree.map(lambda a: a / jnp.asarray(self.scale, a.dtype), x)

    def score(self, x: Position, /) -> Position:
        """Return the score of the target at x/a, divided by a."""
        y = self._inner(x)
        known = isinstance(self.target, ScoreTarget)
        score = self.target.score(y) if known else jax.grad(self.target.log_density)(y)
        return self._inner(score)


@pytree
class ScaledDensity(Scaled):
    """The law of a·y, where y follows a density."""

    def log_density(self, x: Position, /) -> Scalar:
        """Return log p(x/a) − d log a."""
        value = self.target.log_density(self._inner(x))
        size = sum(np.size(leaf) for leaf in jax.tree.leaves(x))
        return value - size * jnp.log(jnp.asarray(self.scale, value.dtype))


@pytree
class AtTime:
    """A score that is a function of position and time, at one time."""

    fn: Function
    time: Any

    def score(self, x: Array, /) -> Array:
        """Return the score at this time."""
        value = self.fn(x, jnp.asarray(self.time, x.dtype))
        if jnp.shape(value) != x.shape:
            raise TargetError(
                f"The score of one position of shape {x.shape} has shape {jnp.shape(value)}. It is "
                "called as score(x, t) with one position and must return an array shaped as x."
            )
        return value


@pytree
class OverTime:
    """The laws of a process by their scores: a family of targets over time."""

    process: Process
    source: Any  # a family over noise levels, or a function of (x, t)

    def at(self, t: ArrayLike, /) -> Any:
        """Return the target whose score is that of x_t."""
        if isinstance(self.source, Function):
            return AtTime(self.source, t)
        scale, sd = self.process.marginal(t)
        member = self.source.at(sd / scale)
        return (ScaledDensity if isinstance(member, DensityTarget) else Scaled)(member, scale)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A process, its scores, their space, and the times in between which it is solved."""

    path: OverTime
    space: Space
    t_min: float
    t_max: float

    @property
    def process(self) -> Process:
        """The process."""
        return self.path.process

    @property
    def dtype(self) -> np.dtype:
        """The precision that positions have."""
        return np.dtype(jnp.result_type(float))


def make_problem(
    process: Any, score: Any, *, dim: Any, t_min: float | None, t_max: float | None
) -> Problem:
    """Check what the user gave, and settle space and times."""
    if not isinstance(process, Process):
        raise SettingsError(
            f"process={process!r} is no process. Give sk.diffusion.VE(sigma_min, sigma_max), "
            "sk.diffusion.VP(), or a subclass of sk.diffusion.Process."
        )
    family = hasattr(score, "at")
    if not family and not callable(score):
        hint = " It is one target; a family has one for each noise level." * hasattr(score, "score")
        raise TargetError(
            f"{type(score).__name__} is neither a family of targets with at(sigma) nor a function "
            f"score(x, t).{hint} Give sk.targets.noised_mixture(...) or the family() of a "
            "noise-conditional network."
        )
    first, last = (_edge(process, score, given, end) for given, end in ((t_min, 0), (t_max, 1)))
    if not 0 <= first < last <= 1:
        raise SettingsError(
            f"The times go from t_min={first:g} to t_max={last:g}, but a process lives on 0 ≤ t ≤ "
            "1. Where the family has levels, times without a level are left out: a process with "
            "more noise, or t_min= and t_max= of your own, reach them."
        )
    path = OverTime(process, as_pytree(score) if family else as_function(score))
    return Problem(path, _space(path, score, dim, last), first, last)


def make_times(
    process: Any, score: Any, steps: Any, *, dim: Any, t_min: float | None, t_max: float | None
) -> tuple[Problem, np.ndarray]:
    """Return the problem and its times, falling: of equal steps, or those that were given."""
    if np.ndim(steps):
        times = np.asarray(steps, np.float64)
        if times.ndim != 1 or len(times) < 2 or not (np.diff(times) < 0).all():
            raise SettingsError(
                f"steps={times} is neither a number nor a list of times that fall: one goes from "
                "much noise (t = 1) to little (t = 0)."
            )
        ends = {"t_min": float(times[-1]), "t_max": float(times[0])}
        return make_problem(process, score, dim=dim, **ends), times
    problem = make_problem(process, score, dim=dim, t_min=t_min, t_max=t_max)
    count = check_count("steps", steps)
    return problem, np.linspace(problem.t_max, problem.t_min, count + 1)


def check_count(name: str, value: Any) -> int:
    """Refuse what is no positive whole number."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < 1:
        raise SettingsError(f"{name}={value!r} is not a positive integer.")
    return int(value)


def _edge(process: Process, score: Any, given: float | None, end: int) -> float:
    """Return the time to begin or stop at: where the family has a level, and no further."""
    if given is not None:
        return float(given)
    levels = getattr(score, "levels", None)
    if levels is None:
        return float(end)
    known = np.asarray(levels, np.float64)
    time = float(process.time_of(known.max() if end else known.min()))
    return min(max(time, 0.0), 1.0)


def _space(path: OverTime, score: Any, dim: Any, t: float) -> Space:
    space = getattr(score, "space", None)
    if space is None and hasattr(score, "at"):
        space = getattr(score.at(path.process.noise(t)), "space", None)
    if space is None:
        if dim is None:
            raise TargetError(
                f"The score {_named(score)} does not say how many coordinates it has. Give dim=, a "
                "number or a shape."
            )
        space = make_space(dim)
    if space.discrete or any(leaf.support is not None for leaf in space.leaves):
        raise TargetError(
            f"The positions {space} are constrained or discrete, but a diffusion adds Gaussian "
            "noise. Give a family on unconstrained real numbers."
        )
    return space


def _named(score: Any) -> str:
    return getattr(score, "__qualname__", None) or type(score).__name__


def flat_score(path: OverTime, space: Space, t: ArrayLike) -> Callable[[Array], Array]:
    """Return the score at t as a function of one vector."""
    target = path.at(t)
    return lambda x: space.ravel(target.score(space.unravel(x)))


def flat_rows(space: Space, rows: Any, dtype: Any) -> Array:
    """Return positions with a leading axis as rows of numbers, or say what is wrong with them."""
    given = [np.asarray(a, dtype) for a in jax.tree.leaves(rows)]
    want = [leaf.shape for leaf in space.leaves]
    counts = {a.shape[0] if a.ndim else 0 for a in given}
    if [a.shape[1:] for a in given] != want or len(counts) != 1 or not counts.pop():
        raise TargetError(
            f"The positions have shape {[a.shape for a in given]}, but those of this score have "
            f"{want} behind an axis that counts them. One position x is x[None]."
        )
    return jnp.asarray(np.concatenate([a.reshape(a.shape[0], -1) for a in given], axis=1))


def shape_of(rows: Any) -> tuple[int, ...] | None:
    """Return the shape of one position of an array of them; None for other structures."""
    shape = getattr(rows, "shape", None) or np.shape(rows if isinstance(rows, list) else 0.0)
    return tuple(shape[1:]) or None


def unflat_rows(space: Space, rows: Array) -> Any:
    """Return rows of numbers as positions with a leading axis."""
    return _unflat(space, rows)


@functools.partial(jax.jit, static_argnums=0)
def _unflat(space: Space, rows: Array) -> Any:
    return jax.vmap(space.unravel)(rows)


def denoise_rows(path: OverTime, space: Space, rows: Array, t: ArrayLike) -> Array:
    """Return the expected data given rows at time t."""
    scale, sd = path.process.marginal(jnp.asarray(t, rows.dtype))
    score = jax.vmap(flat_score(path, space, t))(rows)
    return denoised_from_score(score, rows, sd, scale=scale)


@functools.partial(jax.jit, static_argnames="inward")
def scale_rows(process: Process, rows: Array, t: Numbers, *, inward: bool) -> Array:
    """Return the position a·x of the process at t for data, or with `inward` False data for it."""
    scale = process.marginal(t)[0]
    return rows * scale if inward else rows / scale


denoise_program = jax.jit(denoise_rows, static_argnums=1)


def denoise(process: Process, score: Score, x: Any, t: float) -> Any:
    """Return the expected data given noisy positions at time t, by Tweedie's formula.

    Parameters
    ----------
    process
        `VE` or `VP`.
    score
        A family of targets over noise levels, or a function score(x, t).
    x
        Positions x_t of the process, along the first axis.
    t
        Their time.

    Notes
    -----
    E[x₀ | x_t] = (x_t + s² ∇log p_t(x_t))/a: x̃ + σ²s(x̃) for VE, (x̃ + (1−ᾱ)s)/√ᾱ for VP
    (Efron 2011, doi:10.1198/jasa.2011.tm11181). `samplekit.networks` has the other conversions
    between score, noise and data.

    Examples
    --------
    >>> import jax.numpy as jnp, samplekit as sk
    >>> from samplekit import diffusion
    >>> family = sk.targets.noised_mixture([1.0], [[0.0]], 1.0)  # N(0, 1)
    >>> clean = diffusion.denoise(diffusion.VE(1.0, 9.0), family, jnp.array([[3.0]]), 0.5)
    >>> f"{clean[0, 0]:.3f}"
    '0.300'
    """
    problem = make_problem(process, score, dim=shape_of(x), t_min=0.0, t_max=1.0)
    rows = flat_rows(problem.space, x, problem.dtype)
    time = np.asarray(t, rows.dtype)
    return unflat_rows(problem.space, denoise_program(problem.path, problem.space, rows, time))
