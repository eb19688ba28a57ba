"""Quick keys: JAX's own numbers, bit for bit, whatever is drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import samplekit as sk
from samplekit.core import keys
from samplekit.core.keys import quick
from samplekit.sampling import program

KEY = jax.random.key(123456789)


def _same(draw) -> None:
    """Compare what a function makes of the key and of its quick twin, compiled or not."""
    for run in (draw, jax.jit(draw)):
        ours, theirs = run(quick(KEY)), run(KEY)
        assert ours.shape == theirs.shape
        if jnp.issubdtype(theirs.dtype, jax.dtypes.prng_key):
            ours, theirs = jax.random.key_data(ours), jax.random.key_data(theirs)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (4, 5), (2, 3, 4)])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_bits(shape, dtype):
    with jax.enable_x64(True):
        _same(lambda key: jax.random.bits(key, shape, dtype))


@pytest.mark.parametrize("name", ["normal", "uniform", "exponential", "gumbel", "rademacher"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_numbers(name, dtype):
    with jax.enable_x64(True):
        _same(lambda key: getattr(jax.random, name)(key, (7, 3), dtype))


def test_keys_of_keys():
    _same(lambda key: jax.random.split(key))
    _same(lambda key: jax.random.split(key, (3, 2)))
    for number in (0, 7, 2**32 - 1):
        _same(lambda key, number=number: jax.random.fold_in(key, np.uint32(number)))
    _same(lambda key: jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(4)))
    _same(lambda key: jax.vmap(jax.random.normal)(jax.random.split(key, 5)))
    _same(lambda key: jax.random.permutation(jax.random.split(key)[1], 20))


def test_a_changed_round_is_noticed(monkeypatch):
    """The mutant: one rotation of twenty."""
    monkeypatch.setattr(keys, "_ROTATIONS", ((13, 15, 26, 7), (17, 29, 16, 24)))
    with pytest.raises(AssertionError):
        _same(lambda key: jax.random.bits(key, (11,)))


def test_other_keys_stay_as_they_are():
    other = jax.random.key(0, impl="rbg")
    assert quick(other) is other
    assert quick(KEY) is not KEY
    with jax.threefry_partitionable(False):
        assert quick(KEY) is KEY


def test_runs_do_not_change(monkeypatch):
    target = sk.targets.gaussian(np.zeros(16), np.eye(16))
    options = {"chains": 600, "warmup": 0, "draws": 3, "progress": False, "cache": False}

    def draws():
        return sk.sample(target, sk.Langevin(0.5), **options)["posterior"]["x"].values

    monkeypatch.setattr(program, "quick", lambda key: key)
    plain = draws()
    monkeypatch.setattr(program, "quick", quick)
    jax.clear_caches()
    np.testing.assert_allclose(draws(), plain, rtol=1e-5, atol=1e-6)  # fused otherwise: rounding
