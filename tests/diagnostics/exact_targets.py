"""Targets of the zoo, with maps that make exact draws of them from standard normal numbers.

Normal numbers that follow each other as an AR(1) chain become a chain that is exactly stationary.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy import special

import samplekit as sk

# Normal numbers a draw: what the largest map needs.
NORMALS = 6


def _quantiles(log_density: Callable[[np.ndarray], np.ndarray], low: float, high: float) -> Any:
    """Return the map of normal numbers to a law on the line, by its tabulated distribution."""
    grid = np.linspace(low, high, 20_001)
    density = np.exp(log_density(grid))
    cdf = np.append(0, np.cumsum((density[1:] + density[:-1]) / 2))
    return lambda g: np.interp(special.ndtr(g), cdf / cdf[-1], grid)


def _correlated(g):
    x = g[..., :5].copy()
    for i in range(1, 5):
        x[..., i] = 0.9 * x[..., i - 1] + np.sqrt(1 - 0.9**2) * g[..., i]
    return x


def _bimodal(g):
    right = special.ndtr(g[..., :1]) > 0.6
    return np.where(right, 4 + 2 * g[..., 1:2], -2 + g[..., 1:2])


def _student_t(g):
    square = special.chdtri(2.0, special.ndtr(g[..., 5:]))
    return g[..., :5] * np.sqrt(2.0 / square)


def _banana(g):
    x, b = 2 * g[..., 0], BANANA.curvature
    return np.stack([x, b * x**2 + BANANA.offset + g[..., 1]], axis=-1)


def _funnel(g):
    return np.concatenate([3 * g[..., :1], np.exp(1.5 * g[..., :1]) * g[..., 1:5]], axis=-1)


_radius = _quantiles(lambda r: np.log(r) - (r - 3) ** 2 / 0.18, 0.01, 6.0)
_quartic = _quantiles(lambda x: -(x**4) / 4 - x**2 / 2, -6.0, 6.0)


def _ring(g):
    angle = 2 * np.pi * special.ndtr(g[..., 1:2])
    return _radius(g[..., :1]) * np.concatenate([np.cos(angle), np.sin(angle)], axis=-1)


BANANA = sk.targets.banana()

EXACT: dict[str, tuple[Any, Callable[[np.ndarray], np.ndarray]]] = {
    "gaussian": (sk.targets.gaussian(5), lambda g: g[..., :5]),
    "correlated": (sk.targets.correlated(5, 0.9), _correlated),
    "bimodal": (sk.targets.bimodal(), _bimodal),
    "student t, 2 degrees": (sk.targets.student_t(5, 2.0), _student_t),
    "banana": (BANANA, _banana),
    "funnel": (sk.targets.funnel(5), _funnel),
    "ring": (sk.targets.ring(), _ring),
    "quartic": (sk.targets.double_well(dim=3), lambda g: _quartic(g[..., :3])),
}

# A score that turns: −x + cJx with c = 0.3.
TURNING = sk.from_score(
    lambda x: jnp.asarray(np.array([[-1.0, -0.3], [0.3, -1.0]]), x.dtype) @ x, dim=2
)
