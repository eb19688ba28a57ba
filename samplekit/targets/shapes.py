"""Targets that are hard for a reason: a bend, a funnel, heavy tails, a ring, wells.

Each knows its exact draws and moments; `samplekit.targets.zoo` makes them.
"""

import math
from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from samplekit.core.protocols import Scalar
from samplekit.core.pytree import pytree, static
from samplekit.targets.mixtures import (
    LOG_2PI,
    Exact,
    Expectations,
    Numbers,
    along_axes,
    numbers,
    numbers_like,
)
from samplekit.targets.space import Space


@pytree
class Bent(Exact):
    """x₁ ~ N(m, s₁²), x₂ | x₁ ~ N(b x₁² + c, s₂²): a curved ridge; normalized."""

    center: Numbers  # m
    scales: Numbers  # (s₁, s₂)
    curvature: Numbers  # b
    offset: Numbers  # c
    space: Space = static()

    def log_density(self, x: Array, /) -> Scalar:
        """Return log p(x), normalized."""
        x, m, s, b, c = numbers_like(x, self.center, self.scales, self.curvature, self.offset)
        z1 = (x[0] - m) / s[0]
        z2 = (x[1] - b * x[0] ** 2 - c) / s[1]
        return -0.5 * (z1**2 + z2**2) - jnp.log(s[0] * s[1]) - LOG_2PI

    def _draw(self, key: Array, n: int) -> Array:
        m, s, b, c = numbers(self.center, self.scales, self.curvature, self.offset)
        z = jax.random.normal(key, (n, 2), s.dtype)
        x1 = m + s[0] * z[:, 0]
        return jnp.stack([x1, b * x1**2 + c + s[1] * z[:, 1]], axis=1)

    def _parameters(self) -> tuple[float, float, float, float, float]:
        """Return m, s₁², s₂², b and c."""
        s1, s2 = np.asarray(self.scales, np.float64)
        return float(self.center), s1**2, s2**2, float(self.curvature), float(self.offset)

    @property
    def mean(self) -> np.ndarray:
        """Exact mean."""
        m, v, _, b, c = self._parameters()
        return np.array([m, b * (m**2 + v) + c])

    @property
    def covariance(self) -> np.ndarray:
        """Exact covariance matrix."""
        m, v, v2, b, _ = self._parameters()
        across = 2 * b * m * v
        return np.array([[v, across], [across, v2 + b**2 * (2 * v**2 + 4 * m**2 * v)]])

    @property
    def variance(self) -> np.ndarray:
        """Exact variance of every coordinate."""
        return np.diag(self.covariance).copy()

    @property
    def expectations(self) -> Expectations:
        """E[x₁²x₂], which sees the bend where the covariance may not."""
        m, v, _, b, c = self._parameters()
        value = b * (m**4 + 6 * m**2 * v + 3 * v**2) + c * (m**2 + v)
        return {"x0^2*x1": (lambda x: x[0] ** 2 * x[1], float(value))}


