"""Gaussians and their mixtures: exact densities, scores, draws, moments and smoothing.

Covariances are kept as principal axes and the variances along them, Σ = Q diag(v) Qᵀ. Added
noise is then v + σ² and nothing has to be factorized again, also when σ is traced.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array
from jax.typing import ArrayLike

from samplekit.core.errors import TargetError
from samplekit.core.protocols import Scalar
from samplekit.core.pytree import pytree, static
from samplekit.targets.space import Space

type Numbers = np.ndarray | Array
type Expectations = dict[str, tuple[Callable[[Array], Array], float]]

LOG_2PI = math.log(2.0 * math.pi)


class Exact:
    """What the zoo's targets share: exact draws, and exact values to compare a run with."""

    def log_density(self, x: Array, /) -> Scalar:
        """Return log p(x); `log_normalizer` says how far it is from normalized."""
        raise NotImplementedError

    def score(self, x: Array, /) -> Array:
        """Return ∇ log p(x), the Stein score (not scikit-learn's `score`)."""
        return jax.grad(self.log_density)(x)

    def draw(self, key: Array, n: int) -> Array:
        """Return `n` exact independent draws, of shape (n, dim)."""
        return _compiled_draw(self, key, n)

    def _draw(self, key: Array, n: int) -> Array:
        raise NotImplementedError

    @property
    def heavy_tailed(self) -> bool:
        """Whether a sample variance is no fair test, its own variance being huge or infinite."""
        return False

    @property
    def log_normalizer(self) -> float:
        """Log of the integral of exp(log_density): 0 when the density is normalized."""
        return 0.0

    @property
    def expectations(self) -> Expectations:
        """Functions of one position by name, each with its exact expectation."""
        return {}


@partial(jax.jit, static_argnums=2)  # one program, not one per operation
def _compiled_draw(target: Exact, key: Array, n: int) -> Array:
    return target._draw(key, n)


def numbers_like(x: ArrayLike, *values: ArrayLike) -> list[Array]:
    """Return `x` and the parameters as arrays of its precision."""
    x = jnp.asarray(x)
    return [x, *(jnp.asarray(value, x.dtype) for value in values)]


def numbers(*values: ArrayLike) -> list[Array]:
    """Return the parameters in JAX's current precision, for draws."""
    return [jnp.asarray(value, jnp.result_type(float)) for value in values]


def as_numbers(value: npt.ArrayLike, name: str, what: str = "numbers") -> np.ndarray:
    """Return a finite float64 array, or say which argument is wrong."""
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise TargetError(f"{name}={value!r} cannot be read as {what}.") from error
    if not np.all(np.isfinite(array)):
        raise TargetError(f"{name} holds values that are not finite: {array}. Give {what}.")
    return array


