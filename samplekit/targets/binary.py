"""What fields on two values share: enumeration, conditional odds, the most probable state."""

import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from samplekit.core.errors import TargetError
from samplekit.core.protocols import Scalar
from samplekit.targets.space import Space, make_space

# 2²⁰ states take a second and 20 MB; each site more doubles both.
MOST_SITES = 20
# Rows of states that are evaluated at once.
_CHUNK = 2**16
# Cooling: β times the typical log odds of a site goes from a coin toss to a flip in e⁴⁰.
_HOTTEST, _COLDEST = 0.2, 40.0
# Coordinate ascent ends by itself, each change being an increase; rounding must not undo that.
_MOST_ASCENTS = 1000


class Mode(NamedTuple):
    """A configuration and its log density."""

    x: np.ndarray
    log_density: float


@dataclasses.dataclass(frozen=True)
class Enumeration:
    """All states of a small field with their probabilities, in float64.

    Attributes
    ----------
    states
        Every configuration, (2ⁿ, n), sites in the order of `x.ravel()`.
    probabilities
        One for each state.
    log_normalizer
        Log of the sum of exp(log_density).
    mean, covariance
        Of the sites, (n,) and (n, n).
    """

    states: np.ndarray
    probabilities: np.ndarray
    log_normalizer: float
    mean: np.ndarray
    covariance: np.ndarray