@pytree
class Funnel(Exact):
    """v ~ N(0, s²), x_i | v ~ N(0, exp v): Neal's funnel, v first; normalized."""

    scale: Numbers
    space: Space = static()

    def log_density(self, x: Array, /) -> Scalar:
        """Return log p(x), normalized."""
        x, s = numbers_like(x, self.scale)
        v, rest = x[0], x[1:]
        squares = (v / s) ** 2 + jnp.sum((rest * jnp.exp(-0.5 * v)) ** 2)
        return -0.5 * (squares + rest.size * v + x.size * LOG_2PI) - jnp.log(s)

    def _draw(self, key: Array, n: int) -> Array:
        (s,) = numbers(self.scale)
        z = jax.random.normal(key, (n, self.space.size), s.dtype)
        v = s * z[:, :1]
        return jnp.concatenate([v, jnp.exp(0.5 * v) * z[:, 1:]], axis=1)

    @property
    def mean(self) -> np.ndarray:
        """Exact mean."""
        return np.zeros(self.space.size)

    @property
    def variance(self) -> np.ndarray:
        """Exact variance: s² for v, E[exp v] = exp(s²/2) for the others."""
        s = float(self.scale)
        return np.array([s**2] + [math.exp(0.5 * s**2)] * (self.space.size - 1))

    @property
    def covariance(self) -> np.ndarray:
        """Exact covariance matrix, diagonal by symmetry."""
        return np.diag(self.variance)

    @property
    def heavy_tailed(self) -> bool:
        """True: x_i² has the variance 3exp(2s²) − exp(s²), 2·10⁸ at s = 3."""
        return True

    @property
    def expectations(self) -> Expectations:
        """The neck and the mouth of the funnel, v², and x₁²exp(−v), a chi-square."""
        s = float(self.scale)
        tail = 0.5 * math.erfc(1 / math.sqrt(2))
        values: Expectations = {
            f"v<-{s:g}": (lambda x: jnp.where(x[0] < -s, 1.0, 0.0), tail),
            f"v>{s:g}": (lambda x: jnp.where(x[0] > s, 1.0, 0.0), tail),
            "v^2": (lambda x: x[0] ** 2, s**2),
        }
        if self.space.size > 1:
            values["z1^2"] = (lambda x: (x[1] * jnp.exp(-0.5 * x[0])) ** 2, 1.0)
        return values


@pytree
class StudentT(Exact):
    """p(x) ∝ (1 + (x−m)ᵀS⁻¹(x−m)/ν)^{−(ν+d)/2}; not normalized, see `log_normalizer`."""

    location: Numbers
    variances: Numbers  # of S, along its principal axes
    axes: Numbers | None
    df: Numbers
    space: Space = static()

    def log_density(self, x: Array, /) -> Scalar:
        """Return log p(x), 0 at the location."""
        x, m, v, df = numbers_like(x, self.location, self.variances, self.df)
        y = along_axes(self.axes, x - m)
        return -0.5 * (df + x.size) * jnp.log1p(jnp.sum(y**2 / v) / df)

    def _draw(self, key: Array, n: int) -> Array:
        m, v, df = numbers(self.location, self.variances, self.df)
        normal_key, chi_key = jax.random.split(key)
        z = jax.random.normal(normal_key, (n, *m.shape), m.dtype) * jnp.sqrt(v)[None, :]
        if self.axes is not None:
            z = jnp.matmul(z, numbers(self.axes)[0].T, precision="highest")
        chi_square = 2 * jax.random.gamma(chi_key, 0.5 * df, (n,), m.dtype)
        return m[None, :] + z * jnp.sqrt(df / chi_square)[:, None]

    def _scale(self) -> np.ndarray:
        v = np.asarray(self.variances, np.float64)
        q = np.eye(len(v)) if self.axes is None else np.asarray(self.axes, np.float64)
        return (q * v) @ q.T

    @property
    def log_normalizer(self) -> float:
        """Log of the integral of exp(log_density)."""
        df, d = float(self.df), self.space.size
        log_det = float(np.sum(np.log(self.variances)))
        gammas = math.lgamma(0.5 * df) - math.lgamma(0.5 * (df + d))
        return gammas + 0.5 * d * math.log(df * math.pi) + 0.5 * log_det

    @property
    def mean(self) -> np.ndarray:
        """Exact mean; NaN where it does not exist (ν ≤ 1)."""
        location = np.asarray(self.location, np.float64)
        return location if float(self.df) > 1 else np.full_like(location, np.nan)

    @property
    def covariance(self) -> np.ndarray:
        """Exact covariance matrix S ν/(ν−2); infinite variances for ν ≤ 2."""
        df = float(self.df)
        if df > 2:
            return self._scale() * df / (df - 2)
        return np.where(np.eye(self.space.size) > 0, np.inf, np.nan)

    @property
    def variance(self) -> np.ndarray:
        """Exact variance of every coordinate."""
        return np.diag(self.covariance).copy()

    @property
    def heavy_tailed(self) -> bool:
        """True unless eight moments exist, so that a sample variance has a usual error."""
        return float(self.df) <= 8

    @property
    def expectations(self) -> Expectations:
        """Probability of the exact central 95 % and 50 % intervals of the first coordinate."""
        from scipy.special import stdtrit

        center, scale = float(np.asarray(self.location)[0]), math.sqrt(self._scale()[0, 0])

        def inside(p: float) -> Callable[[Array], Array]:
            half = float(stdtrit(float(self.df), 0.5 + p / 2)) * scale
            return lambda x: jnp.where(jnp.abs(x[0] - center) < half, 1.0, 0.0)

        return {"x0 in 95%": (inside(0.95), 0.95), "x0 in 50%": (inside(0.5), 0.5)}


