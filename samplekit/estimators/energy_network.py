"""Energies by networks, trained by contrastive divergence or by score matching."""

from numbers import Integral, Real
from pathlib import Path
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from sklearn.base import DensityMixin
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from samplekit import losses
from samplekit.core.keys import from_seed
from samplekit.estimators.atomic import all_or_nothing
from samplekit.estimators.contrast import ChainContrast, fitted_kernel
from samplekit.estimators.matching import METHODS, Matching, Standardized, matching_score
from samplekit.estimators.network import NetworkEstimator, check_network
from samplekit.estimators.noise_levels import findings
from samplekit.estimators.trained import TRAINING_CONSTRAINTS
from samplekit.networks import EnergyMLP
from samplekit.targets.density import from_energy
from samplekit.targets.space import make_space


class EnergyNetwork(DensityMixin, NetworkEstimator):
    """An energy E, p ∝ exp(−E), given by any network and learned from data.

    Parameters
    ----------
    network
        An Equinox module (or any callable pytree) that takes one row and returns one number;
        `sk.networks` has some. None takes `EnergyMLP` with a standard normal as its base.
    method
        "cd": contrastive divergence, chains from `begin`; "pcd": chains from a replay buffer;
        "denoising", "sliced", "implicit": score matching, without chains.
    kernel
        What moves the chains: any kernel of samplekit. A step size left open is tuned while
        training. None takes `MALA()`.
    kernel_steps
        Steps of the kernel a batch.
    begin
        Where the chains of "cd" begin: "data" or "noise".
    buffer_size, refresh
        Chains in the buffer of "pcd", and the part of them that is started anew from noise each
        time they are used.
    energy_penalty
        Weight of the mean square of energies, which keeps them from drifting.
    sigma
        Noise of "denoising", in standard deviations of the data. What is learned is the energy of
        the data plus that noise.
    probes
        Random directions a row of "sliced".
    standardize
        Train on columns of mean 0 and variance 1. The energy is one of the data all the same.
    epochs, batch_size, learning_rate, schedule, optimizer, clip, average
        How to train; see `samplekit.training.plan.Plan`.
    validation_fraction, patience, checkpoint, progress, random_state
        As in `GaussBernoulliRBM`. Rows set aside are judged by their Hyvärinen score ("denoising":
        by its loss).

    Attributes
    ----------
    energy_
        The trained energy, a callable pytree of one row.
    history_
        A data frame, one row an epoch: losses, energy gap, acceptance and spread of the chains.

    Notes
    -----
    Contrastive divergence follows ∂/∂θ [mean E(x⁺) − mean E(x⁻)] (Hinton 2002); no loss falls. A
    training whose chains or energies go astray ends in a `TrainingError` that says so.

    Examples
    --------
    >>> import numpy as np, samplekit as sk
    >>> X = np.random.default_rng(0).normal(size=(500, 2))
    >>> model = sk.EnergyNetwork(method="sliced", epochs=5, random_state=0).fit(X)
    >>> model.energy(X).shape
    (500,)
    >>> run = sk.sample(model.target(), draws=50, warmup=100, progress=False)
    """

    _parameter_constraints: dict[str, list[Any]] = TRAINING_CONSTRAINTS | {
        "network": [callable, None],
        "method": [StrOptions({"cd", "pcd", *METHODS})],
        "kernel": [HasMethods(["init", "step"]), None],
        "kernel_steps": [Interval(Integral, 1, None, closed="left")],
        "begin": [StrOptions({"data", "noise"})],
        "buffer_size": [Interval(Integral, 1, None, closed="left")],
        "refresh": [Interval(Real, 0, 1, closed="both")],
        "energy_penalty": [Interval(Real, 0, None, closed="left")],
        "sigma": [Interval(Real, 0, None, closed="neither")],
        "probes": [Interval(Integral, 1, None, closed="left")],
        "standardize": ["boolean"],
    }

    def __init__(
        self,
        network: Any = None,
        *,
        method: str = "pcd",
        kernel: Any = None,
        kernel_steps: int = 10,
        begin: str = "data",
        buffer_size: int = 10_000,
        refresh: float = 0.05,
        energy_penalty: float = 0.01,
        sigma: float = 0.1,
        probes: int = 1,
        standardize: bool = True,
        epochs: int = 50,
        batch_size: int = 100,
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
        self.network = network
        self.method = method
        self.kernel = kernel
        self.kernel_steps = kernel_steps
        self.begin = begin
        self.buffer_size = buffer_size
        self.refresh = refresh
        self.energy_penalty = energy_penalty
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
        return EnergyMLP(from_seed(seed), dim, confinement=1.0)

    def _objective(self, dim: int, rows: int) -> Any:
        real = jnp.result_type(float)
        if self.method in METHODS:
            sigma = np.asarray(self.sigma, real)
            return Matching(sigma, self.method, dim, self.probes, energy=True)
        from samplekit.kernels.langevin import MALA
        from samplekit.sampling.settings import check_fit

        kernel = MALA() if self.kernel is None else self.kernel
        check_fit(from_energy(lambda x: jnp.sum(x**2), dim), kernel)
        prepared, goal = fitted_kernel(kernel, dim, real)
        batch = min(self.batch_size, rows)
        return ChainContrast(
            prepared,
            np.asarray(self.energy_penalty, real),
            np.asarray(self.refresh, real),
            make_space(dim),
            self.kernel_steps,
            "buffer" if self.method == "pcd" else self.begin,
            -(-max(self.buffer_size, batch) // batch) * batch,
            goal,
        )

    def fit(self, X: Any, y: Any = None, *, devices: Any = None) -> Self:
        """Train on the rows of X; `y` is ignored.

        `devices`, a number, a list or a mesh, share every batch; None takes all GPUs or TPUs.
        """
        with all_or_nothing(self):
            self._validate_params()
            rows: Any = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=2)
            seed, dim = self._seed(), rows.shape[1]
            network = self._fresh(dim, seed)
            check_network(network, dim, ())
            rows, center, scale = self._standardized(rows)
            if self.method in METHODS:
                noise = self.sigma if self.method == "denoising" else None
                self._say(findings(rows, sigma=noise))
            held = round(self.validation_fraction * len(rows))
            objective = self._objective(dim, len(rows) - held)
            network = self._train(objective, network, rows, seed, devices=devices)
            self.energy_ = Standardized(network, center, scale, energy=True)
        return self

    def energy(self, X: Any) -> NDArray[Any]:
        """Return E of each row."""
        rows = self._rows(X, "energy_")
        return np.asarray(_energies(self.energy_, rows))

    def score_samples(self, X: Any) -> NDArray[Any]:
        """Return −E of each row: the log density up to log Z, which is unknown."""
        return -self.energy(X)

    def score(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, X: Any, y: Any = None
    ) -> float:
        """Return minus the mean Hyvärinen score of the rows: higher is better.

        This is scikit-learn's `score`, not the Stein score ∇ log p of `target().score(x)`. Beyond
        16 columns the Laplacian is estimated with random probes, always the same ones.
        """
        del y
        rows = self._rows(X, "energy_")
        return -float(_mean_score(self.energy_, rows))

    def target(self) -> Any:
        """Return the trained density as a target for `sk.sample`."""
        check_is_fitted(self, "energy_")
        return from_energy(self.energy_, self.n_features_in_)

    def _model(self) -> Any:
        check_is_fitted(self, "energy_")
        return self.energy_

    def _restore(self, dim: int, leaves: Any) -> None:
        real = jnp.result_type(float)
        blank = jnp.zeros(dim, real)
        self.energy_ = leaves(Standardized(self._fresh(dim, 0), blank, blank, energy=True))


@eqx.filter_jit
def _energies(energy: Any, rows: Any) -> Any:
    return jax.vmap(energy)(rows)


@eqx.filter_jit
def _mean_score(energy: Any, rows: Any) -> Any:
    return matching_score(losses.score_of(energy), rows)
