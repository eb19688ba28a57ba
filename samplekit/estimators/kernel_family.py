"""`KernelExponentialFamily`: a density of any shape, fitted by one linear solve.

The statistics are gram functions k(y, c_j) of a few centers, the base a wide Gaussian. All else is
the machinery of exponential families: Γ and g by autodiff, one solve, a target, draws.
"""

import dataclasses
from numbers import Integral, Real
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.spatial.distance import pdist
from sklearn.utils._param_validation import Interval, StrOptions

from samplekit.core.errors import EstimatorError
from samplekit.core.pytree import as_function, pytree
from samplekit.estimators.density import CHAINS, FittedDensity, generator
from samplekit.estimators.linear import Matrix, Solution, Vector, solve
from samplekit.estimators.moments import Model, normal_block
from samplekit.estimators.rows import (
    Chunk,
    Runner,
    array_chunks,
    refuse_non_finite,
    spans_processes,
)
from samplekit.estimators.setup import AutodiffEngine, Engine, Setup, make_model
from samplekit.estimators.sources import ArraySource, is_stream

# The base has this many times the spread of the data: far out, where no data speak, the density
# falls off slowly, and beyond the centers it is the base's, so it has an integral.
WIDE = 2.0

# What bandwidth="cv" and ridge="cv" try, and in how many parts the rows are held out. The gram
# functions must resolve the narrowest part of the density, hence more values below the median.
BANDWIDTHS = (0.125, 0.25, 0.5, 1.0, 2.0)  # times the median distance
RIDGES = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
FOLDS = 5

# Centers, bandwidth and ridge are chosen on at most so many rows, the median on fewer.
CHOOSE_ROWS = 20_000
MEDIAN_ROWS = 1000

# Directions of the gram matrix of the centers below this share of the largest are left out: their
# coefficients, up to 1/√share times as large as the function, would cancel each other to no digit
# in a float32 target.
SHARE = 1e-7


@pytree
class Gram:
    """k(y, c_j) = exp(−½ Σ_i ((y_i − c_ji)/ℓ_i)²) for every center c_j."""

    centers: Any
    lengths: Any

    def __call__(self, y: Array) -> Array:
        """Return one number per center."""
        centers, lengths = (jnp.asarray(a, y.dtype) for a in (self.centers, self.lengths))
        return jnp.exp(-(((y[None, :] - centers) / lengths[None, :]) ** 2).sum(axis=1) / 2)


@pytree
class WideGaussian:
    """The base: a(y) = −½ Σ_i ((y_i − m_i)/s_i)²."""

    mean: Any
    spread: Any

    def __call__(self, y: Array) -> Array:
        """Return one number."""
        mean, spread = (jnp.asarray(a, y.dtype) for a in (self.mean, self.spread))
        return -(((y - mean) / spread) ** 2).sum() / 2


@pytree
class Constant:
    """A weight that is the same everywhere."""

    values: Any

    def __call__(self, y: Array) -> Array:
        """Return one number per column."""
        return jnp.asarray(self.values, y.dtype)


@dataclasses.dataclass(frozen=True)
class Basis:
    """All that is fixed before the linear solve."""

    centers: Matrix
    unit: Vector  # of each column
    mean: Vector  # of the base
    spread: Vector  # of the base
    bandwidth: float = 1.0  # in units
    ridge: float = 0.0  # relative to `curvature`

    @property
    def model(self) -> Model:
        """Gram functions on the base."""
        gram = Gram(self.centers, self.bandwidth * self.unit)
        return make_model(gram, WideGaussian(self.mean, self.spread))

    @property
    def scaled_model(self) -> Model:
        """The same in units of the columns: ∂/∂(y/u) = u ∂/∂y, which is the weight h = u²."""
        return dataclasses.replace(self.model, weight=as_function(Constant(self.unit**2)))

    @property
    def curvature(self) -> float:
        """The largest mean squared slope of a function of norm one: Σ_i ∂_i ∂'_i k(y, y)."""
        return len(self.unit) / self.bandwidth**2

    def orthonormal(self) -> Matrix:
        """Return coefficients of functions that are orthonormal in the gram's Hilbert space.

        With K = QΛQᵀ the gram matrix of the centers, these are QΛ^(−½): ‖Σ_j θ_j k(·, c_j)‖² = θᵀKθ
        becomes the sum of squares, and a ridge on it is the Hilbert norm's.
        """
        z = self.centers / (self.bandwidth * self.unit)
        square = (z**2).sum(axis=1)
        distance = square[:, None] + square[None, :] - 2 * z @ z.T
        values, vectors = np.linalg.eigh(np.exp(-distance.clip(0) / 2))
        keep = values > SHARE * values[-1]
        return vectors[:, keep] / np.sqrt(values[keep])


