"""Boundary weights h: they let score matching work in the data's own coordinates.

Near a bound, let the density behave as t^c, the statistics' slopes as t^−m and h as t^q, t the
distance. The fit is consistent iff c + q − m > 0 and its standard errors are valid iff
2(q − m − 1) + c > −1 (for generalised score matching: Yu, Drton and Shojaie 2019, JMLR 20(76)).
q ≥ m + 1 is safe for every density.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from samplekit.core.pytree import Function, pytree, static


@pytree
class Distance:
    """h_j(y) = min(t_j, cap)^power or log(1 + t_j), t_j the distance to the nearer bound."""

    lower: Any
    upper: Any
    power: float = static(default=1.0)
    cap: float = static(default=math.inf)
    log1p: bool = static(default=False)

    def __call__(self, y: Array) -> Array:
        """Return h, one number per coordinate."""
        t = jnp.minimum(y - _like(self.lower, y), _like(self.upper, y) - y)
        if self.log1p:
            return jnp.log1p(t)
        return jnp.minimum(t, self.cap) ** self.power

    def framed(self, center: np.ndarray, scale: np.ndarray) -> "Distance":
        """Return the weight of u = (y − center)/scale, its cap in units of `scale`."""
        lower, upper = (
            (np.broadcast_to(np.asarray(b, float), center.shape) - center) / scale
            for b in (self.lower, self.upper)
        )
        return Distance(lower, upper, self.power, self.cap, self.log1p)


@pytree
class Framed:
    """A weight given in y, used in u = (y − center)/scale: h(y)/scale², the same fit."""

    weight: Function
    center: Any
    scale: Any

    def __call__(self, u: Array) -> Array:
        """Return the weight at u."""
        scale = _like(self.scale, u)
        return self.weight(_like(self.center, u) + scale * u) / scale**2


def distance(
    lower: ArrayLike = 0.0, upper: ArrayLike = np.inf, *, power: float = 1.0, cap: float = np.inf
) -> Distance:
    """Return the weight min(t, cap)^power, t the distance to the nearer bound.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from samplekit.estimators.weights import distance
    >>> distance(power=2.0, cap=3.0)(jnp.array([0.5, 7.0]))
    Array([0.25, 9.  ], dtype=float32)
    """
    return Distance(np.asarray(lower, float), np.asarray(upper, float), power, cap)


def log1p_distance(lower: ArrayLike = 0.0) -> Distance:
    """Return the weight log(1 + y − lower).

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from samplekit.estimators.weights import log1p_distance
    >>> log1p_distance()(jnp.array([0.0, 1.0]))
    Array([0.       , 0.6931472], dtype=float32)
    """
    return Distance(np.asarray(lower, float), np.asarray(np.inf), log1p=True)


def _like(bound: Any, y: Array) -> Array:
    """Return a bound as an array shaped and typed as y."""
    return jnp.broadcast_to(jnp.asarray(bound, y.dtype), y.shape)
