"""The score of data at every noise level, by one network."""

from numbers import Integral
from pathlib import Path
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted, validate_data

from samplekit.core.errors import EstimatorError
from samplekit.core.keys import from_seed
from samplekit.core.protocols import Numbers
from samplekit.core.pytree import as_function, pytree, static
from samplekit.estimators.atomic import all_or_nothing
from samplekit.estimators.matching import NoiseMatching, Standardized
from samplekit.estimators.network import NetworkEstimator, check_network
from samplekit.estimators.noise_levels import findings, langevin_size, noise_levels
from samplekit.estimators.score_network import score_function
from samplekit.estimators.trained import TRAINING_CONSTRAINTS
from samplekit.networks import InnerProductEnergy, NoiseConditionalMLP
from samplekit.targets.density import Density, Score
from samplekit.targets.paths import check_levels
from samplekit.targets.space import Space, make_space

# Langevin steps a level, for which the step size is chosen.
STEPS = 100


@pytree
class AtLevel:
    """A network of (x, σ) at one σ."""

    network: Standardized
    level: Numbers

    def __call__(self, x: Array) -> Array:
        """Return the energy or the score of one row."""
        return self.network(x, self.level)


@pytree
class LearnedFamily:
    """The targets of a noise-conditional network, one a level, and the way through the levels.

    This is a path for `sk.anneal`, and a family for `sk.diffusion`.
    """

    network: Standardized
    levels: Numbers
    step_size: Numbers
    space: Space = static()
    kind: str = static(default="noise")

    def at(self, level: Any, /) -> Any:
        """Return the ordinary target at noise scale `level`: a density if conservative."""
        function = as_function(AtLevel(self.network, jnp.asarray(level)))
        if self.network.energy:
            return Density(function, -1.0, self.space)
        return Score(function, self.space)

    def start(self, key: Array, n: int, /) -> Array:
        """Return `n` rows of noise as wide as the first level, around the data's center."""
        center = self.network.center
        noise = jax.random.normal(key, (n, self.space.size), center.dtype)
        return center[None] + jnp.asarray(self.levels[0], center.dtype) * noise


