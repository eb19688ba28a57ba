"""The tuned length of HMC: it forgets what it learned in coordinates that are no longer used."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import samplekit as sk
from samplekit.kernels import hamiltonian
from samplekit.kernels.metric import initial_metric


def learned(steps):
    """Return a kernel after warm-up steps without a turn, as before the metric is known."""
    kernel = sk.HMC().prepare(2, np.float32)
    kernel = dataclasses.replace(kernel, step_size=jnp.float32(0.01))
    for count in range(1, steps + 1):
        kernel = kernel.learn({"_turned": jnp.zeros(4, bool)}, jnp.asarray(count))
    return kernel


def turn_time_after(kernel, steps):
    """Return the turn time after more steps, all of which turn."""
    for count in range(1, steps + 1):
        kernel = kernel.learn({"_turned": jnp.ones(4, bool)}, jnp.asarray(count))
    return float(kernel.turn_time)


def check():
    kernel = learned(100)
    assert float(kernel.turn_time) <= 255 * 0.01 * 1.001
    kernel = dataclasses.replace(
        learned(100), turn_time=jnp.float32(300.0), step_size=jnp.float32(1)
    )
    moved = kernel.moved(initial_metric("diagonal", 2, np.float32))
    assert turn_time_after(moved, 1) <= hamiltonian.FIRST_TURN


def test_a_turn_time_is_bounded_and_measured_anew_with_the_metric():
    check()


@pytest.mark.parametrize("mutant", ["unbounded", "remembered"])
def test_without_that_trajectories_stay_long(mutant, monkeypatch):
    if mutant == "unbounded":
        monkeypatch.setattr(hamiltonian, "MOST_LEARNED", 10**9)
    else:
        monkeypatch.setattr(sk.HMC, "moved", hamiltonian.NoiseKernel.moved)
    with pytest.raises(AssertionError):
        check()


def test_a_regression_with_correlated_columns_is_cheap():
    """As the reference posterior kidscore_interaction: 11 s a run when lengths were remembered."""
    random = np.random.default_rng(0)
    x = np.c_[np.ones(400), 100 + 15 * random.normal(size=400)]
    x = jnp.asarray(np.c_[x, x[:, 1] * random.integers(0, 2, 400)], jnp.float32)
    y = x @ jnp.asarray([20.0, 0.5, 0.1]) + jnp.asarray(random.normal(size=400) * 18, jnp.float32)

    def log_density(z):
        return -jnp.sum((y - x @ z) ** 2) / (2 * 18**2) - jnp.sum(z**2) / 2000

    run = sk.sample(sk.from_log_density(log_density, 3), sk.HMC(), progress=False)
    assert float(run["sample_stats"]["n_steps"].mean()) < 40
