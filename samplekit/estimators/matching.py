"""Score matching as an objective of the trainer, for score networks and energy networks alike."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from samplekit import losses
from samplekit.core.protocols import Numbers
from samplekit.core.pytree import pytree, static
from samplekit.training.epochs import Row

METHODS = ("denoising", "sliced", "implicit")
# Up to this dimension the exact trace costs less than the noise of a probe does harm.
_FEW = 16


@pytree
class Matching:
    """A loss of `sk.losses` on a network.

    `energy` says that the network is an energy, whose score is −∇E.
    """

    sigma: Numbers  # of the noise of "denoising"
    method: str = static()
    columns: int = static()
    probes: int = static()
    energy: bool = static()

    def start(self, key: Array, model: Any, data: Any, /) -> None:
        """Carry nothing."""
        del key, model, data

    def loss(self, key: Array, model: Any, data: Array) -> Array:
        """Return the loss of one batch."""
        score: Callable[..., Any] = losses.score_of(model) if self.energy else model
        if self.method == "denoising":
            return losses.denoising(score, data, key, self.sigma)
        if self.method == "implicit":
            return losses.implicit(score, data)
        return losses.sliced_vr(score, data, key, probes=self.probes)

    def gradient(
        self, key: Array, model: Any, carry: None, batch: Array, /
    ) -> tuple[Any, None, dict[str, Array]]:
        """Return the gradient by autodiff."""
        value, gradient = eqx.filter_value_and_grad(lambda net: self.loss(key, net, batch))(model)
        return gradient, carry, {"loss": value}

    def held_out(self, key: Array, model: Any, data: Array, /) -> Array:
        """Return the loss of rows set aside, with the same noise every time."""
        del key
        return self.loss(jax.random.key(0), model, data)

    def trouble(self, rows: list[Row], /) -> str | None:
        """Stop when the loss rises out of sight, or falls through the floor.

        Implicit and sliced losses are unbounded below where the data lie on a thin manifold: the
        score grows across it without end.
        """
        floorless = self.method != "denoising"
        # What a score of 0 costs; for the losses without noise that is nothing, so 1 a column.
        scale = self.columns if floorless else self.columns / (2 * float(self.sigma) ** 2)
        if risen := _risen(rows, scale):
            return risen
        last = rows[-1]["loss"]
        # A density as narrow as 1/400 of its length has a loss of −½ · 400².
        if not floorless or last > -8e4 * self.columns:
            return None
        return (
            f"the loss fell to {last:.3g} and has no floor: the data lie on a "
            "thin manifold, or repeat, so that their density is infinite. Take "
            "method='denoising', which adds noise first."
        )


def matching_score(score: Callable[[Array], Array], data: Array) -> Array:
    """Return the mean Hyvärinen score of rows: exact in few dimensions, by probes in many."""
    if data.shape[1] <= _FEW:
        return losses.implicit(score, data)
    return losses.sliced_vr(score, data, jax.random.key(0), probes=4)


@pytree
class NoiseMatching:
    """The noise-conditional loss with λ(σ) = σ² on a network of (x, σ): a score, or an energy."""

    levels: Numbers
    columns: int = static()
    energy: bool = static()

    def loss(self, key: Array, model: Any, data: Array) -> Array:
        """Return the loss of one batch."""
        score: Callable[..., Any] = losses.score_of(model) if self.energy else model
        return losses.noise_conditional(score, data, key, self.levels)

    def start(self, key: Array, model: Any, data: Any, /) -> None:
        """Carry nothing."""
        del key, model, data

    def gradient(
        self, key: Array, model: Any, carry: None, batch: Array, /
    ) -> tuple[Any, None, dict[str, Array]]:
        """Return the gradient by autodiff."""
        value, gradient = eqx.filter_value_and_grad(lambda net: self.loss(key, net, batch))(model)
        return gradient, carry, {"loss": value}

    def held_out(self, key: Array, model: Any, data: Array, /) -> Array:
        """Return the loss of rows set aside, with the same noise every time."""
        del key
        return self.loss(jax.random.key(0), model, data)

    def trouble(self, rows: list[Row], /) -> str | None:
        """Stop when the loss is far above what predicting no noise at all costs."""
        return _risen(rows, self.columns / 2)


def _risen(rows: list[Row], scale: float) -> str | None:
    """Say that a loss is far above both its lowest value and the price of a score of 0."""
    last, lowest = rows[-1]["loss"], min(row["loss"] for row in rows)
    # A network whose first outputs are too large needs some epochs to come down.
    if last < 10 * scale or (last < lowest + 10 * abs(lowest) and len(rows) < 5):
        return None
    return (
        f"the loss is {last:.3g}, where a score of 0 would cost {scale:.3g}. Take a smaller "
        "learning_rate or clip=1.0."
    )


@pytree
class Standardized:
    """A network of standardized samples as a network of samples.

    An energy stays one number; a score is divided by the scale, as ∇_x = ∇_z / scale. Where there
    are noise levels the scale is one number, and they are divided by it too.
    """

    net: Any
    center: Array
    scale: Array
    energy: bool = static()

    def __call__(self, x: Array, *level: Any) -> Array:
        """Return the energy or the score of one sample."""
        center, scale = (jnp.asarray(a, x.dtype) for a in (self.center, self.scale))
        value = self.net((x - center) / scale, *(jnp.asarray(s, x.dtype) / scale for s in level))
        return value if self.energy else value / scale
