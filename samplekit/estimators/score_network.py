"""Scores by networks: at one noise level, or at all of them."""

from numbers import Integral, Real
from pathlib import Path
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from samplekit import losses
from samplekit.core.errors import EstimatorError
from samplekit.core.keys import from_seed
from samplekit.estimators.atomic import all_or_nothing
from samplekit.estimators.matching import METHODS, Matching, Standardized, matching_score
from samplekit.estimators.network import NetworkEstimator, check_network
from samplekit.estimators.noise_levels import findings
from samplekit.estimators.trained import TRAINING_CONSTRAINTS
from samplekit.networks import MLP, EnergyMLP
from samplekit.targets.density import from_energy, from_score


class ScoreNetwork(NetworkEstimator):
    """The score ∇ log p of data, learned by a network.

    Parameters
    ----------
    method
        "denoising": the score of the data plus Gaussian noise; "sliced": of the data, by random
        directions; "implicit": of the data, with the exact divergence, for few columns.
    network
        An Equinox module that takes one row and returns a score shaped as the row (with
        `conservative` an energy: one number). None takes a multilayer perceptron.
    conservative
        Learn an energy E, whose score −∇E is a gradient: there is then a density, and Metropolis
        kernels are exact.
    sigma
        Noise of "denoising", in standard deviations of the data.
    probes
        Random directions a row of "sliced".
    standardize
        Train on columns of mean 0 and variance 1. The score is one of the data all the same.
    epochs, batch_size, learning_rate, schedule, optimizer, clip, average
        How to train; see `samplekit.training.plan.Plan`.
    validation_fraction, patience, checkpoint, progress, random_state
        As in `GaussBernoulliRBM`; rows set aside are judged by the loss itself.

    Attributes
    ----------
    network_
        The trained network as a callable pytree of one row: a score, or with `conservative` an
        energy.
    history_
        A data frame, one row an epoch.

    Notes
    -----
    Hyvärinen 2005 ("implicit"), Song, Garg, Shi and Ermon 2019 ("sliced"), Vincent 2011
    ("denoising"). See `sk.losses`.

    Examples
    --------
    >>> import numpy as np, samplekit as sk
    >>> X = np.random.default_rng(0).normal(size=(500, 2))
    >>> model = sk.ScoreNetwork(method="sliced", epochs=5, random_state=0).fit(X)
    >>> run = sk.sample(model.target(), sk.ScoreMALA(), draws=50, warmup=100, progress=False)
    >>> run["posterior"]["x"].shape
    (4, 50, 2)
    """

    _parameter_constraints: dict[str, list[Any]] = TRAINING_CONSTRAINTS | {
        "method": [StrOptions(set(METHODS))],
        "network": [callable, None],
        "conservative": ["boolean"],
        "sigma": [Interval(Real, 0, None, closed="neither")],
        "probes": [Interval(Integral, 1, None, closed="left")],
        "standardize": ["boolean"],
    }

    def __init__(
        self,
        method: str = "denoising",
        *,
        network: Any = None,
        conservative: bool = False,
        sigma: float = 0.1,
        probes: int = 1,
        standardize: bool = True,
        epochs: int = 100,
        batch_size: int = 128,
        learning_rate: Any = 1e-3,
        schedule: str = "cosine",
        optimizer: Any = "adam",
        clip: float | None = 1.0,
        average: float = 0.99,
        validation_fraction: float = 0.0,
        patience: int | None = None,
        checkpoint: str | Path | None = None,
        progress: bool = True,
        random_state: Any = None,
    ) -> None:
        self.method = method
        self.network = network
        self.conservative = conservative
        self.sigma = sigma
        self.probes = probes
        self.standardize = standardize
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

    def _fresh(self, dim: int, seed: int) -> Any:
        if self.network is not None:
            return self.network
        key = from_seed(seed)
        return EnergyMLP(key, dim, confinement=1.0) if self.conservative else MLP(key, dim)

    def fit(self, X: Any, y: Any = None, *, devices: Any = None) -> Self:
        """Train on the rows of X; `y` is ignored.

        `devices`, a number, a list or a mesh, share every batch; None takes all GPUs or TPUs.
        """
        with all_or_nothing(self):
            self._validate_params()
            rows: Any = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=2)
            seed, dim = self._seed(), rows.shape[1]
            network = self._fresh(dim, seed)
            check_network(network, dim, () if self.conservative else (dim,))
            rows, center, scale = self._standardized(rows)
            noise = self.sigma if self.method == "denoising" else None
            self._say(findings(rows, sigma=noise))
            sigma = np.asarray(self.sigma, rows.dtype)
            objective = Matching(sigma, self.method, dim, self.probes, energy=self.conservative)
            network = self._train(objective, network, rows, seed, devices=devices)
            self.network_ = Standardized(network, center, scale, energy=self.conservative)
        return self

    def stein_score(self, X: Any) -> NDArray[Any]:
        """Return the learned ∇ log p at each row."""
        rows = self._rows(X, "network_")
        return np.asarray(_scores(self.network_, rows))

    def score(self, X: Any, y: Any = None) -> float:
        """Return minus the mean Hyvärinen score of the rows: higher is better.

        This is scikit-learn's `score`; the Stein score ∇ log p is `stein_score`. Beyond 16 columns
        the divergence is estimated with random probes, always the same ones.
        """
        del y
        rows = self._rows(X, "network_")
        return -float(_mean_score(self.network_, rows))

    def target(self) -> Any:
        """Return the learned score as a target for `sk.sample`; a density if conservative."""
        check_is_fitted(self, "network_")
        make = from_energy if self.conservative else from_score
        return make(self.network_, self.n_features_in_)

    def denoise(self, X: Any) -> NDArray[Any]:
        """Return E[x | x + noise] of each row, by Tweedie's formula x + σ² s(x).

        The noise is that of `method="denoising"`, σ = `sigma` standard deviations of the data.
        """
        if self.method != "denoising":
            raise EstimatorError(
                f"method={self.method!r} learns the score of the data themselves, which holds no "
                "noise to remove. Fit with method='denoising'."
            )
        rows = self._rows(X, "network_")
        noise = self.sigma * np.asarray(self.network_.scale)
        return rows + noise**2 * self.stein_score(rows)

    def _model(self) -> Any:
        check_is_fitted(self, "network_")
        return self.network_

    def _restore(self, dim: int, leaves: Any) -> None:
        blank = jnp.zeros(dim, jnp.result_type(float))
        fresh = Standardized(self._fresh(dim, 0), blank, blank, energy=self.conservative)
        self.network_ = leaves(fresh)


def score_function(network: Any) -> Any:
    """Return the score of a trained network, be it a score or an energy."""
    return losses.score_of(network) if network.energy else network


@eqx.filter_jit
def _scores(network: Any, rows: Any) -> Any:
    return jax.vmap(score_function(network))(rows)


@eqx.filter_jit
def _mean_score(network: Any, rows: Any) -> Any:
    return matching_score(score_function(network), rows)
