"""Metrics: the linear map A that makes a target round, x = x₀ + A z.

Every kernel moves in the coordinates z, where the target has unit scale, so preconditioning is one
mechanism and not a feature of each kernel. With an inverse mass matrix M⁻¹ = A Aᵀ this is the usual
preconditioned MALA, HMC or NUTS. Kernels ask a metric for z ↦ A z, for the score g ↦ Aᵀ g and its
inverse, and for momentum ↦ velocity, A Aᵀ p.
"""

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from samplekit.core.errors import KernelError
from samplekit.core.protocols import Numbers
from samplekit.core.pytree import pytree, static

# Up to this size a dense product costs less than asking whether it is needed.
ALWAYS_DENSE = 4
# Up to this size a product is a sum of columns, which fuses with its neighbours, also for a batch
# of chains (10 dimensions: a fifth of the time of a product; a sum along rows takes twice as long).
FEW_COLUMNS = 32
# From here on a full matrix is dear, and a few directions carry most of what is to be won.
LARGEST_DENSE = 256
LOW_RANK = 32
NAMES = ("auto", "diagonal", "dense", "low_rank")


class Metric(Protocol):
    """A linear map between round coordinates and the target's own."""

    def apply(self, z: Array) -> Array:
        """Return A z."""
        ...

    def pull(self, score: Array) -> Array:
        """Return Aᵀ s: the score in round coordinates."""
        ...

    def push(self, score: Array) -> Array:
        """Return A⁻ᵀ s: back to the target's own coordinates."""
        ...

    def velocity(self, momentum: Array) -> Array:
        """Return A Aᵀ p, by one product instead of two."""
        ...


@pytree
class Identity:
    """A = I."""

    def apply(self, z: Array) -> Array:
        """Return z."""
        return z

    def pull(self, score: Array) -> Array:
        """Return s."""
        return score

    def push(self, score: Array) -> Array:
        """Return s."""
        return score

    def velocity(self, momentum: Array) -> Array:
        """Return p."""
        return momentum


@pytree
class Diagonal:
    """A = diag(scale)."""

    scale: Numbers

    def apply(self, z: Array) -> Array:
        """Return A z."""
        return self.scale * z

    def pull(self, score: Array) -> Array:
        """Return Aᵀ s."""
        return self.scale * score

    def push(self, score: Array) -> Array:
        """Return A⁻ᵀ s."""
        return score / self.scale

    def velocity(self, momentum: Array) -> Array:
        """Return A Aᵀ p."""
        return self.scale * self.scale * momentum


@pytree
class Dense:
    """A = diag(scale) · root, all matrices symmetric; `root` counts only when `active`."""

    scale: Numbers
    root: Numbers
    inverse: Numbers
    square: Numbers
    active: Numbers
    always: bool = static(default=False)

    def _mix(self, matrix: Numbers, z: Array) -> Array:
        def product(z: Array) -> Array:
            if z.size > FEW_COLUMNS:
                return matrix @ z
            return jnp.sum(matrix * z[:, None], 0)  # columns are rows: all matrices are symmetric

        return product(z) if self.always else jax.lax.cond(self.active, product, lambda z: z, z)

    def apply(self, z: Array) -> Array:
        """Return A z."""
        return self.scale * self._mix(self.root, z)

    def pull(self, score: Array) -> Array:
        """Return Aᵀ s."""
        return self._mix(self.root, self.scale * score)

    def push(self, score: Array) -> Array:
        """Return A⁻ᵀ s."""
        return self._mix(self.inverse, score) / self.scale

    def velocity(self, momentum: Array) -> Array:
        """Return A Aᵀ p."""
        return self.scale * self._mix(self.square, self.scale * momentum)


@pytree
class LowRank:
    """A = diag(scale) · (I + V diag(gains) Vᵀ), a few stretched directions V."""

    scale: Numbers
    vectors: Numbers
    gains: Numbers
    active: Numbers

    def _mix(self, gains: Numbers, z: Array) -> Array:
        def stretch(v: Array) -> Array:
            return v + self.vectors @ (gains * (self.vectors.T @ v))

        return jax.lax.cond(self.active, stretch, lambda v: v, z)

    def apply(self, z: Array) -> Array:
        """Return A z."""
        return self.scale * self._mix(self.gains, z)

    def pull(self, score: Array) -> Array:
        """Return Aᵀ s."""
        return self._mix(self.gains, self.scale * score)

    def push(self, score: Array) -> Array:
        """Return A⁻ᵀ s."""
        return self._mix(1 / (1 + self.gains) - 1, score) / self.scale

    def velocity(self, momentum: Array) -> Array:
        """Return A Aᵀ p."""
        return self.scale * self._mix((2 + self.gains) * self.gains, self.scale * momentum)


