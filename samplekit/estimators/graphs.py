"""`GraphicalModel`: which variables depend on each other, given all the others."""

from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval, StrOptions

from samplekit.core.errors import EstimatorError
from samplekit.estimators import quadratic
from samplekit.estimators import sparse_precision as sparse
from samplekit.estimators.base import Fitted
from samplekit.estimators.family import Family, NamedFamily
from samplekit.estimators.linear import Matrix, Solution, Vector
from samplekit.estimators.setup import Engine
from samplekit.estimators.sources import Reservoir

if TYPE_CHECKING:
    import pandas as pd

# Σ_{i≠j} |K_ij| has every pair twice, θ has it once.
PAIR = 2


class GraphicalModel(NamedFamily):
    """Fit a family with an interaction matrix K, on request a sparse one.

    `families.gaussian_graphical_model`, `truncated_gaussian` and `pairwise` return this.

    Parameters
    ----------
    family
        A family whose natural parameters are d linear ones and the upper triangle of K.
    penalty
        λ of λ Σ_{i≠j} |K_ij|. None and 0 give the closed form, with standard errors. "ebic"
        follows a path of penalties and takes the graph with the least extended BIC.
    gamma
        Of the extended BIC: 0 is the BIC; larger values ask more of an edge.
    ridge
        With a penalty: the diagonal of S (of Γ) is multiplied by 1 + ridge.
    standardize
        With a penalty: fit in units in which S (or Γ) has a diagonal of ones, so that λ does not
        depend on the units of the columns. For Gaussians no edge remains from λ = 1 on.
    weight, errors
        As in `ExponentialFamily`.

    Attributes
    ----------
    precision_
        K, in the units of X: the minimiser at a penalty; for "ebic" the best fit of the chosen
        graph without penalty. For Gaussians that is the maximum-likelihood one, which is positive
        definite; other minimisers need not give a density that can be integrated.
    support_
        Which entries of K are not zero.
    penalty_, path_
        The penalty, and a table with one row per penalty tried: `penalty`, `edges`, `score` (the
        mean Hyvärinen score of the minimiser, up to a constant, in the units of the fit) and, for
        Gaussians and for "ebic", `ebic` (of its graph's best fit, up to a constant).
    edges_
        A table of the edges, the strongest first.

    Notes
    -----
    The minimised function is ½θᵀΓθ − gᵀθ + λ Σ_{i≠j} |K_ij|; for Gaussians ½ tr(KSK) − tr(K) + ...,
    quadratic and without a determinant: Lin, Drton and Shojaie 2016, doi:10.1214/16-EJS1126; Yu,
    Drton and Shojaie 2019, JMLR 20(76). With fewer rows than columns the diagonal is enlarged as in
    the latter, unless `ridge` says by how much. The extended BIC is that of the likelihood for
    Gaussians; for other families twice the summed score takes the place of the deviance, and an
    edge is charged for what it gains by chance, as the sandwich tells: Varin and Vidoni 2005,
    Biometrika 92(3); Gao and Song 2010, JASA 105(492). The choice of edges makes the usual standard
    errors wrong, so there are none. Γ has (d²/2)² numbers, which limits d to about 100 for families
    that are not Gaussian.

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

    def _absorb(self, X: Any, sample_weight: Any, devices: Any, *, more: bool = False) -> None:
        super()._absorb(X, sample_weight, devices, more=more)
        if self.penalty == "ebic" and not self._gaussian:
            # The charge for an edge depends on the graph a little: first that without edges.
            for _ in range(2):
                self._choose()

    @property
    def _gaussian(self) -> bool:
        """Whether second moments say everything."""
        return self.family.domain is None and not callable(self.weight)

    def _solve(self, engine: Engine, sums: tuple[Matrix, ...], count: int) -> Solution:
        for name in ("penalty_", "path_"):
            vars(self).pop(name, None)
        if not self._penalized:
            return super()._solve(engine, sums, count)
        if self._gaussian:
            moments = sums[0] / sums[0][0, 0]
            mean = moments[0, 1:]
            covariance = moments[1:, 1:] - np.outer(mean, mean)
            precision = self._sparse(covariance, count)
            theta = quadratic.join(precision @ mean, precision)
        else:
            problem = self._system(sums, count)
            if isinstance(self.penalty, str):
                found = problem.empty()  # the graph is chosen when the sums are in place
            else:
                penalty = PAIR * float(self.penalty or 0.0)
                found = sparse.minimize(problem, penalty)
                self._keep(problem, [sparse.Step(penalty, found, found, np.nan)])
            theta = found / problem.scale
        return Solution(theta, np.zeros((0, 0)), np.nan)

    def _enlarged(self, matrix: Matrix, count: int) -> Matrix:
        """Return a matrix with the diagonal that a sparse fit needs."""
        dim = self.n_features_in_
        larger = 1 + self.ridge if self.ridge else sparse.diagonal_multiplier(count, dim)
        return matrix + (larger - 1) * np.diag(np.diag(matrix))

    def _sparse(self, covariance: Matrix, count: int) -> Matrix:
        """Return the sparse K of a covariance, and keep the path."""
        spread = np.sqrt(np.maximum(np.diag(covariance), 0.0))
        if not (spread > 0).all():
            which = ", ".join(str(i) for i in np.flatnonzero(~(spread > 0)))
            raise EstimatorError(f"Columns {which} of X are constant. Leave them out.")
        unit = spread if self.standardize else np.ones(len(spread))
        problem = sparse.Gaussian(self._enlarged(covariance / np.outer(unit, unit), count))

        def judge(precision: Matrix, penalty: float) -> sparse.Step:
            refitted = sparse.refit(problem.covariance, precision != 0)
            ebic = sparse.extended_bic(problem.covariance, refitted, count, self.gamma)
            return sparse.Step(penalty, precision, refitted, ebic)

        if isinstance(self.penalty, str):
            best = self._keep(problem, list(sparse.path(problem, judge)))
            return best.refitted / np.outer(unit, unit)
        penalty = float(self.penalty or 0.0)
        best = self._keep(problem, [judge(sparse.minimize(problem, penalty), penalty)])
        return best.solution / np.outer(unit, unit)

    def _system(self, sums: tuple[Matrix, ...], count: int) -> sparse.System:
        """Return the penalised system of mean sums Γ and g."""
        i, j = np.triu_indices(self.n_features_in_)
        interactions = np.append(np.zeros(self.n_features_in_, bool), i != j)
        if not (np.diag(sums[0]) > 0).all():
            raise EstimatorError("A column of X is constant, or zero. Leave it out.")
        gamma = self._enlarged(sums[0], count)
        return sparse.System(gamma, sums[1], interactions, scaled=self.standardize)

    def _choose(self) -> None:
        """Take the graph with the least extended BIC, charged as at the present fit."""
        fitted = self._fitted
        problem = self._system(tuple(part / fitted.weight for part in fitted.sums), fitted.count)
        scale = problem.scale
        middle = self._middle(fitted)[0] / np.outer(scale, scale)
        charge = np.log(fitted.count) + 4 * self.gamma * np.log(self.n_features_in_)

        def judge(x: Vector, penalty: float) -> sparse.Step:
            support = (x != 0) | ~problem.interactions
            refitted, ebic = sparse.score_bic(
                problem, support, middle, weight=fitted.weight, charge=float(charge)
            )
            return sparse.Step(penalty, x, refitted, ebic)

        best = self._keep(problem, list(sparse.path(problem, judge)))
        fitted.theta = best.refitted / scale
        self.theta_ = fitted.theta if fitted.frame is None else fitted.frame.back(fitted.theta)

    def _keep(self, problem: sparse.Problem, steps: list[sparse.Step]) -> sparse.Step:
        """Keep the path as a table and return its best step."""
        import pandas as pd

        whole = problem.linear.ndim == 2  # K itself, which has every pair twice
        best = min(range(len(steps)), key=lambda i: steps[i].ebic)
        found = [np.count_nonzero(step.solution[problem.interactions]) for step in steps]
        columns = {
            "penalty": [step.penalty / (1 if whole else PAIR) for step in steps],
            "edges": [count // (PAIR if whole else 1) for count in found],
            "score": [sparse.score(problem, step.solution) for step in steps],
            "ebic": [step.ebic for step in steps],
        }
        self.path_ = pd.DataFrame(columns).dropna(axis=1)
        self.penalty_ = columns["penalty"][best]
        return steps[best]

    @property
    def precision_(self) -> Matrix:
        """The precision matrix K."""
        self._need()
        return quadratic.precision_of(self.theta_, self.n_features_in_)

    @property
    def support_(self) -> NDArray[np.bool_]:
        """Which entries of K are not zero."""
        return self.precision_ != 0

    @property
    def edges_(self) -> "pd.DataFrame":
        """The edges with K_ij and −K_ij/√(K_ii K_jj), the strongest first.

        The latter is the partial correlation of a Gaussian; for other families it is only a number
        without units.
        """
        import pandas as pd

        precision = self.precision_
        first, second = np.nonzero(np.triu(precision, 1))
        names = np.asarray(getattr(self, "feature_names_in_", range(len(precision))))
        diagonal = np.diag(precision)
        values = precision[first, second]
        strength = -values / np.sqrt(np.abs(diagonal[first] * diagonal[second]))
        order = np.argsort(-np.abs(strength), kind="stable")
        columns = {
            "first": names[first],
            "second": names[second],
            "precision": values,
            "partial_correlation" if self.family.domain is None else "strength": strength,
        }
        return pd.DataFrame(columns).iloc[order].reset_index(drop=True)

    def _kept(self, source: Any, old: Fitted | None, *, more: bool) -> Any:
        if not self._penalized:
            return super()._kept(source, old, more=more)
        if self.penalty != "ebic" or self._gaussian:
            return None
        # Not for standard errors, but for the charge of an edge: a subset is enough.
        if old is None:
            return Reservoir()
        if not isinstance(old.kept, Reservoir):
            raise EstimatorError(
                "penalty='ebic' needs some of the rows seen before, and they were not kept: the "
                "penalty was another one then. Fit again, to all rows."
            )
        return old.kept.copy()

    def _sandwich(self, fitted: Fitted) -> Matrix:
        if self._penalized:
            raise EstimatorError(
                "There are no standard errors after a penalty: the data chose the edges as well. "
                "Fit with penalty=None, or to other rows; edges_ lists what was found."
            )
        return super()._sandwich(fitted)
