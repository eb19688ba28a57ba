"""Sparse precision matrices by the ℓ1-penalised Hyvärinen score, one or a path of them.

With S the covariance, the score of a Gaussian of precision K is ½ tr(KSK) − tr(K): quadratic in K,
no determinant. Its minimiser with the penalty λ Σ_{i≠j} |K_ij| is a sparse K (Lin, Drton and
Shojaie 2016, doi:10.1214/16-EJS1126). Two steps alternate: a proximal-gradient step, which finds
the zeros and the signs, and the exact minimum for these signs by conjugate gradients. Every step is
a product of d × d matrices.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplekit.estimators.errors import EstimatorError
from samplekit.estimators.linear import Matrix

type Mask = NDArray[np.bool_]

# Largest violation of the optimality conditions, whose entries are of order one.
TOLERANCE = 1e-10
MAX_ROUNDS = 2000
MAX_SOLVER_STEPS = 5000
# The path has this many penalties, evenly on the log scale, down to this share of the largest.
PATH_LENGTH, PATH_RATIO = 50, 0.01
PATIENCE = 10


class Step(NamedTuple):
    """A penalty, the minimiser there, and the maximum-likelihood fit of its graph."""

    penalty: float
    precision: Matrix
    refitted: Matrix
    ebic: float

    @property
    def edges(self) -> int:
        """Number of edges."""
        return int(np.count_nonzero(np.triu(self.precision, 1)))


def score(covariance: Matrix, precision: Matrix) -> float:
    """Return the mean Hyvärinen score, ½ tr(KSK) − tr(K)."""
    return float((precision * (covariance @ precision)).sum() / 2 - np.trace(precision))


def largest_penalty(covariance: Matrix) -> float:
    """Return the least penalty at which no edge is left: then K = 1/diag(S)."""
    slope = np.abs(_curve(covariance, np.diag(1 / np.diag(covariance))))
    return float((slope - np.diag(np.diag(slope))).max())


def violation(covariance: Matrix, precision: Matrix, penalty: float) -> float:
    """Return by how much the optimality conditions fail: zero at the minimiser.

    With G = ½(SK + KS) − I they are G_ii = 0, G_ij = −λ sign K_ij, and |G_ij| ≤ λ where K_ij = 0.
    """
    slope = _slope(covariance, precision)
    off = ~np.eye(len(slope), dtype=bool)
    held = np.where(off, penalty * np.sign(precision), 0.0)
    free = np.abs(slope + held)
    zero = np.maximum(np.abs(slope) - penalty, 0.0)
    return float(np.where(off & (precision == 0), zero, free).max())


def minimize(covariance: Matrix, penalty: float, start: Matrix | None = None) -> Matrix:
    """Return the K that minimises ½ tr(KSK) − tr(K) + penalty Σ_{i≠j} |K_ij|."""
    precision = np.diag(1 / np.diag(covariance)) if start is None else start
    step = 1 / np.linalg.eigvalsh(covariance)[-1]
    for _ in range(MAX_ROUNDS):
        if violation(covariance, precision, penalty) <= TOLERANCE:
            return precision
        moved = precision - step * _slope(covariance, precision)
        precision = _within_signs(covariance, _shrink(moved, step * penalty), penalty)
    raise EstimatorError(
        f"The sparse fit at penalty={penalty:.3g} did not converge: the columns are too nearly "
        "collinear for so small a penalty. Give a larger penalty, or ridge=1e-3 or so."
    )


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


def path(covariance: Matrix, count: int, gamma: float) -> Iterator[Step]:
    """Yield the fits from the largest penalty down, each started at the last.

    The path ends where the extended BIC has not been as good as before for `PATIENCE` penalties.
    """
    start = np.diag(1 / np.diag(covariance))
    best, since = np.inf, 0
    for penalty in largest_penalty(covariance) * np.geomspace(1.0, PATH_RATIO, PATH_LENGTH):
        start = minimize(covariance, float(penalty), start)
        step = make_step(covariance, start, float(penalty), count=count, gamma=gamma)
        yield step
        since = 0 if step.ebic <= best else since + 1
        best = min(best, step.ebic)
        if since == PATIENCE:
            return


def make_step(
    covariance: Matrix, precision: Matrix, penalty: float, *, count: int, gamma: float
) -> Step:
    """Return a minimiser with its graph's maximum-likelihood fit and extended BIC."""
    refitted = refit(covariance, precision != 0)
    return Step(penalty, precision, refitted, extended_bic(covariance, refitted, count, gamma))


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


def _curve(covariance: Matrix, direction: Matrix) -> Matrix:
    """Return ½(SP + PS): the second derivative of the score along symmetric P."""
    product = covariance @ direction
    return (product + product.T) / 2


def _slope(covariance: Matrix, precision: Matrix) -> Matrix:
    return _curve(covariance, precision) - np.eye(len(precision))


def _shrink(matrix: Matrix, threshold: float) -> Matrix:
    """Move all but the diagonal towards zero."""
    small = np.sign(matrix) * np.maximum(np.abs(matrix) - threshold, 0.0)
    np.fill_diagonal(small, np.diag(matrix))
    return small


def _within_signs(covariance: Matrix, precision: Matrix, penalty: float) -> Matrix:
    """Go to the minimum for the present signs; what would change its sign becomes zero."""
    sign = np.sign(precision)
    np.fill_diagonal(sign, 0.0)
    active = (sign != 0) | np.eye(len(sign), dtype=bool)
    best = _solve(covariance, active, np.eye(len(sign)) - penalty * sign, precision)

    def value(at: Matrix) -> float:
        return score(covariance, at) + penalty * float((sign * at).sum())

    before, share = value(precision), 1.0
    while share > 1e-4:
        trial = precision + share * (best - precision)
        trial[(sign * trial < 0) & (sign != 0)] = 0.0
        if value(trial) <= before:
            return trial
        share /= 2
    return precision


def _solve(covariance: Matrix, active: Mask, wanted: Matrix, start: Matrix) -> Matrix:
    """Solve ½(SK + KS) = wanted on the active entries, by conjugate gradients."""
    solution = np.where(active, start, 0.0)
    left = np.where(active, wanted - _curve(covariance, solution), 0.0)
    direction, size = left, float((left**2).sum())
    for _ in range(MAX_SOLVER_STEPS):
        if np.abs(left).max() <= TOLERANCE / 4:
            break
        bend = np.where(active, _curve(covariance, direction), 0.0)
        length = size / float((direction * bend).sum())
        solution = solution + length * direction
        left = left - length * bend
        size, old = float((left**2).sum()), size
        direction = left + size / old * direction
    return solution
