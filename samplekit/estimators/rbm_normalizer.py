"""log Z of a Boltzmann machine: exactly, or by annealed importance sampling."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


def exact(machine: Any) -> float:
    """Return log Z by the sum over all hidden states, in double precision."""
    with jax.enable_x64():
        double = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), machine)
        return float(_exact(double))


@jax.jit
def _exact(machine: Any) -> Array:
    return machine.log_normalizer()


def annealed(machine: Any, levels: int, particles: int, seed: int) -> tuple[float, float]:
    """Return log Z and its standard error by annealed importance sampling (Neal 2001).

    Parameters
    ----------
    machine
        With `at(beta)`, exact draws at β = 0, and `base_log_normalizer`.
    levels, particles
        Inverse temperatures from 0 to 1, evenly spaced, and independent runs.
    seed
        An integer.

    Notes
    -----
    log w = Σ_k log p̃_{β_k}(v_{k−1}) − log p̃_{β_{k−1}}(v_{k−1}), with a Gibbs sweep at β_k after
    each; Z/Z_0 is the mean of w. The error of log Z is sd(w)/(mean(w)·√particles).
    """
    betas = jnp.linspace(0.0, 1.0, levels + 1).astype(machine.weights.dtype)
    log_weights, base = _anneal(machine, betas, jax.random.key(seed), particles)
    logs = np.asarray(log_weights, np.float64)
    weights = np.exp(logs - logs.max())
    mean = weights.mean()
    error = weights.std(ddof=1) / mean / np.sqrt(particles)
    return float(base) + logs.max() + float(np.log(mean)), float(error)


@jax.jit(static_argnums=3)
def _anneal(machine: Any, betas: Array, key: Array, particles: int) -> tuple[Array, Array]:
    free = machine.at(betas[0])
    start = jnp.zeros((particles, machine.visible_bias.size), machine.weights.dtype)
    v = jax.vmap(free.sweep)(free.noise(jax.random.fold_in(key, 0), particles), start)

    def level(
        carry: tuple[Array, Array], at: tuple[Array, Array, Array]
    ) -> tuple[tuple[Array, Array], None]:
        v, log_w = carry
        before, now, index = at
        hot, cold = machine.at(before), machine.at(now)
        log_w = log_w + jax.vmap(cold.log_density)(v) - jax.vmap(hot.log_density)(v)
        noise = cold.noise(jax.random.fold_in(key, index), particles)
        return (jax.vmap(cold.sweep)(noise, v), log_w), None

    steps = (betas[:-1], betas[1:], jnp.arange(1, len(betas)))
    (_, log_w), _ = jax.lax.scan(level, (v, jnp.zeros(particles, v.dtype)), steps)
    return log_w, machine.base_log_normalizer()
