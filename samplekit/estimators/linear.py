"""The k × k system of the fit: scaled, checked, solved in float64."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from samplekit.core.errors import EstimatorError

type Matrix = NDArray[np.float64]
type Vector = NDArray[np.float64]

# Γ is computed to about 1e-16 of its entries. Beyond this condition number (of the scaled Γ) no
# digit of the weakest direction is left.
SINGULAR = 1e13


class Solution(NamedTuple):
    """θ̂, the inverse of the (ridged) Γ per unit of weight, and the scaled condition number."""

    theta: Vector
    bread: Matrix
    condition: float


def solve(
    gamma: Matrix, g: Vector, names: Sequence[str], *, ridge: float = 0.0, scaled: bool = True
) -> Solution:
    """Solve (Γ + ridge·D) θ = g, D the diagonal of Γ where scaled and the identity otherwise.

    A singular system is refused, with the names of the statistics that are collinear.
    """
    diagonal = np.diag(gamma).copy()
    constant = diagonal <= 0
    if constant.any() and not ridge:
        which = ", ".join(n for n, c in zip(names, constant, strict=True) if c)
        raise EstimatorError(
            f"The statistics {which} do not vary with y (or only where the weight is zero), so "
            "the data say nothing about their parameters. Leave them out."
        )
    scale = np.sqrt(np.where(constant, 1.0, diagonal)) if scaled else np.ones(len(g))
    system = gamma / scale[:, None] / scale[None, :] + ridge * np.eye(len(g))
    values, vectors = np.linalg.eigh(system)
    condition = float(values[-1] / values[0]) if values[0] > 0 else np.inf
    if not condition < SINGULAR:
        _refuse(vectors[:, 0], names, condition)
    inverse = (vectors / values) @ vectors.T / scale[:, None] / scale[None, :]
    theta = inverse @ g
    theta = theta + inverse @ (g - _apply(gamma, ridge, scale, theta))  # one refinement
    return Solution(theta, inverse, condition)


def sandwich(bread: Matrix, meat: Matrix, total: Vector, weight: float) -> Matrix:
    """Return the Godambe covariance Γ⁻¹ (Σ w²ψψᵀ) Γ⁻¹, `bread` being that of the sum Γ.

    The mean of ψ, zero without a ridge, is taken out.
    """
    centered = meat - np.outer(total, total) / weight
    covariance = bread @ centered @ bread
    return (covariance + covariance.T) / 2


def _apply(gamma: Matrix, ridge: float, scale: Vector, theta: Vector) -> Vector:
    return gamma @ theta + ridge * scale**2 * theta


def _refuse(direction: Vector, names: Sequence[str], condition: float) -> None:
    """Name the statistics in the null direction."""
    share = np.abs(direction) / np.abs(direction).max()
    which = ", ".join(n for n, s in zip(names, share, strict=True) if s > 0.05)
    raise EstimatorError(
        f"The statistics {which} are collinear on these data (condition number {condition:.1e}), "
        "so their parameters cannot be told apart. Leave one out, or give ridge=1e-6 or so."
    )


def normal_quantile(level: float) -> float:
    """Return the normal quantile of a two-sided level."""
    if not 0 < level < 1:
        raise EstimatorError(f"level={level} is not a probability between 0 and 1.")
    return float(ndtri((1 + level) / 2))