class GramEngine(AutodiffEngine):
    """Solves among orthonormal functions, so that the ridge is on the Hilbert norm."""

    def __init__(self, setup: Setup, basis: Basis, *, devices: Any = None) -> None:
        ridge = basis.ridge * basis.curvature
        super().__init__(setup, len(basis.unit), ridge=ridge, scaled=False, devices=devices)
        self.basis = basis

    def solve(self, sums: tuple[Matrix, ...]) -> Solution:
        """Return θ̂ with one number per center."""
        axes = self.basis.orthonormal()
        gamma, g = axes.T @ sums[0] @ axes, axes.T @ sums[1]
        names = [f"direction[{i}]" for i in range(len(g))]
        inner = solve(gamma, g, names, ridge=self.ridge, scaled=False)
        return Solution(axes @ inner.theta, axes @ inner.bread @ axes.T, inner.condition)


class KernelExponentialFamily(FittedDensity):
    """Fit log p(y) = log q₀(y) + Σ_j θ_j k(y, c_j) + const in closed form by the Fisher score.

    The base q₀ is a Gaussian with twice the spread of each column of the data, so the density has
    an integral and can be sampled whatever θ.

    Parameters
    ----------
    n_centers
        How many centers c_j, found by k-means. More resolve finer shapes; the time grows with the
        square. 100 or 200 are enough for most data of few columns.
    kernel
        "rbf": k(y, c) = exp(−‖y − c‖²/(2ℓ²)). (Elsewhere in samplekit a kernel is a Markov kernel;
        this one is called a gram function.)
    bandwidth
        ℓ, a number in units of the columns (see `standardize`), or "median", the median distance
        of two rows, or "cv": the best of ⅛, ¼, ½, 1 and 2 times the median, by 5-fold held-out
        Hyvärinen score.
    ridge
        The penalty on the squared norm of Σ_j θ_j k(·, c_j) in its Hilbert space, in units of
        d/ℓ², the largest mean squared slope of such a function of norm one. "cv" takes the best
        of 1e-7, 1e-6, ..., 1e-2, together with the bandwidth.
    standardize
        Measure distances and slopes in units of each column's standard deviation; otherwise in
        those of X.
    errors
        As in `ExponentialFamily`. The errors of θ̂ take centers, bandwidth and ridge as given.
    random_state
        Seeds k-means and the folds.

    Attributes
    ----------
    centers_, theta_
        The centers and their coefficients.
    bandwidth_, ridge_
        What was chosen, or given.
    selection_
        What cross-validation saw: "bandwidth", "ridge", and "score", the gain of the held-out
        score over that of q₀ alone (higher is better; one row per bandwidth). None if all was
        given. A choice at the end of a list asks for a bandwidth or ridge by hand.

    Notes
    -----
    With s_j = k(·, c_j) this is an exponential family: θ̂ = (Γ + λK)⁻¹g, K the gram matrix of the
    centers, is the Nyström form of the kernel exponential family (Sriperumbudur, Fukumizu, Gretton,
    Hyvärinen and Kumar 2017, JMLR 18(57); Sutherland, Strathmann, Arbel and Gretton 2018, AISTATS).
    The held-out score is a quadratic form of the held-out Γ and g, so one pass over the rows serves
    all folds and ridges of a bandwidth. The choice is made on at most 20,000 different rows; the
    solve uses all. `partial_fit` keeps the choice of the first rows.

    The score sees slopes where there are data: across gaps between well separated parts of the
    data, their relative masses are hardly determined.

    Examples
    --------
    >>> import jax, numpy as np
    >>> import samplekit as sk
    >>> from samplekit.estimators.kernel_family import KernelExponentialFamily
    >>> X = np.asarray(sk.targets.ring().draw(jax.random.key(0), 500))
    >>> ring = KernelExponentialFamily(50, random_state=0).fit(X)
    >>> on, inside = ring.score_samples([[3.0, 0.0], [1.5, 0.0]])
    >>> bool(on > inside + 5)
    True
    """

    _parameter_constraints: dict[str, list[Any]] = {  # noqa: RUF012
        **FittedDensity._parameter_constraints,
        "n_centers": [Interval(Integral, 1, None, closed="left")],
        "kernel": [StrOptions({"rbf"})],
        "bandwidth": [
            Interval(Real, 0, None, closed="neither"),
            StrOptions({"cv", "median"}),
        ],
        "ridge": [Interval(Real, 0, None, closed="left"), StrOptions({"cv"})],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_centers: int,
        kernel: str = "rbf",
        bandwidth: float | str = "cv",
        *,
        ridge: Any = "cv",
        standardize: bool = True,
        errors: str = "lazy",
        random_state: Any = None,
    ) -> None:
        self.n_centers = n_centers
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.ridge = ridge
        self.standardize = standardize
        self.errors = errors
        self.random_state = random_state

    def _setup(self, dim: int) -> Setup:
        del dim
        names = [f"center[{i}]" for i in range(len(self.centers_))]
        return Setup(self._basis.model, names)

    def _engine(self, setup: Setup, dim: int, frame: Any, devices: Any = None) -> Engine:
        del dim, frame
        inside = dataclasses.replace(setup, model=self._basis.scaled_model)
        return GramEngine(inside, self._basis, devices=devices)

    def _absorb(self, X: Any, sample_weight: Any, devices: Any, *, more: bool = False) -> None:
        if "_fitted" not in vars(self):
            if is_stream(X) or spans_processes(devices):
                raise EstimatorError(
                    "The centers are chosen from all rows, which an iterator or one of several "
                    "processes does not show. Give an array or a memory map; or call partial_fit "
                    "with an array first, from which the centers are chosen, then with the rest."
                )
            source = self._source(X, sample_weight, reset=True)
            assert isinstance(source, ArraySource)
            self._choose(next(source.chunks(len(source.rows))))
        super()._absorb(X, sample_weight, devices, more=more)

    # Rings and bends give one effective draw in six: the rows returned are picked from all of them.
    _least_draws = 2000

    def _starts(self, random: np.random.Generator) -> Any:
        # As many different centers: chains that start in one part of the data and stay there would
        # agree, and no diagnosis could notice.
        starts = random.choice(self.centers_, CHAINS, replace=len(self.centers_) < CHAINS)
        return jnp.asarray(starts, jnp.result_type(float))

    def _choose(self, chunk: Chunk) -> None:
        """Fix centers, bandwidth and ridge."""
        refuse_non_finite(chunk)
        random = generator(self.random_state)
        rows, weights = _distinct(chunk)
        if not len(rows):
            raise EstimatorError("All sample weights are zero: there is nothing to fit.")
        if len(rows) < self.n_centers or len(rows) < 2:
            raise EstimatorError(
                f"n_centers={self.n_centers}, but X (n_samples={len(chunk.rows)}) has "
                f"{len(rows)} different rows of positive weight: as many are needed, and at least "
                "2. Give fewer centers or more rows."
            )
        order = random.permutation(len(rows))[:CHOOSE_ROWS]
        rows, weights = rows[order], weights[order]
        mean = np.average(rows, axis=0, weights=weights)
        spread = np.sqrt(np.average((rows - mean) ** 2, axis=0, weights=weights))
        extent = np.ptp(rows, axis=0)  # zero to the last digit, which the spread may not be
        if not extent.all():
            raise EstimatorError(
                f"Column {int(np.argmin(extent))} of X is constant, so there is no density. "
                "Remove the column."
            )
        unit = spread if self.standardize else np.ones_like(spread)
        centers = _centers(rows / unit, weights, self.n_centers, random) * unit
        basis = Basis(centers, unit, mean, WIDE * spread)
        median = float(np.median(pdist(rows[:MEDIAN_ROWS] / unit)))
        known: dict[Any, Vector] = {
            "cv": np.multiply(BANDWIDTHS, median),
            "median": np.array([median]),
        }
        widths = known.get(self.bandwidth, np.array([self.bandwidth]))
        ridges = np.array(RIDGES if self.ridge == "cv" else [self.ridge])
        self.selection_: Any = None
        row = column = 0
        if widths.size * ridges.size > 1:
            bases = [dataclasses.replace(basis, bandwidth=float(width)) for width in widths]
            score = np.stack([held_out(one, Chunk(rows, weights, 0), ridges) for one in bases])
            self.selection_ = {"bandwidth": widths, "ridge": ridges, "score": score}
            row, column = np.unravel_index(np.argmax(score), score.shape)
        self.centers_ = centers
        self.bandwidth_, self.ridge_ = float(widths[row]), float(ridges[column])
        self._basis = dataclasses.replace(basis, bandwidth=self.bandwidth_, ridge=self.ridge_)


