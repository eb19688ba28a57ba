"""Convolutions as products of matrices: the same numbers as Equinox's own layers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from samplekit.networks import images


@pytest.mark.parametrize("shape", [(8, 8), (7, 5), (1, 4)])
@pytest.mark.parametrize(("size", "stride"), [(3, 1), (3, 2), (1, 1)])
def test_convolutions_are_those_of_equinox(shape: tuple[int, int], size: int, stride: int) -> None:
    """Sums of 27 products of numbers of size 1, in double precision: 1e-13 is hundreds of eps."""
    with jax.enable_x64(True):
        layer = images._conv(jax.random.key(0), 3, 6, size=size, stride=stride)
        h = jax.random.normal(jax.random.key(1), (*shape, 3))
        theirs = jnp.moveaxis(layer(jnp.moveaxis(h, -1, 0)), 0, -1)
        np.testing.assert_allclose(images._convolve(layer, h), theirs, atol=1e-13)


def test_normalisations_are_those_of_equinox() -> None:
    with jax.enable_x64(True):
        norm = eqx.nn.GroupNorm(2, 6)
        weight, bias = jax.random.normal(jax.random.key(0), (2, 6))
        norm = eqx.tree_at(lambda m: (m.weight, m.bias), norm, (weight, bias))
        h = 3 + 2 * jax.random.normal(jax.random.key(1), (5, 4, 6))
        theirs = jnp.moveaxis(norm(jnp.moveaxis(h, -1, 0)), 0, -1)
        np.testing.assert_allclose(images._normalize(norm, h), theirs, atol=1e-13)
