"""The three things a network may predict of noisy data, each made from each other.

Noisy data are x̃ = a·x + σε. A network may predict the noise ε (as in DDPM), the score of x̃, or the
data x (a denoiser): the best answer to one gives the best answer to the others.

- Variance exploding: a = 1, `scale` is left out.
- Variance preserving: a = √ᾱ and σ = √(1 − ᾱ); `scale, sigma = variance_preserving(alpha_bar)`.

All functions take arrays of any shape, `sigma` and `scale` broadcast against them.
"""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike


def variance_preserving(alpha_bar: ArrayLike) -> tuple[Array, Array]:
    """Return scale √ᾱ and sigma √(1 − ᾱ) of a variance preserving process.

    Notes
    -----
    x̃ = √ᾱ x + √(1 − ᾱ) ε keeps variance 1 (Ho, Jain and Abbeel 2020, arXiv:2006.11239).

    Examples
    --------
    >>> from samplekit import networks
    >>> scale, sigma = networks.variance_preserving(0.64)
    >>> round(float(scale), 6), round(float(sigma), 6)
    (0.8, 0.6)
    """
    kept = jnp.asarray(alpha_bar)
    return jnp.sqrt(kept), jnp.sqrt(1 - kept)


def score_from_epsilon(epsilon: Array, sigma: ArrayLike) -> Array:
    """Return the score of x̃ from a prediction of the noise.

    Notes
    -----
    s = −ε/σ, the same for every scale: ∇ log N(x̃; a x, σ²) = −(x̃ − a x)/σ² (Vincent 2011,
    doi:10.1162/NECO_a_00142).

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from samplekit import networks
    >>> networks.score_from_epsilon(jnp.array([1.0]), 0.5).tolist()
    [-2.0]
    """
    return -epsilon / _like(epsilon, sigma)


def epsilon_from_score(score: Array, sigma: ArrayLike) -> Array:
    """Return the noise from a score of x̃: the inverse of `score_from_epsilon`.

    Notes
    -----
    ε = −σs (Vincent 2011, doi:10.1162/NECO_a_00142).

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from samplekit import networks
    >>> networks.epsilon_from_score(jnp.array([-2.0]), 0.5).tolist()
    [1.0]
    """
    return -score * _like(score, sigma)


def denoised_from_score(
    score: Array, noisy: Array, sigma: ArrayLike, *, scale: ArrayLike = 1.0
) -> Array:
    """Return the denoised data from a score of x̃: Tweedie's formula.

    Notes
    -----
    E[x | x̃] = (x̃ + σ²s(x̃))/a (Efron 2011, doi:10.1198/jasa.2011.tm11181).

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from samplekit import networks
    >>> networks.denoised_from_score(jnp.array([-2.0]), jnp.array([3.0]), 0.5).tolist()
    [2.5]
    """
    return (noisy + _like(noisy, sigma) ** 2 * score) / _like(noisy, scale)


def score_from_denoised(
    denoised: Array, noisy: Array, sigma: ArrayLike, *, scale: ArrayLike = 1.0
) -> Array:
    """Return the score of x̃ from denoised data: the inverse of `denoised_from_score`.

    Notes
    -----
    s = (aE[x | x̃] − x̃)/σ² (Efron 2011, doi:10.1198/jasa.2011.tm11181).

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from samplekit import networks
    >>> networks.score_from_denoised(jnp.array([2.5]), jnp.array([3.0]), 0.5).tolist()
    [-2.0]
    """
    return (_like(noisy, scale) * denoised - noisy) / _like(noisy, sigma) ** 2


def denoised_from_epsilon(
    epsilon: Array, noisy: Array, sigma: ArrayLike, *, scale: ArrayLike = 1.0
) -> Array:
    """Return the denoised data from a prediction of the noise.

    Notes
    -----
    x = (x̃ − σε)/a (Ho, Jain and Abbeel 2020, arXiv:2006.11239).

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from samplekit import networks
    >>> networks.denoised_from_epsilon(jnp.array([1.0]), jnp.array([3.0]), 0.5).tolist()
    [2.5]
    """
    return (noisy - _like(noisy, sigma) * epsilon) / _like(noisy, scale)


def epsilon_from_denoised(
    denoised: Array, noisy: Array, sigma: ArrayLike, *, scale: ArrayLike = 1.0
) -> Array:
    """Return the noise from denoised data: the inverse of `denoised_from_epsilon`.

    Notes
    -----
    ε = (x̃ − a x)/σ (Ho, Jain and Abbeel 2020, arXiv:2006.11239).

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from samplekit import networks
    >>> networks.epsilon_from_denoised(jnp.array([2.5]), jnp.array([3.0]), 0.5).tolist()
    [1.0]
    """
    return (noisy - _like(noisy, scale) * denoised) / _like(noisy, sigma)


def _like(x: Array, value: ArrayLike) -> Array:
    return jnp.asarray(value, x.dtype)
