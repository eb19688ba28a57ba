"""Packed pytrees: every leaf comes back with its shape, type and numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from samplekit.sampling.packing import Packing


def _tree(numbers):
    return {
        "vector": numbers.arange(3, dtype=np.float32),
        "scalar": numbers.asarray(7.0, np.float32),
        "matrix": numbers.ones((2, 2), np.float32),
        "none": numbers.zeros((0, 4), np.float32),
        "flag": numbers.asarray(True),
        "count": numbers.asarray(5, np.int32),
        "flags": numbers.asarray([False, True]),
    }


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("numbers", [np, jnp], ids=["numpy", "jax"])
def test_there_and_back(numbers, joined: bool) -> None:
    tree = _tree(numbers)
    packing = Packing.of(tree, joined=joined)
    packed = packing.pack(tree)
    assert len(packed) == (3 if joined else len(tree))
    back = packing.unpack(packed)
    for name, leaf in tree.items():
        assert back[name].shape == leaf.shape
        assert back[name].dtype == leaf.dtype
        np.testing.assert_array_equal(back[name], leaf)


def test_axes_in_front_stay_there() -> None:
    tree = _tree(np)
    packing = Packing.of(tree, joined=True)
    rows = jax.tree.map(lambda a: np.stack([a, a, a]), tree)
    packed = packing.pack(rows)
    assert [a.shape for a in packed] == [(3,), (3, 3), (3, 8)]
    jax.tree.map(np.testing.assert_array_equal, packing.unpack(packed), rows)


def test_leaves_are_views_of_a_packed_numpy_array() -> None:
    """The engine writes what a window taught straight into them."""
    packing = Packing.of(_tree(np), joined=True)
    packed = packing.pack(_tree(np))
    packing.unpack(packed)["matrix"][...] = 9
    np.testing.assert_array_equal(packing.unpack(packed)["matrix"], np.full((2, 2), 9))


def test_a_key_stays_by_itself_and_equal_packings_are_one() -> None:
    tree = {"key": jax.random.key(0), "a": np.zeros(2, np.float32), "b": np.ones((), np.float32)}
    packing = Packing.of(tree, joined=True)
    assert len(packing.pack(tree)) == 2
    assert packing == Packing.of(tree, joined=True)
    assert hash(packing) == hash(Packing.of(tree, joined=True))
    assert packing != Packing.of(tree, joined=False)
