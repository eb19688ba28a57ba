"""`GraphicalModel`: which variables depend on each other, given all the others."""

from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval, StrOptions

from samplekit.estimators import quadratic
from samplekit.estimators import sparse_precision as sparse
from samplekit.estimators.base import Fitted
from samplekit.estimators.errors import EstimatorError
from samplekit.estimators.family import Family, NamedFamily
from samplekit.estimators.linear import Matrix, Solution
from samplekit.estimators.setup import Engine

if TYPE_CHECKING:
    import pandas as pd


class GraphicalModel(NamedFamily):
    """Fit a Gaussian whose precision matrix K is sparse; `families.gaussian_graphical_model`.

    Parameters
    ----------
    family
        The Gaussian family.
    penalty
        λ of λ Σ_{i≠j} |K_ij|. None and 0 give the closed form, with standard errors. "ebic"
        follows a path of penalties and takes the graph with the least extended BIC.
    gamma
        Of the extended BIC: 0 is the BIC; larger values ask more of an edge.
    ridge
        With a penalty: the diagonal of S is multiplied by 1 + ridge.
    standardize
        With a penalty: fit in units of the columns' standard deviations, so that λ has no unit
        and no edge remains from λ = 1 on.
    weight, errors
        As in `ExponentialFamily`.

    Attributes
    ----------
    precision_
        K, in the units of X: the minimiser at a penalty; for "ebic" the maximum-likelihood fit of
        the chosen graph, which is positive definite (the minimiser need not be).
    support_
        Which entries of K are not zero.
    penalty_, path_
        The penalty, and a table with one row per penalty tried: `penalty`, `edges`, `score` (the
        mean Hyvärinen score ½ tr(KSK) − tr(K) of the minimiser, in the units of the fit) and
        `ebic` (of its graph's maximum-likelihood fit, up to a constant).
    edges_
        A table of the edges with their partial correlations, the strongest first.

    Notes
    -----
    The minimised function is ½ tr(KSK) − tr(K) + λ Σ_{i≠j} |K_ij|, quadratic and without a
    determinant: Lin, Drton and Shojaie 2016, doi:10.1214/16-EJS1126. With fewer rows than columns
    the diagonal of S is enlarged as in Yu, Drton and Shojaie 2019, JMLR 20(76), unless `ridge`
    says by how much. The choice of edges makes the usual standard errors wrong, so there are none.

    Examples
    --------
    >>> import numpy as np
    >>> from samplekit.estimators import families
    >>> chain = np.eye(5) + 0.4 * (np.eye(5, k=1) + np.eye(5, k=-1))
    >>> model = families.gaussian_graphical_model(5, penalty="ebic")
    >>> X = model.draw(0, 1000, mean=np.zeros(5), precision=chain)
    >>> model.fit(X).edges_[["first", "second"]].sort_values("first").to_numpy().tolist()
    [[0, 1], [1, 2], [2, 3], [3, 4]]
    """

    _parameter_constraints = {  # noqa: RUF012
        **NamedFamily._parameter_constraints,
        "penalty": [Interval(Real, 0, None, closed="left"), StrOptions({"ebic"}), None],
        "gamma": [Interval(Real, 0, None, closed="left")],
    }

    def __init__(
        self,
        family: Family,
        *,
        penalty: float | str | None = None,
        gamma: float = 0.5,
        weight: Any = None,
        ridge: float = 0.0,
        standardize: bool = True,
        errors: str = "lazy",
    ) -> None:
        super().__init__(family, weight=weight, ridge=ridge, standardize=standardize, errors=errors)
        self.penalty = penalty
        self.gamma = gamma

    @property
    def _penalized(self) -> bool:
        return self.penalty is not None and self.penalty != 0

    @property
    def _regularized(self) -> bool:
        return self._penalized or super()._regularized

    def _solve(self, engine: Engine, sums: tuple[Matrix, ...], count: int) -> Solution:
        for name in ("penalty_", "path_"):
            vars(self).pop(name, None)
        if not self._penalized:
            return super()._solve(engine, sums, count)
        if self.weight is not None:
            raise EstimatorError(
                "penalty and weight cannot go together: sparse graphs are fitted from second "
                "moments. Leave one of them out."
            )
        moments = sums[0] / sums[0][0, 0]
        mean = moments[0, 1:]
        covariance = moments[1:, 1:] - np.outer(mean, mean)
        precision = self._sparse(covariance, count)
        return Solution(quadratic.join(precision @ mean, precision), np.zeros((0, 0)), np.nan)

    def _sparse(self, covariance: Matrix, count: int) -> Matrix:
        """Return the sparse K of a covariance, and keep the path."""
        dim = len(covariance)
        spread = np.sqrt(np.maximum(np.diag(covariance), 0.0))
        if not (spread > 0).all():
            which = ", ".join(str(i) for i in np.flatnonzero(~(spread > 0)))
            raise EstimatorError(f"Columns {which} of X are constant. Leave them out.")
        unit = spread if self.standardize else np.ones(dim)
        inside = covariance / np.outer(unit, unit)
        larger = 1 + self.ridge if self.ridge else sparse.diagonal_multiplier(count, dim)
        inside = inside + (larger - 1) * np.diag(np.diag(inside))
        if isinstance(self.penalty, str):
            steps = list(sparse.path(inside, count, self.gamma))
            best = min(steps, key=lambda step: step.ebic)
            precision = best.refitted
        else:
            penalty = float(self.penalty or 0.0)
            precision = sparse.minimize(inside, penalty)
            best = sparse.make_step(inside, precision, penalty, count=count, gamma=self.gamma)
            steps = [best]
        self.penalty_ = best.penalty
        self.path_ = _table(inside, steps)
        return precision / np.outer(unit, unit)

    @property
    def precision_(self) -> Matrix:
        """The precision matrix K."""
        self._need()
        dim = self.n_features_in_
        upper = np.zeros((dim, dim))
        upper[np.triu_indices(dim)] = self.theta_[dim:]
        return upper + np.triu(upper, 1).T

    @property
    def support_(self) -> NDArray[np.bool_]:
        """Which entries of K are not zero."""
        return self.precision_ != 0

    @property
    def edges_(self) -> "pd.DataFrame":
        """The edges with precision and partial correlation, the strongest first."""
        import pandas as pd

        precision = self.precision_
        first, second = np.nonzero(np.triu(precision, 1))
        names = np.asarray(getattr(self, "feature_names_in_", range(len(precision))))
        diagonal = np.diag(precision)
        values = precision[first, second]
        partial = -values / np.sqrt(diagonal[first] * diagonal[second])
        order = np.argsort(-np.abs(partial), kind="stable")
        columns = {
            "first": names[first],
            "second": names[second],
            "precision": values,
            "partial_correlation": partial,
        }
        return pd.DataFrame(columns).iloc[order].reset_index(drop=True)

    def _kept(self, *args: Any, **options: Any) -> Any:
        return None if self._penalized else super()._kept(*args, **options)

    def _sandwich(self, fitted: Fitted) -> Matrix:
        if self._penalized:
            raise EstimatorError(
                "There are no standard errors after a penalty: the data chose the edges as well. "
                "Fit with penalty=None, or to other rows; edges_ lists what was found."
            )
        return super()._sandwich(fitted)


def _table(covariance: Matrix, steps: list[sparse.Step]) -> "pd.DataFrame":
    import pandas as pd

    columns = {
        "penalty": [step.penalty for step in steps],
        "edges": [step.edges for step in steps],
        "score": [sparse.score(covariance, step.precision) for step in steps],
        "ebic": [step.ebic for step in steps],
    }
    return pd.DataFrame(columns)
