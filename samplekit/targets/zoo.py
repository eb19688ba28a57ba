"""The zoo: targets with exact draws, moments and mode weights, as `sk.targets.<name>()`.

| entry | what is hard about it |
|---|---|
| gaussian, correlated, ill_conditioned | nothing; correlation; scales that differ 100-fold |
| mixture, bimodal, grid | separate modes, so R-hat and mode weights are put to the test |
| banana, rosenbrock | a bend: no metric suits all places |
| funnel | a neck: no step size suits all places |
| student_t | heavy tails |
| ring | a thin shell |
| double_well | light tails, in which Langevin steps explode |
| noised_mixture | a family: the mixture at every noise level, with its exact score |

Parameters are arrays, hence leaves: another mean runs in the same compiled program. They are
NumPy arrays, cast to the position's precision where used, so making a target compiles nothing.
"""

import itertools
import math

import numpy as np
from numpy.typing import ArrayLike

from samplekit.core.errors import TargetError
from samplekit.targets.mixtures import (
    Autoregressive,
    Gaussian,
    Mixture,
    NoisedMixture,
    as_numbers,
    principal,
)
from samplekit.targets.shapes import Bent, Funnel, Quartic, Ring, StudentT
from samplekit.targets.space import make_space


def gaussian(mean: ArrayLike = 1, covariance: ArrayLike = 1.0) -> Gaussian:
    """Return N(mean, covariance).

    Parameters
    ----------
    mean
        The mean; or an int, the number of coordinates, for mean zero.
    covariance
        A variance, a vector of variances, or a matrix.

    Examples
    --------
    >>> import samplekit as sk
    >>> sk.targets.gaussian([1.0, 2.0], [[2.0, 0.5], [0.5, 1.0]]).covariance
    array([[2. , 0.5],
           [0.5, 1. ]])
    >>> sk.targets.gaussian(3).mean
    array([0., 0., 0.])
    """
    if isinstance(mean, int | np.integer):
        center = np.zeros(_positive_int("mean (an int is a number of coordinates)", int(mean)))
    else:
        center = np.atleast_1d(as_numbers(mean, "mean"))
    if center.ndim != 1:
        raise TargetError(f"mean has shape {center.shape}; give a vector, or an int for zeros.")
    variances, axes = principal(covariance, center.size)
    return Gaussian(center, variances, axes, make_space(center.size))


def correlated(dim: int = 100, rho: float = 0.9, *, scale_ratio: float = 1.0) -> Autoregressive:
    """Return a Gaussian with correlations ρ^|i−j|, the AR(1) process, in O(dim) operations.

    `scale_ratio` is the last standard deviation over the first, 1; they grow geometrically.

    Examples
    --------
    >>> import samplekit as sk
    >>> sk.targets.correlated(3, 0.5).covariance[0]
    array([1.  , 0.5 , 0.25])
    """
    dim = _positive_int("dim", dim)
    if not -1 < rho < 1:
        raise TargetError(f"rho={rho} is not a correlation: give a number between −1 and 1.")
    scales = np.geomspace(1.0, _positive("scale_ratio", scale_ratio), dim)
    return Autoregressive(np.zeros(dim), scales, np.asarray(float(rho)), make_space(dim))


def ill_conditioned(dim: int = 100, condition: float = 1e4, *, seed: int = 20) -> Gaussian:
    """Return a rotated Gaussian of the given condition number.

    The covariance's eigenvalues are log-spaced from κ^−½ to κ^½, its axes random: a diagonal
    metric does not help.

    Examples
    --------
    >>> import numpy as np, samplekit as sk
    >>> round(np.linalg.cond(sk.targets.ill_conditioned(10, 100.0).covariance))
    100
    """
    dim = _positive_int("dim", dim)
    condition = _positive("condition", condition)
    q, r = np.linalg.qr(np.random.default_rng(seed).standard_normal((dim, dim)))
    axes = q * np.sign(np.diag(r))  # uniform over rotations and reflections
    variances = np.geomspace(condition**-0.5, condition**0.5, dim)
    return Gaussian(np.zeros(dim), variances, axes, make_space(dim))


