"""The scikit-learn estimator common to user-written and named exponential families."""

import abc
import dataclasses
from collections.abc import Iterable, Iterator
from numbers import Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from samplekit.core.errors import EstimatorError
from samplekit.estimators.atomic import all_or_nothing
from samplekit.estimators.boundary import check_boundary
from samplekit.estimators.domains import Torus
from samplekit.estimators.linear import Matrix, Solution, Vector, normal_quantile, sandwich
from samplekit.estimators.quadratic import Frame
from samplekit.estimators.rows import (
    Chunk,
    all_reduce,
    array_chunks,
    refuse_non_finite,
    spans_processes,
)
from samplekit.estimators.setup import (
    Engine,
    Setup,
    check_periodic,
    framed,
    make_engine,
    make_frame,
)
from samplekit.estimators.sources import ArraySource, Reservoir, StreamSource, is_stream
from samplekit.sampling.devices import read_devices

if TYPE_CHECKING:
    import pandas as pd


@dataclasses.dataclass
class Fitted:
    """What a fit leaves behind, beside the public attributes."""

    frame: Frame | None
    sums: tuple[Matrix, ...]
    weight: float
    count: int
    theta: Vector  # in the frame
    kept: ArraySource | Reservoir | None
    everywhere: bool = False  # the sums are those of several processes
    solution: Solution | None = None
    covariance: Matrix | None = None


