"""What a fitted family is good for: scores, log densities, a target, draws."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data

from samplekit.core.errors import EstimatorError
from samplekit.core.pytree import pytree
from samplekit.estimators.base import ScoreMatching
from samplekit.estimators.domains import Box, Simplex, Sphere, Torus
from samplekit.estimators.moments import Model, log_density_rows, score_rows
from samplekit.estimators.rows import Runner, array_chunks, refuse_non_finite
from samplekit.estimators.setup import Setup
from samplekit.targets.density import Density, from_log_density


@pytree
class LogDensity:
    """θᵀs(y) + a(y) as a function of the target's position."""

    model: Model
    theta: Any

    def __call__(self, x: Array) -> Array:
        """Return the log density at x.

        On the sphere and the torus x is a vector in the plane or in space, of which only the
        direction counts: y = x/‖x‖, and −½‖x‖² keeps the length near one.
        """
        domain, radial = self.model.domain, jnp.zeros((), x.dtype)
        if isinstance(domain, Sphere | Torus):
            radial = -(x**2).sum() / 2
        y = on_domain(self.model, x)
        theta = jnp.asarray(self.theta, x.dtype)
        value = jnp.vdot(theta, self.model.statistics_of(y)) + self.model.base_of(y)
        return value + radial


def on_domain(model: Model, x: Array) -> Array:
    """Return the point y of the domain at a position of the target."""
    if isinstance(model.domain, Sphere):
        return model.domain.place(x)[0]
    return jnp.arctan2(x[1], x[0]) if isinstance(model.domain, Torus) else x


# Chains of `sample`.
CHAINS = 4


class FittedDensity(ScoreMatching):
    """Adds scores, target and draws to a closed-form fit."""

    def score_samples(self, X: Any) -> NDArray[np.float64]:
        """Return θ̂ᵀs + a of each row: the log density up to a constant, NOT normalised.

        The constant depends on θ̂, so these numbers do not compare models; `score` does.
        """
        self._need()
        return self._each(log_density_rows, X)

    def score(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, X: Any, y: Any = None, sample_weight: Any = None
    ) -> float:
        """Return minus the mean Hyvärinen score of the rows: higher is better.

        This is scikit-learn's `score`, a number for a model, and not the Stein score ∇ log p of
        `target().score(x)`. It needs no normalising constant, so cross-validation can compare
        models with it, provided that all of them use the SAME domain and weight: a different
        weight measures a different distance.
        """
        del y
        self._need()
        values = self._each(score_rows, X)
        return -float(np.average(values, weights=sample_weight))

    def _each(self, function: Any, X: Any) -> NDArray[np.float64]:
        rows: Any = validate_data(self, X, reset=False, dtype="numeric", ensure_all_finite=False)
        return values_of(function, rows, self._setup(rows.shape[1]), self.theta_)

    def target(self) -> Density:
        """Return the fitted density as a target for `sk.sample`, on its domain.

        Constrained domains come with their Jacobians. On the sphere and the torus the position is
        a vector in space or one plane vector per angle; only its direction counts.
        """
        self._need()
        dim = self.n_features_in_
        model = self._setup(dim).model
        domain = model.domain
        shape = (2, dim) if isinstance(domain, Torus) else (dim,)
        support = None
        if isinstance(domain, Box):
            support = box_constraint(domain, dim)
        elif isinstance(domain, Simplex):
            from numpyro.distributions import constraints

            support = constraints.simplex
        return from_log_density(
            LogDensity(model, np.asarray(self.theta_)), shape, support=support, name="y"
        )

    def sample(self, n_samples: int = 1, random_state: Any = None) -> NDArray[np.float64]:
        """Return `n_samples` rows drawn from the fitted density by MCMC (HMC), diagnosed.

        Rows of one chain follow each other, so neighbours are correlated.
        """
        return self._sample_by_chains(n_samples, random_state)

    def _sample_by_chains(self, n_samples: int, random_state: Any) -> NDArray[np.float64]:
        from samplekit.sampling.api import sample

        if n_samples < 1:
            raise EstimatorError(f"n_samples={n_samples}: ask for at least one row.")
        target, random = self.target(), generator(random_state)
        run = sample(
            target,
            draws=max(-(-n_samples // CHAINS), self._least_draws),
            chains=CHAINS,
            init=self._starts(random),
            seed=int(random.integers(2**31)),
            progress=False,
        )
        _diagnose(run, target)
        x = np.asarray(run["posterior"]["y"], np.float64)
        flat = x.reshape(-1, *x.shape[2:])
        at = np.linspace(0, len(flat) - 1, n_samples).astype(int)
        model = self._setup(self.n_features_in_).model
        return np.asarray(jax.vmap(lambda row: on_domain(model, row))(flat[at]), np.float64)

    _least_draws = 250  # of each chain: a run that is shorter cannot be judged

    def _starts(self, random: np.random.Generator) -> Any:
        """Return where the chains of `sample` begin; None leaves it to `sk.sample`."""
        del random


def values_of(
    function: Any, rows: Any, setup: Setup, theta: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return a number for each row, chunk by chunk."""
    runner = Runner(setup.model, rows.shape[1], len(setup.names))
    values = []
    for chunk in array_chunks(rows, None, runner.chunk):
        refuse_non_finite(chunk)
        checked = chunk._replace(rows=setup.model.domain.check(chunk.rows, chunk.start))
        values.append(runner.each(function, checked, theta))
    return np.concatenate(values).astype(np.float64)


def box_constraint(domain: Box, dim: int) -> Any:
    """Return NumPyro's constraint of a box, None for the reals."""
    from numpyro.distributions import constraints

    lower, upper = domain.bounds(dim)
    low, high = np.isfinite(lower), np.isfinite(upper)
    if not (low.any() or high.any()):
        return None
    if low.all() and high.all():
        return constraints.interval(lower, upper)
    if low.all() and not high.any():
        return constraints.positive if not lower.any() else constraints.greater_than(lower)
    if high.all() and not low.any():
        return constraints.less_than(upper)
    raise EstimatorError(
        "The domain bounds some columns on other sides than others, for which NumPyro has no "
        "single constraint. Build the target with sk.from_log_density and a support per leaf."
    )


def generator(random_state: Any) -> np.random.Generator:
    """Return NumPy's generator of an integer, a JAX key, a generator, or None (fresh entropy)."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31))
    if isinstance(random_state, jax.Array):
        key = random_state
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.key_data(key)
        return np.random.default_rng(np.asarray(key).ravel().astype(np.uint32))
    return np.random.default_rng(random_state)


def _diagnose(run: Any, target: Any) -> None:
    """Warn if the chains cannot be trusted."""
    from samplekit.diagnostics.diagnose import diagnose

    diagnosis = diagnose(run, target)
    if not diagnosis.ok:
        warnings.warn(f"The draws cannot be trusted as they are:\n{diagnosis}", stacklevel=4)