class NoiseConditionalScoreNetwork(NetworkEstimator):
    """The scores of data plus noise, for noise from wider than the data to almost none.

    Parameters
    ----------
    levels
        Noise scales, falling, in the units of the data; or how many; None chooses by
        `sk.noise_levels`.
    network
        An Equinox module of one row and a noise scale, such as those of `sk.networks`: it returns
        a score shaped as the row. It sees data of mean 0 and overall variance 1, and noise on that
        scale. None takes `NoiseConditionalMLP`.
    conservative
        Make the score the gradient of an energy (−½⟨x, s(x, σ)⟩), so that every level is a density
        and Metropolis is exact.
    standardize
        Subtract the mean and divide by one overall standard deviation while training.
    epochs, batch_size, learning_rate, schedule, optimizer, clip, average
        How to train; see `samplekit.training.plan.Plan`.
    validation_fraction, patience, checkpoint, progress, random_state
        As in `GaussBernoulliRBM`; rows set aside are judged by the loss itself.

    Attributes
    ----------
    network_
        The trained network as a callable pytree of one row and a noise scale.
    levels_
        The noise scales.
    history_
        A data frame, one row an epoch.

    Notes
    -----
    (1/L) Σ ½E‖σ_i s(x + σ_i ε, σ_i) + ε‖² (Song and Ermon 2019, arXiv:1907.05600). −σ s is the ε of
    DDPM (Ho, Jain and Abbeel 2020) and x + σ² s its denoiser: `sk.networks` converts them.

    Examples
    --------
    >>> import numpy as np, samplekit as sk
    >>> X = np.random.default_rng(0).normal(size=(500, 2))
    >>> model = sk.NoiseConditionalScoreNetwork(epochs=5, random_state=0).fit(X)
    >>> out = sk.anneal(model.family(), steps=10, particles=100, progress=False)
    >>> out["posterior"]["x"].shape
    (100, 1, 2)
    """

    _parameter_constraints: dict[str, list[Any]] = TRAINING_CONSTRAINTS | {
        "levels": ["array-like", Interval(Integral, 2, None, closed="left"), None],
        "network": [callable, None],
        "conservative": ["boolean"],
        "standardize": ["boolean"],
    }

    def __init__(
        self,
        levels: Any = None,
        *,
        network: Any = None,
        conservative: bool = False,
        standardize: bool = True,
        epochs: int = 200,
        batch_size: int = 128,
        learning_rate: Any = 5e-3,
        schedule: str = "cosine",
        optimizer: Any = "adam",
        clip: float | None = 1.0,
        average: float = 0.999,
        validation_fraction: float = 0.0,
        patience: int | None = None,
        checkpoint: str | Path | None = None,
        progress: bool = True,
        random_state: Any = None,
    ) -> None:
        self.levels = levels
        self.network = network
        self.conservative = conservative
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

    _numbers = ("levels_", "step_size_")

    def _fresh(self, dim: int, seed: int) -> Any:
        network = self.network
        if network is None:
            network = NoiseConditionalMLP(from_seed(seed), dim)
        check_network(network, dim, (dim,), level=True)
        return InnerProductEnergy(network) if self.conservative else network

    def fit(self, X: Any, y: Any = None, *, devices: Any = None) -> Self:
        """Train on the rows of X; `y` is ignored.

        `devices`, a number, a list or a mesh, share every batch; None takes all GPUs or TPUs.
        """
        with all_or_nothing(self):
            self._validate_params()
            rows: Any = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=2)
            seed, dim = self._seed(), rows.shape[1]
            self.levels_, self.step_size_ = self._levels(rows)
            rows, center, scale = self._standardized(rows, isotropic=True)
            levels = np.asarray(self.levels_ / float(scale), rows.dtype)
            objective = NoiseMatching(levels, dim, energy=self.conservative)
            network = self._train(objective, self._fresh(dim, seed), rows, seed, devices=devices)
            self.network_ = Standardized(network, center, scale, energy=self.conservative)
        return self

    def _levels(self, rows: NDArray[Any]) -> tuple[NDArray[np.float64], float]:
        """Return the levels, given or chosen, and the step of Langevin at the last."""
        if self.levels is None or np.ndim(self.levels) == 0:
            chosen = noise_levels(rows, n_levels=self.levels)
            self._say(chosen.findings)
            return chosen.levels, chosen.step_size
        levels = check_levels(self.levels, "noise")
        self._say(findings(rows, sigma=float(levels[-1])))
        return levels, langevin_size(levels, rows.shape[1], STEPS)

    def family(self) -> LearnedFamily:
        """Return the learned targets of all levels, which `sk.anneal` takes as its path."""
        check_is_fitted(self, "network_")
        levels = np.asarray(self.levels_, self.network_.center.dtype)
        step = np.asarray(self.step_size_, levels.dtype)
        return LearnedFamily(self.network_, levels, step, make_space(self.n_features_in_))

    def target(self, level: float | None = None) -> Any:
        """Return the target at one noise scale; None is the smallest.

        Parameters
        ----------
        level
            The noise scale, in the units of the data.
        """
        check_is_fitted(self, "network_")
        return self.family().at(self.levels_[-1] if level is None else level)

    def stein_score(self, X: Any, sigma: float) -> NDArray[Any]:
        """Return the learned ∇ log p of the data plus noise of this scale, at each row."""
        rows = self._rows(X, "network_")
        return np.asarray(_scores(self.network_, rows, np.asarray(sigma, rows.dtype)))

    def denoise(self, X: Any, sigma: float) -> NDArray[Any]:
        """Return E[x | x + σε] of each noisy row, by Tweedie's formula x + σ² s(x, σ).

        Parameters
        ----------
        X
            Noisy rows.
        sigma
            The standard deviation of their noise, in the units of the data.
        """
        if not sigma > 0:
            raise EstimatorError(f"sigma={sigma} is no noise: give a positive number.")
        rows = self._rows(X, "network_")
        return rows + np.asarray(sigma**2, rows.dtype) * self.stein_score(rows, sigma)

    def score(self, X: Any, y: Any = None) -> float:
        """Return minus the mean loss over rows and levels, with fixed noise: higher is better.

        This is scikit-learn's `score`; the Stein score ∇ log p is `stein_score`.
        """
        del y
        rows = self._rows(X, "network_")
        scale = float(self.network_.scale)
        scaled = (rows - np.asarray(self.network_.center)) / np.asarray(scale, rows.dtype)
        levels = np.asarray(self.levels_ / scale, rows.dtype)
        objective = NoiseMatching(levels, rows.shape[1], energy=self.conservative)
        return -float(_loss(objective, self.network_.net, scaled))

    def sample(self, n_samples: int = 1, steps: int = STEPS) -> NDArray[Any]:
        """Draw rows by annealed Langevin down the levels, the last noise removed.

        Parameters
        ----------
        n_samples
            Rows to draw.
        steps
            Langevin steps a level.
        """
        from samplekit.sampling.anneal import anneal

        if n_samples < 1:
            raise EstimatorError(f"n_samples={n_samples}: ask for at least one row.")
        out = anneal(
            self.family(),
            steps=steps,
            particles=max(2, n_samples),
            seed=self._seed(),
            progress=self.progress,
        )
        return np.asarray(out["posterior"]["x"])[:n_samples, 0]

    def _model(self) -> Any:
        check_is_fitted(self, "network_")
        return self.network_

    def _restore(self, dim: int, leaves: Any) -> None:
        real = jnp.result_type(float)
        center, scale = jnp.zeros(dim, real), jnp.zeros((), real)
        fresh = Standardized(self._fresh(dim, 0), center, scale, energy=self.conservative)
        self.network_ = leaves(fresh)


@eqx.filter_jit
def _scores(network: Any, rows: Any, sigma: Any) -> Any:
    return jax.vmap(score_function(network), (0, None))(rows, sigma)


@eqx.filter_jit
def _loss(objective: NoiseMatching, network: Any, rows: Any) -> Any:
    return objective.loss(jax.random.key(0), network, rows)