@pytree
class Ring(Exact):
    """p(x) ∝ exp(−(‖x‖−R)²/(2w²)) in the plane; not normalized, see `log_normalizer`."""

    radius: Numbers
    width: Numbers
    space: Space = static()

    def log_density(self, x: Array, /) -> Scalar:
        """Return log p(x), 0 on the ring."""
        x, radius, width = numbers_like(x, self.radius, self.width)
        square = jnp.sum(x**2)
        # The derivative of √0 is infinite; the center, a cusp, gets the score 0 instead.
        r = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)
        return -0.5 * ((r - radius) / width) ** 2

    def _draw(self, key: Array, n: int) -> Array:
        # log r lies below its tangent at the mode m of the radius, which leaves N(m, w²).
        radius, width = numbers(self.radius, self.width)
        mode = 0.5 * (radius + jnp.sqrt(radius**2 + 4 * width**2))

        def propose(key: Array) -> tuple[Array, Array]:
            r = mode + width * jax.random.normal(key, (n,), mode.dtype)
            ratio = jnp.where(r > 0, r, 1.0) / mode
            return r, jnp.where(r > 0, jnp.log(ratio) - (ratio - 1), -jnp.inf)

        radius_key, angle_key = jax.random.split(key)
        r = _accepted(radius_key, propose)
        angle = 2 * math.pi * jax.random.uniform(angle_key, (n,), mode.dtype)
        return jnp.stack([r * jnp.cos(angle), r * jnp.sin(angle)], axis=1)

    def _integrals(self) -> list[float]:
        """Return ∫₀^∞ rⁿ exp(−(r−R)²/(2w²)) dr for n = 0, ..., 3, by parts."""
        radius, width = float(self.radius), float(self.width)
        inside = 0.5 * math.erfc(-radius / width / math.sqrt(2))
        i0 = width * math.sqrt(2 * math.pi) * inside
        i1 = radius * i0 + width**2 * math.exp(-0.5 * (radius / width) ** 2)
        i2 = radius * i1 + width**2 * i0
        return [i0, i1, i2, radius * i2 + 2 * width**2 * i1]

    @property
    def log_normalizer(self) -> float:
        """Log of the integral of exp(log_density)."""
        return math.log(2 * math.pi * self._integrals()[1])

    @property
    def mean(self) -> np.ndarray:
        """Exact mean."""
        return np.zeros(2)

    @property
    def variance(self) -> np.ndarray:
        """Exact variance of every coordinate, E[r²]/2."""
        _, i1, _, i3 = self._integrals()
        return np.full(2, 0.5 * i3 / i1)

    @property
    def covariance(self) -> np.ndarray:
        """Exact covariance matrix."""
        return np.diag(self.variance)

    @property
    def expectations(self) -> Expectations:
        """E[r], and the share of each half plane."""
        _, i1, i2, _ = self._integrals()
        return {
            "r": (lambda x: jnp.sqrt(jnp.sum(x**2)), i2 / i1),
            "x0>0": (lambda x: jnp.where(x[0] > 0, 1.0, 0.0), 0.5),
        }


