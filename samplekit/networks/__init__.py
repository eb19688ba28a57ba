"""Networks for scores and energies: Equinox modules whose only leaves are their weights.

A network takes one sample, `net(x)` or `net(x, sigma)`, of the shape it was made for; `jax.vmap`
makes it take batches. It computes in the precision of x, whatever that of its weights. `jax.grad`,
`jax.jit` and Optax take it as it is, for activations and sizes are static;
`equinox.tree_serialise_leaves` saves it.
"""

from samplekit.networks.conservative import Conservative, InnerProductEnergy
from samplekit.networks.images import EnergyCNN, UNet
from samplekit.networks.mlp import MLP, EnergyMLP, NoiseConditionalMLP
from samplekit.networks.predictions import (
    denoised_from_epsilon,
    denoised_from_score,
    epsilon_from_denoised,
    epsilon_from_score,
    score_from_denoised,
    score_from_epsilon,
    variance_preserving,
)

__all__ = [
    "MLP",
    "Conservative",
    "EnergyCNN",
    "EnergyMLP",
    "InnerProductEnergy",
    "NoiseConditionalMLP",
    "UNet",
    "denoised_from_epsilon",
    "denoised_from_score",
    "epsilon_from_denoised",
    "epsilon_from_score",
    "score_from_denoised",
    "score_from_epsilon",
    "variance_preserving",
]
