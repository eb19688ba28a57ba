"""Denoising score matching: the score of data plus noise, without any derivative of the score."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from samplekit.core.errors import SettingsError
from samplekit.losses.batch import Score, as_batch, dot, shaped


def denoising(score: Score, data: ArrayLike, key: Array, sigma: ArrayLike) -> Array:
    """Return the denoising loss for Gaussian noise of one scale.

    Parameters
    ----------
    score
        The score s of one sample.
    data
        Samples along the first axis, without noise.
    key
        Of the noise.
    sigma
        Scale of the noise. The score that is found is that of the data plus this noise.

    Returns
    -------
    loss
        The mean over the samples.

    Notes
    -----
    ½E‖s(x + σε) + ε/σ‖² with ε ~ N(0, I), since ∇ log N(x̃; x, σ²I) = −(x̃ − x)/σ² = −ε/σ. It is
    `explicit` on the smoothed density p ∗ N(0, σ²I) plus a constant (Vincent 2011,
    doi:10.1162/NECO_a_00142), which grows as d/(2σ²): values at two σ are not comparable.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from samplekit import losses
    >>> X = jnp.zeros((5, 2))  # all data at one point: −x̃/σ² is the exact answer
    >>> float(losses.denoising(lambda x: -x / 0.25, X, jax.random.key(0), 0.5))
    0.0
    """
    _check_positive("sigma", sigma)
    samples, ours = as_batch(data), shaped(score)
    noise = jax.random.normal(key, samples.shape, samples.dtype)
    scale = jnp.asarray(sigma, samples.dtype)

    def one(x: Array, epsilon: Array) -> Array:
        off = ours(x + scale * epsilon) + epsilon / scale
        return dot(off, off) / 2

    return jax.vmap(one)(samples, noise).mean()


def denoising_general(
    score: Score,
    data: ArrayLike,
    key: Array,
    *,
    draw: Callable[[Array, Array], Array],
    log_density: Callable[[Array, Array], Array],
) -> Array:
    """Return the denoising loss for any noise that has a density.

    Parameters
    ----------
    score
        The score s of one sample.
    data
        Samples along the first axis, without noise.
    key
        Of the noise.
    draw
        `draw(key, x)` returns x̃, a noisy x.
    log_density
        `log_density(noisy, x)` is log q(x̃ | x), up to a constant in x̃.

    Returns
    -------
    loss
        The mean over the samples.

    Notes
    -----
    ½E‖s(x̃) − ∇_x̃ log q(x̃ | x)‖², the derivative of log q by JAX. It is `explicit` on the law of x̃
    plus a constant (Vincent 2011, doi:10.1162/NECO_a_00142). q must be smooth in x̃ and vanish at
    the ends of its support: uniform noise has no score.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from samplekit import losses
    >>> logistic = lambda noisy, x: -2 * jnp.logaddexp(0, noisy - x).sum() + (noisy - x).sum()
    >>> float(losses.denoising_general(
    ...     lambda x: -jnp.tanh(x / 2), jnp.zeros((5, 2)), jax.random.key(0),
    ...     draw=lambda key, x: x + jax.random.logistic(key, x.shape), log_density=logistic,
    ... )) < 1e-12
    True
    """
    samples, ours = as_batch(data), shaped(score)

    def one(x: Array, key: Array) -> Array:
        noisy = draw(key, x)
        off = ours(noisy) - jax.grad(log_density)(noisy, x)
        return dot(off, off) / 2

    return jax.vmap(one)(samples, jax.random.split(key, len(samples))).mean()


def noise_conditional(
    score: Score,
    data: ArrayLike,
    key: Array,
    levels: ArrayLike,
    *,
    weight: Callable[[Array], Array] | None = None,
) -> Array:
    """Return the denoising loss of a score at many noise levels.

    Parameters
    ----------
    score
        The score s(x, σ) of one sample at one level.
    data
        Samples along the first axis, without noise.
    key
        Of the noise and the levels.
    levels
        Noise scales σ_1, ..., σ_L. Each sample gets one, all get an equal share.
    weight
        λ(σ), a positive function; None is σ², with which all levels weigh alike.

    Returns
    -------
    loss
        The mean over the samples, unbiased for the mean over the levels.

    Notes
    -----
    (1/L) Σ_i λ(σ_i) ½E‖s(x + σ_i ε, σ_i) + ε/σ_i‖², which for λ = σ² is (1/L) Σ_i ½E‖σ_i s + ε‖²
    (Song and Ermon 2019, arXiv:1907.05600). Levels are dealt out evenly from a
    random start, each sample's level being uniform: less variance than independent ones (as times
    in Kingma et al. 2021, arXiv:2107.00630).

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from samplekit import losses
    >>> X = jnp.zeros((6, 2))
    >>> exact = lambda x, sigma: -x / sigma**2
    >>> float(losses.noise_conditional(exact, X, jax.random.key(0), [2.0, 1.0, 0.5])) < 1e-12
    True
    """
    samples, ours = as_batch(data), shaped(score)
    scales = jnp.asarray(levels, samples.dtype)
    if scales.ndim != 1 or not len(scales):
        raise SettingsError(f"levels has shape {scales.shape}. Give a list of noise scales.")
    _check_positive("levels", levels)
    start, noise = jax.random.split(key)

    def one(x: Array, epsilon: Array, sigma: Array) -> Array:
        off = sigma * ours(x + sigma * epsilon, sigma) + epsilon
        # The weight over σ², so that the usual one neither multiplies nor divides by it.
        factor = 1 if weight is None else weight(sigma) / sigma**2
        return factor * dot(off, off) / 2

    return jax.vmap(one)(
        samples,
        jax.random.normal(noise, samples.shape, samples.dtype),
        _deal(start, scales, len(samples)),
    ).mean()


def _deal(key: Array, levels: Array, n: int) -> Array:
    """Return a level for each of n samples: uniform for each, evenly spread over all."""
    start = jax.random.randint(key, (), 0, len(levels))
    return levels[(jnp.arange(n) * len(levels) // n + start) % len(levels)]


def _check_positive(name: str, value: ArrayLike) -> None:
    """Refuse scales that divide by zero or turn the sign; traced ones cannot be looked at."""
    try:
        positive = np.all(np.asarray(value, np.float64) > 0)
    except jax.errors.TracerArrayConversionError:
        return
    if not positive:
        raise SettingsError(f"{name}={value} holds no scale of noise. Give positive numbers.")
