"""Quick keys: JAX's own numbers, bit for bit, whatever is drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import samplekit as sk
from samplekit.core import keys
from samplekit.core.keys import quick
from samplekit.sampling import program
from samplekit.sampling.settings import make_key

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


def test_other_kinds_of_keys_become_threefry():
    other = jax.random.key(0, impl="rbg")
    assert keys.as_threefry(other).dtype == KEY.dtype
    assert keys.as_threefry(KEY) is KEY
    settings = {"draws": 5, "warmup": 0, "progress": False}
    run = sk.sample(sk.targets.gaussian(2), sk.MALA(0.5), seed=other, **settings)
    longer = sk.resume(run, sk.targets.gaussian(2), draws=5, progress=False)
    straight = sk.sample(
        sk.targets.gaussian(2), sk.MALA(0.5), seed=other, **settings | {"draws": 10}
    )
    np.testing.assert_array_equal(longer["posterior"]["x"], straight["posterior"]["x"])


def test_the_older_way_of_drawing_changes_no_run():
    """`jax_threefry_partitionable` is a setting of JAX's own functions."""
    settings = {"draws": 5, "warmup": 0, "progress": False}
    run = sk.sample(sk.targets.gaussian(2), sk.MALA(0.5), **settings)
    with jax.threefry_partitionable(False):
        again = sk.sample(sk.targets.gaussian(2), sk.MALA(0.5), **settings)
    np.testing.assert_array_equal(again["posterior"]["x"], run["posterior"]["x"])


@pytest.mark.parametrize("shape", [(), (5,), (3, 2)])
@pytest.mark.parametrize("name", ["bits", "uniform", "normal", "exponential"])
def test_rows(name, shape):
    """A row by itself has the numbers that it has among all, and so have keys made of it."""
    draw, key = getattr(jax.random, name), quick(KEY)
    every = draw(key, (4, *shape))
    folded = draw(jax.random.fold_in(jax.random.split(key)[1], 3), (4, *shape))

    def same(found, wanted):  # bits are equal; XLA rounds functions of vectors in its own way
        np.testing.assert_allclose(found, wanted, rtol=0 if name == "bits" else 2e-7)

    for row in range(4):
        mine = keys.row_of(key, row)
        same(draw(mine, shape), every[row])
        same(draw(jax.random.fold_in(jax.random.split(mine)[1], 3), shape), folded[row])
        same(draw(keys.first_row(mine), shape), every[0])
    assert keys.first_row(key) is key


def test_two_numbers():
    key = quick(KEY)
    data = jax.random.key_data
    np.testing.assert_array_equal(
        data(keys.fold_in_two(key, 0, 9)), data(jax.random.fold_in(key, 9))
    )
    found = [(i, j) for i in range(4) for j in range(4)]
    words = {tuple(data(keys.fold_in_two(key, i, j)).tolist()) for i, j in found}
    assert len(words) == len(found)
    assert keys.fold_in_two(KEY, 1, 2).dtype == KEY.dtype


def test_split_mix_gives_the_numbers_of_the_reference_code():
    """Of seed 1234567, by the C code of Vigna, prng.di.unimi.it/splitmix64.c."""
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    states = np.uint64(1234567) + np.arange(1, 5, dtype=np.uint64) * keys._GOLDEN
    assert keys._mixed(states).tolist() == known


def test_numbers_of_a_row_depend_on_its_own_two_numbers_alone(monkeypatch):
    words = np.asarray(jax.random.key_data(KEY))
    rows = keys.host_uniform(words, [3, 4], [5, 5], 6)
    np.testing.assert_array_equal(rows[1], keys.host_uniform(words, [4], [5], 6)[0])
    np.testing.assert_array_equal(rows[1, :3], keys.host_uniform(words, [4], [5], 3)[0])
    every = np.arange(10)  # in blocks of three rows
    monkeypatch.setattr(keys, "_HOST_BLOCK", 20)
    blocks = keys.host_uniform(words, every, every, 6)
    for i in every:
        np.testing.assert_array_equal(blocks[i], keys.host_uniform(words, [i], [i], 6)[0])


def test_numbers_of_the_host_are_uniform_and_independent():
    n, d = 4000, 5
    u = keys.host_uniform(np.asarray([1, 2], np.uint32), np.arange(n), np.zeros(n, int), d)
    assert u.min() >= 0
    assert u.max() < 1
    z = (u - 0.5) * np.sqrt(12)  # mean 0, variance 1, fourth moment 9/5
    assert np.abs(z.mean(axis=0)).max() < 5 / np.sqrt(n)
    assert np.abs((z**2).mean(axis=0) - 1).max() < 5 * np.sqrt(0.8 / n)
    # Between places of a row, and between the same place of neighbors.
    across = (z.T @ z / n)[~np.eye(d, dtype=bool)]
    along = (z[1:] * z[:-1]).mean(axis=0)
    assert np.abs(across).max() < 5 / np.sqrt(n)
    assert np.abs(along).max() < 5 / np.sqrt(n)


@pytest.mark.parametrize("x64", [False, True])
def test_uniform_numbers_of_the_host_are_jax_s_own(x64, monkeypatch):
    with jax.enable_x64(x64):
        for size, block in ((0, 8), (7, 8), (50, 8)):  # of blocks, the last of them short
            monkeypatch.setattr(keys, "_HOST_BLOCK", block)
            key = keys.from_seed(size + 2**31)
            assert key == jax.random.key(size + 2**31)
            found = keys.host_like_uniform(key, size)
            assert found.dtype == (np.float64 if x64 else np.float32)
            np.testing.assert_array_equal(found, jax.random.uniform(key, (size,)))


@pytest.mark.parametrize("x64", [False, True])
def test_seeds_are_those_of_jax(x64):
    seeds = (0, 1, -1, 2**31, 2**32 + 5, -(2**40), 2**63 - 1, np.int32(7), np.uint64(9))
    with jax.enable_x64(x64):
        for seed in seeds:
            ours, theirs = make_key(seed), jax.random.key(int(seed))
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(jax.random.key_data(ours), jax.random.key_data(theirs))


def test_runs_do_not_change(monkeypatch):
    target = sk.targets.gaussian(np.zeros(16), np.eye(16))
    options = {"chains": 600, "warmup": 0, "draws": 3, "progress": False, "cache": False}

    def draws():
        return sk.sample(target, sk.Langevin(0.5), **options)["posterior"]["x"].values

    monkeypatch.setattr(program, "quick", lambda key: key)  # a batch: no key of a row is made
    plain = draws()
    monkeypatch.setattr(program, "quick", quick)
    jax.clear_caches()
    np.testing.assert_allclose(draws(), plain, rtol=1e-5, atol=1e-6)  # fused otherwise: rounding