class ScoreMatching(DensityMixin, BaseEstimator, abc.ABC):
    """Closed-form score matching; subclasses say what is fitted in `_setup`."""

    _parameter_constraints: dict[str, list[Any]] = {  # noqa: RUF012
        "ridge": [Interval(Real, 0, None, closed="left")],
        "standardize": ["boolean"],
        "errors": [StrOptions({"lazy", "eager", "none"})],
    }
    ridge: float
    standardize: bool
    errors: str
    n_features_in_: int

    @abc.abstractmethod
    def _setup(self, dim: int) -> Setup:
        """Return what is fitted to rows of this dimension."""

    def _default_weight(self) -> Any:
        """Return the weight object behind `_setup`'s, where it can be rescaled."""
        return None

    # Fitting ------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, devices: Any = None) -> Self:
        """Fit to the rows of X.

        Parameters
        ----------
        X
            An array, a data frame, a memory-mapped array, or an iterator of chunks (arrays, or
            pairs of an array and its weights). Memory is bounded by a chunk.
        y
            Ignored.
        sample_weight
            Weights of the rows: θ̂ is that of repeated rows; the errors take them as fixed.
        devices
            A number of devices, a list or a mesh; None takes all of this process. Given devices of
            several processes (`jax.distributed`), as a number means, each process fits its own rows
            and the sums are added up over all.
        """
        with all_or_nothing(self):
            self._validate_params()
            vars(self).pop("_fitted", None)
            self._absorb(X, sample_weight, read_devices(devices))
        return self

    def partial_fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, devices: Any = None
    ) -> Self:
        """Add the rows of X to those seen before; the options are those of `fit`.

        The first rows must suffice for a fit. Of the data a uniform subset is kept, from which the
        standard errors are computed: see `errors`.
        """
        with all_or_nothing(self):
            self._validate_params()
            self._absorb(X, sample_weight, read_devices(devices), more=True)
        return self

    def _absorb(self, X: Any, sample_weight: Any, devices: Any, *, more: bool = False) -> None:
        old: Fitted | None = vars(self).get("_fitted")
        source = self._source(X, sample_weight, reset=old is None)
        setup = self._setup(source.dim)
        pilot = source.pilot()
        pilot = pilot._replace(rows=setup.model.domain.check(pilot.rows, pilot.start))
        if isinstance(setup.model.domain, Torus):
            check_periodic(setup.model, pilot)
        frame = self._frame(setup, pilot, devices) if old is None else old.frame
        engine = self._engine(setup, source.dim, frame, devices)
        kept = self._kept(source, old, more=more)
        tally = [0.0, 0]
        chunks = _tallied(_prepared(source.chunks(engine.chunk), setup, frame), tally)
        if isinstance(kept, Reservoir):
            chunks = kept.watch(chunks)
        sums = engine.sums(chunks)
        weight, count = tally
        if spans_processes(devices):
            weight, count = all_reduce((np.asarray(tally, float),))[0]
        if old is not None:
            sums = tuple(a + b for a, b in zip(sums, old.sums, strict=True))
            weight, count = weight + old.weight, count + old.count
        if not weight > 0:
            raise EstimatorError("All sample weights are zero: there is nothing to fit.")
        _enough(int(count), source.dim, 0 if self._regularized else len(setup.names))
        solution = self._solve(engine, tuple(part / weight for part in sums), int(count))
        theta = solution.theta if frame is None else frame.back(solution.theta)
        if setup.own_weight and not setup.insisted:
            check_boundary(setup.model, theta, pilot)
        self._fitted = Fitted(frame, sums, weight, int(count), solution.theta, kept)
        self._fitted.everywhere = spans_processes(devices)
        if np.isfinite(solution.condition):
            self._fitted.solution = solution
        self.theta_ = theta
        self.statistic_names_ = setup.names
        self.n_samples_seen_ = int(count)
        if self.errors == "eager":
            self._release()

    @property
    def _regularized(self) -> bool:
        """Whether fewer rows than parameters can be fitted."""
        return bool(self.ridge)

    def _solve(self, engine: Engine, sums: tuple[Matrix, ...], count: int) -> Solution:
        """Return θ̂ from mean sums over `count` rows; a penalty needs more than the engine."""
        del count
        return engine.solve(sums)

    def _frame(self, setup: Setup, pilot: Chunk, devices: Any) -> Frame | None:
        frame = make_frame(setup, pilot) if self.standardize else None
        if frame is not None and spans_processes(devices):  # sums need a common frame
            parts = all_reduce((np.stack([frame.center, frame.scale, np.ones_like(frame.scale)]),))
            frame = Frame(parts[0][0] / parts[0][2], parts[0][1] / parts[0][2])
        return frame

    def _engine(self, setup: Setup, dim: int, frame: Frame | None, devices: Any = None) -> Engine:
        inside = framed(setup, frame, self._default_weight())
        return make_engine(inside, dim, ridge=self.ridge, scaled=self.standardize, devices=devices)

    def _kept(
        self, source: ArraySource | StreamSource, old: Fitted | None, *, more: bool
    ) -> ArraySource | Reservoir | None:
        """Return what the standard errors will be computed from."""
        if self.errors == "none" or (old is not None and old.kept is None):
            return None
        if isinstance(source, ArraySource) and not more:
            return source
        if old is None:
            return Reservoir()
        if isinstance(old.kept, Reservoir):
            return old.kept.copy()
        reservoir = Reservoir()
        for chunk in self._reread(old):
            reservoir.add(chunk)
        return reservoir

    def _source(self, X: Any, sample_weight: Any, *, reset: bool) -> ArraySource | StreamSource:
        if not is_stream(X):
            return ArraySource(*self._validated(X, sample_weight, reset=reset))
        if sample_weight is not None:
            raise EstimatorError(
                "sample_weight cannot go with an iterator of chunks. Yield pairs (chunk, weights)."
            )
        fresh = [reset]

        def check(part: Any, weights: Any) -> Chunk:
            rows, checked = self._validated(part, weights, reset=fresh[0])
            fresh[0] = False
            return next(array_chunks(rows, checked, len(rows)))

        return StreamSource(iter(X), check)

    def _validated(
        self, X: Any, weights: Any, *, reset: bool
    ) -> tuple[NDArray[Any], NDArray[np.float64] | None]:
        # Finiteness is checked chunk by chunk, where the rows can be named at no cost.
        rows: Any = validate_data(self, X, reset=reset, dtype="numeric", ensure_all_finite=False)
        return rows, checked_weights(weights, rows)

    def _reread(self, fitted: Fitted) -> Iterator[Chunk]:
        """Yield the kept rows again, prepared as in the fit."""
        assert fitted.kept is not None
        setup = self._setup(self.n_features_in_)
        engine = self._engine(setup, self.n_features_in_, fitted.frame)
        chunks = fitted.kept.chunks(engine.chunk)
        if isinstance(fitted.kept, Reservoir):
            return chunks
        return _prepared(chunks, setup, fitted.frame)

    # Errors -------------------------------------------------------------------------------------

    @property
    def covariance_(self) -> Matrix:
        """The sandwich covariance of θ̂, computed when first asked for."""
        fitted = self._need()
        if fitted.covariance is None:
            fitted.covariance = self._sandwich(fitted)
        return fitted.covariance

    def _sandwich(self, fitted: Fitted) -> Matrix:
        if fitted.kept is None:
            raise EstimatorError(
                "The standard errors were not kept: errors='none', or rows were added to an "
                "estimator whose data are gone. Fit again with errors='lazy'."
            )
        meat, total = self._middle(fitted)
        bread = self._full(fitted).bread / fitted.weight
        inner = sandwich(bread, meat, total, fitted.count)
        if fitted.frame is None:
            return inner
        back = fitted.frame.jacobian()
        return back @ inner @ back.T

    def _middle(self, fitted: Fitted) -> tuple[Matrix, Vector]:
        """Return Σ w²ψψᵀ and Σ wψ at θ̂, from the kept rows."""
        assert fitted.kept is not None
        engine = self._engine(self._setup(self.n_features_in_), self.n_features_in_, fitted.frame)
        # A subset stands for all rows of this process: the factors of others may differ.
        factor = fitted.kept.factor if isinstance(fitted.kept, Reservoir) else 1.0
        sums = tuple(factor * part for part in engine.meat(self._reread(fitted), fitted.theta))
        meat, total = all_reduce(sums) if fitted.everywhere else sums
        return meat, total

    def _full(self, fitted: Fitted) -> Solution:
        """Return Γ⁻¹ and the condition number, which a fit from second moments leaves out."""
        if fitted.solution is None:
            engine = self._engine(
                self._setup(self.n_features_in_), self.n_features_in_, fitted.frame
            )
            fitted.solution = engine.full(tuple(part / fitted.weight for part in fitted.sums))
        return fitted.solution

    @property
    def standard_errors_(self) -> Vector:
        """The standard errors of θ̂."""
        return np.sqrt(np.diag(self.covariance_))

    @property
    def condition_number_(self) -> float:
        """The condition number of the scaled system; beyond 1e8 the fit loses half its digits."""
        return self._full(self._need()).condition

    def confidence_interval(self, level: float = 0.95) -> Matrix:
        """Return lower and upper limits of each θ, of shape (k, 2), by the normal approximation."""
        half = normal_quantile(level) * self.standard_errors_
        return np.stack([self.theta_ - half, self.theta_ + half], axis=1)

    def summary(self, level: float = 0.95) -> "pd.DataFrame":
        """Return a table of estimates, standard errors and confidence limits."""
        import pandas as pd

        limits = self.confidence_interval(level)
        columns = {
            "estimate": self.theta_,
            "standard_error": self.standard_errors_,
            "lower": limits[:, 0],
            "upper": limits[:, 1],
        }
        return pd.DataFrame(columns, index=pd.Index(self.statistic_names_, name="natural"))

    # Housekeeping -------------------------------------------------------------------------------

    def _need(self) -> Fitted:
        check_is_fitted(self)
        return self._fitted

    def __sklearn_is_fitted__(self) -> bool:
        """Tell whether a fit has succeeded."""
        return "theta_" in vars(self)

    def _release(self) -> None:
        """Compute the errors while the data are there, then let the data go."""
        if isinstance(self._fitted.kept, ArraySource):
            self._fitted.covariance = self.covariance_
            self._fitted.kept = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy or a pickle: with the errors, without the data."""
        if "_fitted" in vars(self):
            self._release()
        state: Any = super().__getstate__()
        return state


def checked_weights(weights: Any, rows: NDArray[Any]) -> NDArray[np.float64] | None:
    """Return the weights of rows, if any, as numbers; all zero is refused by the fit."""
    if weights is None:
        return None
    return _check_sample_weight(
        weights, rows, dtype=np.float64, ensure_non_negative=True, allow_all_zero_weights=True
    )


def _prepared(chunks: Iterable[Chunk], setup: Setup, frame: Frame | None) -> Iterator[Chunk]:
    """Check the rows of chunks and put them into the frame."""
    for chunk in chunks:
        if not setup.quadratic:  # second moments show it by themselves
            refuse_non_finite(chunk)
        rows = setup.model.domain.check(chunk.rows, chunk.start)
        yield chunk._replace(rows=rows if frame is None else frame.rows(rows))


def _tallied(chunks: Iterable[Chunk], tally: list[Any]) -> Iterator[Chunk]:
    """Count rows and weights on the way."""
    for chunk in chunks:
        tally[0] += chunk.weights.sum()
        tally[1] += np.count_nonzero(chunk.weights)
        yield chunk


def _enough(count: int, dim: int, size: int) -> None:
    if count < 2 or count * dim < size:
        raise EstimatorError(
            f"X has n_samples={count} rows of {dim} numbers, too few for {size} parameters. Give "
            f"at least {max(2, -(-size // dim))} rows (many more, for standard errors), or fewer "
            "statistics."
        )
