"""Γ, g and the sandwich's middle matrix, by autodiff and block by block.

With log p(y) = θᵀs(y) + a(y) − log Z and weights h_j ≥ 0, the generalised Hyvärinen score

    S(y, θ) = Σ_j ½ h_j (∂_j log p)² + h_j ∂²_j log p + ∂_j h_j ∂_j log p

is quadratic in θ: its mean is ½ θᵀΓθ − gᵀθ + const, with

    Γ = E Σ_j h_j ∂_j s ∂_j sᵀ,   g = −E Σ_j [h_j ∂_j s ∂_j a + h_j ∂²_j s + ∂_j h_j ∂_j s].

First and second derivatives along each axis come from nested `jvp`. The rows of a block are the
last axis, so that a block's part of Γ is one (k × d·b)(d·b × k) product, and b is chosen so that
the block stays in the processor's cache.

References: Hyvärinen 2005, JMLR 6; Yu, Drton and Shojaie 2019, JMLR 20(76).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from samplekit.core.pytree import Function, pytree, static
from samplekit.estimators.domains import Domain

type Block = Callable[["Model", Array, Array, Array], tuple[Array, ...]]

# Numbers in J of one block: 64 KiB in float64, so that it stays in a near cache.
BLOCK_NUMBERS = 2**13
MAX_BLOCK = 4096
MIN_BLOCK = 8


@pytree
class Model:
    """Statistics s, base a and weight h on a domain: all that the moments depend on."""

    statistics: Function
    base: Function | None
    weight: Function | None
    domain: Domain = static()
    charted: bool = static(default=True)  # derivatives in the chart's z, or in y itself

    @property
    def bare(self) -> bool:
        """Whether a and h are constant: no base, no weight, no Jacobian."""
        curved = self.charted and self.domain.boundary
        return self.base is None and self.weight is None and not curved

    def at(self, row: Array) -> tuple["Model", Array]:
        """Return the model of a row of data and the y in it: derivatives are in y alone."""
        return self, row

    def coordinates(self, y: Array) -> Array:
        """Return the point at which derivatives are taken."""
        return self.domain.chart(y) if self.charted else y

    def place(self, z: Array) -> tuple[Array, Array]:
        """Return y and the log-Jacobian."""
        return self.domain.place(z) if self.charted else (z, jnp.zeros((), z.dtype))

    def values(self, z: Array) -> tuple[Array, Array]:
        """Return s and a, the Jacobian included, at z."""
        y, log_jacobian = self.place(z)
        return self.statistics_of(y), self.base_of(y) + log_jacobian

    def statistics_of(self, y: Array) -> Array:
        """Return s(y) as one vector."""
        return flat(self.statistics(y))

    def base_of(self, y: Array) -> Array:
        """Return a(y)."""
        return jnp.zeros((), y.dtype) if self.base is None else jnp.reshape(self.base(y), ())

    def weights(self, z: Array) -> Array:
        """Return h, one number per coordinate of z."""
        if self.weight is None:
            return jnp.ones_like(z)
        return jnp.broadcast_to(self.weight(self.place(z)[0]), z.shape)


class Terms(NamedTuple):
    """Derivatives at one row, along each of d axes."""

    slopes: Array  # ∂_j s, (d, k)
    bends: Array  # ∂²_j s, (d, k)
    slope: Array  # ∂_j a, (d,)
    bend: Array  # ∂²_j a, (d,)
    weight: Array  # h_j, (d,)
    tilt: Array  # ∂_j h_j, (d,)


def flat(value: Any) -> Array:
    """Return statistics given as a vector, a scalar or a dict of them as one vector."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(value)])


def terms(model: Model, row: Array) -> Terms:
    """Return the derivatives at one row."""
    model, y = model.at(row)
    z = model.coordinates(y)

    def along(axis: Array) -> tuple[Any, ...]:
        def first(at: Array) -> tuple[Array, Array]:
            return jax.jvp(model.values, (at,), (axis,))[1]

        (slopes, slope), (bends, bend) = jax.jvp(first, (z,), (axis,))
        weight, tilt = jax.jvp(lambda at: jnp.vdot(model.weights(at), axis), (z,), (axis,))
        return slopes, bends, slope, bend, weight, tilt

    return Terms(*jax.vmap(along)(jnp.eye(z.shape[0], dtype=z.dtype)))


def block_terms(model: Model, rows: Array) -> Terms:
    """Return the derivatives at a block of rows, the rows on the last axis."""
    return jax.vmap(terms, in_axes=(None, 0), out_axes=-1)(model, rows)


def normal_block(model: Model, theta: Array, rows: Array, weights: Array) -> tuple[Array, Array]:
    """Return a block's part of Γ and g; `theta` is not used."""
    del theta
    t = block_terms(model, rows)
    k = t.slopes.shape[1]
    scaled = t.weight * weights[None, :]
    slopes = t.slopes.transpose(1, 0, 2).reshape(k, -1)
    gamma = _dot(slopes * scaled.reshape(1, -1), slopes.T)
    # A sum and not a product of matrices: the second derivatives then never reach memory.
    g = -(t.bends * scaled[:, None, :]).sum(axis=(0, 2))
    if model.bare:
        return gamma, g
    pull = scaled * t.slope + weights[None, :] * t.tilt
    return gamma, g - (t.slopes * pull[:, None, :]).sum(axis=(0, 2))