def initial_metric(setting: Any, dim: int, dtype: Any) -> Metric:
    """Return the metric a kernel starts with, from a name, an array or a metric.

    Arrays are NumPy's: nothing is compiled to make them.
    """
    if not isinstance(setting, str):
        return _given(setting, dim, dtype)
    if setting not in NAMES:
        raise KernelError(
            f"metric={setting!r} is not known. Use one of {', '.join(map(repr, NAMES))}, a "
            "covariance matrix or a vector of variances."
        )
    scale = np.ones(dim, dtype)
    if setting == "diagonal":
        return Diagonal(scale)
    low_rank = setting == "low_rank" or (setting == "auto" and dim > LARGEST_DENSE)
    active = np.zeros((), bool)
    if low_rank:
        rank = min(dim, LOW_RANK)
        return LowRank(scale, np.zeros((dim, rank), dtype), np.zeros(rank, dtype), active)
    eye = np.eye(dim, dtype=dtype)
    return Dense(scale, eye, eye, eye, active, always=dim <= ALWAYS_DENSE)


def _given(setting: Any, dim: int, dtype: Any) -> Metric:
    if hasattr(setting, "pull"):
        return jax.tree.map(
            lambda a: np.asarray(
                a, dtype if np.issubdtype(np.asarray(a).dtype, np.floating) else bool
            ),
            setting,
        )
    if setting is None:
        return Identity()
    covariance = np.asarray(setting, np.float64)
    if covariance.shape == (dim,) or covariance.shape == ():
        if not (np.all(np.isfinite(covariance)) and np.all(covariance > 0)):
            raise KernelError("metric= holds variances, which must be finite and positive.")
        return Diagonal(np.sqrt(np.broadcast_to(covariance, (dim,))).astype(dtype))
    if covariance.shape != (dim, dim):
        raise KernelError(
            f"metric= has shape {list(covariance.shape)} but the target has {dim} coordinates. "
            f"Give {dim} variances or a {dim}×{dim} covariance matrix."
        )
    return dense_from_covariance(covariance, dtype)


def dense_from_covariance(covariance: np.ndarray, dtype: Any) -> Dense:
    """Return the dense metric with A Aᵀ = covariance, scaled to unit diagonal first."""
    if not np.allclose(covariance, covariance.T, rtol=1e-6, atol=0):
        raise KernelError("metric= is not symmetric, so it is no covariance matrix.")
    scale = np.sqrt(np.maximum(np.diag(covariance), 0))
    divisor = np.outer(scale, scale) if scale.all() else np.ones_like(covariance)
    values, vectors = np.linalg.eigh(covariance / divisor)
    if not (np.all(np.isfinite(values)) and values.min() > 0):
        raise KernelError(
            "metric= is not positive definite, so it is no covariance matrix. Check its entries, "
            "or add a small multiple of the identity."
        )
    root = (vectors * np.sqrt(values)) @ vectors.T
    inverse = (vectors / np.sqrt(values)) @ vectors.T
    return Dense(
        scale.astype(dtype),
        root.astype(dtype),
        inverse.astype(dtype),
        (root @ root).astype(dtype),
        np.ones((), bool),
        always=True,
    )


def with_scale(
    metric: Metric, scale: np.ndarray, mix: tuple[np.ndarray, np.ndarray] | None
) -> Metric:
    """Return `metric` with new numbers in the same arrays' shapes and types.

    `mix` holds the eigenvalues and eigenvectors of the round part A Aᵀ after scaling, or is None
    where a diagonal is enough.
    """
    if isinstance(metric, Identity):
        return metric
    dtype = metric.scale.dtype  # pyright: ignore[reportAttributeAccessIssue]
    new: dict[str, Any] = {"scale": scale.astype(dtype)}
    if isinstance(metric, Dense):
        eye = np.eye(scale.size, dtype=dtype)
        new |= {"root": eye, "inverse": eye, "square": eye, "active": np.asarray(mix is not None)}
        if mix is not None:
            values, vectors = mix
            stretch = np.sqrt(values) - 1
            shrink = 1 / np.sqrt(values) - 1
            new["root"] = (eye + (vectors * stretch) @ vectors.T).astype(dtype)
            new["inverse"] = (eye + (vectors * shrink) @ vectors.T).astype(dtype)
            new["square"] = (eye + (vectors * (values - 1)) @ vectors.T).astype(dtype)
    elif isinstance(metric, LowRank):
        new |= {"active": np.asarray(mix is not None)}
        if mix is not None:
            values, vectors = mix
            rank = metric.gains.size
            keep = np.argsort(-np.abs(np.log(values)))[:rank]
            pad = rank - keep.size
            gains = np.pad(np.sqrt(values[keep]) - 1, (0, pad))
            new["gains"] = gains.astype(dtype)
            new["vectors"] = np.pad(vectors[:, keep], ((0, 0), (0, pad))).astype(dtype)
    return dataclasses.replace(metric, **new)  # pyright: ignore[reportArgumentType]


def covariance_of(metric: Metric, dim: int) -> np.ndarray:
    """Return A Aᵀ as a plain matrix, for people to look at."""
    columns = np.asarray(jax.vmap(metric.apply)(jnp.eye(dim)))
    return columns.T @ columns
