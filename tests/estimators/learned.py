"""A mixture whose score is known, and how far a learned score is from it."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import samplekit as sk

WEIGHTS, MEANS = [0.3, 0.7], [[-1.5, 0.0], [1.5, 0.5]]
SCALES = np.array([[1.0, 0.7], [0.8, 1.0]])


def mixture(noise=0.0):
    """Return the mixture plus independent noise, one scale or one a column."""
    scales = np.sqrt(SCALES**2 + np.square(noise))
    return sk.targets.mixture(WEIGHTS, MEANS, scales)


def rows(count=4000, seed=0):
    return np.asarray(mixture().draw(jax.random.key(seed), count))


def noisy(data, noise, seed=0):
    added = np.random.default_rng(seed).normal(size=data.shape) * noise
    return (data + added).astype(data.dtype)


@eqx.filter_jit
def scores(target, x):
    return jax.vmap(target.score)(x)


def excess(learned, exact, x):
    """Return ½ mean ‖s − s*‖²: by how much the loss of s exceeds that of the exact score s*."""
    x = jnp.asarray(x)
    return float(jnp.mean(jnp.sum((scores(learned, x) - scores(exact, x)) ** 2, axis=1))) / 2


def own_error(exact, x):
    """Return the standard error of the exact score's own loss on so many rows.

    Rows cannot tell scores apart whose losses differ by less: fitted to them, a network may be
    better than the exact score by about as much, and is then worse on other rows by as much.
    """

    def one(x):
        s = exact.score(x)
        return jnp.sum(s**2) / 2 + jnp.trace(jax.jacfwd(exact.score)(x))

    return float(np.std(jax.jit(jax.vmap(one))(jnp.asarray(x)))) / len(x) ** 0.5


def grid_moments(target, half=10.0, count=301):
    """Return the mean and the mean square of a density in the plane, by the trapezoidal rule.

    The density and all its derivatives vanish at the edge, so that the rule converges faster than
    any power of its step.
    """
    axis = np.linspace(-half, half, count)
    x = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    log = np.asarray(jax.jit(jax.vmap(target.log_density))(jnp.asarray(x, jnp.float32)), float)
    weight = np.exp(log - log.max())
    edge = (np.abs(x) == half).any(axis=1)
    assert weight[edge].max() < 1e-6
    return weight @ x / weight.sum(), weight @ x**2 / weight.sum()


@dataclasses.dataclass
class Calls:
    """Counts how often Python goes through a network: once for each trace, never while it runs."""

    count: int = 0

    def __hash__(self):
        return id(self)

    def __eq__(self, other):
        return self is other


class Counting(eqx.Module):
    """A network that counts its traces."""

    net: eqx.Module
    calls: Calls = eqx.field(static=True)

    def __call__(self, *args):
        self.calls.count += 1
        return self.net(*args)
