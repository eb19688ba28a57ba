"""Implicit score matching: the divergence of the score, exact or from random directions."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from samplekit.losses.batch import Noise, Score, as_batch, dot, draw_probes, shaped

# So many directions of the exact trace at once; more cost memory and save no time.
DIRECTIONS = 16


def explicit(score: Score, true_score: Score, data: ArrayLike) -> Array:
    """Return the Fisher divergence between a score and the true one.

    Parameters
    ----------
    score
        The score s of one sample.
    true_score
        The score ∇ log p of the density that the data come from.
    data
        Samples along the first axis.

    Returns
    -------
    loss
        The mean over the samples.

    Notes
    -----
    ½ E‖s(x) − ∇ log p(x)‖² (Hyvärinen 2005, JMLR 6): zero iff the scores agree. Only of
    use where the truth is known, to judge what the other losses have found.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from samplekit import losses
    >>> float(losses.explicit(lambda x: -x, lambda x: 1 - x, jnp.zeros((5, 2))))
    1.0
    """
    samples, ours, true = as_batch(data), shaped(score), shaped(true_score)

    def one(x: Array) -> Array:
        off = ours(x) - true(x)
        return dot(off, off) / 2

    return jax.vmap(one)(samples).mean()


def implicit(score: Score, data: ArrayLike) -> Array:
    """Return the implicit score matching loss with the exact trace.

    Parameters
    ----------
    score
        The score s of one sample; smooth, for autodiff does not see the kinks of a ReLU.
    data
        Samples along the first axis.

    Returns
    -------
    loss
        The mean over the samples.

    Notes
    -----
    E[½‖s(x)‖² + tr ∇s(x)] (Hyvärinen 2005, JMLR 6, theorem 1). For data from a density p on R^d
    that vanishes far out it is `explicit` minus ½E‖∇ log p‖², which is no business of s. Costs one
    forward derivative a dimension, some at a time, and never holds ∇s.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from samplekit import losses
    >>> float(losses.implicit(lambda x: -x, jnp.ones((5, 2))))  # ½ · 2 − 2
    -1.0
    """
    samples, ours = as_batch(data), shaped(score)

    def one(x: Array) -> Array:
        s = ours(x)
        return dot(s, s) / 2 + _trace(ours, x)

    return jax.vmap(one)(samples).mean()


def _trace(score: Score, x: Array) -> Array:
    """Return tr ∇s(x)."""

    def along(index: Array) -> Array:
        axis = jax.nn.one_hot(index, x.size, dtype=x.dtype).reshape(x.shape)
        return dot(axis, jax.jvp(score, (x,), (axis,))[1])

    axes = jnp.arange(x.size)
    if x.size <= DIRECTIONS:
        return jax.vmap(along)(axes).sum()
    # Computed again backwards, so that a gradient holds one block of directions and not all.
    return jax.lax.map(jax.checkpoint(along), axes, batch_size=DIRECTIONS).sum()


def _probed(score: Score, samples: Array, directions: Array) -> tuple[Array, Array, Array]:
    """Return ½‖s‖² of each sample, and vᵀs and vᵀ(∇s)v of each direction of each sample."""

    def along(x: Array, v: Array) -> tuple[Array, Array, Array]:
        s, change = jax.jvp(score, (x,), (v,))
        return dot(s, s) / 2, dot(v, s), dot(v, change)

    half, slope, bend = jax.vmap(jax.vmap(along, (None, 0)))(samples, directions)
    return half[:, 0], slope, bend  # s is the same for all directions, and computed once


def hutchinson(
    score: Score, data: ArrayLike, key: Array, *, probes: int = 1, noise: Noise = "rademacher"
) -> Array:
    """Return the implicit loss with the trace estimated from random directions.

    Parameters
    ----------
    score
        The score s of one sample; smooth.
    data
        Samples along the first axis.
    key
        Of the directions.
    probes
        Directions for each sample; the variance of the trace falls as 1/probes.
    noise
        "rademacher" (signs; the least variance, none for a diagonal ∇s) or "gaussian".

    Returns
    -------
    loss
        The mean over the samples.

    Notes
    -----
    E[½‖s(x)‖² + vᵀ∇s(x)v] with E[vvᵀ] = I, whose mean over v is `implicit` (Hutchinson 1989,
    doi:10.1080/03610918908812806). The trace is a sum, not divided by the dimension. Costs one
    score and one forward derivative a probe.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from samplekit import losses
    >>> float(losses.hutchinson(lambda x: -x, jnp.ones((5, 2)), jax.random.key(0)))
    -1.0
    """
    samples = as_batch(data)
    half, _, bend = _probed(shaped(score), samples, draw_probes(key, samples, probes, noise))
    return half.mean() + bend.mean()


def sliced(
    score: Score, data: ArrayLike, key: Array, *, probes: int = 1, noise: Noise = "rademacher"
) -> Array:
    """Return the sliced score matching loss: scores compared along random directions.

    Parameters
    ----------
    score, data, key, probes, noise
        As in `hutchinson`.

    Returns
    -------
    loss
        The mean over the samples.

    Notes
    -----
    E[vᵀ∇s(x)v + ½(vᵀs(x))²] with E[vvᵀ] = I, whose mean over v is `implicit` (Song, Garg, Shi and
    Ermon 2019, arXiv:1905.07088). `sliced_vr` has the same mean and less variance.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from samplekit import losses
    >>> float(losses.sliced(lambda x: -x, jnp.full((5, 1), 3.0), jax.random.key(0)))  # ½ · 9 − 1
    3.5
    """
    samples = as_batch(data)
    _, slope, bend = _probed(shaped(score), samples, draw_probes(key, samples, probes, noise))
    return (slope**2 / 2 + bend).mean()


def sliced_vr(
    score: Score, data: ArrayLike, key: Array, *, probes: int = 1, noise: Noise = "rademacher"
) -> Array:
    """Return the sliced score matching loss with reduced variance.

    Parameters
    ----------
    score, data, key, probes, noise
        As in `hutchinson`.

    Returns
    -------
    loss
        The mean over the samples.

    Notes
    -----
    E[vᵀ∇s(x)v + ½‖s(x)‖²]: `sliced` with the mean of its second term over v (Song, Garg, Shi and
    Ermon 2019, arXiv:1905.07088). That is `hutchinson` by its other name.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from samplekit import losses
    >>> float(losses.sliced_vr(lambda x: -x, jnp.ones((5, 2)), jax.random.key(0)))
    -1.0
    """
    return hutchinson(score, data, key, probes=probes, noise=noise)
