"""Particles over several devices: the same ones, computed where they were asked for."""

import jax
import numpy as np
import pytest

import samplekit as sk
from samplekit import diffusion
from samplekit.core.errors import SettingsError
from samplekit.sampling.devices import deal, read_devices, row_mesh

pytestmark = pytest.mark.multidevice
FAMILY = sk.targets.noised_mixture([1, 4], [[-5.0, -5.0], [5.0, 5.0]])
PROCESS = diffusion.VE(0.01, 30.0)


def close(one, two):
    """Programs for other numbers of devices round otherwise, over some hundred steps."""
    np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-3)


SLOW = pytest.param("adaptive", marks=pytest.mark.slow)  # takes Diffrax long to compile


def reverse(devices, **options):
    settings = {"steps": 60, "particles": 48, "progress": False}
    return diffusion.reverse(PROCESS, FAMILY, devices=devices, **settings, **options)


def test_reverse():
    mesh = jax.sharding.Mesh(jax.devices()[:4], ("a",))
    one, *others = (reverse(d, keep=True) for d in (1, 2, jax.devices()[:3], mesh))
    for run in others:
        for group in ("posterior", "path_posterior"):
            close(run[group]["x"], one[group]["x"])


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["exponential", SLOW])
def test_reverse_with_all_that_it_can_do(solver):
    options = {"corrector": sk.Langevin(0.02)} if solver == "exponential" else {}
    one, four = (reverse(n, solver=solver, **options) for n in (1, 4))
    close(four["posterior"]["x"], one["posterior"]["x"])


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["heun", SLOW])
def test_flow_there_and_back(solver):
    one, four = (
        diffusion.flow(PROCESS, FAMILY, particles=40, solver=solver, devices=n)["posterior"]["x"]
        for n in (1, 4)
    )
    close(four, one)
    data = np.asarray(one)[:, 0]
    back = [diffusion.encode(PROCESS, FAMILY, data, solver=solver, devices=n) for n in (1, 4)]
    close(back[1], back[0])
    likely = [
        diffusion.log_likelihood(PROCESS, FAMILY, data, solver=solver, devices=n) for n in (1, 4)
    ]
    close(likely[1].values, likely[0].values)


def test_rows_are_where_they_should_be():
    """As many devices as divide the rows, and no others."""
    four = jax.devices()[:4]
    for count, places in ((8, four), (6, four[:3]), (5, four[:1])):
        dealt = deal(np.zeros((count, 2)), row_mesh(four, count))
        assert dealt.devices() == set(places)
        assert {s.data.shape[0] for s in dealt.addressable_shards} == {count // len(places)}


def test_naming_devices():
    devices = jax.devices()
    assert read_devices(None) is None
    assert read_devices(2) == devices[:2]
    assert read_devices(devices[1:3]) == devices[1:3]
    mesh = jax.sharding.Mesh(np.reshape(devices[:4], (2, 2)), ("a", "b"))
    assert read_devices(mesh) == devices[:4]
    for wrong in (0, -1, len(devices) + 1, True, "cpu", [], ["cpu"], 1.5):
        with pytest.raises(SettingsError, match="devices="):
            read_devices(wrong)
    run = sk.sample(sk.targets.gaussian(2), sk.MALA(0.8), chains=24, warmup=0, draws=2, devices=2)
    assert run["posterior"].sizes["chain"] == 24
