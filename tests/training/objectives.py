"""Objectives whose optimum is known."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from samplekit.core.pytree import pytree, static

# How often Python has gone through `gradient`: once a compiled program.
TRACES: list[str] = []


@pytree
class Quadratic:
    """½ mean Σ curvature (model − row)², with its minimum at the mean of the rows.

    `carry` counts the batches, and adds its noise to the gradient where there is any.
    """

    curvature: Any
    noise: Any = dataclasses.field(default_factory=lambda: np.float32(0.0))
    name: str = static(default="")

    def start(self, key, model, data):
        del key, model, data
        return jnp.zeros((), jnp.int32)

    def gradient(self, key, model, carry, batch):
        TRACES.append(self.name)
        away = model - jnp.mean(batch, axis=0)
        noise = self.noise * jax.random.normal(key, model.shape, model.dtype)
        loss = jnp.sum(self.curvature * jnp.mean((model[None] - batch) ** 2, axis=0)) / 2
        return self.curvature * away + noise, carry + 1, {"loss": loss}

    def held_out(self, key, model, data):
        del key
        return jnp.sum(self.curvature * jnp.mean((model[None] - data) ** 2, axis=0)) / 2

    def trouble(self, rows):
        del rows


def quadratic(dim=3, noise=0.0, name=""):
    return Quadratic(jnp.arange(1.0, dim + 1.0), jnp.asarray(noise, jnp.float32), name)


def rows(count=64, dim=3, seed=0):
    return np.random.default_rng(seed).normal(2.0, 1.0, (count, dim)).astype(np.float32)
