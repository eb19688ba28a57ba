"""Networks as they come can be pickled, which scikit-learn's parallel search needs."""

import pickle

import jax
import numpy as np
import pytest

from samplekit import networks

KEY = jax.random.key(0)


@pytest.mark.parametrize(
    "network",
    [
        networks.MLP(KEY, 2),
        networks.EnergyMLP(KEY, 2),
        networks.NoiseConditionalMLP(KEY, 2),
        networks.EnergyCNN(KEY, (2, 2), width=2),
        networks.UNet(KEY, (2, 2), width=2, halvings=1),
    ],
    ids=lambda network: type(network).__name__,
)
def test_a_network_survives_pickling(network) -> None:
    again = pickle.loads(pickle.dumps(network))
    for old, new in zip(jax.tree.leaves(network), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(old, new)
    assert again.__class__ is network.__class__
