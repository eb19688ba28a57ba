"""The two energies of the many-chain benchmark: their numbers, for JAX and torch alike."""

import numpy as np

NAMES = ("mixture", "network")
DIMS = {"mixture": 2, "network": 64}
# Step size η of y = x + (η²/2)∇log p + ηz, the same for all (torchebm writes η²/2 as step_size).
LANGEVIN_STEP = 0.02**0.5
HMC_STEP = 0.1
LEAPFROGS = 10


def weights():
    """Return the layers of the 64-128-128-1 network."""
    rng = np.random.default_rng(3)
    shapes = [(64, 128), (128, 128), (128, 1)]
    return [(rng.normal(size=s) / np.sqrt(s[0])).astype(np.float32) for s in shapes]


def means():
    """Return the eight means of the 2-D mixture, on a circle of radius 4; the variance is 1/4."""
    angle = np.arange(8) * 2 * np.pi / 8
    return (4 * np.c_[np.cos(angle), np.sin(angle)]).astype(np.float32)


def steps(energy, kernel, chains):
    """Return how many steps take about a second."""
    each = {"mixture": 0.16e-6, "network": 1.5e-6}[energy]  # seconds a gradient of a chain
    gradients = LEAPFROGS if kernel == "hmc" else 1
    return max(10, 5 * round(1.0 / (each * chains * gradients) / 5))


def jax_log_density(energy):
    """Return the log density of one position."""
    import jax
    import jax.numpy as jnp

    if energy == "mixture":
        mu = jnp.asarray(means())
        return lambda x: jax.nn.logsumexp(-2.0 * jnp.sum((x - mu) ** 2, -1))
    layers = [jnp.asarray(w) for w in weights()]

    def network(x):
        h = jax.nn.silu(jax.nn.silu(x @ layers[0]) @ layers[1])
        return -(h @ layers[2])[0] - 0.5 * jnp.sum(x * x)

    return network