def mixture(
    weights: ArrayLike,
    means: ArrayLike,
    scales: ArrayLike | None = None,
    *,
    covariances: ArrayLike | None = None,
) -> Mixture:
    """Return Σ_k w_k N(m_k, Σ_k).

    Parameters
    ----------
    weights
        One for each component; they are divided by their sum.
    means
        Of shape (k, dim), or (k,) in one dimension.
    scales
        Standard deviations: one for all, one per component (k,), or per coordinate (k, dim).
    covariances
        In place of `scales`: variances of those shapes, or matrices (k, dim, dim).

    Examples
    --------
    >>> import samplekit as sk
    >>> target = sk.targets.mixture([1, 3], [[-4.0, 0.0], [4.0, 0.0]], 0.5)
    >>> target.mode_weights, target.mean
    (array([0.25, 0.75]), array([2., 0.]))
    """
    w, m = as_numbers(weights, "weights"), as_numbers(means, "means")
    m = m[:, None] if m.ndim == 1 else m
    if m.ndim != 2 or w.shape != m.shape[:1] or w.min() <= 0:
        raise TargetError(
            f"weights of shape {w.shape} and means of shape {m.shape} do not describe a mixture. "
            "Give one positive weight and one mean for each component: shapes (k,) and (k, dim)."
        )
    if scales is not None and covariances is not None:
        raise TargetError("Both scales and covariances are given. Give one of them.")
    if covariances is None:
        s = as_numbers(1.0 if scales is None else scales, "scales")
        if s.ndim > 2 or s.min() <= 0:
            raise TargetError("scales must be positive: a number, (k,) or (k, dim) of them.")
        covariances = s**2
    variances, axes = _principal_each(as_numbers(covariances, "covariances"), m.shape)
    return Mixture(w / w.sum(), m, variances, axes, make_space(m.shape[1]))


def bimodal() -> Mixture:
    """Return p(x) ∝ 3 exp(−(x+2)²/2) + exp(−(x−4)²/8), of weights 0.6 and 0.4; normalized.

    Examples
    --------
    >>> import samplekit as sk
    >>> sk.targets.bimodal().mode_weights
    array([0.6, 0.4])
    """
    return mixture([0.6, 0.4], [-2.0, 4.0], [1.0, 2.0])


def grid(side: int = 5, spacing: float = 5.0, *, scale: float = 0.5) -> Mixture:
    """Return side × side equal modes on a square lattice around the origin.

    Examples
    --------
    >>> import samplekit as sk
    >>> sk.targets.grid().mode_centers.shape
    (25, 2)
    """
    line = (np.arange(_positive_int("side", side)) - (side - 1) / 2) * spacing
    centers = np.array(list(itertools.product(line, line)))
    return mixture(np.ones(side**2), centers, scale)


def noised_mixture(
    weights: ArrayLike,
    means: ArrayLike,
    scales: ArrayLike | None = None,
    *,
    covariances: ArrayLike | None = None,
) -> NoisedMixture:
    """Return the family p * N(0, σ²I) of a mixture p, with its exact score at every σ.

    The arguments are those of `mixture`.

    Examples
    --------
    >>> import samplekit as sk
    >>> family = sk.targets.noised_mixture([1, 1], [-3.0, 3.0], 0.3)
    >>> family.at(4.0).variance
    array([25.09])
    """
    return NoisedMixture(mixture(weights, means, scales, covariances=covariances))


def banana(curvature: float = 0.5, scales: ArrayLike = (2.0, 1.0)) -> Bent:
    """Return x₁ ~ N(0, s₁²), x₂ | x₁ ~ N(b(x₁² − s₁²), s₂²), of mean zero; normalized.

    Examples
    --------
    >>> import samplekit as sk
    >>> sk.targets.banana().variance
    array([4., 9.])
    """
    s = as_numbers(scales, "scales")
    if s.shape != (2,) or s.min() <= 0:
        raise TargetError(f"scales={scales!r} must be two positive numbers.")
    b = as_numbers(curvature, "curvature")
    return Bent(np.zeros(()), s, b, np.asarray(-b * s[0] ** 2), make_space(2))


