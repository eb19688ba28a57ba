"""Does the weight suit the density at the boundary? A wrong one fails silently, with tiny errors.

Near a bound, at distance t, let the density behave as t^c, the statistics' slopes as t^−m and the
weight as t^q. The fit is consistent iff c + q − m > 0, and its standard errors are valid iff
2(q − m − 1) + c > −1. The exponents are read off at two distances; c at the fitted θ.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from samplekit.core.errors import EstimatorError
from samplekit.estimators.domains import Box
from samplekit.estimators.linear import Vector
from samplekit.estimators.moments import Model
from samplekit.estimators.rows import Chunk

# Distances, in units of the data's spread: small enough for the leading power to rule.
NEAR, NEARER = 1e-5, 1e-7
SLACK = 0.05  # exponents read off at finite distances are a little off


def check_boundary(model: Model, theta: Vector, pilot: Chunk) -> None:
    """Refuse a weight with which the fit or its standard errors would be wrong."""
    domain = model.domain
    if not isinstance(domain, Box) or not domain.boundary or model.weight is None:
        return
    rows = pilot.rows[:8]
    dim = rows.shape[1]
    spread = pilot.rows.std(axis=0) + np.finfo(float).tiny
    for sign, bounds in zip((1.0, -1.0), domain.bounds(dim), strict=True):
        for axis in np.flatnonzero(np.isfinite(bounds)):
            found = []
            for t in (NEAR, NEARER):
                at = rows.copy()
                at[:, axis] = bounds[axis] + sign * t * spread[axis]
                with jax.enable_x64(True):  # noqa: FBT003
                    found.append(np.asarray(_logs(model, theta, at, np.eye(dim)[axis])))
            c, q, m = np.median((found[0] - found[1]) / np.log(NEAR / NEARER), axis=1)
            _judge(int(axis), float(c), float(q), -float(m))


@jax.jit
def _logs(model: Model, theta: Array, rows: Array, axis: Array) -> Array:
    """Return the logs of density, weight and largest slope along an axis, (3, rows)."""

    def one(y: Array) -> Array:
        (statistics, base), (slopes, _) = jax.jvp(model.values, (y,), (axis,))
        weight = jnp.vdot(model.weights(y), axis)
        tiny = jnp.finfo(y.dtype).tiny
        logs = jnp.log(jnp.stack([weight, jnp.abs(slopes).max()]) + tiny)
        return jnp.append(jnp.vdot(theta, statistics) + base, logs)

    return jax.vmap(one, out_axes=1)(rows)


def _judge(axis: int, c: float, q: float, m: float) -> None:
    """Raise if the exponents break a rule."""
    if q < SLACK:
        raise EstimatorError(
            f"The weight does not vanish at the boundary of column {axis}: the fit would be wrong, "
            "with small standard errors. Leave weight out for the domain's default, or give "
            "weight='unweighted' if the density itself vanishes there fast enough."
        )
    if q - m >= 1 - SLACK:
        return  # right for every density that can be integrated
    consistent = c + q - m > 0
    if not consistent or 2 * (q - m - 1) + c <= -1:
        raise EstimatorError(
            f"The weight vanishes too slowly at the boundary of column {axis} (as t^{q:.2g}, where "
            f"the statistics' slopes grow as t^{-m:.2g} and the fitted density goes as t^{c:.2g}): "
            + ("its standard errors" if consistent else "the fit")
            + " would be wrong. Leave weight out for the domain's default, or take a higher power."
        )
