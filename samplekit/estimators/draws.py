"""Exact samplers, for families that no library draws from. Each returns (n, d) float64 rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from samplekit.core.errors import EstimatorError

type Rows = NDArray[np.float64]

# Below one acceptance in this many, rejection would go on for hours.
MAX_TRIES = 100_000


class NotExactError(EstimatorError):
    """There is no exact draw, or none in reasonable time, at these parameters."""


def rejection(
    random: np.random.Generator, n: int, propose: Callable[[int], tuple[Rows, Rows]]
) -> Rows:
    """Return n accepted proposals; `propose(m)` gives m rows and their log acceptance."""
    kept: list[Rows] = []
    found = tried = 0
    batch = max(2 * n, 1024)
    while found < n:
        rows, log_accept = propose(batch)
        good = rows[np.log(random.uniform(size=batch)) < log_accept]
        kept.append(good)
        found, tried = found + len(good), tried + batch
        if tried > MAX_TRIES * (found + 1):
            raise NotExactError(
                "These parameters make exact sampling hopeless: fewer than one in 100,000 "
                "proposals is accepted. Fit, and use sample(n), which draws by MCMC."
            )
        batch = min(max(int(1.2 * (n - found) * tried / max(found, 1)), 1024), 2**20)
    return np.concatenate(kept)[:n]


def gaussian(random: np.random.Generator, n: int, mean: Any, precision: Any) -> Rows:
    """Draw from N(mean, precision⁻¹): with K = LLᵀ, the solution of Lᵀx = z has covariance K⁻¹."""
    mean, precision = np.atleast_1d(mean), np.atleast_2d(precision)
    try:
        factor = np.linalg.cholesky(precision)
    except np.linalg.LinAlgError as error:
        raise EstimatorError(
            "The precision matrix is not positive definite, so there is no such Gaussian. More "
            "data, or a ridge, may help."
        ) from error
    z = random.standard_normal((len(mean), n))
    return mean + np.linalg.solve(factor.T, z).T


def truncated_gaussian(random: np.random.Generator, n: int, mean: Any, precision: Any) -> Rows:
    """Draw from a Gaussian restricted to y > 0, by rejection."""

    def propose(m: int) -> tuple[Rows, Rows]:
        rows = gaussian(random, m, mean, precision)
        return rows, np.where((rows > 0).all(axis=1), 0.0, -np.inf)

    return rejection(random, n, propose)


def polynomial(random: np.random.Generator, n: int, theta: Any) -> Rows:
    """Draw from exp(θ₁y + θ₂y² + θ₃y⁴), θ₃ < 0.

    y⁴ ≥ 2cy² − c² for every c, which bounds the density by that of a Gaussian; c is chosen for the
    smallest bound.
    """
    first, second, fourth = (float(t) for t in theta)
    if fourth >= 0:
        raise EstimatorError(f"exp(... + {fourth:.3g} y⁴) cannot be integrated: it must fall.")
    c = max(second, 0.0) / (-2 * fourth) + np.geomspace(1e-3, 1e3, 4000) / np.sqrt(-fourth)
    curve = -2 * fourth * c - second  # −(curve) y² + θ₁ y is the envelope's exponent
    mass = -fourth * c**2 + np.log(np.pi / curve) / 2 + first**2 / (4 * curve)
    best = int(np.argmin(mass))
    c_best, curve_best = c[best], curve[best]

    def propose(m: int) -> tuple[Rows, Rows]:
        y = first / (2 * curve_best) + random.standard_normal(m) / np.sqrt(2 * curve_best)
        return y[:, None], fourth * (y**2 - c_best) ** 2

    return rejection(random, n, propose)


def quartic(random: np.random.Generator, n: int, tau: float) -> Rows:
    """Draw from exp(−τ(x⁴ + y⁴ + x²y²)), which is at most exp(−¾τr⁴)."""

    def propose(m: int) -> tuple[Rows, Rows]:
        radius = np.sqrt(np.abs(random.standard_normal(m)) / np.sqrt(1.5 * tau))
        angle = random.uniform(0, 2 * np.pi, m)
        x, y = radius * np.cos(angle), radius * np.sin(angle)
        return np.stack([x, y], axis=1), -tau / 4 * (x**2 - y**2) ** 2

    return rejection(random, n, propose)


def sine_torus(random: np.random.Generator, n: int, concentration: Any, dependence: float) -> Rows:
    """Draw from exp(κ₁cos φ₁ + κ₂cos φ₂ + λ sin φ₁ sin φ₂).

    φ₁ by rejection from a von Mises (its marginal has the factor I₀(√(κ₂² + λ² sin²φ₁))), then φ₂
    given φ₁, a von Mises.
    """
    first, second = (float(c) for c in concentration)
    top = np.hypot(second, dependence)

    def propose(m: int) -> tuple[Rows, Rows]:
        location = 0.0 if first >= 0 else np.pi
        angle = random.vonmises(location, abs(first), m)
        inner = np.hypot(second, dependence * np.sin(angle))
        log_ratio = np.log(special.i0e(inner) / special.i0e(top)) + inner - top
        return angle[:, None], log_ratio

    one = rejection(random, n, propose)[:, 0]
    pull = dependence * np.sin(one)
    two = random.vonmises(np.arctan2(pull, second), np.hypot(second, pull))
    return np.stack([one, two], axis=1)


def von_mises_fisher(random: np.random.Generator, n: int, direction: Any, kappa: float) -> Rows:
    """Draw from exp(κ μᵀy) on the sphere (Wood 1994, in SciPy)."""
    from scipy.stats import vonmises_fisher

    mean = np.asarray(direction) / np.linalg.norm(direction)
    frozen: Any = vonmises_fisher(mean, kappa)  # pyright: ignore[reportArgumentType]
    return frozen.rvs(n, random_state=random).reshape(n, -1)


def fisher_bingham(random: np.random.Generator, n: int, matrix: Any, vector: Any) -> Rows:
    """Draw from exp(bᵀy + yᵀAy) on the sphere.

    With κ = ‖b‖ and μ = b/κ, κt ≤ ½κ(1 + t²) bounds the density by a Bingham, which is drawn by
    rejection from the angular central Gaussian (Kent, Ganeiber and Mardia 2018,
    doi:10.1080/10618600.2017.1390468).
    """
    vector = np.asarray(vector, float)
    kappa = float(np.linalg.norm(vector))
    mu = vector / kappa if kappa else vector
    lifted = np.asarray(matrix, float) + kappa / 2 * np.outer(mu, mu)
    values, axes = np.linalg.eigh(lifted)
    size = len(values)
    fall = values[-1] - values  # the envelope is for −yᵀ diag(fall) y, fall ≥ 0
    # b solves Σ 1/(b + 2 fall_j) = 1: the angular Gaussian closest to the Bingham.
    low, high = 1e-9, float(size)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 / (middle + 2 * fall)).sum() > 1 else (low, middle)
    b = high
    omega = 1 + 2 * fall / b
    log_bound = -(size - b) / 2 + size / 2 * np.log(size / b)

    def propose(m: int) -> tuple[Rows, Rows]:
        z = random.standard_normal((m, size)) / np.sqrt(omega)
        z /= np.linalg.norm(z, axis=1, keepdims=True)
        bingham = -(z**2) @ fall + size / 2 * np.log((z**2) @ omega) - log_bound
        y = z @ axes.T
        return y, bingham - kappa / 2 * (1 - y @ mu) ** 2 * (kappa > 0)

    return rejection(random, n, propose)


def pairwise(
    random: np.random.Generator, n: int, eta: Any, *, precision: Any, powers: tuple[float, float]
) -> Rows:
    """Draw from exp(Σ η_j y_j^b/b − y^aᵀKy^a/(2a)), y > 0 (b = 0: η_j log y_j), by rejection.

    The quadratic form is at least that of its diagonal where no entry of K is negative, and of the
    smallest eigenvalue otherwise; a positive η_j takes half of it.
    """
    a, b = powers
    eta, precision = np.atleast_1d(np.asarray(eta, float)), np.asarray(precision, float)
    off = precision - np.diag(np.diag(precision))
    bound = np.diag(precision).copy()
    if (off < 0).any():
        bound[:] = np.linalg.eigvalsh(precision)[0]
    if (bound <= 0).any() or (b == 0 and (eta <= -1).any()):
        raise NotExactError(
            "There is no exact draw at these parameters: the quadratic form or a linear parameter "
            "is too small for a bound, or the density has no integral. Fit, and use sample(n)."
        )
    curve = bound / (2 * a)
    rising = (eta > 0) & (b > 0)
    kept = np.where(rising, curve / 2, curve)
    # The largest value of η y^b/b − (curve/2) y^{2a}, where η > 0.
    peak = np.zeros_like(eta)
    if rising.any():
        top = (eta / (a * curve)).clip(0) ** (1 / (2 * a - b))
        peak = np.where(rising, eta * top**b / max(b, 1e-300) - curve / 2 * top ** (2 * a), 0.0)
    shape = (eta + 1) / (2 * a) if b == 0 else np.full(eta.shape, 1 / (2 * a))

    def propose(m: int) -> tuple[Rows, Rows]:
        y = (random.standard_gamma(shape, (m, len(eta))) / kept) ** (1 / (2 * a))
        power = y**a
        log_accept = -np.einsum("ij,jk,ik->i", power, precision, power) / (2 * a)
        log_accept += power**2 @ kept - peak.sum()
        if b > 0:
            log_accept += (y**b / b) @ eta
        return y, log_accept

    return rejection(random, n, propose)
