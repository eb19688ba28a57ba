"""`ConditionalFamily`: natural parameters that are linear in covariates."""

import dataclasses
from typing import Any, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data

from samplekit.core.errors import EstimatorError
from samplekit.core.pytree import as_function, pytree, static
from samplekit.estimators.atomic import all_or_nothing
from samplekit.estimators.base import ScoreMatching, checked_weights
from samplekit.estimators.density import values_of
from samplekit.estimators.domains import Domain, Rows
from samplekit.estimators.family import NamedFamily
from samplekit.estimators.linear import Matrix
from samplekit.estimators.moments import Model, score_rows
from samplekit.estimators.setup import Setup
from samplekit.estimators.sources import is_stream
from samplekit.sampling.devices import read_devices


@dataclasses.dataclass(frozen=True)
class Beside:
    """A domain for the first columns of a row; the others are covariates."""

    inner: Domain
    responses: int

    @property
    def name(self) -> str:
        """What the domain of the responses is called."""
        return self.inner.name

    @property
    def boundary(self) -> bool:
        """Whether the responses have a boundary."""
        return self.inner.boundary

    def check(self, rows: Rows, start: int) -> Rows:
        """Check the responses."""
        checked = self.inner.check(rows[:, : self.responses], start)
        return np.concatenate([checked, rows[:, self.responses :]], axis=1)

    def chart(self, y: Array) -> Array:
        """Return the unbounded coordinates of the responses."""
        return self.inner.chart(y)

    def place(self, z: Array) -> tuple[Array, Array]:
        """Return the responses and the log-Jacobian."""
        return self.inner.place(z)


@pytree
class Products:
    """The products s_a(y)·x_b at given covariates x: the statistics of θ = Bx."""

    inner: Model
    x: Any
    pairs: tuple[tuple[int, int], ...] = static()  # (a, b) of every coefficient

    def __call__(self, y: Array) -> Array:
        """Return one product per coefficient."""
        a, b = np.array(self.pairs).T
        return self.inner.statistics_of(y)[a] * self.x[b]


@pytree
class ConditionalModel(Model):
    """A model whose rows are responses followed by covariates."""

    responses: int = static(default=1)
    pairs: tuple[tuple[int, int], ...] = static(default=())

    def at(self, row: Array) -> tuple[Model, Array]:
        """Return the model at the row's covariates, and the responses."""
        y, x = row[: self.responses], row[self.responses :]
        inner = Model(self.statistics, self.base, self.weight, self.domain, self.charted)
        products = as_function(Products(inner, x, self.pairs))
        return dataclasses.replace(inner, statistics=products), y


