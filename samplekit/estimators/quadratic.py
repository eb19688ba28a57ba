"""Gaussian families from second moments: no autodiff, and d² sums where k² would be needed.

The statistics are (y_j), (−½y_j²), (−y_j y_l, j < l), so θ = (Kμ, K) with K the precision. Each
slope is linear in φ = (1, y), hence Γ and g are linear in M = Σ w φφᵀ, and without a ridge the
solution is the maximum-likelihood one, K = S⁻¹.
"""

from collections.abc import Iterable, Iterator

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from samplekit.core.errors import EstimatorError
from samplekit.estimators.linear import Matrix, Solution, Vector, solve
from samplekit.estimators.rows import Chunk, all_reduce, refuse_non_finite

# Numbers in one chunk: 4 MiB in float64, so that shifting and multiplying happen in cache.
CHUNK_NUMBERS = 2**19


def statistics(y: Array) -> Array:
    """Return (y_j), then −½y_j² and −y_j y_l by the rows of the upper triangle."""
    i, j = np.triu_indices(y.shape[0])
    half = np.where(i == j, 0.5, 1.0).astype(y.dtype)
    return jnp.concatenate([y, -half * y[i] * y[j]])


def names(dim: int) -> list[str]:
    """Return the names of the natural parameters."""
    if dim == 1:
        return ["precision·mean", "precision"]
    pairs = [f"precision[{a},{b}]" for a in range(dim) for b in range(a, dim)]
    return [f"(precision·mean)[{a}]" for a in range(dim)] + pairs


def split(theta: Array, dim: int) -> tuple[Array, Array]:
    """Return Kμ and the symmetric K of a natural parameter."""
    i, j = np.triu_indices(dim)
    upper = jnp.zeros((dim, dim), theta.dtype).at[i, j].set(theta[dim:])
    return theta[:dim], upper + upper.T - jnp.diag(jnp.diag(upper))


def precision_of(theta: Vector, dim: int) -> Matrix:
    """Return the symmetric K of a natural parameter, in NumPy."""
    i, j = np.triu_indices(dim)
    precision = np.zeros((dim, dim))
    precision[i, j] = precision[j, i] = theta[dim:]
    return precision


def log_normalizer(theta: Vector, dim: int) -> float:
    """Return log ∫ exp(θᵀs) = ½(linearᵀ K⁻¹ linear + d log 2π − log det K)."""
    linear, precision = theta[:dim], precision_of(theta, dim)
    sign, log_det = np.linalg.slogdet(precision)
    if sign <= 0:
        raise EstimatorError("The precision is not positive definite: there is no normaliser.")
    form = linear @ np.linalg.solve(precision, linear)
    return float(form + dim * np.log(2 * np.pi) - log_det) / 2


def join(linear: NDArray[np.float64], precision: NDArray[np.float64]) -> Vector:
    """Return the natural parameter of Kμ and K."""
    return np.concatenate([linear, precision[np.triu_indices(len(linear))]])


class Frame:
    """Coordinates u = (y − center)/scale, and the way of θ back from them."""

    def __init__(self, center: Vector, scale: Vector) -> None:
        self.center, self.scale = center, scale
        self.unscaled = bool((scale == 1).all())

    def rows(self, rows: Matrix) -> Matrix:
        """Return the rows in the frame."""
        shifted = rows - self.center
        if not self.unscaled:
            shifted /= self.scale
        return shifted

    def back(self, theta: Vector) -> Vector:
        """Return θ of y from θ of u: K = K_u/(r rᵀ), Kμ = (K_u μ_u)/r + K c."""
        dim = len(self.center)
        precision = precision_of(theta, dim) / np.outer(self.scale, self.scale)
        return join(theta[:dim] / self.scale + precision @ self.center, precision)

    def jacobian(self) -> Matrix:
        """Return the matrix of `back`, which is linear."""
        dim = len(self.center)
        i, j = np.triu_indices(dim)
        pair = dim + np.arange(len(i))
        out = np.diag(np.concatenate([1 / self.scale, 1 / (self.scale[i] * self.scale[j])]))
        out[i, pair] += self.center[j] / (self.scale[i] * self.scale[j])
        off = i != j
        out[j[off], pair[off]] += (self.center[i] / (self.scale[i] * self.scale[j]))[off]
        return out


