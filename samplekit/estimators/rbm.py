"""Restricted Boltzmann machines as scikit-learn estimators and transformers."""

import warnings
from numbers import Real
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import validate_data

from samplekit.core.errors import DataWarning, EstimatorError
from samplekit.estimators.atomic import all_or_nothing
from samplekit.estimators.rbm_base import BoltzmannMachine, as_real
from samplekit.estimators.rbm_fisher import fisher_gradient
from samplekit.estimators.rbm_objectives import Fisher
from samplekit.targets.boltzmann import BernoulliBernoulli, GaussBernoulli

# Standard deviations beyond these do not fit visible units of unit variance.
_NARROW, _WIDE = 0.2, 5.0
# Of the weights before training: small, so that hidden units start out undecided.
_INITIAL = 0.1
# Rows that are looked at together where memory would grow with the data.
_ROWS = 256


class GaussBernoulliRBM(BoltzmannMachine):
    """A machine with real visible and binary hidden units, trained by its Fisher score.

    Parameters
    ----------
    n_components
        Hidden units.
    method
        "fisher": minimise the Fisher (Hyvärinen) score, whose gradient is closed form: no sampling,
        and a loss that falls. "cd": contrastive divergence. "pcd": the same with persistent chains.
    variance
        Of the visible units given the hidden ones: "unit", or "learned", one for each.
    standardize
        Scale the columns to mean 0 and variance 1 while training. The fitted machine is in the
        units of the data all the same.
    gibbs_steps
        Steps of "cd" and "pcd" a batch.
    chains
        Persistent chains of "pcd"; None takes as many as there are rows in a batch.
    epochs, batch_size, learning_rate, schedule, optimizer, clip, average
        How to train; see `samplekit.training.plan.Plan`.
    validation_fraction, patience
        Rows set aside, whose Fisher score is in `history_` whatever the method; and how many epochs
        without a better one end the training.
    checkpoint
        A file that training writes to and, if it exists, goes on from.
    progress
        Show a bar on anything longer than a second.
    random_state
        A seed.

    Attributes
    ----------
    components_, intercept_hidden_, intercept_visible_, variance_
        W, b, c and σ².
    history_
        A data frame, one row an epoch; `plot_history()` draws it.

    Notes
    -----
    E(v, h) = Σ (v_i − c_i)²/2σ_i² − bᵀh − Σ h_j W_ji v_i/σ_i². The Fisher score is
    J = ½‖∇ log p‖² + Δ log p, averaged over the data (Hyvärinen 2005): it needs no log Z.

    Examples
    --------
    >>> import numpy as np, samplekit as sk
    >>> X = np.random.default_rng(0).normal(size=(500, 4))
    >>> machine = sk.GaussBernoulliRBM(3, epochs=5, random_state=0).fit(X)
    >>> machine.transform(X).shape
    (500, 3)
    >>> machine.log_likelihood(X).mean() > -6.5
    np.True_
    """

    _parameter_constraints: dict[str, list[Any]] = BoltzmannMachine._parameter_constraints | {
        "method": [StrOptions({"fisher", "cd", "pcd"})],
        "variance": [StrOptions({"unit", "learned"})],
        "standardize": ["boolean"],
    }

    def __init__(
        self,
        n_components: int = 32,
        *,
        method: str = "fisher",
        variance: str = "unit",
        standardize: bool = False,
        gibbs_steps: int = 1,
        chains: int | None = None,
        epochs: int = 50,
        batch_size: int = 100,
        learning_rate: Any = 0.01,
        schedule: str = "constant",
        optimizer: Any = "adam",
        clip: float | None = None,
        average: float = 0.0,
        validation_fraction: float = 0.0,
        patience: int | None = None,
        checkpoint: str | Path | None = None,
        progress: bool = True,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.method = method
        self.variance = variance
        self.standardize = standardize
        self.gibbs_steps = gibbs_steps
        self.chains = chains
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.optimizer = optimizer
        self.clip = clip
        self.average = average
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.checkpoint = checkpoint
        self.progress = progress
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, devices: Any = None) -> Self:
        """Train on the rows of X; `y` is ignored.

        `devices`, a number, a list or a mesh, share every batch; None takes all GPUs or TPUs.
        """
        with all_or_nothing(self):
            self._validate_params()
            rows: Any = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=2)
            center, scale = np.zeros(rows.shape[1]), np.ones(rows.shape[1])
            deviations = rows.std(axis=0, dtype=np.float64)
            self._judge(rows, deviations)
            if self.standardize:
                center = rows.mean(axis=0, dtype=np.float64)
                scale = np.where(deviations > 0, deviations, 1.0)
                rows = (rows - center) / scale
            unit, seed = self.variance == "unit", self._seed()
            objective = Fisher(unit) if self.method == "fisher" else self._contrastive(unit=unit)
            machine = self._train(objective, self._initial(rows, seed), rows, seed, devices=devices)
            self.machine_ = _unscaled(machine, center, scale)
        return self

    def _judge(self, rows: NDArray[Any], deviations: NDArray[np.float64]) -> None:
        """Refuse, or warn of, data that this machine does not suit."""
        constant = np.flatnonzero(deviations == 0)
        if constant.size and self.variance == "learned":
            raise EstimatorError(
                f"{_columns(constant)} constant: the variance given the hidden units would fall to "
                "zero, and the density rise without bound. Drop them, or take variance='unit'."
            )
        if np.all((rows == 0) | (rows == 1)):
            warnings.warn(
                "All values are 0 or 1: binary units are what sk.BernoulliRBM is for. This machine "
                "sees them as real numbers.",
                DataWarning,
                stacklevel=3,
            )
        elif not self.standardize and self.variance == "unit":
            varied = deviations[deviations > 0]
            if varied.size and (varied.max() > _WIDE or varied.max() < _NARROW):
                warnings.warn(
                    f"The columns' standard deviations go from {varied.min():.3g} to "
                    f"{varied.max():.3g}, but visible units of unit variance suit deviations "
                    "around 1. Give standardize=True, or variance='learned'.",
                    DataWarning,
                    stacklevel=3,
                )
        if constant.size:
            warnings.warn(
                f"{_columns(constant)} constant, and the machine adds noise of unit variance to "
                "them. Drop them to spare the work.",
                DataWarning,
                stacklevel=3,
            )

    def _initial(self, rows: NDArray[Any], seed: int) -> GaussBernoulli:
        """Return the machine before training: the same for every method."""
        shape = (self.n_components, rows.shape[1])
        real = jnp.result_type(float)
        W = np.random.default_rng(seed).normal(scale=_INITIAL / np.sqrt(shape[1]), size=shape)
        center = rows.mean(axis=0) - W.mean(axis=0) * self.n_components / 2
        log_variance = np.zeros(shape[1])
        if self.variance == "learned":
            log_variance = np.log(rows.var(axis=0))
        parts = (W, np.zeros(shape[0]), center, log_variance)
        return GaussBernoulli.of(*(jnp.asarray(part, real) for part in parts))

    def score(self, X: Any, y: Any = None) -> float:
        """Return minus the mean Fisher score of the rows: higher is better.

        This is scikit-learn's `score`, not the Stein score ∇ log p, which `target().score` is.
        """
        del y
        rows = self._rows(X)
        return -float(_fisher(self.machine_, as_real(rows)))

    def score_samples(self, X: Any) -> NDArray[Any]:
        """Return the log density of each row up to log Z; `log_likelihood` adds that."""
        return -self.free_energy(X)

    @property
    def variance_(self) -> NDArray[np.float64]:
        """The variances of the visible units given the hidden ones."""
        return np.exp(np.asarray(self.machine_.log_variance, np.float64))


