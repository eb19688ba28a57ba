"""Random keys that give JAX's own numbers in less time."""
# pyright: basic
# JAX leaves the types of half of what is used here open.

import functools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from samplekit.core.cores import cores

# Rotations of the rounds, and the constant that the third word of a key is made with:
# Salmon, Moraes, Dror and Shaw 2011, doi:10.1145/2063384.2063405, table 2 and section 3.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_ROUNDS = 5  # of four rotations each: Threefry-2x32-20, as JAX has it
NAME = "threefry2x32"
# Of SplitMix64: what its state grows by, and how a number is made of it.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
# Numbers that a thread of the host makes at once: few enough for a core's cache, and enough that
# threads, of which one at a time speaks Python, do not wait for each other.
_HOST_BLOCK = 2**17
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
        A typed key of Threefry. The numbers are those that JAX draws with
        `jax_threefry_partitionable` on, which is its default.

    Examples
    --------
    >>> import jax
    >>> from samplekit.core.keys import quick
    >>> key = jax.random.key(7)
    >>> bool((jax.random.normal(quick(key), (5,)) == jax.random.normal(key, (5,))).all())
    True
    """
    return _wrapped(jax.random.key_data(key))


def from_words(words: Any) -> Array:
    """Return the key of Threefry with these two words; nothing is compiled."""
    traced = isinstance(words, Array)
    return jax.random.wrap_key_data(words if traced else jax.device_put(words), impl=NAME)


def from_seed(seed: int) -> Array:
    """Return `jax.random.key(seed)`, which would compile two programs, of Threefry."""
    return from_words(seed_words(seed))


def seed_words(seed: int) -> np.ndarray:
    """Return the words of that key; nothing goes to a device."""
    high = seed >> 32 if jax.config.jax_enable_x64 else 0
    return np.asarray([high & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32)


def is_threefry(key: Array) -> bool:
    """Tell whether this is a typed key of Threefry."""
    return key.dtype == _dtype(NAME)


def as_threefry(key: Array) -> Array:
    """Return a key of Threefry: this one, or one made of the numbers of another kind."""
    if is_threefry(key):
        return key
    return jax.random.wrap_key_data(jax.random.bits(key, (2,), jnp.uint32), impl=NAME)


def _wrapped(words: Array) -> Array:
    return jax.random.wrap_key_data(words, impl=_implementation())


def _threefry(key: Any, high: Any, low: Any) -> tuple[Any, Any]:
    """Return the two words that a key makes of two words; arrays of JAX or of NumPy."""
    words = key[0], key[1], key[0] ^ key[1] ^ _PARITY
    high, low = high + words[0], low + words[1]
    for i in range(_ROUNDS):
        for turn in _ROTATIONS[i % 2]:
            high = high + low
            low = high ^ (low << np.uint32(turn) | low >> np.uint32(32 - turn))
        high = high + words[(i + 1) % 3]
        low = low + words[(i + 2) % 3] + np.uint32(i + 1)
    return high, low


def row_of(key: Array, row: Any) -> Array:
    """Return a quick key whose numbers are one row of those of another.

    What it draws in one shape is what the other would draw there with an axis of rows in front: a
    chain by itself gets the numbers that it has among all.

    Examples
    --------
    >>> import jax
    >>> from samplekit.core.keys import quick, row_of
    >>> key = quick(jax.random.key(7))
    >>> bool((jax.random.bits(row_of(key, 2), (5,)) == jax.random.bits(key, (4, 5))[2]).all())
    True
    """
    data = jax.random.key_data(key)
    words = jnp.concatenate([data, jnp.asarray(row, jnp.uint32)[None]])
    return jax.random.wrap_key_data(words, impl=_row_implementation())


def first_row(key: Array) -> Array:
    """Return the key of the first row, which every row can make; any other key as it is."""
    if key.dtype != _row_dtype():
        return key
    return row_of(_wrapped(jax.random.key_data(key)[:2]), 0)


def fold_in_two(key: Array, first: Any, second: Any) -> Array:
    """Return the key of a key and two numbers; of a quick key by one call of the generator.

    Examples
    --------
    >>> import jax
    >>> from samplekit.core.keys import fold_in_two, quick
    >>> key = quick(jax.random.key(7))
    >>> bool(fold_in_two(key, 0, 5) == jax.random.fold_in(key, 5))
    True
    """
    if key.dtype != _dtype(_implementation()):
        return jax.random.fold_in(jax.random.fold_in(key, second), first)
    pair = (jnp.asarray(number, jnp.uint32) for number in (first, second))
    words = jnp.stack(_threefry(jax.random.key_data(key), *pair))
    return _wrapped(jax.lax.optimization_barrier(words))


def host_uniform(key: np.ndarray, first: Any, second: Any, size: int) -> np.ndarray:
    """Return rows of uniform numbers on [0, 1) of a key's words and two numbers for each row.

    By NumPy: nothing is compiled. Threefry makes the seed of a row, SplitMix64 its numbers, which
    takes a tenth of the operations: Steele, Lea and Flood 2014, doi:10.1145/2714064.2660195.

    Examples
    --------
    >>> import numpy as np
    >>> from samplekit.core.keys import host_uniform
    >>> host_uniform(np.asarray([0, 7], np.uint32), [0, 1], [3, 3], 4).shape
    (2, 4)
    """
    words = np.asarray(key, np.uint32).reshape(-1)[-2:, None]
    pair = (np.asarray(numbers, np.uint32) for numbers in (first, second))
    high, low = _threefry(words, *pair)
    seeds = (high.astype(np.uint64) << np.uint64(32) | low)[:, None]
    places = np.arange(1, size + 1, dtype=np.uint64) * _GOLDEN
    found = np.empty((len(seeds), size))
    step = max(1, _HOST_BLOCK // max(1, size))

    def fill(at: int) -> None:
        rows = slice(at, at + step)
        bits = _mixed(seeds[rows] + places)
        bits >>= np.uint64(11)
        np.multiply(bits, 2.0**-53, out=found[rows])

    _in_threads(fill, range(0, len(seeds), step))
    return found


def _mixed(state: np.ndarray) -> np.ndarray:
    """Make the numbers of SplitMix64 of its states, in place."""
    for turn, factor in _MIX:
        state ^= state >> turn
        state *= factor
    state ^= state >> np.uint64(31)
    return state


def host_like_uniform(key: Array, size: int) -> np.ndarray:
    """Return `jax.random.uniform(key, (size,))`, by NumPy: nothing is compiled.

    Examples
    --------
    >>> import jax
    >>> from samplekit.core.keys import host_like_uniform
    >>> key = jax.random.key(7)
    >>> bool((host_like_uniform(key, 5) == jax.random.uniform(key, (5,))).all())
    True
    """
    found = np.empty(size, jnp.result_type(float))
    # A number in [1, 2) has these bits above those that are drawn.
    kind, drop, one = (np.uint32, 9, 0x3F800000)
    if found.itemsize == 8:
        kind, drop, one = (np.uint64, 12, 0x3FF0000000000000)
    words = np.asarray(jax.random.key_data(key))[:, None]

    def fill(at: int) -> None:
        places = np.arange(at, min(at + _HOST_BLOCK, size), dtype=np.uint32)
        high, low = _threefry(words, np.zeros(1, np.uint32), places)
        bits = high ^ low if kind is np.uint32 else high.astype(kind) << kind(32) | low
        found[at : at + _HOST_BLOCK] = (bits >> kind(drop) | kind(one)).view(found.dtype) - 1

    _in_threads(fill, range(0, size, _HOST_BLOCK))
    return found


def _in_threads(fill: Callable[[int], None], blocks: Sequence[int]) -> None:
    if len(blocks) < 2:
        for block in blocks:
            fill(block)
        return
    with ThreadPoolExecutor(min(len(blocks), cores())) as pool:
        list(pool.map(fill, blocks))


def _counted(key: Array, shape: tuple[int, ...], first: Any = 0) -> tuple[Array, Array]:
    """Return two words for each place of an array: those of its number, counted from the first."""
    count = jnp.zeros(shape, jnp.uint32) + jnp.asarray(first, jnp.uint32)
    for axis in range(len(shape)):
        stride = np.uint32(math.prod(shape[axis + 1 :]))
        count = count + stride * jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    return _threefry(key, jnp.zeros((), jnp.uint32), count)


def _bits(key: Array, width: int, shape: tuple[int, ...]) -> Array:
    if math.prod(shape) >= 2**32:  # whose numbers need two words
        dtype = _words(width)
        return jax.random.bits(jax.random.wrap_key_data(key, impl=NAME), shape, dtype)
    return _joined(_counted(key, shape), width)


def _row_bits(key: Array, width: int, shape: tuple[int, ...]) -> Array:
    size = np.uint32(math.prod(shape))
    return _joined(_counted(key[:2], shape, key[2] * size), width)


def _joined(words: tuple[Array, Array], width: int) -> Array:
    (high, low), dtype = words, _words(width)
    if width == 64:
        bits = high.astype(dtype) << np.uint64(32) | low.astype(dtype)
    else:
        bits = (high ^ low).astype(dtype)
    return bits if math.prod(bits.shape) >= MANY else jax.lax.optimization_barrier(bits)


def _words(width: int) -> Any:
    return {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32, 64: jnp.uint64}[width]


# Keys, and bits unless they are many, are written to memory: XLA would else repeat how they were
# made wherever they are used, keys of keys most of all, and compile for minutes.
def _split(key: Array, shape: tuple[int, ...]) -> Array:
    return jax.lax.optimization_barrier(jnp.stack(_counted(key, shape), axis=-1))


def _fold_in(key: Array, data: Any) -> Array:
    words = _threefry(key, jnp.zeros((), jnp.uint32), jnp.asarray(data, jnp.uint32))
    return jax.lax.optimization_barrier(jnp.stack(words))


def _seed(seed: Array) -> Array:
    return jax.random.key_data(jax.random.key(seed, impl=NAME))


# Keys made of the key of a row are keys of the same row.
def _row_split(key: Array, shape: tuple[int, ...]) -> Array:
    found = _split(key[:2], shape)
    return jnp.concatenate([found, jnp.broadcast_to(key[2:], (*shape, 1))], axis=-1)


def _row_fold_in(key: Array, data: Any) -> Array:
    return jnp.concatenate([_fold_in(key[:2], data), key[2:]])


def _row_seed(seed: Array) -> Array:
    return jnp.concatenate([_seed(seed), jnp.zeros(1, jnp.uint32)])


@functools.cache
def _dtype(implementation: Any) -> Any:
    return jax.eval_shape(lambda: jax.random.key(0, impl=implementation)).dtype


def _row_dtype() -> Any:
    return _dtype(_row_implementation())


def _defined(**functions: Any) -> Any:
    from jax.extend.random import define_prng_impl  # here: it imports a lot

    return define_prng_impl(**functions)


@functools.cache
def _implementation() -> Any:
    functions = {"seed": _seed, "split": _split, "random_bits": _bits, "fold_in": _fold_in}
    return _defined(key_shape=(2,), name="samplekit", tag="quick", **functions)


@functools.cache
def _row_implementation() -> Any:
    functions = {"seed": _row_seed, "split": _row_split, "random_bits": _row_bits}
    functions["fold_in"] = _row_fold_in
    return _defined(key_shape=(3,), name="samplekit-row", tag="row", **functions)