class QuadraticEngine:
    """Sums, solve and errors of an unweighted Gaussian family on the reals."""

    def __init__(
        self, dim: int, *, ridge: float = 0.0, scaled: bool = True, everywhere: bool = False
    ) -> None:
        self.everywhere = everywhere  # the rows are spread over processes
        self.dim, self.ridge, self.scaled = dim, ridge, scaled
        self.chunk = max(CHUNK_NUMBERS // dim, 1)

    def sums(self, chunks: Iterable[Chunk]) -> tuple[Matrix, Vector]:
        """Return M = Σ w φφᵀ, φ = (1, u), and an empty vector."""
        total = np.zeros((self.dim + 1, self.dim + 1))
        for chunk in chunks:
            rows = chunk.rows
            plain = (chunk.weights == 1).all()
            root = rows if plain else rows * np.sqrt(chunk.weights)[:, None]
            with np.errstate(invalid="ignore", over="ignore"):  # looked at below
                total[1:, 1:] += root.T @ root
                total[0, 1:] += chunk.weights @ rows
            total[0, 0] += chunk.weights.sum()
            if not np.isfinite(total).all():
                refuse_non_finite(chunk)
                raise EstimatorError("X is too large to be squared. Rescale its columns.")
        total[1:, 0] = total[0, 1:]
        return all_reduce((total,))[0] if self.everywhere else total, np.zeros(0)

    def normal(self, sums: tuple[Matrix, ...]) -> tuple[Matrix, Vector]:
        """Return Γ and g of the sums."""
        dim, moments = self.dim, sums[0]
        place = np.zeros((dim, dim), int)
        i, j = np.triu_indices(dim)
        place[i, j] = place[j, i] = dim + np.arange(len(i))
        sign = np.append(1.0, -np.ones(dim))
        signed = moments * np.outer(sign, sign)
        gamma = np.zeros((dim + len(i),) * 2)
        for axis in range(dim):
            index = np.append(axis, place[axis])
            gamma[np.ix_(index, index)] += signed
        g = np.zeros(len(gamma))
        g[np.diag(place)] = moments[0, 0]
        return gamma, g

    def solve(self, sums: tuple[Matrix, ...]) -> Solution:
        """Return θ̂; without a ridge that is the mean and the inverse covariance."""
        if self.ridge:
            return self.full(sums)
        moments = sums[0] / sums[0][0, 0]
        mean = moments[0, 1:]
        covariance = moments[1:, 1:] - np.outer(mean, mean)
        columns = [f"y[{i}]" for i in range(self.dim)]
        inverse = solve(covariance, np.zeros(self.dim), columns)
        theta = join(inverse.bread @ mean, inverse.bread)
        return Solution(theta, np.zeros((0, 0)), np.nan)

    def full(self, sums: tuple[Matrix, ...]) -> Solution:
        """Return the solution of the k × k system, with Γ⁻¹ and the condition number."""
        return solve(*self.normal(sums), names(self.dim), ridge=self.ridge, scaled=self.scaled)

    def meat(self, chunks: Iterable[Chunk], theta: Vector) -> tuple[Matrix, Vector]:
        """Return Σ w²ψψᵀ and Σ wψ."""
        size = len(theta)
        meat, total = np.zeros((size, size)), np.zeros(size)
        i, j = np.triu_indices(self.dim)
        precision = precision_of(theta, self.dim)
        for chunk in _smaller(chunks, max(CHUNK_NUMBERS // size, 1)):
            u = chunk.rows
            pull = theta[: self.dim] - u @ precision  # ∇ log p
            pairs = u[:, i] * pull[:, j]
            pairs += np.where(i == j, 0.0, 1.0) * (u[:, j] * pull[:, i])
            pairs += np.where(i == j, 1.0, 0.0)
            psi = np.concatenate([pull, -pairs], axis=1) * chunk.weights[:, None]
            meat += psi.T @ psi
            total += psi.sum(axis=0)
        return meat, total


def _smaller(chunks: Iterable[Chunk], size: int) -> Iterator[Chunk]:
    """Cut chunks into pieces of at most `size` rows."""
    for rows, weights, start in chunks:
        for at in range(0, len(rows), size):
            yield Chunk(rows[at : at + size], weights[at : at + size], start + at)
