"""Log likelihood of data by the probability-flow ODE."""

import dataclasses
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from samplekit.core.errors import SettingsError, TargetError
from samplekit.core.protocols import DensityTarget, Position, Scalar
from samplekit.core.pytree import pytree, static
from samplekit.diffusion.flow import data_rows
from samplekit.diffusion.ode import follow
from samplekit.diffusion.processes import Process
from samplekit.diffusion.scores import (
    Problem,
    ScaledDensity,
    Score,
    make_times,
    shape_of,
    unflat_rows,
)
from samplekit.losses.batch import Noise, draw_probes
from samplekit.sampling.settings import make_key
from samplekit.sampling.view import as_pytree, evaluate
from samplekit.targets.space import Space


@pytree
class FlatPrior:
    """A density of flat vectors as one of positions."""

    density: DensityTarget
    space: Space = static()

    def log_density(self, x: Position, /) -> Scalar:
        """Return log p of the position's numbers."""
        return self.density.log_density(self.space.ravel(x))


@dataclasses.dataclass(frozen=True, eq=False)
class LogLikelihood:
    """What `log_likelihood` returns, one entry for each row of the data."""

    values: np.ndarray
    # Of Hutchinson's estimate over its probes; 0 with the exact divergence.
    standard_error: np.ndarray
    # Where the flow takes the data: positions at t_max.
    latent: Any
    # log prior − log of the true density at t_max, by which the prior puts `values` too high;
    # None where the true density is not known.
    prior_mismatch: np.ndarray | None

    def __repr__(self) -> str:
        """Show means."""
        text = f"mean={self.values.mean():.6g}, standard_error={self.standard_error.mean():.2g}"
        if self.prior_mismatch is not None:
            text += f", prior_mismatch={np.abs(self.prior_mismatch).max():.2g} at most"
        return f"LogLikelihood({len(self.values)} rows: {text})"


def log_likelihood(
    process: Process,
    score: Score,
    X: Any,  # noqa: N803
    *,
    divergence: Literal["exact", "hutchinson"] = "exact",
    probes: int = 16,
    noise: Noise = "rademacher",
    seed: Any = 0,
    prior: Any = None,
    solver: Any = "adaptive",
    steps: int | ArrayLike = 100,
    t_min: float | None = None,
    t_max: float | None = None,
    tolerance: float | None = None,
    devices: Any = None,
) -> LogLikelihood:
    """Return the log density that the probability-flow ODE gives to data.

    Parameters
    ----------
    process, score, solver, steps, t_min, t_max, tolerance, devices
        As in `flow`.
    X
        Data, along the first axis; the density is that of the data plus the noise at t_min.
    divergence
        "exact", at the cost of a derivative for each dimension; or "hutchinson", from random
        directions, unbiased, with its standard error.
    probes, noise, seed
        Directions for each row, 2 at least, "rademacher" or "gaussian", and the seed they are drawn
        from.
    prior
        The density at t_max: None is the usual one, N(0, prior_scale²); "family" is the family's
        own at that noise, where it has a normalized density; or a target with a normalized log
        density of x at t_max.

    Notes
    -----
    log p_0(x_0) = log p_T(x_T) + ∫₀ᵀ div v(x_t, t) dt along dx/dt = v = f x − ½ g² ∇log p_t (Chen
    et al. 2018, arXiv:1806.07366; Song et al. 2021, arXiv:2011.13456). The divergence is the trace
    of ∇v, or the mean of eᵀ(∇v)e over the probes e, which stay the same along the way (Grathwohl et
    al. 2019, arXiv:1810.01367). The usual prior is not the law at T: `prior_mismatch` says what
    that costs where the law is known. Double precision is JAX's own switch.

    Examples
    --------
    >>> import numpy as np, samplekit as sk
    >>> from samplekit import diffusion
    >>> family = sk.targets.noised_mixture([1.0], [[0.0]], 1.0)  # N(0, 1)
    >>> result = diffusion.log_likelihood(diffusion.VP(), family, np.zeros((1, 1)))
    >>> bool(abs(result.values[0] + np.log(2 * np.pi) / 2) < 1e-4)
    True
    """
    if divergence not in ("exact", "hutchinson"):
        raise SettingsError(f'divergence={divergence!r} is neither "exact" nor "hutchinson".')
    problem, times = make_times(process, score, steps, dim=shape_of(X), t_min=t_min, t_max=t_max)
    rows, directions = data_rows(problem, X), None
    if divergence == "hutchinson":
        if probes < 2:
            raise SettingsError(
                f"probes={probes} have no standard error. Take 2 or more, or the exact divergence."
            )
        directions = draw_probes(make_key(seed), rows, probes, noise)
    density = _prior(problem, prior)
    path, change = follow(
        problem, rows, times[::-1], solver=solver, tolerance=tolerance, divergence=divergence,
        probes=directions, devices=devices,
    )  # fmt: skip
    ends = unflat_rows(problem.space, path[-1])
    at_end, true = _log_density(density, ends), _true_density(problem)
    scale = float(problem.process.marginal(problem.t_min)[0])
    # The data are x/a, so their density is a^d times that of x.
    change = np.asarray(change)
    values = at_end + change.mean(axis=1) + problem.space.size * np.log(scale)
    return LogLikelihood(
        values,
        _standard_error(change),
        ends,
        None if true is None else at_end - _log_density(true, ends),
    )


def _log_density(target: Any, positions: Any) -> np.ndarray:
    target = as_pytree(target)
    return np.asarray(evaluate(target, positions, what="log_density", one_by_one=False))


def _standard_error(change: np.ndarray) -> np.ndarray:
    count = change.shape[1]
    if count == 1:
        return np.zeros(len(change), change.dtype)
    return change.std(axis=1, ddof=1) / np.sqrt(count)


def _prior(problem: Problem, prior: Any) -> Any:
    if prior is None:
        usual = problem.process.prior(problem.space.size, problem.t_max)
        return FlatPrior(usual, problem.space)
    if isinstance(prior, str) and prior == "family":
        true = _true_density(problem)
        if true is None:
            raise TargetError(
                'prior="family" needs a family with normalized densities (log_normalizer), but '
                "this one has none. Leave prior= out for the usual one, or give a target."
            )
        return true
    if not isinstance(prior, DensityTarget):
        raise TargetError(
            f'prior={prior!r} has no log density. Give None, "family", or a normalized target.'
        )
    return prior


def _true_density(problem: Problem) -> ScaledDensity | None:
    """Return the law at t_max if it is known with its normalizer."""
    law = problem.path.at(jnp.asarray(problem.t_max, problem.dtype))
    known = isinstance(law, ScaledDensity) and getattr(law.target, "log_normalizer", None) == 0.0
    return law if known else None
