"""Restricted Boltzmann machines as targets: free energy, score, block Gibbs, exact sums.

Both machines have hidden units H in {0, 1}ⁿ that are independent given the visible units V, and the
other way round, so that the hidden units can be summed out (the free energy) or drawn in one block.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from samplekit.core.pytree import pytree, static
from samplekit.targets.space import Space, make_space

# Hidden states that are summed at a time; more would not fit into a processor's cache.
_BLOCK = 2**12
# Entries of a table of sums that is made at a time.
_TABLE = 2**18


class HiddenMoments(NamedTuple):
    """Sums over all hidden states: log Σ_H w(H), E[H] and E[H Hᵀ]."""

    log_sum: Array
    mean: Array
    second: Array


@pytree
class GaussBernoulli:
    """Real visible units: p(v) ∝ exp(−F(v)).

    Notes
    -----
    With q = 1/σ² and a = W(q∘v) + b (Cho, Ilin and Raiko 2011):

        E(v, h) = Σ q_i (v_i − c_i)²/2 − bᵀh − hᵀW(q∘v)
        F(v) = Σ q_i (v_i − c_i)²/2 − Σ_j softplus(a_j)
        ∇ log p(v) = q∘(Wᵀσ(a) + c − v)
        h_j | v ~ Bernoulli(σ(a_j)),  v | h ~ N(c + Wᵀh, σ²)
    """

    weights: Array  # (hidden, visible)
    hidden_bias: Array
    visible_bias: Array
    log_variance: Array
    space: Space = static()

    @classmethod
    def of(cls, weights: Any, hidden_bias: Any, visible_bias: Any, log_variance: Any) -> Any:
        """Put a machine together from its parameters."""
        return cls(weights, hidden_bias, visible_bias, log_variance, make_space(weights.shape[1]))

    def activation(self, v: Array) -> Array:
        """Return a = W(q∘v) + b, the log odds of the hidden units."""
        return self.weights @ (jnp.exp(-self.log_variance) * v) + self.hidden_bias

    def log_density(self, v: Array, /) -> Array:
        """Return −F(v): the log density of visible units up to log Z."""
        quadratic = jnp.sum(jnp.exp(-self.log_variance) * (v - self.visible_bias) ** 2) / 2
        return jnp.sum(jax.nn.softplus(self.activation(v))) - quadratic

    def score(self, v: Array, /) -> Array:
        """Return ∇ log p(v), the Stein score (not scikit-learn's `score`)."""
        rho = jax.nn.sigmoid(self.activation(v))
        return jnp.exp(-self.log_variance) * (self.mean_given(rho) - v)

    def mean_given(self, h: Array) -> Array:
        """Return E[v | h] = c + Wᵀh."""
        return self.visible_bias + self.weights.T @ h

    def noise(self, key: Array, *rows: int) -> tuple[Array, Array]:
        """Draw all that a sweep needs: uniform numbers for hidden, normal for visible units."""
        up, down = jax.random.split(key)
        real = self.weights.dtype
        uniform = jax.random.uniform(up, (*rows, self.hidden_bias.size), real)
        return uniform, jax.random.normal(down, (*rows, self.visible_bias.size), real)

    def sweep(self, noise: tuple[Array, Array], v: Array) -> Array:
        """Draw hidden from visible, then visible from hidden units, with the noise given."""
        h = noise[0] < jax.nn.sigmoid(self.activation(v))
        mean = self.mean_given(h.astype(v.dtype))
        return mean + jnp.exp(self.log_variance / 2) * noise[1]

    def gibbs(self, key: Array, v: Array, /) -> Array:
        """Draw all hidden units given the visible ones, then all visible ones."""
        return self.sweep(self.noise(key), v)

    def at(self, level: Array, /) -> "GaussBernoulli":
        """Return the machine at inverse temperature β, which multiplies W and b.

        At β = 0 the visible units are independent Gaussians: a base that is drawn exactly.
        """
        return GaussBernoulli(
            level * self.weights,
            level * self.hidden_bias,
            self.visible_bias,
            self.log_variance,
            self.space,
        )

    def base_log_normalizer(self) -> Array:
        """Return log Z at β = 0."""
        dim, hidden = self.visible_bias.size, self.hidden_bias.size
        gauss = dim * math.log(2 * math.pi) / 2 + jnp.sum(self.log_variance) / 2
        return gauss + hidden * math.log(2)

    def hidden_law(self) -> tuple[Array, Array]:
        """Return l and Q of log w(H) = lᵀH + ½ HᵀQH, the visible units being integrated out.

        l = b + W(q∘c), Q = W diag(q) Wᵀ: sums over H do not depend on the number of visible units.
        """
        scaled = self.weights * jnp.exp(-self.log_variance)[None]
        return self.hidden_bias + scaled @ self.visible_bias, scaled @ self.weights.T

    def enumerate_hidden(self) -> HiddenMoments:
        """Sum over all 2ⁿ hidden states."""
        linear, quadratic = self.hidden_law()
        return sum_over_states(lambda h: _quadratic(h, linear, quadratic), self.hidden_bias.size)

    def log_normalizer(self) -> Array:
        """Return log Z, exactly, by the sum over all hidden states."""
        gauss = self.visible_bias.size * math.log(2 * math.pi) + jnp.sum(self.log_variance)
        return gauss / 2 + sum_of_halves(*self.hidden_law())

    def moments(self) -> tuple[Array, Array]:
        """Return the exact mean and covariance of the visible units."""
        sums = self.enumerate_hidden()
        mean = self.visible_bias + self.weights.T @ sums.mean
        spread = sums.second - jnp.outer(sums.mean, sums.mean)
        return mean, self.weights.T @ spread @ self.weights + jnp.diag(jnp.exp(self.log_variance))


@pytree
class BernoulliBernoulli:
    """Binary visible units in {0, 1}: p(v) ∝ exp(−F(v)).

    Notes
    -----
    E(v, h) = −cᵀv − bᵀh − hᵀWv, F(v) = −cᵀv − Σ_j softplus(a_j), a = Wv + b (Hinton 2002).
    """

    weights: Array  # (hidden, visible)
    hidden_bias: Array
    visible_bias: Array
    space: Space = static()

    @classmethod
    def of(cls, weights: Any, hidden_bias: Any, visible_bias: Any) -> Any:
        """Put a machine together from its parameters."""
        space = make_space(like=np.zeros(weights.shape[1], np.int8), values=(0, 1))
        return cls(weights, hidden_bias, visible_bias, space)

    def activation(self, v: Array) -> Array:
        """Return a = Wv + b, the log odds of the hidden units."""
        return self.weights @ v.astype(self.weights.dtype) + self.hidden_bias

    def log_density(self, v: Array, /) -> Array:
        """Return −F(v): the log probability of visible units up to log Z."""
        v = v.astype(self.weights.dtype)
        return v @ self.visible_bias + jnp.sum(jax.nn.softplus(self.activation(v)))

    def mean_given(self, h: Array) -> Array:
        """Return E[v | h] = σ(c + Wᵀh)."""
        return jax.nn.sigmoid(self.visible_bias + self.weights.T @ h)

    def noise(self, key: Array, *rows: int) -> tuple[Array, Array]:
        """Draw all that a sweep needs: uniform numbers for hidden and for visible units."""
        sizes = self.hidden_bias.size, self.visible_bias.size
        uniform = jax.random.uniform(key, (*rows, sum(sizes)), self.weights.dtype)
        return uniform[..., : sizes[0]], uniform[..., sizes[0] :]

    def sweep(self, noise: tuple[Array, Array], v: Array) -> Array:
        """Draw hidden from visible, then visible from hidden units, with the noise given."""
        h = noise[0] < jax.nn.sigmoid(self.activation(v))
        return (noise[1] < self.mean_given(h.astype(self.weights.dtype))).astype(v.dtype)

    def gibbs(self, key: Array, v: Array, /) -> Array:
        """Draw all hidden units given the visible ones, then all visible ones."""
        return self.sweep(self.noise(key), v)

    def at(self, level: Array, /) -> "BernoulliBernoulli":
        """Return the machine at inverse temperature β, which multiplies W and b."""
        return BernoulliBernoulli(
            level * self.weights, level * self.hidden_bias, self.visible_bias, self.space
        )

    def base_log_normalizer(self) -> Array:
        """Return log Z at β = 0."""
        return jnp.sum(jax.nn.softplus(self.visible_bias)) + self.hidden_bias.size * math.log(2)

    def pseudo_log_likelihood(self, v: Array) -> Array:
        """Return Σ_i log p(v_i | all others), over every site (Besag 1975)."""
        v = v.astype(self.weights.dtype)
        a, flip = self.activation(v), 1 - 2 * v
        flipped = a[:, None] + self.weights * flip[None]
        change = jnp.sum(jax.nn.softplus(flipped) - jax.nn.softplus(a)[:, None], axis=0)
        return -jnp.sum(jax.nn.softplus(change + flip * self.visible_bias))

    def enumerate_hidden(self) -> HiddenMoments:
        """Sum over all 2ⁿ hidden states, the visible units being summed out in closed form."""

        def log_weight(h: Array) -> Array:
            inside = jax.nn.softplus(self.visible_bias[None] + h @ self.weights)
            return h @ self.hidden_bias + jnp.sum(inside, axis=1)

        return sum_over_states(log_weight, self.hidden_bias.size)

    def log_normalizer(self) -> Array:
        """Return log Z, exactly, by the sum over the states of the smaller layer."""
        if self.hidden_bias.size <= self.visible_bias.size:
            return self.enumerate_hidden().log_sum
        return self.turned().enumerate_hidden().log_sum

    def turned(self) -> "BernoulliBernoulli":
        """Return the machine whose visible units are this one's hidden units."""
        return BernoulliBernoulli.of(self.weights.T, self.visible_bias, self.hidden_bias)

    def moments(self) -> tuple[Array, Array]:
        """Return the exact mean and covariance of the visible units, by their enumeration."""
        sums = self.turned().enumerate_hidden()
        return sums.mean, sums.second - jnp.outer(sums.mean, sums.mean)


def _quadratic(h: Array, linear: Array, quadratic: Array) -> Array:
    return h @ linear + jnp.sum((h @ quadratic) * h, axis=1) / 2


def _states(numbers: Array, units: int) -> Array:
    """Return the binary digits of some numbers as rows."""
    bits = numbers[:, None] >> jnp.arange(units)[None]
    return (bits & 1).astype(jnp.result_type(float))


def sum_of_halves(linear: Array, quadratic: Array) -> Array:
    """Return log Σ_H exp(lᵀH + ½ HᵀQH), with half of the units along each axis of a table.

    An entry of the table costs one product of the halves, n/2 multiplications in a matrix product
    and an exponential, where H itself would cost n².
    """
    units = linear.size
    half = units // 2
    across = _states(jnp.arange(2**half), half)
    inside = _quadratic(across, linear[:half], quadratic[:half, :half])
    rows = min(2 ** (units - half), max(1, _TABLE >> half))

    def block(total: Array, start: Array) -> tuple[Array, None]:
        down = _states(start + jnp.arange(rows), units - half)
        own = _quadratic(down, linear[half:], quadratic[half:, half:])
        table = (down @ quadratic[half:, :half]) @ across.T + inside[None] + own[:, None]
        return jnp.logaddexp(total, jax.nn.logsumexp(table)), None

    empty = jnp.asarray(-jnp.inf, jnp.result_type(float))
    return jax.lax.scan(block, empty, jnp.arange(0, 2 ** (units - half), rows))[0]


def sum_over_states(log_weight: Any, units: int) -> HiddenMoments:
    """Sum exp(log_weight(H)) over all binary H of so many units, block by block.

    Parameters
    ----------
    log_weight
        Takes states as rows (r, units), returns r numbers.
    units
        The number of units; time grows as 2 to this power, memory does not grow.
    """
    rows = min(_BLOCK, 2**units)
    low = jnp.arange(rows)

    def block(
        sums: tuple[Array, Array, Array], start: Array
    ) -> tuple[tuple[Array, Array, Array], None]:
        h = _states(low + start, units)
        log_w = log_weight(h)
        top, mean, second = sums
        new = jnp.maximum(top, jnp.max(log_w))
        # All sums carry an extra unit that is always on: its mean is the sum of the weights.
        h = jnp.concatenate([h, jnp.ones((rows, 1), h.dtype)], axis=1)
        w, keep = jnp.exp(log_w - new), jnp.exp(top - new)
        return (new, keep * mean + w @ h, keep * second + (h * w[:, None]).T @ h), None

    size, real = units + 1, jnp.result_type(float)
    start = (jnp.asarray(-jnp.inf, real), jnp.zeros(size, real), jnp.zeros((size, size), real))
    (top, mean, second), _ = jax.lax.scan(block, start, jnp.arange(0, 2**units, rows))
    total = mean[-1]
    return HiddenMoments(top + jnp.log(total), mean[:-1] / total, second[:-1, :-1] / total)
