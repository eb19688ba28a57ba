"""Scores that are gradients, so that there is a density and Metropolis is exact."""

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from samplekit.losses.batch import Energy, Score
from samplekit.losses.energy import score_of


class Conservative(eqx.Module):
    """The score −∇E of an energy network, as a network.

    Parameters
    ----------
    energy
        A network x → E(x) or (x, σ) → E(x, σ). `sk.from_energy(net.energy, dim)` is the density.

    Notes
    -----
    s = −∂E/∂x has a symmetric derivative and does no work around closed loops, so it is the score
    of p ∝ exp(−E) (Salimans and Ho 2021, Should EBMs model the energy or the score?). A call costs
    about three energies; training by `denoising` differentiates twice.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from samplekit import networks
    >>> net = networks.Conservative(networks.EnergyMLP(jax.random.key(0), 2))
    >>> net(jnp.ones(2)).shape
    (2,)
    """

    energy: Energy

    def __call__(self, x: ArrayLike, *sigma: ArrayLike) -> Array:
        """Return the score of one sample."""
        return score_of(self.energy)(jnp.asarray(x), *sigma)


class InnerProductEnergy(eqx.Module):
    """An energy made of any network for a score, noise-conditional ones and U-Nets as well.

    Parameters
    ----------
    net
        A network x → s(x) or (x, σ) → s(x, σ), shaped as x.

    Notes
    -----
    E(x) = −½⟨x, s(x)⟩: for a linear s with a symmetric matrix, as the score of a centered Gaussian
    is, −∇E is s itself, and every smooth energy with E(0) = 0 has this form (Du et al. 2023,
    arXiv:2302.11552, compare such energies). `Conservative(InnerProductEnergy(net))` makes a
    network's score a gradient.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from samplekit import networks
    >>> energy = networks.InnerProductEnergy(networks.NoiseConditionalMLP(jax.random.key(0), 2))
    >>> net = networks.Conservative(energy)
    >>> energy(jnp.ones(2), 0.5).shape, net(jnp.ones(2), 0.5).shape
    ((), (2,))
    """

    net: Score

    def __call__(self, x: ArrayLike, *sigma: ArrayLike) -> Array:
        """Return the energy of one sample."""
        return -jnp.sum(x * self.net(x, *sigma)) / 2
