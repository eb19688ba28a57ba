"""Chains on several devices: the same draws, computed where they were asked for."""

import jax
import numpy as np
import pytest

import samplekit as sk
from samplekit.sampling import engine

pytestmark = pytest.mark.multidevice
TARGET = sk.targets.gaussian(2, covariance=np.array([[1.0, 0.6], [0.6, 1.0]], np.float32))


@pytest.fixture
def places(monkeypatch):
    """Record on which devices the sampler's program leaves its states."""
    seen = []

    def watched(advance):
        def call(*args):
            out = advance(*args)
            seen.append(frozenset(out[0][-1].devices()))  # the last leaf: `started`
            return out

        call.lower = advance.lower  # pyright: ignore
        return call

    alone = watched(engine.advance_alone)
    monkeypatch.setattr(engine, "advance", watched(engine.advance))
    monkeypatch.setattr(engine, "advance_alone", alone)
    return seen


def sample(kernel, chains, devices, **options):
    settings = {"draws": 10, "warmup": 0, "progress": False}
    run = sk.sample(TARGET, kernel, chains=chains, devices=devices, **settings | options)
    return run["posterior"]["x"].values


def test_there_are_several():
    assert len(jax.devices()) >= 4


@pytest.mark.parametrize("kernel", [sk.MALA(0.8), sk.Langevin(0.3)])
def test_a_batch_over_devices(kernel, places):
    """One device, two, four: equal to rounding, sharded over exactly those."""
    devices = jax.devices()[:4]
    draws = []
    for count in (1, 2, 4):
        places.clear()
        draws.append(sample(kernel, 24, devices[:count]))
        assert set(places) == {frozenset(devices[:count])}
    for other in draws[1:]:
        np.testing.assert_allclose(other, draws[0], rtol=1e-5, atol=1e-5)
    assert np.unique(draws[0][:, 0], axis=0).shape[0] == 24


def test_a_number_of_chains_that_devices_do_not_divide(places):
    """18 chains go over 3 of 4 devices: as many as divide them."""
    devices = jax.devices()[:4]
    draws = sample(sk.MALA(0.8), 18, devices)
    assert set(places) == {frozenset(devices[:3])}
    assert np.isfinite(draws).all()


def test_a_batch_takes_all_devices_by_itself(places):
    sample(sk.MALA(0.8), 24, None)
    assert set(places) == {frozenset(jax.devices()[:4])}


def test_pooled_tuning_over_devices():
    one, four = (sample(sk.MALA(), 24, jax.devices()[:n], warmup=40) for n in (1, 4))
    # Tuning is chaotic: rounding grows, but not in the first few dozen steps.
    np.testing.assert_allclose(four[:, 0], one[:, 0], rtol=1e-2, atol=1e-2)


def test_chains_one_by_one_over_devices(places):
    """Threads on two devices: equal to the bit, tuning and all."""
    devices = jax.devices()[1:3]
    spread = sample(sk.NUTS(), 3, devices, warmup=40)
    assert set(places) == {frozenset([d]) for d in devices}
    places.clear()
    here = sample(sk.NUTS(), 3, None, warmup=40)
    assert set(places) == {frozenset([jax.devices()[0]])}
    np.testing.assert_array_equal(spread, here)


def test_resume_elsewhere():
    options = {"chains": 24, "warmup": 0, "progress": False}
    run = sk.sample(TARGET, sk.MALA(0.8), draws=4, devices=jax.devices()[:1], **options)
    more = sk.resume(run, TARGET, draws=6, devices=jax.devices()[:2], progress=False)
    straight = sk.sample(TARGET, sk.MALA(0.8), draws=10, **options)
    one, two = (r["posterior"]["x"].values for r in (more, straight))
    np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)


def test_default_device_is_honoured(places):
    with jax.default_device(jax.devices()[2]):
        sample(sk.MALA(0.8), 2, None)
    assert set(places) == {frozenset([jax.devices()[2]])}
