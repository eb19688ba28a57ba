"""Noising processes: variance exploding (VE) and variance preserving (VP, Ornstein–Uhlenbeck).

Each is linear, dx = f(t) x dt + g(t) dW on 0 ≤ t ≤ 1, so that x_t = a(t) x₀ + s(t) ε. Divided by
a(t), every such process adds noise of standard deviation σ(t) = s/a to the data: one family of
targets over noise levels serves all of them.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from samplekit.core.errors import SettingsError
from samplekit.core.pytree import pytree
from samplekit.targets.mixtures import Gaussian
from samplekit.targets.zoo import gaussian

# r, w and c of a step x' = r x + w · score + c z backward in time.
type Coefficients = tuple[Array, Array, Array]


class Process:
    """What samplers ask of a process; `marginal`, `rate`, `diffusion` and three more define it."""

    def marginal(self, t: ArrayLike, /) -> tuple[Array, Array]:
        """Return the factor a(t) of the data and the standard deviation s(t) of the noise."""
        raise NotImplementedError

    def rate(self, t: ArrayLike, /) -> Array:
        """Return f(t), the drift of x being f(t) x."""
        raise NotImplementedError

    def diffusion(self, t: ArrayLike, /) -> Array:
        """Return g(t), the size of the noise."""
        raise NotImplementedError

    def prior_scale(self, t: ArrayLike = 1.0, /) -> Array:
        """Return the standard deviation of the usual prior at t."""
        raise NotImplementedError

    def time_of(self, sigma: ArrayLike, /) -> Array:
        """Return the time at which σ(t) = `sigma`."""
        raise NotImplementedError

    def exponential(self, t: ArrayLike, to: ArrayLike, /) -> Coefficients:
        """Return the step from t back to `to` that is exact but for the score, held fixed."""
        raise NotImplementedError

    def drift(self, x: Array, t: ArrayLike, /) -> Array:
        """Return f(t) x."""
        return jnp.asarray(self.rate(t), x.dtype) * x

    def noise(self, t: ArrayLike, /) -> Array:
        """Return σ(t) = s(t)/a(t), the noise in units of the data."""
        scale, sd = self.marginal(t)
        return sd / scale

    def prior(self, dim: int, t: ArrayLike = 1.0, /) -> Gaussian:
        """Return the usual prior at t, N(0, prior_scale(t)² I) in `dim` dimensions."""
        return gaussian(dim, float(self.prior_scale(t)) ** 2)

    def euler(self, t: ArrayLike, to: ArrayLike, /) -> Coefficients:
        """Return the Euler–Maruyama step of the reverse SDE from t back to `to`."""
        step, g = _number(t) - _number(to), self.diffusion(t)
        return 1 - step * self.rate(t), step * g**2, jnp.sqrt(step) * g

    def ancestral(self, t: ArrayLike, to: ArrayLike, /) -> Coefficients:
        """Return the step of DDPM: x' given x and the data, which Tweedie's formula estimates."""
        (a, sd), (a_to, sd_to) = self.marginal(t), self.marginal(to)
        lost = (sd / a) ** 2 - (sd_to / a_to) ** 2  # in units of the data
        return a_to / a, a * a_to * lost, a * sd_to / sd * jnp.sqrt(lost)


@pytree
class VE(Process):
    """Variance exploding: σ(t) = σ_min (σ_max/σ_min)^t is added, nothing is taken away.

    Parameters
    ----------
    sigma_min
        Noise at t = 0, much smaller than any detail of the data.
    sigma_max
        Noise at t = 1, about the largest distance between two data points.

    Notes
    -----
    dx = σ(t) √(2 log(σ_max/σ_min)) dW (Song et al. 2021, arXiv:2011.13456). The law at t is that of
    the data plus N(0, σ(t)²), exactly, with x₀ the data plus noise σ_min; so t = 0 is
    `family.at(sigma_min)`. The prior is N(0, σ(t)²).

    Examples
    --------
    >>> from samplekit import diffusion
    >>> process = diffusion.VE(0.01, 100.0)
    >>> [round(float(v), 4) for v in process.marginal(0.5)]
    [1.0, 1.0]
    """

    sigma_min: Any
    sigma_max: Any

    def __post_init__(self) -> None:
        """Refuse what cannot be noise."""
        low, high = _plain(self.sigma_min), _plain(self.sigma_max)
        if low is None or high is None:
            return
        if not (0 < low < high < math.inf):
            raise SettingsError(
                f"VE(sigma_min={low:g}, sigma_max={high:g}) needs 0 < sigma_min < sigma_max: noise "
                "grows by a constant factor in time. sigma_max is about the largest distance "
                "between two data points, sigma_min smaller than any detail."
            )

    @property
    def _growth(self) -> Array:
        return jnp.log(_number(self.sigma_max) / _number(self.sigma_min))

    def marginal(self, t: ArrayLike, /) -> tuple[Array, Array]:
        """Return 1 and σ(t)."""
        time = _number(t)
        sigma = _like(self.sigma_min, time) * jnp.exp(_like(self._growth, time) * time)
        return jnp.ones_like(sigma), sigma

    def rate(self, t: ArrayLike, /) -> Array:
        """Return 0: no drift."""
        return jnp.zeros_like(_number(t))

    def diffusion(self, t: ArrayLike, /) -> Array:
        """Return σ(t) √(2 log(σ_max/σ_min))."""
        sigma = self.marginal(t)[1]
        return sigma * jnp.sqrt(2 * _like(self._growth, sigma))

    def prior_scale(self, t: ArrayLike = 1.0, /) -> Array:
        """Return σ(t)."""
        return self.marginal(t)[1]

    def time_of(self, sigma: ArrayLike, /) -> Array:
        """Return log(σ/σ_min) / log(σ_max/σ_min)."""
        return jnp.log(_number(sigma) / _number(self.sigma_min)) / self._growth

    def exponential(self, t: ArrayLike, to: ArrayLike, /) -> Coefficients:
        """Return 1, σ(t)² − σ(to)² and its root."""
        lost = self.marginal(t)[1] ** 2 - self.marginal(to)[1] ** 2
        return jnp.ones_like(lost), lost, jnp.sqrt(lost)


@pytree
class VP(Process):
    """Variance preserving: an Ornstein–Uhlenbeck process whose clock runs at β(t)/2.

    Parameters
    ----------
    beta_min, beta_max
        β at t = 0 and t = 1, linear in between. `VP(2 * T, 2 * T)` is dx = −x dt + √2 dW up to
        time T.

    Notes
    -----
    dx = −½β(t) x dt + √β(t) dW: a = exp(−½∫β) and s² = 1 − exp(−∫β) = 1 − ᾱ of DDPM (Song et al.
    2021, arXiv:2011.13456). The prior is N(0, 1), so scale the data to about that.

    Examples
    --------
    >>> from samplekit import diffusion
    >>> scale, sd = diffusion.VP().marginal(1.0)
    >>> f"{scale:.4f} {sd:.4f}"
    '0.0066 1.0000'
    """

    beta_min: Any = 0.1
    beta_max: Any = 20.0

    def __post_init__(self) -> None:
        """Refuse what is no rate."""
        low, high = _plain(self.beta_min), _plain(self.beta_max)
        if low is None or high is None:
            return
        if not (0 < low < math.inf and 0 < high < math.inf):
            raise SettingsError(
                f"VP(beta_min={low:g}, beta_max={high:g}) needs positive, finite rates, by which "
                "the data are forgotten. The usual ones are 0.1 and 20."
            )

    def _beta(self, time: Array) -> Array:
        low, high = _like(self.beta_min, time), _like(self.beta_max, time)
        return low + time * (high - low)

    def _clock(self, t: Array, since: Array) -> Array:
        """Return ∫β from `since` to t, without the cancellation of two integrals from 0."""
        return (t - since) * self._beta((t + since) / 2)

    def marginal(self, t: ArrayLike, /) -> tuple[Array, Array]:
        """Return exp(−½∫β) and √(1 − exp(−∫β))."""
        time = _number(t)
        passed = self._clock(time, jnp.zeros_like(time))
        return jnp.exp(-passed / 2), jnp.sqrt(-jnp.expm1(-passed))

    def rate(self, t: ArrayLike, /) -> Array:
        """Return −β(t)/2."""
        return -self._beta(_number(t)) / 2

    def diffusion(self, t: ArrayLike, /) -> Array:
        """Return √β(t)."""
        return jnp.sqrt(self._beta(_number(t)))

    def prior_scale(self, t: ArrayLike = 1.0, /) -> Array:
        """Return 1."""
        return jnp.ones_like(_number(t))

    def time_of(self, sigma: ArrayLike, /) -> Array:
        """Return the root t of ∫β = log(1 + σ²)."""
        passed = jnp.log1p(_number(sigma) ** 2)
        low, high = _like(self.beta_min, passed), _like(self.beta_max, passed)
        # The root of a quadratic in the form that has no cancellation and allows β constant.
        root = jnp.sqrt(jnp.maximum(low**2 + 2 * (high - low) * passed, 0.0))
        return 2 * passed / (low + root)

    def exponential(self, t: ArrayLike, to: ArrayLike, /) -> Coefficients:
        """Return e^{B/2}, 2(e^{B/2} − 1) and √(e^B − 1), B = ∫β from `to` to t."""
        passed = self._clock(_number(t), _number(to))
        return (
            jnp.exp(passed / 2),
            2 * jnp.expm1(passed / 2),
            jnp.sqrt(jnp.expm1(passed)),
        )


def _plain(value: Any) -> float | None:
    """Return a number that was written down; arrays and tracers are not looked into."""
    return float(value) if isinstance(value, int | float | np.floating) else None


def _number(value: ArrayLike) -> Array:
    array = jnp.asarray(value)
    floating = jnp.issubdtype(array.dtype, jnp.floating)
    return array if floating else array.astype(jnp.result_type(float))


def _like(value: Any, x: Array) -> Array:
    return jnp.asarray(value, x.dtype)