class ConditionalFamily(ScoreMatching):
    """Fit p(y | x) of an exponential family whose natural parameters are θ(x) = B·(1, x).

    Parameters
    ----------
    family
        The family of y: one of `sk.families`, or an `ExponentialFamily`. It need not be fitted.
    constant
        Names of natural parameters that do not depend on x. For a Gaussian,
        `constant=("precision",)` is linear regression.
    intercept
        Whether a column of ones is put before x.
    ridge, standardize, errors
        As in `ExponentialFamily`.

    Attributes
    ----------
    theta_
        The coefficients, one parameter of the family after the other; `statistic_names_` says
        which.
    coefficients_
        B, with a row for each natural parameter; zeros where it is constant.
    covariance_, standard_errors_, condition_number_, n_samples_seen_
        As in `ExponentialFamily`; the covariance is valid whatever the distribution of x.

    Notes
    -----
    The statistics are s_a(y)·x_b and the score has derivatives in y only, so B̂ is one linear solve:
    Hyvärinen 2005, JMLR 6, with the mean over x as well. Nothing keeps θ(x) where the family is
    defined (a rate above zero, say): look at `natural_parameters`.

    Examples
    --------
    >>> import numpy as np
    >>> from samplekit.estimators import families
    >>> from samplekit.estimators.conditional import ConditionalFamily
    >>> random = np.random.default_rng(0)
    >>> x = random.uniform(size=(4000, 1))
    >>> y = random.gamma(0.7 + 1.5 * x[:, 0], 1 / (1 + 2 * x[:, 0]))
    >>> model = ConditionalFamily(families.gamma()).fit(x, y)
    >>> print(model.summary().round(1))
                    estimate  standard_error  lower  upper
    natural
    shape - 1           -0.3             0.1   -0.4   -0.1
    shape - 1 : x0       1.6             0.2    1.3    1.9
    rate                 1.0             0.1    0.8    1.2
    rate : x0            2.0             0.2    1.6    2.5
    """

    def __init__(
        self,
        family: ScoreMatching,
        *,
        constant: tuple[str, ...] = (),
        intercept: bool = True,
        ridge: float = 0.0,
        standardize: bool = True,
        errors: str = "lazy",
    ) -> None:
        self.family = family
        self.constant = constant
        self.intercept = intercept
        self.ridge = ridge
        self.standardize = standardize
        self.errors = errors

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, devices: Any = None) -> Self:
        """Fit to the responses y given the covariates X.

        Parameters
        ----------
        X
            Covariates, (n, p).
        y
            Responses, (n,) or (n, d).
        sample_weight
            Weights of the rows.
        devices
            As in `ExponentialFamily.fit`.
        """
        with all_or_nothing(self):
            self._validate_params()
            vars(self).pop("_fitted", None)
            self._absorb(self._joined(X, y, reset=True), sample_weight, read_devices(devices))
        return self

    def partial_fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, devices: Any = None
    ) -> Self:
        """Add rows to those seen before; the options are those of `fit`."""
        with all_or_nothing(self):
            self._validate_params()
            reset = "_fitted" not in vars(self)
            rows = self._joined(X, y, reset=reset)
            self._absorb(rows, sample_weight, read_devices(devices), more=True)
        return self

    def _joined(self, X: Any, y: Any, *, reset: bool) -> Matrix:
        """Return rows of responses and covariates, the column of ones included."""
        if is_stream(X):
            raise EstimatorError("X is an iterator: call partial_fit for each of its parts.")
        pair = validate_data(
            self,
            X,
            y,
            reset=reset,
            multi_output=True,
            y_numeric=True,
            ensure_all_finite=False,
        )
        x, y = (np.asarray(part, np.float64) for part in cast(Any, pair))
        y = y.reshape(len(y), -1)
        if reset:
            self.n_responses_ = y.shape[1]
        elif y.shape[1] != self.n_responses_:
            raise EstimatorError(
                f"y has {y.shape[1]} columns, and {self.n_responses_} before. Give as many."
            )
        return np.concatenate([y, self._with_ones(x)], axis=1)

    def _with_ones(self, x: Matrix) -> Matrix:
        return np.concatenate([np.ones((len(x), 1)), x], axis=1) if self.intercept else x

    def _validated(
        self, X: Any, weights: Any, *, reset: bool
    ) -> tuple[NDArray[Any], NDArray[np.float64] | None]:
        del reset  # `_joined` has looked at both parts
        return X, checked_weights(weights, X)

    def _setup(self, dim: int) -> Setup:
        del dim  # that of X; the rows have more columns
        inner = self.family._setup(self.n_responses_)
        names, pairs = self._coefficients(inner.names)
        model = inner.model
        if inner.own_weight and model.weight is not None and model.domain.boundary:
            raise EstimatorError(
                "A weight of your own at a boundary cannot be checked when parameters vary, and a "
                "wrong one fails silently. Make the family without weight: the default is right."
            )
        joined = ConditionalModel(
            model.statistics,
            model.base,
            model.weight,
            cast(Domain, Beside(model.domain, self.n_responses_)),
            model.charted,
            self.n_responses_,
            tuple(pairs),
        )
        return Setup(joined, names)

    def _coefficients(self, natural: list[str]) -> tuple[list[str], list[tuple[int, int]]]:
        """Return the names of the coefficients and their places in B."""
        unknown = [name for name in self.constant if name not in natural]
        if unknown:
            raise EstimatorError(
                f"constant={unknown[0]!r} is no natural parameter of the family. They are: "
                f"{', '.join(natural)}."
            )
        if self.constant and not self.intercept:
            raise EstimatorError("A constant parameter needs the intercept: leave out one option.")
        columns = getattr(self, "feature_names_in_", None)
        if columns is None:
            columns = [f"x{i}" for i in range(self.n_features_in_)]
        labels = [""] * self.intercept + [f" : {column}" for column in columns]
        named, pairs = [], []
        for a, name in enumerate(natural):
            for b, label in enumerate(labels):
                if b == 0 or name not in self.constant:
                    named.append(name + label)
                    pairs.append((a, b))
        return named, pairs

    @property
    def coefficients_(self) -> Matrix:
        """B, of shape (natural parameters, covariates), the intercept first."""
        self._need()
        names = self.family._setup(self.n_responses_).names
        rows, columns = np.array(self._coefficients(names)[1]).T
        out = np.zeros((len(names), self.n_features_in_ + self.intercept))
        out[rows, columns] = self.theta_
        return out

    def natural_parameters(self, X: Any) -> Matrix:
        """Return θ(x) = B·(1, x) for each row of X, (n, k)."""
        self._need()
        x: Any = validate_data(self, X, reset=False, dtype=np.float64)
        return self._with_ones(x) @ self.coefficients_.T

    def params(self, X: Any) -> dict[str, NDArray[np.float64]]:
        """Return the usual parameters of a named family for each row of X, by name."""
        if not isinstance(self.family, NamedFamily):
            raise EstimatorError(
                "Only the families of sk.families have usual parameters; natural_parameters(X) is "
                "for all."
            )
        theta, dim, usual = self.natural_parameters(X), self.n_responses_, self.family.family.usual
        with jax.enable_x64(True):  # noqa: FBT003
            values = jax.vmap(lambda t: usual(t, dim))(jnp.asarray(theta))
            return {name: np.asarray(value) for name, value in values.items()}

    def score(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, X: Any, y: Any = None, sample_weight: Any = None
    ) -> float:
        """Return minus the mean Hyvärinen score of the responses: higher is better."""
        self._need()
        rows = self._joined(X, y, reset=False)
        values = values_of(score_rows, rows, self._setup(self.n_features_in_), self.theta_)
        return -float(np.average(values, weights=sample_weight))

    def __sklearn_tags__(self) -> Any:
        """Say that responses are needed."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        return tags
