"""What every loss needs: a checked batch, a checked score, random directions."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from samplekit.core.errors import SettingsError, TargetError

type Score = Callable[..., Array]  # of one sample, and of its noise level where there is one
type Energy = Callable[..., Array]
type Noise = Literal["rademacher", "gaussian"]


def as_batch(data: ArrayLike) -> Array:
    """Return the samples as an array that has derivatives and a mean."""
    samples = jnp.asarray(data)
    if not jnp.issubdtype(samples.dtype, jnp.floating):
        raise TargetError(
            f"The data are {samples.dtype}, in which a score has no derivatives. Give floats: "
            "data.astype(float)."
        )
    if samples.ndim == 0 or len(samples) == 0:
        raise TargetError(
            f"The data have shape {samples.shape}, over which there is no mean. Give samples along "
            "the first axis: one sample x is x[None]."
        )
    return samples


def shaped(score: Score) -> Score:
    """Refuse a score that would broadcast: an energy given in its place, say."""

    def one(x: Array, *level: Array) -> Array:
        value = jnp.asarray(score(x, *level))
        if value.shape != x.shape:
            raise TargetError(
                f"The score of one sample of shape {x.shape} has shape {value.shape}, but ∇ log p "
                "is shaped as its sample. For an energy give score_of(energy); a score gets one "
                "sample at a time, not the batch."
            )
        return value

    return one


def numeric(energy: Energy) -> Energy:
    """Refuse an energy that is not one number a sample."""

    def one(x: Array) -> Array:
        value = jnp.asarray(energy(x))
        if value.shape != ():
            raise TargetError(
                f"The energy of one sample of shape {x.shape} has shape {value.shape}, but is one "
                "number. It gets one sample at a time, not the batch."
            )
        return value

    return one


def dot(a: Array, b: Array) -> Array:
    """Return the inner product over all axes."""
    return jnp.sum(a * b)  # which XLA fuses; a batched dot it does not


def draw_probes(key: Array, samples: Array, probes: int, noise: Noise) -> Array:
    """Draw directions v with E[vvᵀ] = I, of shape (sample, probe, ...)."""
    if probes < 1:
        raise SettingsError(f"probes={probes} leave nothing to average. Give 1 or more.")
    shape = (len(samples), probes, *samples.shape[1:])
    if noise == "rademacher":
        return jax.random.rademacher(key, shape, samples.dtype)
    if noise == "gaussian":
        return jax.random.normal(key, shape, samples.dtype)
    raise SettingsError(f"noise={noise!r} is not known. Give 'rademacher' or 'gaussian'.")
