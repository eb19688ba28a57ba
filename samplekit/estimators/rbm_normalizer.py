"""log Z of a Boltzmann machine: exactly, or by annealed importance sampling."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from samplekit.core.protocols import Numbers
from samplekit.core.pytree import pytree, static
from samplekit.kernels.gibbs import Gibbs
from samplekit.sampling.anneal import anneal
from samplekit.targets.space import Space


def exact(machine: Any) -> float:
    """Return log Z by the sum over all hidden states, in double precision."""
    with jax.enable_x64():
        double = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), machine)
        return float(_exact(double))


@jax.jit
def _exact(machine: Any) -> Array:
    return machine.log_normalizer()


@pytree
class MachinePath:
    """A machine from β = 0, where its units are independent, to itself: a path for `sk.anneal`."""

    machine: Any
    levels: Numbers
    kind: str = static(default="temperature")

    def at(self, level: Any, /) -> Any:
        """Return the machine at an inverse temperature."""
        return self.machine.at(jnp.asarray(level, self.machine.weights.dtype))

    @property
    def space(self) -> Space:
        """The visible units."""
        return self.machine.space

    @property
    def log_normalizer(self) -> float:
        """The exact log Z at β = 0."""
        return float(self.machine.base_log_normalizer())

    def start(self, key: Array, n: int, /) -> Array:
        """Return exact draws at β = 0: one sweep from anywhere."""
        free = self.at(0.0)
        (leaf,) = self.space.leaves
        anywhere = jnp.zeros((n, *leaf.shape), leaf.dtype or self.machine.weights.dtype)
        return jax.vmap(free.sweep)(free.noise(key, n), anywhere)


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
    `sk.anneal` with one Gibbs sweep a level; how it weighs and what its error means stands there.
    """
    path = MachinePath(machine, np.linspace(0.0, 1.0, levels + 1))
    run = anneal(path, Gibbs(), steps=1, particles=particles, seed=seed, progress=False)
    return run.attrs["log_z"], run.attrs["log_z_error"]
