"""A few chains of a cheap target in one batch on one device: when, and that no more changes."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import samplekit as sk
from samplekit.sampling import task
from samplekit.sampling.cost import arithmetic
from samplekit.testing import assert_mean

CHEAP = sk.targets.gaussian([1.0, 2.0, 0.5])
WEIGHTS = jnp.asarray(np.random.default_rng(0).normal(size=(300, 3)), jnp.float32)


def dear(x):
    return -jnp.sum(jax.nn.softplus(WEIGHTS @ x)) - jnp.sum(x**2) / 2


def sample(target=CHEAP, kernel=None, **options):
    settings = {"draws": 40, "warmup": 100, "chains": 4, "progress": False}
    return sk.sample(target, kernel or sk.HMC(), **settings | options)


def layout(run):
    return run["sampler"].attrs["layout"]


@pytest.mark.parametrize(
    ("fn", "numbers"),
    [
        (lambda x: x + 1.0, 10),
        (lambda x: jnp.sum(x * x), 20),
        (lambda x: jnp.ones((7, 10)) @ x, 70 + 70),
        (lambda x: jax.lax.scan(lambda c, _: (c * 2.0, None), x, None, length=5)[0], 50),
        (lambda x: jax.jit(lambda y: y * 2.0)(x), 10),
        (lambda x: jax.lax.while_loop(lambda y: y[0] < 1, lambda y: y + 1, x), math.inf),
        (lambda x: jax.pure_callback(lambda y: y, x, x), math.inf),
    ],
)
def test_arithmetic(fn, numbers):
    counted = arithmetic(jax.make_jaxpr(fn)(jnp.zeros(10)).jaxpr)
    assert counted == numbers or numbers <= counted < numbers + 5  # scalars of loops


def test_who_runs_together():
    assert layout(sample()) == "batch"
    assert layout(sample(sk.from_log_density(dear, 3))) == "chain by chain"
    assert layout(sample(kernel=sk.NUTS())) == "chain by chain"
    assert layout(sample(chains=1)) == "chain by chain"
    assert layout(sample(sk.from_energy(_called_back, 2), sk.RandomWalk())) == "chain by chain"


def _called_back(x):
    return jax.pure_callback(lambda y: np.sum(y**2, dtype=np.float32), jnp.zeros(()), x)


def test_moments():
    run = sample(kernel=sk.HMC(), draws=4000, warmup=500, chains=8)
    assert layout(run) == "batch"
    x = run["posterior"]["x"].values
    assert_mean(x, CHEAP.mean, resolves=0.2)
    assert_mean((x - CHEAP.mean) ** 2, CHEAP.variance, resolves=0.2)


def test_the_devices_do_not_matter():
    """They are one batch on one device, whatever there is: the same bits."""
    straight = sample()["posterior"]["x"]
    for devices in (1, jax.devices()[1:3]):
        np.testing.assert_array_equal(sample(devices=devices)["posterior"]["x"], straight)


def test_a_run_goes_on_as_it_began(monkeypatch, tmp_path):
    """Also where it would now be laid out otherwise: runs of earlier versions are such."""
    kinds = {"batch": task.CHEAP, "chain by chain": 0}
    for name, most in kinds.items():
        monkeypatch.setattr(task, "CHEAP", most)
        straight = sample(draws=60)
        run = sample(store=tmp_path / f"{most}.zarr")
        assert layout(run) == layout(straight) == name
        monkeypatch.setattr(task, "CHEAP", 0 if most else 2000)
        for begun in (run, tmp_path / f"{most}.zarr"):
            longer = sk.resume(begun, CHEAP, draws=20, progress=False)
            assert layout(longer) == name
            np.testing.assert_array_equal(longer["posterior"]["x"], straight["posterior"]["x"])
