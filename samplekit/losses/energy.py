"""Energies: their score, and the contrastive loss against draws of the model."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from samplekit.losses.batch import Energy, Score, as_batch, numeric


def score_of(energy: Energy) -> Score:
    """Return the score −∇E of an energy, for every loss that takes a score.

    Parameters
    ----------
    energy
        The energy E(x) of one sample, or E(x, σ) at a noise level; p ∝ exp(−E).

    Returns
    -------
    score
        The function of the same arguments that returns −∂E/∂x.

    Notes
    -----
    p ∝ exp(−E) gives ∇ log p = −∇E; the normaliser has no gradient in x (Hyvärinen 2005, JMLR 6).

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from samplekit import losses
    >>> losses.score_of(lambda x: jnp.sum(x**2) / 2)(jnp.array([3.0, -1.0])).tolist()
    [-3.0, 1.0]
    """
    gradient = jax.grad(energy)

    def score(x: Array, *level: ArrayLike) -> Array:
        return -gradient(x, *level)

    return score


def contrastive(
    energy: Energy, positives: ArrayLike, negatives: ArrayLike, *, penalty: float = 0.0
) -> Array:
    """Return the contrastive loss: energies of data against energies of the model's draws.

    Parameters
    ----------
    energy
        The energy E of one sample, p ∝ exp(−E).
    positives
        Data: samples along the first axis.
    negatives
        Draws of the model, from any kernel; as many as you like. No gradient flows into them.
    penalty
        Weight of the mean square of all energies, which keeps them near zero.

    Returns
    -------
    loss
        E(x⁺) − E(x⁻), means over the samples, and the penalty.

    Notes
    -----
    The gradient of mean E(x⁺) − mean E(x⁻) is minus that of the mean log likelihood when the
    negatives come from the model; short chains from the data (Hinton 2002,
    doi:10.1162/089976602760128018) or persistent ones (Tieleman 2008, doi:10.1145/1390156.1390290)
    bias it. The value is no measure of progress: it hovers around zero. A constant in E is free,
    and the penalty (Du and Mordatch 2019, arXiv:1903.08689) pins it down and keeps the
    slopes of a network from growing without bound; some 0.1 is usual.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from samplekit import losses
    >>> energy = lambda x: jnp.sum(x**2) / 2
    >>> float(losses.contrastive(energy, jnp.ones((3, 2)), 2 * jnp.ones((7, 2))))
    -3.0
    """
    ours = jax.vmap(numeric(energy))
    true = ours(as_batch(positives))
    drawn = ours(jax.lax.stop_gradient(as_batch(negatives)))
    loss = true.mean() - drawn.mean()
    if isinstance(penalty, int | float) and penalty == 0:
        return loss
    return loss + penalty * (jnp.mean(true**2) + jnp.mean(drawn**2)) / 2