def _columns(which: NDArray[Any]) -> str:
    """Name some columns, and say how many more there are."""
    shown = ", ".join(str(i) for i in which[:5])
    more = f" and {which.size - 5} more" if which.size > 5 else ""
    return f"Column {shown} is" if which.size == 1 else f"Columns {shown}{more} are"


def _unscaled(machine: GaussBernoulli, center: Any, scale: Any) -> GaussBernoulli:
    """Return the same machine for v = center + scale·v', in double precision on the host.

    σ → scale·σ, c → center + scale·c, W → W·scale, b → b − W(center/(scale·σ²)).
    """
    W, b, c, log_variance = (np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(machine))
    shift = W @ (center / scale * np.exp(-log_variance))
    parts = (W * scale, b - shift, center + scale * c, log_variance + 2 * np.log(scale))
    return GaussBernoulli.of(*(jnp.asarray(part, machine.weights.dtype) for part in parts))


@jax.jit
def _fisher(machine: GaussBernoulli, rows: Any) -> Any:
    return fisher_gradient(machine, rows).loss


class BernoulliRBM(BoltzmannMachine):
    """A machine with binary visible and hidden units.

    Parameters
    ----------
    n_components
        Hidden units.
    method
        "pcd": contrastive divergence with persistent chains; "cd": with chains from the data.
    binarize
        None takes values between 0 and 1 as they are; a number makes 1 of all that is above it.
    gibbs_steps, chains, epochs, batch_size, learning_rate, schedule, optimizer, clip, average
        As in `GaussBernoulliRBM`.
    validation_fraction, patience, checkpoint, progress, random_state
        As in `GaussBernoulliRBM`; rows set aside are judged by their pseudo-likelihood.

    Notes
    -----
    E(v, h) = −cᵀv − bᵀh − hᵀWv (Hinton 2002; Tieleman 2008). `score` and `score_samples` are the
    pseudo-likelihood Σ_i log p(v_i | the others), as in scikit-learn, here over all sites.

    Examples
    --------
    >>> import numpy as np, samplekit as sk
    >>> X = np.random.default_rng(0).integers(2, size=(200, 6))
    >>> machine = sk.BernoulliRBM(3, epochs=5, random_state=0).fit(X)
    >>> machine.sample(2).shape
    (2, 6)
    """

    _parameter_constraints: dict[str, list[Any]] = BoltzmannMachine._parameter_constraints | {
        "method": [StrOptions({"cd", "pcd"})],
        "binarize": [Interval(Real, None, None, closed="neither"), None],
    }

    def __init__(
        self,
        n_components: int = 32,
        *,
        method: str = "pcd",
        binarize: float | None = None,
        gibbs_steps: int = 1,
        chains: int | None = None,
        epochs: int = 50,
        batch_size: int = 10,
        learning_rate: Any = 0.01,
        schedule: str = "constant",
        optimizer: Any = "adam",
        clip: float | None = None,
        average: float = 0.0,
        validation_fraction: float = 0.0,
        patience: int | None = None,
        checkpoint: str | Path | None = None,
        progress: bool = True,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.method = method
        self.binarize = binarize
        self.gibbs_steps = gibbs_steps
        self.chains = chains
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.optimizer = optimizer
        self.clip = clip
        self.average = average
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.checkpoint = checkpoint
        self.progress = progress
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, devices: Any = None) -> Self:
        """Train on the rows of X; `y` is ignored.

        `devices`, a number, a list or a mesh, share every batch; None takes all GPUs or TPUs.
        """
        with all_or_nothing(self):
            self._validate_params()
            rows: Any = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=2)
            rows, seed = self._binary(rows), self._seed()
            constant = np.flatnonzero(rows.std(axis=0) == 0)
            if constant.size:
                warnings.warn(
                    f"{_columns(constant)} constant: their biases grow for as long as training "
                    "lasts. Drop them to spare the work.",
                    DataWarning,
                    stacklevel=2,
                )
            objective = self._contrastive(unit=False)
            self.machine_ = self._train(
                objective, self._initial(rows, seed), rows, seed, devices=devices
            )
        return self

    def _rows(self, X: Any) -> NDArray[Any]:
        return self._binary(super()._rows(X))

    def _binary(self, rows: NDArray[Any]) -> NDArray[Any]:
        if self.binarize is not None:
            return (rows > self.binarize).astype(rows.dtype)
        if rows.min() < 0 or rows.max() > 1:
            raise EstimatorError(
                f"The values go from {rows.min():.3g} to {rows.max():.3g}, but binary units are 0 "
                "or 1 (or a probability between). Give binarize=0.0, or another threshold; for "
                "real values take sk.GaussBernoulliRBM."
            )
        return rows

    def _initial(self, rows: NDArray[Any], seed: int) -> BernoulliBernoulli:
        """Return the machine before training: the right mean for each visible unit."""
        shape, real = (self.n_components, rows.shape[1]), jnp.result_type(float)
        W = np.random.default_rng(seed).normal(scale=_INITIAL / np.sqrt(shape[1]), size=shape)
        mean = (rows.sum(axis=0) + 0.5) / (len(rows) + 1)
        parts = (W, np.zeros(shape[0]), np.log(mean / (1 - mean)))
        return BernoulliBernoulli.of(*(jnp.asarray(part, real) for part in parts))

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean pseudo-log-likelihood of the rows: higher is better."""
        del y
        return float(np.mean(self.score_samples(X)))

    def score_samples(self, X: Any) -> NDArray[Any]:
        """Return the pseudo-log-likelihood of each row, over all sites (Besag 1975)."""
        rows = self._rows(X)
        return np.asarray(_pseudo(self.machine_, as_real(rows)), rows.dtype)

    def _least_units(self) -> int:
        return min(self.n_components, self.n_features_in_)


@jax.jit
def _pseudo(machine: BernoulliBernoulli, rows: Any) -> Any:
    return jax.lax.map(machine.pseudo_log_likelihood, rows, batch_size=_ROWS)