def principal(covariance: npt.ArrayLike, dim: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Return variances along the principal axes, and the axes (None: the coordinate axes)."""
    array = as_numbers(covariance, "covariance")
    axes = None
    if array.shape == () or array.shape == (dim,):
        variances = np.broadcast_to(array, (dim,)).copy()
    elif array.shape == (dim, dim):
        if not np.allclose(array, array.T, rtol=1e-6, atol=1e-9 * np.abs(array).max()):
            raise TargetError("The covariance matrix is not symmetric. Give (C + C.T) / 2.")
        variances, axes = np.linalg.eigh((array + array.T) / 2)
    else:
        raise TargetError(
            f"The covariance has shape {array.shape} for {dim} coordinates. Give a number, "
            f"{dim} variances, or a {dim} × {dim} matrix."
        )
    if variances.min() <= 0:
        raise TargetError(
            f"The covariance has the eigenvalue {variances.min():.3g}, but all must be positive: "
            "a density needs some width in every direction."
        )
    return variances, axes


def along_axes(axes: Numbers | None, y: Array) -> Array:
    """Return components along the principal axes; `y` and `axes` may have a leading axis."""
    if axes is None:
        return y
    q = jnp.asarray(axes, y.dtype)
    return jnp.einsum("...d,...de->...e", y, q, precision="highest")


def _off_axes(axes: Numbers | None, y: Array) -> Array:
    """Undo `along_axes`."""
    if axes is None:
        return y
    q = jnp.asarray(axes, y.dtype)
    return jnp.einsum("...e,...de->...d", y, q, precision="highest")


def _widen(variances: Numbers, sigma: ArrayLike) -> Numbers:
    """Add σ² to every variance; NumPy stays NumPy, so nothing is compiled for it."""
    if isinstance(sigma, jax.Array):
        if sigma.shape != ():
            raise TargetError(f"sigma has shape {sigma.shape}, but one level is one number.")
        v, s = numbers(variances, sigma)
        return v + s**2
    value = as_numbers(sigma, "sigma", "a noise level")
    if value.shape != () or value < 0:
        raise TargetError(f"sigma={sigma!r} is not a noise level: one number, 0 or larger.")
    if isinstance(variances, np.ndarray):
        return variances + value**2
    return _widen(variances, jnp.asarray(value, variances.dtype))


@pytree
class Gaussian(Exact):
    """N(mean, Σ) with Σ = Q diag(variances) Qᵀ; the log density is normalized."""

    mean: Numbers
    variances: Numbers
    axes: Numbers | None
    space: Space = static()

    def log_density(self, x: Array, /) -> Scalar:
        """Return log p(x), normalized."""
        x, mean, v = numbers_like(x, self.mean, self.variances)
        y = along_axes(self.axes, x - mean)
        return -0.5 * jnp.sum(y**2 / v + jnp.log(v) + LOG_2PI)

    def score(self, x: Array, /) -> Array:
        """Return −Σ⁻¹(x − mean), the Stein score."""
        x, mean, v = numbers_like(x, self.mean, self.variances)
        return -_off_axes(self.axes, along_axes(self.axes, x - mean) / v)

    def _draw(self, key: Array, n: int) -> Array:
        mean, v = numbers(self.mean, self.variances)
        z = jax.random.normal(key, (n, *mean.shape), mean.dtype)
        rotated = z * jnp.sqrt(v)[None, :]
        if self.axes is not None:
            rotated = jnp.matmul(rotated, numbers(self.axes)[0].T, precision="highest")
        return mean[None, :] + rotated

    @property
    def covariance(self) -> np.ndarray:
        """Exact covariance matrix."""
        v = np.asarray(self.variances, np.float64)
        q = np.eye(len(v)) if self.axes is None else np.asarray(self.axes, np.float64)
        return (q * v) @ q.T

    @property
    def variance(self) -> np.ndarray:
        """Exact variance of every coordinate."""
        return np.diag(self.covariance).copy()

    def smoothed(self, sigma: ArrayLike) -> "Gaussian":
        """Return the target plus independent noise N(0, σ²I); σ may be traced."""
        return Gaussian(self.mean, _widen(self.variances, sigma), self.axes, self.space)


@pytree
class Autoregressive(Exact):
    """A Gaussian with correlations ρ^|i−j|, in O(dim) operations; normalized."""

    mean: Numbers
    scales: Numbers
    rho: Numbers
    space: Space = static()

    def log_density(self, x: Array, /) -> Scalar:
        """Return log p(x), normalized, by its Markov factors."""
        x, mean, scales, rho = numbers_like(x, self.mean, self.scales, self.rho)
        z = (x - mean) / scales
        rest = 1 - rho**2
        squares = z[0] ** 2 + jnp.sum((z[1:] - rho * z[:-1]) ** 2) / rest
        log_scale = jnp.sum(jnp.log(scales)) + 0.5 * (z.size - 1) * jnp.log(rest)
        return -0.5 * squares - log_scale - 0.5 * z.size * LOG_2PI

    def _draw(self, key: Array, n: int) -> Array:
        mean, scales, rho = numbers(self.mean, self.scales, self.rho)
        noise = jax.random.normal(key, (*mean.shape, n), mean.dtype)

        def following(z: Array, e: Array) -> tuple[Array, Array]:
            z = rho * z + jnp.sqrt(1 - rho**2) * e
            return z, z

        _, z = jax.lax.scan(following, noise[0], noise[1:])
        z = jnp.concatenate([noise[:1], z]).T
        return mean[None, :] + scales[None, :] * z

    @property
    def covariance(self) -> np.ndarray:
        """Exact covariance matrix."""
        scales, i = np.asarray(self.scales, np.float64), np.arange(np.size(self.scales))
        lag = np.abs(i[:, None] - i[None, :])
        return float(self.rho) ** lag * np.outer(scales, scales)

    @property
    def variance(self) -> np.ndarray:
        """Exact variance of every coordinate."""
        return np.asarray(self.scales, np.float64) ** 2

    def smoothed(self, sigma: ArrayLike) -> Gaussian:
        """Return the target plus independent noise N(0, σ²I); σ may be traced."""
        variances, axes = principal(self.covariance, np.size(self.scales))
        return Gaussian(self.mean, variances, axes, self.space).smoothed(sigma)


@pytree
class Mixture(Exact):
    """Σ_k w_k N(m_k, Q_k diag(v_k) Q_kᵀ); the log density is normalized."""

    weights: Numbers  # (k,)
    means: Numbers  # (k, dim)
    variances: Numbers  # (k, dim)
    axes: Numbers | None  # (k, dim, dim); None = the coordinate axes
    space: Space = static()

    def _joint(self, x: Array) -> tuple[Array, Array, Array]:
        """Return log w_k p_k(x), the offsets along the axes, and their variances."""
        x, w, m, v = numbers_like(x, self.weights, self.means, self.variances)
        y = along_axes(self.axes, x[None, :] - m)
        return jnp.log(w) - 0.5 * jnp.sum(y**2 / v + jnp.log(v) + LOG_2PI, axis=1), y, v

    def log_density(self, x: Array, /) -> Scalar:
        """Return log p(x), normalized."""
        return jax.nn.logsumexp(self._joint(x)[0])

    def score(self, x: Array, /) -> Array:
        """Return ∇ log p(x), the components' scores averaged by responsibility."""
        joint, y, v = self._joint(x)
        return jnp.sum(jax.nn.softmax(joint)[:, None] * _off_axes(self.axes, -y / v), axis=0)

    def mode_of(self, x: Array) -> Array:
        """Return the index of the component most responsible for `x`."""
        return jnp.argmax(self._joint(x)[0])

    def _draw(self, key: Array, n: int) -> Array:
        w, m, v = numbers(self.weights, self.means, self.variances)
        which_key, noise_key = jax.random.split(key)
        which = jax.random.categorical(which_key, jnp.log(w), shape=(n,))
        z = jax.random.normal(noise_key, (n, m.shape[1]), m.dtype) * jnp.sqrt(v)[which]
        axes = None if self.axes is None else numbers(self.axes)[0][which]
        return m[which] + _off_axes(axes, z)

    @property
    def mode_weights(self) -> np.ndarray:
        """Exact weight of every component."""
        return np.asarray(self.weights, np.float64)

    @property
    def mode_centers(self) -> np.ndarray:
        """Mean of every component."""
        return np.asarray(self.means, np.float64)

    @property
    def mean(self) -> np.ndarray:
        """Exact mean."""
        return self.mode_weights @ self.mode_centers

    @property
    def covariance(self) -> np.ndarray:
        """Exact covariance matrix: within the components plus between them."""
        offset = self.mode_centers - self.mean
        within = np.einsum("k,kij->ij", self.mode_weights, self._covariances())
        return within + np.einsum("k,ki,kj->ij", self.mode_weights, offset, offset)

    def _covariances(self) -> np.ndarray:
        v = np.asarray(self.variances, np.float64)
        if self.axes is None:
            return v[:, :, None] * np.eye(v.shape[1])
        q = np.asarray(self.axes, np.float64)
        return (q * v[:, None, :]) @ q.swapaxes(1, 2)

    @property
    def variance(self) -> np.ndarray:
        """Exact variance of every coordinate."""
        return np.diag(self.covariance).copy()

    @property
    def expectations(self) -> Expectations:
        """Probability of the first coordinate lying below its mean, which weighs the modes."""
        cut = float(self.mean[0])
        scales = np.sqrt(self._covariances()[:, 0, 0])
        z = (cut - self.mode_centers[:, 0]) / scales
        below = sum(
            w * 0.5 * math.erfc(-u / math.sqrt(2))
            for w, u in zip(self.mode_weights, z, strict=True)
        )
        return {"x0<mean": (lambda x: jnp.where(x[0] < cut, 1.0, 0.0), float(below))}

    def smoothed(self, sigma: ArrayLike) -> "Mixture":
        """Return the target plus independent noise N(0, σ²I); σ may be traced."""
        wider = _widen(self.variances, sigma)
        return Mixture(self.weights, self.means, wider, self.axes, self.space)


@pytree
class NoisedMixture:
    """The family p * N(0, σ²I) of a mixture p, exact at every noise level σ."""

    mixture: Mixture

    @property
    def space(self) -> Space:
        """The space of the target at every level."""
        return self.mixture.space

    def at(self, level: ArrayLike, /) -> Mixture:
        """Return the mixture with noise of standard deviation `level`, which may be traced."""
        return self.mixture.smoothed(level)

    def smoothed(self, sigma: ArrayLike) -> Mixture:
        """Return the target at noise level σ."""
        return self.at(sigma)