def rosenbrock(coefficient: float = 10.0) -> Bent:
    """Return p(x) ∝ exp(−(x₁−1)² − c(x₂−x₁²)²), the Rosenbrock valley; normalized.

    Examples
    --------
    >>> import samplekit as sk
    >>> sk.targets.rosenbrock().mean
    array([1. , 1.5])
    """
    scales = np.sqrt([0.5, 0.5 / _positive("coefficient", coefficient)])
    return Bent(np.ones(()), scales, np.ones(()), np.zeros(()), make_space(2))


def funnel(dim: int = 10, scale: float = 3.0) -> Funnel:
    """Return Neal's funnel, v ~ N(0, s²) and x_i | v ~ N(0, exp v), v first; normalized.

    Notes
    -----
    Neal 2003, doi:10.1214/aos/1056562461. Compare `expectations`, not variances: the sample
    variance of x_i needs more draws than anyone has.

    Examples
    --------
    >>> import samplekit as sk
    >>> sorted(sk.targets.funnel().expectations)
    ['v<-3', 'v>3', 'v^2', 'z1^2']
    """
    dim = _positive_int("dim", dim)
    return Funnel(np.asarray(_positive("scale", scale)), make_space(dim))


def student_t(
    dim: int = 5,
    df: float = 4.0,
    *,
    location: ArrayLike = 0.0,
    scale: ArrayLike = 1.0,
) -> StudentT:
    """Return the multivariate Student t of `df` degrees of freedom.

    `scale` is the scale matrix S (or a number, or its diagonal); the covariance is S ν/(ν−2).
    Not normalized: see its `log_normalizer`.

    Examples
    --------
    >>> import samplekit as sk
    >>> sk.targets.student_t(2, df=4.0).variance
    array([2., 2.])
    """
    dim = _positive_int("dim", dim)
    m = as_numbers(location, "location")
    if m.shape not in ((), (dim,)):
        raise TargetError(f"location has shape {m.shape} for {dim} coordinates.")
    variances, axes = principal(scale, dim)
    center = np.broadcast_to(m, (dim,)).copy()
    return StudentT(center, variances, axes, np.asarray(_positive("df", df)), make_space(dim))


def ring(radius: float = 3.0, width: float = 0.3) -> Ring:
    """Return p(x) ∝ exp(−(‖x‖−R)²/(2w²)) in the plane; not normalized.

    Examples
    --------
    >>> import samplekit as sk
    >>> round(sk.targets.ring(3.0, 0.3).expectations["r"][1], 10)
    3.03
    """
    if not (math.isfinite(radius) and radius >= 0):
        raise TargetError(f"radius={radius} must be a number, 0 or larger.")
    return Ring(np.asarray(float(radius)), np.asarray(_positive("width", width)), make_space(2))


def double_well(curvature: float = 1.0, *, dim: int = 1) -> Quartic:
    """Return independent coordinates of energy x⁴/4 + a x²/2; not normalized.

    At the default a = 1, the standard test of Langevin steps, there is one well; a negative `a`
    makes two, at ±√−a with a barrier of a²/4.

    Examples
    --------
    >>> import samplekit as sk
    >>> round(sk.targets.double_well().expectations["x0^2"][1], 5)
    0.46792
    """
    return Quartic(as_numbers(curvature, "curvature"), make_space(_positive_int("dim", dim)))


def _principal_each(
    covariances: np.ndarray, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return variances (k, dim), and axes (k, dim, dim) where there are matrices."""
    count, dim = shape
    if covariances.ndim not in (0, 1, 2, 3) or (
        covariances.ndim > 0 and covariances.shape[0] != count
    ):
        raise TargetError(
            f"Scales or covariances have shape {covariances.shape} for {count} components in "
            f"{dim} dimensions. Give a number, or one entry for each component."
        )
    each = [principal(c, dim) for c in np.broadcast_to(covariances, covariances.shape or (count,))]
    variances = np.stack([v for v, _ in each])
    axes = [q for _, q in each if q is not None]
    return variances, np.stack(axes) if axes else None


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise TargetError(f"{name}={value} must be a positive number.")
    return float(value)


def _positive_int(name: str, value: int) -> int:
    if not isinstance(value, int | np.integer) or value < 1:
        raise TargetError(f"{name}={value!r} must be a positive integer.")
    return int(value)
