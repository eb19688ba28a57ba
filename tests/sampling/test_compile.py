"""What is traced and imported: a second run compiles nothing, the first little."""

import os
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import samplekit as sk

ROOT = Path(__file__).resolve().parents[2]
# Traces of the energy from `from_energy` to the end of the first run. One to check its shape, two
# for the starts (shapes, program), and those of a step: a step is traced once for its shapes and
# its program together, in which BlackJAX's trajectories evaluate the energy in several places.
BUDGET = {"NUTS": 6, "HMC": 6, "MALA": 6, "RandomWalk": 6, "Barker": 6, "Langevin": 6}


class Counter:
    """An energy that counts how often JAX traces it."""

    def __init__(self):
        self.traces = 0

    def __call__(self, x):
        self.traces += 1
        return jnp.sum(x**2) / 2


def sample(target, kernel=None, **options):
    settings = {"draws": 4, "warmup": 25, "chains": 2, "progress": False}
    return sk.sample(target, kernel, **settings | options)


def kernels():
    given = {"Langevin": sk.Langevin(0.1)}
    return {name: given.get(name) or getattr(sk, name)() for name in BUDGET}


@pytest.mark.parametrize("name", BUDGET)
def test_traces(name):
    kernel, energy = kernels()[name], Counter()
    target = sk.from_energy(energy, 2)
    sample(target, kernel)
    assert energy.traces <= BUDGET[name], energy.traces
    energy.traces = 0
    sample(target, kernel, seed=1, draws=7, warmup=40, thin=3)
    sample(target, kernel, seed=1, chains=1)
    # Another target object around the same function is the same program.
    sample(sk.from_energy(energy, 2), kernel, seed=2)
    assert energy.traces == 1  # by from_energy: is it a scalar?
    energy.traces = 0
    sample(target, kernel, init=np.ones((2, 2), np.float32))
    assert energy.traces <= 1  # the starts are checked before anything else


def count_programs():
    from samplekit.sampling.program import advance

    return advance._cache_size()