def psi(t: Terms, theta: Array) -> Array:
    """Return ψ = Γ_i θ − g_i, the gradient of the score in θ, (k, rows)."""
    pull = t.weight * (jnp.einsum("k,jkb->jb", theta, t.slopes) + t.slope) + t.tilt
    return jnp.einsum("jkb,jb->kb", t.slopes, pull) + jnp.einsum("jkb,jb->kb", t.bends, t.weight)


def meat_block(model: Model, theta: Array, rows: Array, weights: Array) -> tuple[Array, Array]:
    """Return a block's part of Σ w²ψψᵀ and Σ wψ."""
    each = psi(block_terms(model, rows), theta) * weights[None, :]
    return _dot(each, each.T), each.sum(axis=1)


def score_rows(model: Model, theta: Array, rows: Array) -> Array:
    """Return the Hyvärinen score of each row."""
    t = block_terms(model, rows)
    slope = jnp.einsum("k,jkb->jb", theta, t.slopes) + t.slope
    bend = jnp.einsum("k,jkb->jb", theta, t.bends) + t.bend
    return (t.weight * (slope**2 / 2 + bend) + t.tilt * slope).sum(axis=0)


def log_density_rows(model: Model, theta: Array, rows: Array) -> Array:
    """Return θᵀs + a of each row, without the chart's Jacobian."""

    def one(y: Array) -> Array:
        return jnp.vdot(theta, model.statistics_of(y)) + model.base_of(y)

    return jax.vmap(one)(rows)


def finite_rows(model: Model, theta: Array, rows: Array) -> Array:
    """Tell whether all derivatives at each row are finite; `theta` is not used."""
    del theta
    t = block_terms(model, rows)
    size = jnp.abs(t.slopes).max((0, 1)) + jnp.abs(t.bends).max((0, 1))
    rest = sum(jnp.abs(part).max(0) for part in (t.slope, t.weight, t.tilt))
    return jnp.isfinite(size + rest)


def block_size(dim: int, size: int) -> int:
    """Return the rows per block for d coordinates and k statistics, a power of two."""
    rows = max(BLOCK_NUMBERS // (dim * size), MIN_BLOCK)
    return min(1 << (rows.bit_length() - 1), MAX_BLOCK)


def accumulate(
    block: Block,
    model: Model,
    theta: Array,
    *,
    rows: Array,
    weights: Array,
    blocks: Array,
    size: int,
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Add up the first `blocks` blocks of `size` rows; return the sums and what rounding lost.

    In float32 the second part matters (Neumaier's sum); in float64 it is not computed.
    """

    def part(i: Array) -> tuple[Array, ...]:
        start = i * size
        chosen = jax.lax.dynamic_slice_in_dim(rows, start, size)
        return block(model, theta, chosen, jax.lax.dynamic_slice_in_dim(weights, start, size))

    shapes = jax.eval_shape(part, jnp.zeros((), blocks.dtype))
    zeros = tuple(jnp.zeros(s.shape, s.dtype) for s in shapes)
    if rows.dtype == jnp.float64:

        def add(i: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
            return tuple(a + b for a, b in zip(sums, part(i), strict=True))

        return jax.lax.fori_loop(0, blocks, add, zeros), zeros

    def compensated(
        i: Array, carry: tuple[tuple[Array, ...], tuple[Array, ...]]
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        pairs = [_two_sum(a, b) for a, b in zip(carry[0], part(i), strict=True)]
        lost = tuple(c + e for c, (_, e) in zip(carry[1], pairs, strict=True))
        return tuple(s for s, _ in pairs), lost

    return jax.lax.fori_loop(0, blocks, compensated, (zeros, zeros))


def estimate(model: Model, rows: Array, *, ridge: float = 0.0) -> tuple[Array, Array]:
    """Return θ̂ and its sandwich covariance: one pure function, for `vmap` over data sets.

    The rows are one block. The estimator adds up blocks, scales and checks; the numbers are the
    same.
    """
    ones = jnp.ones(rows.shape[0], rows.dtype)
    gamma, g = normal_block(model, ones[:0], rows, ones)
    gamma = gamma + ridge * jnp.diag(jnp.diag(gamma))
    scale = jnp.sqrt(jnp.diag(gamma))
    bread = (
        jnp.linalg.inv(gamma / scale[:, None] / scale[None, :]) / scale[:, None] / scale[None, :]
    )
    theta = bread @ g
    meat, total = meat_block(model, theta, rows, ones)
    meat = meat - jnp.outer(total, total) / rows.shape[0]
    return theta, bread @ meat @ bread


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return a + b and the rounding error of it, exactly (Knuth)."""
    total = a + b
    shadow = total - a
    return total, (a - (total - shadow)) + (b - shadow)


def _dot(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
