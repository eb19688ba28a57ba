"""Training over several devices: the gradients of the parts of a batch are added up."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from samplekit.core.pytree import pytree
from samplekit.sampling.devices import take_rows
from samplekit.training.plan import Plan
from samplekit.training.trainer import train

pytestmark = pytest.mark.multidevice


@pytree
class Regression:
    """Least squares, whose gradient is a mean over the batch."""

    def start(self, key, model, data):
        return None

    def gradient(self, key, model, carry, batch):
        def loss(model):
            return jnp.mean((batch[:, 0] - batch[:, 1:] @ model) ** 2)

        value, gradient = jax.value_and_grad(loss)(model)
        return gradient, carry, {"loss": value}

    def held_out(self, key, model, data):
        return jnp.mean((data[:, 0] - data[:, 1:] @ model) ** 2)

    def trouble(self, rows):
        return None


def fit(devices, batch=24):
    rows = np.random.default_rng(0).normal(size=(240, 4)).astype(np.float32)
    plan = Plan(epochs=5, batch_size=batch, learning_rate=0.05)
    return train(Regression(), jnp.zeros(3), rows, plan, devices=devices, progress=False).model


def test_any_number_of_devices():
    one = fit(None)
    for count in (1, 2, 3, 4):
        # 50 steps of float32: the sums over a batch are taken in another order.
        np.testing.assert_allclose(fit(count), one, rtol=1e-4, atol=1e-5)


def test_a_batch_is_shared(monkeypatch):
    """The constraint that shares it names the devices that were asked for."""
    from samplekit.training import trainer

    meshes = []
    monkeypatch.setattr(trainer, "row_sharding", lambda mesh: seen(mesh, meshes))
    fit(4, batch=18)  # as many as divide it
    assert {mesh.size for mesh in meshes} == {3}


def seen(mesh, meshes):
    from samplekit.sampling.devices import row_sharding

    meshes.append(mesh)
    return row_sharding(mesh)


def test_rows_are_taken_once_and_in_order():
    """JAX takes the new memory over: no second copy, and nobody else holds it."""
    for dtype in (np.float32, np.int32, bool):
        rows = np.arange(24).reshape(8, 3).astype(dtype)
        order = np.asarray([5, 0, 5, 7])
        taken = take_rows(rows, order)
        np.testing.assert_array_equal(taken, rows[order])
        assert taken.dtype == dtype
        assert taken.unsafe_buffer_pointer() % 64 == 0
    halves = take_rows(np.ones((3, 2)), np.arange(3))  # of double precision, which is off
    assert halves.dtype == jnp.float32
    assert take_rows(np.ones(4, np.float32), np.arange(2)).shape == (2,)
