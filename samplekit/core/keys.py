"""Random keys that give JAX's own numbers in less time."""
# pyright: basic
# JAX leaves the types of half of what is used here open.

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

# Rotations of the rounds, and the constant that the third word of a key is made with:
# Salmon, Moraes, Dror and Shaw 2011, doi:10.1145/2063384.2063405, table 2 and section 3.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_ROUNDS = 5  # of four rotations each: Threefry-2x32-20, as JAX has it
_NAME = "threefry2x32"
# From so many numbers at a time on, to write them to memory costs more than to make them twice.
MANY = 8192


def quick(key: Array) -> Array:
    """Return a key with the same numbers as this one, quicker to draw from.

    On a CPU, JAX writes Threefry as a loop of five rounds that one core runs, between arrays in
    memory. Written out it is one expression. XLA splits that of many numbers over the cores and
    joins it to what is made of the bits: a third of the time for bits, two thirds for normal
    numbers. A few numbers take a third of the time too, for there is no loop to go round.

    Parameters
    ----------
    key
        A typed key. One that is not Threefry, or drawn from in JAX's older way
        (`jax_threefry_partitionable` off), is returned as it is.

    Examples
    --------
    >>> import jax
    >>> from samplekit.core.keys import quick
    >>> key = jax.random.key(7)
    >>> bool((jax.random.normal(quick(key), (5,)) == jax.random.normal(key, (5,))).all())
    True
    """
    partitionable = jax.config.jax_threefry_partitionable
    if key.dtype != _threefry_dtype() or not partitionable:
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_implementation())


def _threefry(key: Array, high: Array, low: Array) -> tuple[Array, Array]:
    """Return the two words that a key makes of two words."""
    words = key[0], key[1], key[0] ^ key[1] ^ _PARITY
    high, low = high + words[0], low + words[1]
    for i in range(_ROUNDS):
        for turn in _ROTATIONS[i % 2]:
            high = high + low
            low = high ^ (low << np.uint32(turn) | low >> np.uint32(32 - turn))
        high = high + words[(i + 1) % 3]
        low = low + words[(i + 2) % 3] + np.uint32(i + 1)
    return high, low


def _counted(key: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return two words for each place of an array: those of its number."""
    count = jnp.zeros(shape, jnp.uint32)
    for axis in range(len(shape)):
        stride = np.uint32(math.prod(shape[axis + 1 :]))
        count = count + stride * jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    return _threefry(key, jnp.zeros((), jnp.uint32), count)


def _bits(key: Array, width: int, shape: tuple[int, ...]) -> Array:
    dtype: Any = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32, 64: jnp.uint64}[width]
    if math.prod(shape) >= 2**32:  # whose numbers need two words
        return jax.random.bits(jax.random.wrap_key_data(key, impl=_NAME), shape, dtype)
    high, low = _counted(key, shape)
    if width == 64:
        bits = high.astype(dtype) << np.uint64(32) | low.astype(dtype)
    else:
        bits = (high ^ low).astype(dtype)
    return bits if math.prod(shape) >= MANY else jax.lax.optimization_barrier(bits)


# Keys, and bits unless they are many, are written to memory: XLA would else repeat how they were
# made wherever they are used, keys of keys most of all, and compile for minutes.
def _split(key: Array, shape: tuple[int, ...]) -> Array:
    return jax.lax.optimization_barrier(jnp.stack(_counted(key, shape), axis=-1))


def _fold_in(key: Array, data: Any) -> Array:
    words = _threefry(key, jnp.zeros((), jnp.uint32), jnp.asarray(data, jnp.uint32))
    return jax.lax.optimization_barrier(jnp.stack(words))


def _seed(seed: Array) -> Array:
    return jax.random.key_data(jax.random.key(seed, impl=_NAME))


@functools.cache
def _threefry_dtype() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0, impl=_NAME)).dtype


@functools.cache
def _implementation() -> Any:
    from jax.extend.random import define_prng_impl  # here: it imports a lot

    return define_prng_impl(
        key_shape=(2,),
        seed=_seed,
        split=_split,
        random_bits=_bits,
        fold_in=_fold_in,
        name="samplekit",
        tag="quick",
    )
