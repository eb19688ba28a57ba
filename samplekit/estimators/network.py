"""What estimators made of networks share: scaling, draws, saving and loading without pickle."""

import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted, validate_data

from samplekit.core.errors import DataWarning, EstimatorError, StoreError
from samplekit.estimators.noise_levels import ONE_POINT
from samplekit.estimators.trained import TrainedEstimator
from samplekit.training.history import as_frame


class NetworkEstimator(TrainedEstimator):
    """A trained network in the units of the data."""

    standardize: bool
    # Fitted numbers to be saved beside the network.
    _numbers: tuple[str, ...] = ()

    def _model(self) -> Any:
        """Return what is saved: the trained pytree."""
        raise NotImplementedError

    def _restore(self, dim: int, leaves: Any) -> None:
        """Set the trained pytree; `leaves` fills one of the same structure from a file."""
        raise NotImplementedError

    def _rows(self, X: Any, fitted: str) -> NDArray[Any]:
        check_is_fitted(self, fitted)
        rows: Any = validate_data(self, X, reset=False, dtype=jnp.result_type(float))
        return rows

    def _standardized(
        self, rows: NDArray[Any], *, isotropic: bool = False
    ) -> tuple[NDArray[Any], Any, Any]:
        """Return the rows to train on, their center and their scale, for all columns or each."""
        if not np.ptp(rows, axis=0).any():
            raise EstimatorError(ONE_POINT)
        real, dim = jnp.result_type(float), rows.shape[1]
        center, scale = np.zeros(dim), np.ones(() if isotropic else dim)
        if self.standardize:
            center, variance = rows.mean(axis=0, dtype=np.float64), rows.var(axis=0)
            scale = np.sqrt(variance.mean() if isotropic else variance, dtype=np.float64)
            scale = np.where(scale > 0, scale, 1.0)
        scaled = ((rows - center) / scale).astype(real)
        return scaled, jnp.asarray(center, real), jnp.asarray(scale, real)

    def _say(self, findings: Iterable[str]) -> None:
        """Warn of data that cannot be learned well."""
        for finding in findings:
            warnings.warn(f"About the data: {finding}", DataWarning, stacklevel=4)

    def save(self, path: str | Path) -> None:
        """Write the trained network and its history to a file: arrays and JSON, no pickle.

        Parameters
        ----------
        path
            The file; `load` reads it.
        """
        leaves = jax.tree.leaves(self._model())
        given = {k: _plain(v) for k, v in self.get_params(deep=False).items()}
        plain = {k: v for k, v in given.items() if v is not _OTHER}
        about = {
            "class": type(self).__name__,
            "parameters": plain,
            "columns": self.n_features_in_,
            "numbers": {name: np.asarray(getattr(self, name)).tolist() for name in self._numbers},
            "history": self.history_.reset_index().to_dict("records"),
            "leaves": len(leaves),
        }
        arrays: dict[str, Any] = {f"leaf_{i}": np.asarray(a) for i, a in enumerate(leaves)}
        with Path(path).open("wb") as file:
            np.savez(file, about=np.asarray(json.dumps(about)), **arrays)

    @classmethod
    def load(cls, path: str | Path, **parameters: Any) -> Self:
        """Read what `save` wrote.

        Parameters
        ----------
        path
            The file.
        parameters
            Those that JSON cannot hold, such as `network=` (any weights, the same layers).
        """
        try:
            with np.load(Path(path), allow_pickle=False) as archive:
                about = json.loads(str(archive["about"]))
                saved = [archive[f"leaf_{i}"] for i in range(about["leaves"])]
        except (OSError, ValueError, KeyError) as error:
            raise StoreError(f"{str(path)!r} is not a saved network ({error}).") from error
        if about["class"] != cls.__name__:
            raise StoreError(
                f"{str(path)!r} holds a {about['class']}: load it with sk.{about['class']}.load."
            )
        estimator = cls(**(about["parameters"] | parameters))
        estimator.n_features_in_ = about["columns"]

        def fill(blank: Any) -> Any:
            old, structure = jax.tree.flatten(blank)
            if [np.shape(a) for a in old] != [a.shape for a in saved]:
                raise StoreError(
                    f"The network in {str(path)!r} has other layers than the one given. Pass the "
                    "same network= (any weights) as was trained."
                )
            return jax.tree.unflatten(structure, [jnp.asarray(a) for a in saved])

        for name, value in about["numbers"].items():
            setattr(estimator, name, np.asarray(value) if isinstance(value, list) else value)
        estimator._restore(about["columns"], fill)
        estimator.history_ = as_frame(about["history"])
        estimator.n_iter_ = len(about["history"])
        return estimator


def check_network(network: Any, dim: int, wanted: tuple[int, ...], *, level: bool = False) -> None:
    """Refuse a network that does not take these rows, before anything is compiled."""
    if not jax.tree.leaves(eqx.filter(network, eqx.is_inexact_array)):
        raise EstimatorError(
            "The network has no weights to train: give an Equinox module, or another callable "
            "pytree whose arrays are its parameters."
        )
    real = jnp.result_type(float)
    given = [jax.ShapeDtypeStruct((dim,), real), jax.ShapeDtypeStruct((), real)][: 1 + level]
    called = f"one row of {dim} numbers" + " and a noise scale" * level
    try:
        out = jax.eval_shape(network, *given)
    except Exception as error:
        raise EstimatorError(
            f"The network fails on {called}: {type(error).__name__}: "
            f"{str(error).splitlines()[0]}. It is called with one row at a time."
        ) from error
    shape = getattr(out, "shape", None)
    if shape != wanted:
        what = "an energy is one number" if wanted == () else "a score is shaped as the row"
        raise EstimatorError(f"The network returns shape {shape} for {called}, but {what}.")


_OTHER = object()


def _plain(value: Any) -> Any:
    """Return what JSON can hold of a parameter: numbers, words and lists of numbers."""
    if isinstance(value, list | tuple | np.ndarray | np.generic):
        value = np.asarray(value).tolist()
    return value if value is None or isinstance(value, str | int | float | list) else _OTHER
