"""What all estimators that are trained by gradients share: settings, data, history."""

import warnings
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from samplekit.core.errors import EstimatorError
from samplekit.training.history import as_frame, plot_history
from samplekit.training.plan import OPTIMIZERS, SCHEDULES, Plan
from samplekit.training.trainer import Objective, train

if TYPE_CHECKING:
    import pandas as pd

_POSITIVE = Interval(Integral, 1, None, closed="left")

TRAINING_CONSTRAINTS: dict[str, list[Any]] = {
    "epochs": [_POSITIVE],
    "batch_size": [_POSITIVE],
    "learning_rate": [Interval(Real, 0, None, closed="neither"), callable],
    "schedule": [StrOptions(set(SCHEDULES))],
    "optimizer": [StrOptions(set(OPTIMIZERS)), HasMethods(["init", "update"])],
    "clip": [Interval(Real, 0, None, closed="neither"), None],
    "average": [Interval(Real, 0, 1, closed="left")],
    "validation_fraction": [Interval(Real, 0, 1, closed="left")],
    "patience": [_POSITIVE, None],
    "checkpoint": [str, Path, None],
    "progress": ["boolean"],
    "random_state": ["random_state"],
}


class TrainedEstimator(BaseEstimator):
    """Settings of the trainer, and the history it leaves.

    Subclasses take the settings of `samplekit.training.Plan` as parameters of their own, together
    with `validation_fraction`, `checkpoint`, `progress` and `random_state`.
    """

    _parameter_constraints: dict[str, list[Any]] = TRAINING_CONSTRAINTS
    epochs: int
    batch_size: int
    learning_rate: Any
    schedule: str
    optimizer: Any
    clip: float | None
    average: float
    validation_fraction: float
    patience: int | None
    checkpoint: str | Path | None
    progress: bool
    random_state: Any
    n_features_in_: int
    history_: "pd.DataFrame"

    def _plan(self) -> Plan:
        if self.patience is not None and not self.validation_fraction:
            raise EstimatorError(
                f"patience={self.patience} needs data that are not trained on: give "
                "validation_fraction=0.1, or leave patience out."
            )
        names = ("epochs", "batch_size", "learning_rate", "schedule", "optimizer", "clip")
        given = {name: getattr(self, name) for name in (*names, "average", "patience")}
        return Plan(**given)

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _train(
        self, objective: Objective, model: Any, X: NDArray[Any], seed: int, *, devices: Any = None
    ) -> Any:
        """Train on the rows of X, some of them held out; leave `history_`, return the model."""
        X = np.asarray(X, jnp.result_type(float))
        rows, held = _split(X, self.validation_fraction, seed)
        trained = train(
            objective,
            model,
            rows,
            self._plan(),
            held_out=held,
            seed=seed,
            progress=self.progress,
            checkpoint=self.checkpoint,
            devices=devices,
        )
        self.history_ = as_frame(trained.history)
        self.n_iter_ = len(trained.history)
        self.stopped_ = trained.stopped
        if trained.stopped == "it was interrupted":
            warnings.warn(
                f"Training was interrupted after {self.n_iter_} of {self.epochs} epochs; the "
                "estimator holds what it had learned.",
                stacklevel=3,
            )
        return trained.model

    def plot_history(self) -> Any:
        """Draw the numbers of every epoch; return a matplotlib figure."""
        check_is_fitted(self, "history_")
        return plot_history(self.history_, type(self).__name__)


def _split(X: NDArray[Any], fraction: float, seed: int) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Set rows aside at random."""
    held = round(fraction * len(X))
    if not fraction:
        return X, None
    if held < 1 or held >= len(X):
        raise EstimatorError(
            f"validation_fraction={fraction} of {len(X)} rows leaves none to train on or to judge "
            "by. Give more rows, or validation_fraction=0."
        )
    order = np.random.default_rng(seed).permutation(len(X))
    return X[order[held:]], X[order[:held]]
