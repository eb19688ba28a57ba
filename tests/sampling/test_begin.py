"""How chains begin: by calls of their own, or, where that is known to be quick, as they go."""

import concurrent.futures as futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import samplekit as sk
from samplekit.core.errors import TargetError
from samplekit.sampling import loop
from samplekit.sampling.engine import Engine
from samplekit.sampling.threads import make_pool


@pytest.fixture
def begun(monkeypatch):
    """Count calls that only begin."""
    seen = []
    plain = Engine.begin

    def watched(self, *args):
        seen.append(args)
        return plain(self, *args)

    monkeypatch.setattr(Engine, "begin", watched)
    return seen


def sample(target, kernel, **options):
    settings = {"draws": 30, "warmup": 30, "progress": False, "seed": 3}
    return sk.sample(target, kernel, **settings | options)["posterior"]["x"].values


@pytest.mark.parametrize("quick", [0.0, np.inf])
@pytest.mark.parametrize(
    ("kernel", "chains"), [(sk.NUTS(), 3), (sk.HMC(), 4), (sk.MALA(0.5), 40), (sk.MALA(0.5), 1024)]
)
def test_a_known_program_begins_with_its_first_steps(kernel, chains, quick, begun, monkeypatch):
    """Whether its starts take a long time or not: only rounds are then shorter or longer."""
    monkeypatch.setattr(loop, "QUICK_START", quick)
    target = sk.from_log_density(lambda x: -jnp.sum(x**4 + x**2), 2)
    first = sample(target, kernel, chains=chains)
    sample(target, kernel, chains=chains)  # of one part, this is the first without compiling
    assert begun
    begun.clear()
    np.testing.assert_array_equal(sample(target, kernel, chains=chains), first)
    assert not begun


@pytest.mark.parametrize(("kernel", "chains"), [(sk.NUTS(), 4), (sk.RandomWalk(0.5), 40)])
def test_starts_that_cannot_be_used_are_drawn_again(kernel, chains, begun):
    """Half of the plane is forbidden: the first steps count for nothing, and the draws are same."""
    target = sk.from_log_density(lambda x: jnp.where(x[0] > 0, -jnp.sum(x * x) / 2, jnp.nan), dim=2)
    first = sample(target, kernel, chains=chains)
    begun.clear()
    np.testing.assert_array_equal(sample(target, kernel, chains=chains), first)
    assert begun
    assert first[..., 0].min() > 0


def test_given_starts(begun):
    target = sk.from_log_density(
        lambda x: jnp.where(x[0] > -9, -jnp.sum(x * x) / 2, jnp.nan), dim=2
    )
    init = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], np.float32)
    options = {"chains": 3, "warmup": 0, "draws": 5}
    first = sample(target, sk.NUTS(0.5), init=init, **options)
    begun.clear()
    run = sk.sample(target, sk.NUTS(0.5), init=init, progress=False, seed=3, **options)
    assert not begun
    np.testing.assert_array_equal(run["posterior"]["x"], first)
    np.testing.assert_array_equal(run["sampler"]["starts"], init)
    init[1] = -10
    with pytest.raises(TargetError, match="start of chain 1"):
        sample(target, sk.NUTS(0.5), init=init, **options)


def test_a_stored_run_that_begins_with_its_steps(begun, tmp_path):
    target = sk.from_log_density(lambda x: -jnp.sum(x * x) / 2, dim=2)
    whole = sample(target, sk.NUTS(), chains=3)
    begun.clear()
    sk.sample(
        target, sk.NUTS(), chains=3, draws=10, warmup=30, seed=3, progress=False,
        store=tmp_path / "run.zarr",
    )  # fmt: skip
    assert not begun
    more = sk.resume(tmp_path / "run.zarr", target, draws=20, progress=False)
    np.testing.assert_array_equal(more["posterior"]["x"], whole)


def settings():
    return jax.config.jax_enable_x64, jax.config.jax_debug_nans


def test_threads_are_lent_again():
    with make_pool(3) as first:
        assert first.submit(settings).result() == settings()
    with make_pool(3) as second, make_pool(3) as third:
        assert second is first
        assert third is not first
        assert third.submit(settings).result() == settings()
    with pytest.raises(RuntimeError), make_pool(3) as lost:
        raise RuntimeError
    with make_pool(3) as fresh:
        assert fresh is not lost
    with pytest.raises(RuntimeError):
        lost.submit(settings)
    assert isinstance(fresh, futures.ThreadPoolExecutor)


def test_threads_have_the_settings_of_who_asks():
    """Whatever held when a thread was made, and whatever holds everywhere by now."""
    before = jax.config.jax_enable_x64
    for wide in (True, False, True):
        with jax.enable_x64(wide), make_pool(2) as pool:
            assert pool.submit(settings).result()[0] is wide
    try:
        for everywhere in (True, False):
            jax.config.update("jax_enable_x64", everywhere)
            for wide in (True, False):
                with jax.enable_x64(wide), make_pool(2) as pool:
                    assert pool.submit(settings).result()[0] is wide
            with make_pool(2) as pool:
                assert pool.submit(settings).result()[0] is everywhere
    finally:
        jax.config.update("jax_enable_x64", before)
