"""Sparse interactions by the ℓ1-penalised Hyvärinen score, for one penalty or a path of them.

The score is quadratic, ½⟨x, Ax⟩ − ⟨b, x⟩, and with the penalty λ Σ |x_e| over the interactions e
its minimiser is sparse (Lin, Drton and Shojaie 2016, doi:10.1214/16-EJS1126; Yu, Drton and Shojaie
2019, JMLR 20(76)). Two steps alternate: a proximal-gradient step, which finds the zeros and the
signs, and the exact minimum for these signs. Two problems have this form:

- `Gaussian`: x = K, ½ tr(KSK) − tr(K) with S the covariance. Every step is a product of d × d
  matrices.
- `System`: x = θ, ½ θᵀΓθ − gᵀθ, of any family whose interactions are entries of θ.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from samplekit.core.errors import EstimatorError
from samplekit.estimators.linear import Matrix, Vector

type Mask = NDArray[np.bool_]
type Values = NDArray[np.float64]  # a matrix K or a vector θ

# Largest violation of the optimality conditions, whose entries are of order one.
TOLERANCE = 1e-10
MAX_ROUNDS = 2000
MAX_SOLVER_STEPS = 5000
# The path has this many penalties, evenly on the log scale, down to this share of the largest.
PATH_LENGTH, PATH_RATIO = 50, 0.01
PATIENCE = 10


class Problem(Protocol):
    """A quadratic function whose interactions are penalised."""

    linear: Values  # b
    interactions: Mask  # which entries are penalised
    step: float  # one over the largest eigenvalue of A

    def apply(self, x: Values) -> Values:
        """Return Ax."""
        ...

    def solve(self, active: Mask, wanted: Values, start: Values) -> Values:
        """Return the x, zero outside `active`, with Ax = wanted inside."""
        ...

    def empty(self) -> Values:
        """Return the minimiser without interactions."""
        ...


class Gaussian:
    """½ tr(KSK) − tr(K): the score of a Gaussian of precision K and covariance S."""

    def __init__(self, covariance: Matrix) -> None:
        self.covariance = covariance
        self.linear = np.eye(len(covariance))
        self.interactions = ~np.eye(len(covariance), dtype=bool)
        self.step = float(1 / np.linalg.eigvalsh(covariance)[-1])

    def apply(self, x: Matrix) -> Matrix:
        """Return ½(SK + KS)."""
        product = self.covariance @ x
        return (product + product.T) / 2

    def solve(self, active: Mask, wanted: Matrix, start: Matrix) -> Matrix:
        """Solve by conjugate gradients."""
        solution = np.where(active, start, 0.0)
        left = np.where(active, wanted - self.apply(solution), 0.0)
        direction, size = left, float((left**2).sum())
        for _ in range(MAX_SOLVER_STEPS):
            if np.abs(left).max() <= TOLERANCE / 4:
                break
            bend = np.where(active, self.apply(direction), 0.0)
            length = size / float((direction * bend).sum())
            solution = solution + length * direction
            left = left - length * bend
            size, old = float((left**2).sum()), size
            direction = left + size / old * direction
        return solution

    def empty(self) -> Matrix:
        """Return 1/diag(S)."""
        return np.diag(1 / np.diag(self.covariance))


class System:
    """½ θᵀΓθ − gᵀθ in the units `scale`: x = scale·θ."""

    def __init__(self, gamma: Matrix, g: Vector, interactions: Mask, *, scaled: bool) -> None:
        self.scale = np.sqrt(np.diag(gamma)) if scaled else np.ones(len(g))
        self.matrix = gamma / np.outer(self.scale, self.scale)
        self.linear = g / self.scale
        self.interactions = interactions
        self.step = float(1 / np.linalg.eigvalsh(self.matrix)[-1])

    def apply(self, x: Vector) -> Vector:
        """Return Γx."""
        return self.matrix @ x

    def solve(self, active: Mask, wanted: Vector, start: Vector) -> Vector:
        """Solve the rows and columns that are active."""
        del start
        at = np.flatnonzero(active)
        solution = np.zeros(len(wanted))
        solution[at] = np.linalg.lstsq(self.matrix[np.ix_(at, at)], wanted[at])[0]
        return solution

    def empty(self) -> Vector:
        """Return the minimiser without interactions."""
        return self.solve(~self.interactions, self.linear, self.linear)


class Step(NamedTuple):
    """A penalty, the minimiser there, the best fit of its graph without penalty, and its BIC."""

    penalty: float
    solution: Values
    refitted: Values
    ebic: float


def score(problem: Problem, x: Values) -> float:
    """Return the mean Hyvärinen score ½⟨x, Ax⟩ − ⟨b, x⟩, up to a constant."""
    return float((x * (problem.apply(x) / 2 - problem.linear)).sum())


def largest_penalty(problem: Problem) -> float:
    """Return the least penalty at which no interaction is left."""
    slope = np.abs(_slope(problem, problem.empty()))
    return float(slope[problem.interactions].max(initial=0.0))


def violation(problem: Problem, x: Values, penalty: float) -> float:
    """Return by how much the optimality conditions fail: zero at the minimiser.

    With G = Ax − b they are G = 0 without penalty, and for interactions G = −λ sign x where x ≠ 0,
    |G| ≤ λ where x = 0.
    """
    slope = _slope(problem, x)
    free = np.abs(slope + np.where(problem.interactions, penalty * np.sign(x), 0.0))
    zero = np.maximum(np.abs(slope) - penalty, 0.0)
    return float(np.where(problem.interactions & (x == 0), zero, free).max())


def minimize(problem: Problem, penalty: float, start: Values | None = None) -> Values:
    """Return the x that minimises ½⟨x, Ax⟩ − ⟨b, x⟩ + penalty Σ |x_e|."""
    x = problem.empty() if start is None else start
    for _ in range(MAX_ROUNDS):
        if violation(problem, x, penalty) <= TOLERANCE:
            return x
        moved = x - problem.step * _slope(problem, x)
        x = _within_signs(problem, _shrink(problem, moved, penalty), penalty)
    raise EstimatorError(
        f"The sparse fit at penalty={penalty:.3g} did not converge: the columns are too nearly "
        "collinear for so small a penalty. Give a larger penalty, or ridge=1e-3 or so."
    )


def path(problem: Problem, judge: Callable[[Values, float], Step]) -> Iterator[Step]:
    """Yield the fits from the largest penalty down, each started at the last.

    The path ends where the extended BIC has not been as good as before for `PATIENCE` penalties.
    """
    start = problem.empty()
    best, since = np.inf, 0
    for penalty in largest_penalty(problem) * np.geomspace(1.0, PATH_RATIO, PATH_LENGTH):
        start = minimize(problem, float(penalty), start)
        step = judge(start, float(penalty))
        yield step
        since = 0 if step.ebic <= best else since + 1
        best = min(best, step.ebic)
        if since == PATIENCE:
            return


def refit(covariance: Matrix, support: Mask) -> Matrix:
    """Return the maximum-likelihood K with zeros outside `support`; positive definite as S is.

    Node after node, the regression on its neighbours: W agrees with S on the edges and on the
    diagonal, and the rest of it follows (Hastie, Tibshirani and Friedman 2009, algorithm 17.1).
    """
    dim = len(covariance)
    edge = support & ~np.eye(dim, dtype=bool)
    fitted, slopes = covariance.copy(), np.zeros((dim, dim))
    for _ in range(MAX_ROUNDS):
        change = 0.0
        for node in range(dim):
            near = np.flatnonzero(edge[node])
            slope = np.linalg.solve(fitted[np.ix_(near, near)], covariance[near, node])
            row = fitted[:, near] @ slope
            row[node] = covariance[node, node]
            change = max(change, float(np.abs(row - fitted[node]).max()))
            fitted[node] = fitted[:, node] = row
            slopes[node, near] = slope
        if change <= TOLERANCE * np.abs(covariance).max():
            break
    diagonal = 1 / (np.diag(covariance) - (fitted * slopes).sum(axis=1))
    precision = diagonal[:, None] * (np.eye(dim) - slopes)
    return (precision + precision.T) / 2


def extended_bic(covariance: Matrix, precision: Matrix, count: int, gamma: float) -> float:
    """Return −2 log likelihood + |E| (log n + 4γ log d), up to a constant.

    Chen and Chen 2008, doi:10.1093/biomet/asn034; for graphs Foygel and Drton 2010, NeurIPS 23.
    """
    edges = np.count_nonzero(np.triu(precision, 1))
    deviance = count * ((covariance * precision).sum() - np.linalg.slogdet(precision)[1])
    return float(deviance + edges * (np.log(count) + 4 * gamma * np.log(len(precision))))


def diagonal_multiplier(count: int, dim: int) -> float:
    """Return what the diagonal of S is multiplied by: 1 if n > d, else the bound of Yu et al.

    With fewer rows than columns S is singular and the score has no minimum for small penalties.
    Yu, Drton and Shojaie 2019, JMLR 20(76): 2 − 1/(1 + 4e max(r, √r)) with r = 6 log d / n.
    """
    if count > dim:
        return 1.0
    rate = 6 * np.log(dim) / count
    return float(2 - 1 / (1 + 4 * np.e * max(rate, np.sqrt(rate))))


def score_bic(
    problem: System, support: Mask, middle: Matrix, *, weight: float, charge: float
) -> tuple[Vector, float]:
    """Return the best x on a support and 2w·score + df·charge, df = tr(Γ⁻¹M)/w on the support.

    M = Σ w²ψψᵀ is the sandwich's middle, in the units of x. Twice the score is no likelihood ratio:
    each parameter lowers it not by one on average but by its share of tr(Γ⁻¹M)/w, so this is what
    is charged (Varin and Vidoni 2005, Biometrika 92(3); Gao and Song 2010, JASA 105(492)).
    """
    x = problem.solve(support, problem.linear, problem.linear)
    at = np.flatnonzero(support)
    inside = np.ix_(at, at)
    df = np.trace(np.linalg.lstsq(problem.matrix[inside], middle[inside])[0]) / weight
    return x, float(2 * weight * score(problem, x) + df * charge)


def _slope(problem: Problem, x: Values) -> Values:
    return problem.apply(x) - problem.linear


def _shrink(problem: Problem, x: Values, penalty: float) -> Values:
    """Move the interactions towards zero."""
    small = np.sign(x) * np.maximum(np.abs(x) - problem.step * penalty, 0.0)
    return np.where(problem.interactions, small, x)


def _within_signs(problem: Problem, x: Values, penalty: float) -> Values:
    """Go to the minimum for the present signs; what would change its sign becomes zero."""
    sign = np.where(problem.interactions, np.sign(x), 0.0)
    active = (sign != 0) | ~problem.interactions
    best = problem.solve(active, problem.linear - penalty * sign, x)

    def value(at: Values) -> float:
        return score(problem, at) + penalty * float((sign * at).sum())

    before, share = value(x), 1.0
    while share > 1e-4:
        trial = x + share * (best - x)
        trial[(sign * trial < 0) & (sign != 0)] = 0.0
        if value(trial) <= before:
            return trial
        share /= 2
    return x
