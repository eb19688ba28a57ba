"""What the two Boltzmann machines share: the scikit-learn surface of a fitted machine."""

from numbers import Integral
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted, validate_data

from samplekit.core.errors import EstimatorError
from samplekit.estimators.rbm_objectives import Contrastive
from samplekit.estimators.trained import TRAINING_CONSTRAINTS, TrainedEstimator

# The sum over all hidden states of a machine with binary visible units, each of which is visited in
# every state, takes about a minute at this many hidden units, and twice that at one more.
MOST_EXACT = 25


class LogNormalizer(NamedTuple):
    """log Z and its standard error, which is zero for an exact sum."""

    value: float
    error: float


class BoltzmannMachine(ClassNamePrefixFeaturesOutMixin, TransformerMixin, TrainedEstimator):
    """What both machines share; the fitted one is `machine_`."""

    _parameter_constraints: dict[str, list[Any]] = TRAINING_CONSTRAINTS | {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "gibbs_steps": [Interval(Integral, 1, None, closed="left")],
        "chains": [Interval(Integral, 1, None, closed="left"), None],
    }
    n_components: int
    method: str
    gibbs_steps: int
    chains: int | None
    machine_: Any

    def _contrastive(self, *, unit: bool) -> Contrastive:
        chains = 0 if self.method == "cd" else (self.chains or self.batch_size)
        return Contrastive(unit, self.gibbs_steps, chains)

    @property
    def components_(self) -> NDArray[np.float64]:
        """The weights W, one hidden unit a row."""
        check_is_fitted(self, "machine_")
        return np.asarray(self.machine_.weights, np.float64)

    @property
    def intercept_hidden_(self) -> NDArray[np.float64]:
        """The biases b of the hidden units."""
        check_is_fitted(self, "machine_")
        return np.asarray(self.machine_.hidden_bias, np.float64)

    @property
    def intercept_visible_(self) -> NDArray[np.float64]:
        """The biases c of the visible units."""
        check_is_fitted(self, "machine_")
        return np.asarray(self.machine_.visible_bias, np.float64)

    @property
    def _n_features_out(self) -> int:
        return self.n_components

    def _rows(self, X: Any) -> NDArray[Any]:
        """Return new data, checked."""
        check_is_fitted(self, "machine_")
        rows: Any = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        return rows

    def transform(self, X: Any) -> NDArray[Any]:
        """Return the probabilities of the hidden units given each row.

        Parameters
        ----------
        X
            Rows of visible units.
        """
        rows = self._rows(X)
        return np.asarray(_hidden(self.machine_, as_real(rows)), rows.dtype)

    def free_energy(self, X: Any) -> NDArray[Any]:
        """Return F(v) of each row: minus its log density, up to log Z."""
        rows = self._rows(X)
        return -np.asarray(_log_density(self.machine_, as_real(rows)), rows.dtype)

    def reconstruct(self, X: Any) -> NDArray[Any]:
        """Return E[v | h] at the hidden probabilities h of each row."""
        rows = self._rows(X)
        return np.asarray(_reconstruct(self.machine_, as_real(rows)), rows.dtype)

    def target(self) -> Any:
        """Return the fitted machine as a target for `sk.sample`: its free energy, and `gibbs`.

        Examples
        --------
        >>> import numpy as np, samplekit as sk
        >>> X = np.random.default_rng(0).normal(size=(100, 3))
        >>> machine = sk.GaussBernoulliRBM(2, epochs=2, random_state=0).fit(X)
        >>> run = sk.sample(machine.target(), sk.Gibbs(), draws=50, warmup=10, progress=False)
        >>> run["posterior"]["x"].shape
        (4, 50, 3)
        """
        check_is_fitted(self, "machine_")
        return self.machine_

    def sample(self, n_samples: int = 1, gibbs_steps: int = 1000) -> NDArray[Any]:
        """Draw visible units by block Gibbs, each row from a chain of its own.

        Parameters
        ----------
        n_samples
            Rows to draw.
        gibbs_steps
            Steps of each chain from a start where the units are independent. Whether these are
            enough is told by `sk.diagnose(sk.sample(machine.target(), sk.Gibbs()))`.
        """
        check_is_fitted(self, "machine_")
        if n_samples < 1 or gibbs_steps < 1:
            raise EstimatorError(
                f"n_samples={n_samples}, gibbs_steps={gibbs_steps}: both must be at least 1."
            )
        key = jax.random.key(self._seed())
        return np.asarray(_sample(self.machine_, key, n_samples, np.int32(gibbs_steps)))

    def log_normalizer(
        self, method: str = "exact", *, levels: int = 1000, particles: int = 200
    ) -> LogNormalizer:
        """Return log Z with its standard error.

        Parameters
        ----------
        method
            "exact" sums over all states of the hidden units, up to 25 of them; "ais" is annealed
            importance sampling (Neal 2001; Salakhutdinov and Murray 2008).
        levels, particles
            Inverse temperatures and independent runs of "ais".
        """
        from samplekit.estimators.rbm_normalizer import annealed, exact

        check_is_fitted(self, "machine_")
        if method == "exact":
            units = self._least_units()
            if units > MOST_EXACT:
                raise EstimatorError(
                    f"log Z of {units} units is a sum of 2^{units} terms, which takes too long "
                    f"beyond {MOST_EXACT}. Take method='ais', which also tells its error."
                )
            return LogNormalizer(exact(self.machine_), 0.0)
        if method != "ais":
            raise EstimatorError(f"method={method!r} is unknown: take 'exact' or 'ais'.")
        seed = self._seed()
        return LogNormalizer(*annealed(self.machine_, levels, particles, seed))

    def _least_units(self) -> int:
        return self.n_components

    def log_likelihood(self, X: Any, method: str | None = None) -> NDArray[np.float64]:
        """Return log p(v) of each row, normalised.

        Parameters
        ----------
        X
            Rows of visible units.
        method
            How log Z is found; None takes "exact" where that is possible, else "ais". All rows
            share its error: see `log_normalizer`.
        """
        few = self._least_units() <= MOST_EXACT
        value = self.log_normalizer(method or ("exact" if few else "ais")).value
        return -self.free_energy(X).astype(np.float64) - value


def as_real(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the rows in the precision that JAX computes in."""
    return rows.astype(jnp.result_type(float), copy=False)


@jax.jit
def _hidden(machine: Any, rows: Any) -> Any:
    return jax.vmap(lambda v: jax.nn.sigmoid(machine.activation(v)))(rows)


@jax.jit
def _log_density(machine: Any, rows: Any) -> Any:
    return jax.vmap(machine.log_density)(rows)


@jax.jit
def _reconstruct(machine: Any, rows: Any) -> Any:
    return jax.vmap(lambda v: machine.mean_given(jax.nn.sigmoid(machine.activation(v))))(rows)


@jax.jit(static_argnums=2)
def _sample(machine: Any, key: Any, rows: int, steps: Any) -> Any:
    start, run = jax.random.split(key)

    def sweep(step: Any, v: Any) -> Any:
        noise = machine.noise(jax.random.fold_in(run, step), rows)
        return jax.vmap(machine.sweep)(noise, v)

    free = machine.at(jnp.zeros((), machine.weights.dtype))
    begin = jnp.zeros((rows, machine.visible_bias.size), machine.weights.dtype)
    return jax.lax.fori_loop(0, steps, sweep, jax.vmap(free.sweep)(free.noise(start, rows), begin))