def _distinct(chunk: Chunk) -> tuple[Matrix, Vector]:
    """Return the different rows, sorted, with the sums of their weights: repeats are weights."""
    used = chunk.weights > 0
    rows, which = np.unique(chunk.rows[used], axis=0, return_inverse=True)
    return rows, np.bincount(which.ravel(), chunk.weights[used], minlength=len(rows))


def _centers(rows: Matrix, weights: Vector, count: int, random: np.random.Generator) -> Matrix:
    """Return the centers of k-means."""
    from sklearn.cluster import KMeans

    once: Any = 1  # scikit-learn's stubs know only "auto"
    means = KMeans(count, n_init=once, random_state=int(random.integers(2**31)))
    return np.asarray(means.fit(rows, sample_weight=weights).cluster_centers_, np.float64)


def held_out(basis: Basis, chunk: Chunk, ridges: Vector) -> Vector:
    """Return minus the mean held-out Hyvärinen score of every ridge, that of the base taken out."""
    runner = Runner(basis.scaled_model, chunk.rows.shape[1], len(basis.centers))
    axes = basis.orthonormal()
    parts = []
    for at in np.array_split(np.arange(len(chunk.rows)), min(FOLDS, len(chunk.rows))):
        rows, weights = chunk.rows[at], chunk.weights[at]
        gamma, g = runner.total(normal_block, array_chunks(rows, weights, runner.chunk))
        parts.append((axes.T @ gamma @ axes, axes.T @ g, weights.sum()))
    gammas, gs, weight = (np.stack(part) for part in zip(*parts, strict=True))
    loss = np.zeros(len(ridges))
    for fold in range(len(parts)):
        rest = np.arange(len(parts)) != fold
        share = weight[rest].sum()
        values, vectors = np.linalg.eigh(gammas[rest].sum(axis=0) / share)
        pull = vectors.T @ (gs[rest].sum(axis=0) / share)
        theta = vectors @ (pull[:, None] / (values.clip(0)[:, None] + ridges * basis.curvature))
        loss += (theta * (gammas[fold] @ theta)).sum(axis=0) / 2 - gs[fold] @ theta
    return -loss / weight.sum()