class Field:
    """A pairwise field Σ_i u_i x_i + Σ_ij w_ij x_i x_j on two values.

    A subclass gives the log density, the log odds of its sites, one sweep, and the matrix w.
    """

    space: Space

    def log_density(self, x: Array, /) -> Scalar:
        """Return log p(x) up to a constant; `x` may be real, for gradients."""
        raise NotImplementedError

    def log_odds(self, x: Array, /) -> Array:
        """Return log p(x_i = high | rest) − log p(x_i = low | rest) of every site."""
        raise NotImplementedError

    def gibbs(self, key: Array, x: Array, /) -> Array:
        """Draw every site once given the others, all sites of one color at a time."""
        raise NotImplementedError

    def at(self, level: Any, /) -> Any:
        """Return the field at inverse temperature `level`: the density p^β."""
        raise NotImplementedError

    @property
    def colors(self) -> np.ndarray:
        """The color of every site; neighbors have different ones."""
        raise NotImplementedError

    def _quadratic(self) -> tuple[np.ndarray, np.ndarray]:
        """Return u (n,) and the symmetric w (n, n) in float64."""
        raise NotImplementedError

    @property
    def values(self) -> tuple[int, int]:
        """The two values of a site, low and high."""
        two = self.space.leaves[0].values
        assert two is not None
        return two

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a configuration."""
        return self.space.leaves[0].shape

    def exact(self) -> Enumeration:
        """Enumerate all states of a field of at most 20 sites.

        Examples
        --------
        >>> import samplekit as sk
        >>> exact = sk.targets.ising((3, 3), coupling=0.4).exact()
        >>> exact.states.shape, round(float(exact.covariance[0, 1]), 4)
        ((512, 9), 0.7311)
        """
        sites = self.space.size
        if sites > MOST_SITES:
            raise TargetError(
                f"This field has {sites} sites, hence 2^{sites} states: too many to enumerate "
                f"(most: {MOST_SITES} sites). Sample it with sk.Gibbs()."
            )
        unary, weights = self._quadratic()
        states = np.array(list(itertools.product(self.values, repeat=sites)), np.int8)
        chunks = [states[i : i + _CHUNK].astype(np.float64) for i in range(0, len(states), _CHUNK)]
        logs = np.concatenate(
            [c @ unary + 0.5 * np.einsum("ij,ij->i", c @ weights, c) for c in chunks]
        )
        top = logs.max()
        log_normalizer = float(top + np.log(np.exp(logs - top).sum()))
        p = np.exp(logs - log_normalizer)
        parts = np.split(p, range(_CHUNK, len(p), _CHUNK))
        mean = sum(q @ c for q, c in zip(parts, chunks, strict=True))
        second = sum((c * q[:, None]).T @ c for q, c in zip(parts, chunks, strict=True))
        return Enumeration(
            states, p, log_normalizer, np.asarray(mean), second - np.outer(mean, mean)
        )

    def draw(self, key: Array, n: int) -> Array:
        """Return `n` exact independent draws of a small field, (n, *shape)."""
        exact = self.exact()
        words = np.asarray(jax.random.bits(key, (n, 2), np.uint32), np.float64)
        u = (words[:, 0] + (words[:, 1] + 0.5) / 2**32) / 2**32
        cumulative = np.cumsum(exact.probabilities)
        chosen = np.searchsorted(cumulative / cumulative[-1], u)
        return jnp.asarray(exact.states[chosen].reshape(n, *self.shape))

    @property
    def mean(self) -> np.ndarray:
        """Exact means of a small field, shaped as `x`."""
        return self.exact().mean.reshape(self.shape)

    @property
    def variance(self) -> np.ndarray:
        """Exact variances of a small field, shaped as `x`."""
        return np.diag(self.exact().covariance).reshape(self.shape)

    @property
    def covariance(self) -> np.ndarray:
        """Exact covariance matrix of the sites of a small field."""
        return self.exact().covariance

    @property
    def log_normalizer(self) -> float:
        """Log of the sum of exp(log_density) over all states of a small field."""
        return self.exact().log_normalizer

    def map(self, *, seed: int = 0, sweeps: int = 1000, restarts: int = 4) -> Mode:
        """Search the most probable configuration by simulated annealing.

        Parameters
        ----------
        seed
            Randomness of starts and sweeps.
        sweeps
            Gibbs sweeps of each search, β rising geometrically from a coin toss to all but
            certainty; then coordinate ascent until no single change helps.
        restarts
            Independent searches, of which the best is returned.

        Returns
        -------
        The best configuration `x` and its `log_density`. It is at least as probable as all that
        differ from it in one site; more sweeps make it likelier to be the best of all.

        Notes
        -----
        Geman and Geman 1984, doi:10.1109/TPAMI.1984.4767596.

        Examples
        --------
        >>> import samplekit as sk
        >>> sk.targets.ising((8, 8), coupling=0.3, field=0.1).map(sweeps=100).x.min()
        np.int8(1)
        """
        if sweeps < 1 or restarts < 1:
            raise TargetError(f"sweeps={sweeps} and restarts={restarts} must both be 1 or more.")
        keys = jax.random.split(jax.random.key(seed), restarts)
        found, logs = _anneal(self, keys, sweeps=sweeps)
        best = int(np.argmax(np.asarray(logs)))
        return Mode(np.asarray(found[best]), float(logs[best]))

    def ascend(self, x: Array) -> Array:
        """Set every site to its likelier value, color by color, until nothing changes."""
        low, high = (jnp.asarray(v, x.dtype) for v in self.values)

        def ascent(loop: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            x, _, count = loop
            new = x
            for color in range(int(self.colors.max()) + 1):
                odds = self.log_odds(new)
                # A site that does not care stays, or two of them could go round forever.
                better = jnp.where(odds > 0, high, jnp.where(odds < 0, low, new))
                new = jnp.where(self.colors == color, better, new)
            return new, jnp.any(new != x), count + 1

        def more(loop: tuple[Array, Array, Array]) -> Array:
            return loop[1] & (loop[2] < _MOST_ASCENTS)

        start = (x, jnp.ones((), bool), jnp.zeros((), jnp.int32))
        return jax.lax.while_loop(more, ascent, start)[0]


@functools.partial(jax.jit, static_argnames="sweeps")
def _anneal(field: Any, keys: Array, *, sweeps: int) -> tuple[Array, Array]:
    """Cool random configurations, one for each key; return where they end and how good it is."""
    rising = jnp.asarray(np.geomspace(_HOTTEST, _COLDEST, sweeps), jnp.result_type(float))

    def search(key: Array) -> tuple[Array, Array]:
        start, walk = jax.random.split(key)
        x = field.space.unravel(jax.random.normal(start, (field.space.size,)))
        # The typical log odds: of a configuration in which all pull the same way.
        typical = jnp.mean(jnp.abs(field.log_odds(jnp.full_like(x, field.values[1]))))
        betas = rising / jnp.maximum(typical, jnp.finfo(rising.dtype).tiny)

        def sweep(x: Array, at: tuple[Array, Array]) -> tuple[Array, None]:
            key, beta = at
            return field.at(beta).gibbs(key, x), None

        x, _ = jax.lax.scan(sweep, x, (jax.random.split(walk, sweeps), betas))
        x = field.ascend(x)
        return x, field.log_density(x)

    return jax.vmap(search)(keys)


def logistic(bits: Array, dtype: Any) -> Array:
    """Return standard logistic noise L of 32 random bits: P(L < t) = 1 / (1 + exp(−t)).

    The first bit is the sign and the others are the smaller tail probability, so that both tails
    are as fine as floating numbers allow.
    """
    tail = ((bits & np.uint32(2**31 - 1)).astype(dtype) + 0.5) * 2.0**-32
    magnitude = jnp.log(tail / (1 - tail))
    return jnp.where(bits >> 31 == 0, magnitude, -magnitude)


def binary_space(shape: tuple[int, ...], values: tuple[int, int]) -> Space:
    """Describe int8 arrays of two values."""
    if not shape or any(not isinstance(n, int | np.integer) or n < 1 for n in shape):
        raise TargetError(f"shape={shape} is not a positive integer or several of them.")
    like = jax.ShapeDtypeStruct(tuple(int(n) for n in shape), np.int8)
    return make_space(like=like, values=values)