@pytree
class Quartic(Exact):
    """Independent coordinates of energy x⁴/4 + a x²/2; not normalized."""

    curvature: Numbers  # a: one well if a ≥ 0, two at ±√−a if a < 0
    space: Space = static()

    def log_density(self, x: Array, /) -> Scalar:
        """Return −Σ (x⁴/4 + a x²/2)."""
        x, a = numbers_like(x, self.curvature)
        return -jnp.sum(x**4 / 4 + a * x**2 / 2)

    def score(self, x: Array, /) -> Array:
        """Return −x³ − a x, the Stein score."""
        x, a = numbers_like(x, self.curvature)
        return -(x**3) - a * x

    def _draw(self, key: Array, n: int) -> Array:
        # (x² − t)² ≥ 0 bounds x⁴/4 by a parabola; t(a + t) = 1 accepts most often.
        (a,) = numbers(self.curvature)
        t = 0.5 * (jnp.sqrt(a**2 + 4) - a)

        def propose(key: Array) -> tuple[Array, Array]:
            x = jax.random.normal(key, (n, self.space.size), a.dtype) * jnp.sqrt(t)
            return x, -0.25 * (x**2 - t) ** 2

        return _accepted(key, propose)

    @property
    def log_normalizer(self) -> float:
        """Log of the integral of exp(log_density), by quadrature."""
        return self.space.size * _quartic_moments(float(self.curvature))[0]

    @property
    def mean(self) -> np.ndarray:
        """Exact mean."""
        return np.zeros(self.space.size)

    @property
    def variance(self) -> np.ndarray:
        """Exact variance of every coordinate, by quadrature."""
        return np.full(self.space.size, _quartic_moments(float(self.curvature))[1])

    @property
    def covariance(self) -> np.ndarray:
        """Exact covariance matrix."""
        return np.diag(self.variance)

    @property
    def expectations(self) -> Expectations:
        """E[x²], E[x⁴] = 1 − a E[x²] (Stein's identity), and the share of each side."""
        a = float(self.curvature)
        _, second = _quartic_moments(a)
        return {
            "x0^2": (lambda x: x[0] ** 2, second),
            "x0^4": (lambda x: x[0] ** 4, 1 - a * second),
            "x0>0": (lambda x: jnp.where(x[0] > 0, 1.0, 0.0), 0.5),
        }


@cache
def _quartic_moments(a: float) -> tuple[float, float]:
    """Return log Z and E[x²] of one coordinate.

    The trapezoidal rule converges geometrically for a smooth density that vanishes at both ends.
    """
    end = math.sqrt(max(-a, 0.0)) + 8.0  # the energy is then over 10³ above its minimum
    x = np.linspace(-end, end, 20_001)
    log_p = -(x**4) / 4 - a * x**2 / 2
    top = log_p.max()
    p = np.exp(log_p - top)
    z = p.sum()
    return float(top + math.log(z * (x[1] - x[0]))), float((p * x**2).sum() / z)


def _accepted(key: Array, propose: Callable[[Array], tuple[Array, Array]]) -> Array:
    """Repeat proposals until each is accepted with its log probability: exact rejection."""

    def again(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        key, x, done = state
        key, proposal_key, uniform_key = jax.random.split(key, 3)
        y, log_accept = propose(proposal_key)
        accept = -jax.random.exponential(uniform_key, y.shape, y.dtype) < log_accept
        return key, jnp.where(done, x, y), done | accept

    blank = jax.eval_shape(propose, key)[0]
    start = key, jnp.zeros(blank.shape, blank.dtype), jnp.zeros(blank.shape, bool)
    return jax.lax.while_loop(lambda state: ~jnp.all(state[2]), again, start)[1]
