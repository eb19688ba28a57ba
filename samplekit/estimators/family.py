"""`Family`, the description of a named family, and `NamedFamily`, its estimator."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from samplekit.core.errors import EstimatorError
from samplekit.estimators.density import FittedDensity, generator
from samplekit.estimators.domains import as_domain
from samplekit.estimators.draws import NotExactError
from samplekit.estimators.linear import normal_quantile
from samplekit.estimators.setup import UNWEIGHTED, Setup, make_model, statistic_names

if TYPE_CHECKING:
    import pandas as pd

type Params = dict[str, Any]


class Options(TypedDict, total=False):
    """Options of every family, as in `ExponentialFamily`."""

    weight: Any
    ridge: float
    standardize: bool
    errors: str


@dataclasses.dataclass(frozen=True, eq=False)
class Family:
    """All that is known of a named family. A new one is one of these.

    `made_with` are the arguments of the constructor in `sk.families` that has this name: a pickle
    holds these and not the functions. Without it the functions must be picklable themselves.

    Examples
    --------
    The Rayleigh family, y exp(−y²/(2σ²)) on y > 0:

    >>> import jax.numpy as jnp, numpy as np
    >>> from samplekit.estimators.families import Family, NamedFamily
    >>> rayleigh = NamedFamily(
    ...     Family(
    ...         "rayleigh",
    ...         statistics=lambda y: -(y**2) / 2,
    ...         base=lambda y: jnp.log(y[0]),
    ...         names=lambda d: ["1/scale²"],
    ...         usual=lambda t, d: {"scale": 1 / jnp.sqrt(t[0])},
    ...         natural=lambda scale, **_: np.array([1 / scale**2]),
    ...         domain="positive",
    ...     )
    ... )
    >>> X = np.random.default_rng(0).rayleigh(2.0, size=(20_000, 1))
    >>> round(rayleigh.fit(X).params_["scale"], 1)
    2.0
    """

    name: str
    statistics: Callable[..., Any]
    names: Callable[[int], Sequence[str]]  # of the natural parameters, for d columns
    usual: Callable[[Array, int], Mapping[str, Any]]  # natural → usual parameters
    natural: Callable[..., NDArray[np.float64]]  # usual parameters by name → natural
    draw: Callable[..., NDArray[np.float64]] | None = None  # (generator, n, **usual) → (n, d)
    log_normalizer: Callable[[NDArray[np.float64], int], float] | None = None
    base: Callable[..., Any] | None = None
    domain: Any = None
    weight: Any = None
    dim: int | None = 1  # columns; None is any number
    quadratic: bool = False  # statistics of a Gaussian, in the order of `quadratic.statistics`
    made_with: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        """Say how it was made."""
        given = ", ".join(f"{k}={v!r}" for k, v in (self.made_with or {}).items())
        return f"{self.name}({given})"

    def __deepcopy__(self, memo: Any) -> "Family":
        """Return itself: nothing in it can change."""
        return self

    def __reduce__(self) -> Any:
        """Say how to make it again."""
        if self.made_with is None:
            return super().__reduce__()
        return _remake, (self.name, dict(self.made_with))


def _remake(name: str, arguments: Params) -> Family:
    from samplekit.estimators import families

    return getattr(families, name)(**arguments).family


class NamedFamily(FittedDensity):
    """Fit a named family; the constructors of `sk.families` return this.

    Parameters
    ----------
    family
        The description.
    weight, ridge, standardize, errors
        As in `ExponentialFamily`; `weight=None` is the family's own default.

    Attributes
    ----------
    params_, params_errors_
        The usual parameters by name, and their standard errors by the delta method.
    theta_, covariance_, standard_errors_, condition_number_, n_samples_seen_
        As in `ExponentialFamily`.

    Examples
    --------
    >>> import numpy as np
    >>> from samplekit.estimators import families
    >>> X = np.random.default_rng(0).gamma(3.0, 0.5, size=(2000, 1))
    >>> print(families.gamma().fit(X).summary().round(2))
                       estimate  standard_error  lower  upper
    form    parameter
    natural shape - 1      1.96            0.10   1.76   2.15
            rate           1.96            0.07   1.82   2.10
    usual   mean           1.51            0.02   1.47   1.54
            rate           1.96            0.07   1.82   2.10
            shape          2.96            0.10   2.76   3.15
    """

    def __init__(
        self,
        family: Family,
        *,
        weight: Any = None,
        ridge: float = 0.0,
        standardize: bool = True,
        errors: str = "lazy",
    ) -> None:
        self.family = family
        self.weight = weight
        self.ridge = ridge
        self.standardize = standardize
        self.errors = errors

    def _setup(self, dim: int) -> Setup:
        family = self.family
        if family.dim not in (None, dim):
            raise EstimatorError(
                f"The family {family.name} has rows of {family.dim} numbers and X has {dim}. Give "
                "that many columns (n_features), or make the family for another dimension."
            )
        own = self.weight is not None
        weight = self.weight if own else family.weight
        model = make_model(family.statistics, family.base, domain=family.domain, weight=weight)
        if own:
            statistic_names(model, dim)  # the user's weight may fail
        insisted = isinstance(weight, str) and weight == UNWEIGHTED
        names = list(family.names(dim))
        return Setup(model, names, family.quadratic, own_weight=own, insisted=insisted)

    def _default_weight(self) -> Any:
        return self.family.weight if self.weight is None else None

    @property
    def params_(self) -> Params:
        """The usual parameters, by name."""
        return _plain(self._usual()[0])

    @property
    def params_errors_(self) -> Params:
        """The standard errors of `params_`, by the delta method."""
        slopes, covariance = _plain(self._usual()[1]), self.covariance_
        return _plain(
            {
                name: np.sqrt(np.einsum("...i,ij,...j->...", slope, covariance, slope))
                for name, slope in slopes.items()
            }
        )

    def _usual(self) -> tuple[Params, Params]:
        """Return the usual parameters and their derivatives in θ."""
        self._need()
        with jax.enable_x64(True):  # noqa: FBT003
            return _usual_program(self.family.usual, self.n_features_in_, self.theta_)

    def summary(self, level: float = 0.95) -> "pd.DataFrame":
        """Return a table of the natural and the usual parameters, with errors and limits."""
        import pandas as pd

        rows = [
            ("natural", name, value, error)
            for name, value, error in zip(
                self.statistic_names_, self.theta_, self.standard_errors_, strict=True
            )
        ]
        errors = self.params_errors_
        for name, value in self.params_.items():
            for at in np.ndindex(np.shape(value)):
                label = f"{name}[{','.join(map(str, at))}]" if at else name
                rows.append(("usual", label, np.asarray(value)[at], np.asarray(errors[name])[at]))
        form, names, values, spread = (list(column) for column in zip(*rows, strict=True))
        index = pd.MultiIndex.from_arrays([form, names], names=["form", "parameter"])
        table = pd.DataFrame({"estimate": values, "standard_error": spread}, index=index)
        half = normal_quantile(level) * table["standard_error"]
        return table.assign(lower=table["estimate"] - half, upper=table["estimate"] + half)

    def draw(self, seed: Any, n: int, **params: Any) -> NDArray[np.float64]:
        """Return n exact, independent draws, of shape (n, d).

        Parameters
        ----------
        seed
            An integer, a JAX key or a NumPy generator.
        n
            Number of rows.
        params
            The usual parameters; without any, those of the fit.
        """
        if self.family.draw is None:
            raise EstimatorError(
                f"The family {self.family.name} has no exact sampler. Fit, and use sample(n)."
            )
        with np.errstate(invalid="ignore"):
            rows = self.family.draw(generator(seed), n, **(params or self.params_))
        return np.asarray(rows, np.float64).reshape(n, -1)

    def sample(self, n_samples: int = 1, random_state: Any = None) -> NDArray[np.float64]:
        """Return rows drawn from the fitted density: exactly where `draw` can, else by MCMC."""
        self._need()
        if self.family.draw is not None:
            with contextlib.suppress(NotExactError):
                return self.draw(random_state, n_samples)
        return self._sample_by_chains(n_samples, random_state)

    def natural(self, **params: Any) -> NDArray[np.float64]:
        """Return the natural parameter θ of usual parameters."""
        return np.asarray(self.family.natural(**params), np.float64)

    def log_normalizer(self, theta: Any = None) -> float:
        """Return log Z(θ) = log ∫ exp(a + θᵀs), at θ̂ if `theta` is not given."""
        if self.family.log_normalizer is None:
            raise EstimatorError(f"The family {self.family.name} has no log normaliser here.")
        if theta is None:
            self._need()
            return float(self.family.log_normalizer(self.theta_, self.n_features_in_))
        value = np.asarray(theta, np.float64)
        return float(self.family.log_normalizer(value, self._columns(len(value))))

    def _columns(self, size: int) -> int:
        """Return the number of columns for which there are `size` parameters."""
        if self.family.dim is not None:
            return self.family.dim
        return next(d for d in range(1, size + 1) if len(self.family.names(d)) == size)

    def __sklearn_tags__(self) -> Any:
        """Say what data can be fitted."""
        tags = super().__sklearn_tags__()
        lower = getattr(as_domain(self.family.domain), "lower", (-np.inf,))
        tags.input_tags.positive_only = lower == (0.0,)
        return tags


@functools.partial(jax.jit, static_argnums=(0, 1))
def _usual_program(usual: Any, dim: int, theta: Array) -> tuple[Any, Any]:
    return usual(theta, dim), jax.jacfwd(lambda t: usual(t, dim))(theta)


def _plain(values: Mapping[str, Any]) -> Params:
    """Return floats for scalars and float64 arrays for the rest."""
    arrays = {name: np.asarray(value, np.float64) for name, value in values.items()}
    return {name: a if a.ndim else float(a) for name, a in arrays.items()}
