"""Noise levels for a set of data: how wide, how many, how small, and why."""

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr
from sklearn.utils.validation import check_array

from samplekit.core.errors import EstimatorError
from samplekit.targets.paths import langevin_step

# Neighbouring levels share this part of their mass (Song and Ermon 2020, technique 2).
_OVERLAP = 0.5
# The ratio where that rule has no solution, in up to four dimensions, and at most elsewhere.
_FALLBACK = 1.5
# The last level in standard deviations of the data: invisible beside the data's own spread.
_LAST = 0.02
# Rows that are compared with each other.
_ROWS = 2000


@dataclasses.dataclass(frozen=True)
class NoiseLevels:
    """Levels σ_1 > … > σ_L, the step of Langevin at the last, and the reasons."""

    levels: NDArray[np.float64]
    ratio: float
    steps: int
    step_size: float
    reasons: tuple[str, ...]
    findings: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f"{len(self.levels)} noise levels from {self.levels[0]:.3g} to {self.levels[-1]:.3g}, "
            f"ratio {self.ratio:.3g}; {self.steps} Langevin steps a level, "
            f"step size {self.step_size:.3g} at the last."
        ]
        lines += [f"- {text}" for text in self.reasons]
        lines += [f"! {text}" for text in self.findings]
        return "\n".join(lines)


def noise_levels(
    X: Any, *, n_levels: int | None = None, sigma_min: float | None = None, steps: int = 100
) -> NoiseLevels:
    """Choose noise levels for annealing from data, and say why.

    Parameters
    ----------
    X
        Rows of data.
    n_levels
        How many; None follows the rule for the ratio.
    sigma_min
        The last level; None is 0.02 standard deviations of the data.
    steps
        Langevin steps a level, which the step size depends on.

    Notes
    -----
    The first level is the largest distance of two rows, so that from there every mode can be
    reached; the ratio γ solves Φ(√(2D)(γ−1) + 3γ) − Φ(√(2D)(γ−1) − 3γ) = ½, and the step brings the
    variance after `steps` steps closest to that of the level (Song and Ermon 2020,
    arXiv:2006.09011). In up to four dimensions the equation has no solution, as neighbouring levels
    overlap whatever their ratio: it is then 1.5. Where it asks for more than 1.5 it is 1.5 as well:
    the rule looks at radii only, and in few dimensions leaves too few levels.

    Examples
    --------
    >>> import numpy as np, samplekit as sk
    >>> X = np.random.default_rng(0).normal(size=(500, 2))
    >>> chosen = sk.noise_levels(X)
    >>> bool(chosen.levels[0] > chosen.levels[-1])
    True
    """
    rows: Any = check_array(X, dtype="float64", ensure_min_samples=2)
    dim = rows.shape[1]
    few = rows
    if len(rows) > _ROWS:
        few = rows[np.random.default_rng(0).choice(len(rows), _ROWS, replace=False)]
    apart = _distances(few)
    widest, spread = float(apart.max()), float(np.sqrt(rows.var(axis=0).mean()))
    if not widest > 0:
        raise EstimatorError("All rows are the same point: there is nothing to learn from them.")
    last = _LAST * spread if sigma_min is None else float(sigma_min)
    if not 0 < last < widest:
        raise EstimatorError(f"sigma_min={last:.3g} must lie between 0 and {widest:.3g}.")
    solved = _ratio(dim)
    ratio = min(solved or _FALLBACK, _FALLBACK)
    count = max(2, 1 + math.ceil(math.log(widest / last) / math.log(ratio)))
    count = count if n_levels is None else max(2, int(n_levels))
    levels = np.geomspace(widest, last, count)
    reasons = [
        f"first: the largest distance of two rows ({len(few):,} compared)",
        f"last: {'given' if sigma_min is not None else f'{_LAST} standard deviations of the data'}",
        _why_ratio(dim, solved) if n_levels is None else f"{count} levels: given",
    ]
    ratio = float(levels[0] / levels[1])
    step = langevin_step(levels, steps)
    found = _findings(rows, apart, last)
    return NoiseLevels(levels, ratio, steps, step, tuple(reasons), tuple(found))


def _why_ratio(dim: int, solved: float | None) -> str:
    if solved is None:
        return f"ratio: {_FALLBACK}, as the rule of NCSNv2 has no solution in {dim} dimensions"
    if solved > _FALLBACK:
        return f"ratio: {_FALLBACK}; the rule of NCSNv2 would take {solved:.3g}, too few levels"
    return f"ratio: {solved:.4g}, where neighbouring levels share half of their mass (NCSNv2)"


def _ratio(dim: int) -> float | None:
    """Solve for γ; None where there is no solution."""

    def excess(gamma: float) -> float:
        middle = math.sqrt(2 * dim) * (gamma - 1)
        return float(ndtr(middle + 3 * gamma) - ndtr(middle - 3 * gamma)) - _OVERLAP

    # For √(2D) ≤ 3 the overlap rises again with γ and never falls to a half.
    return None if 2 * dim <= 9 else float(brentq(excess, 1.0, 1e3))  # pyright: ignore[reportArgumentType]


def _distances(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return all distances between rows; infinite precision is not needed, the range is."""
    centered = rows - rows.mean(axis=0)
    norms = (centered**2).sum(axis=1)
    squared = norms[:, None] + norms[None] - 2 * centered @ centered.T
    return np.sqrt(np.maximum(squared, 0))


def _findings(rows: NDArray[np.float64], apart: NDArray[np.float64], last: float) -> list[str]:
    """Say what about the data is hard for a learned score."""
    found = []
    widths = np.sqrt(np.maximum(np.linalg.eigvalsh(np.cov(rows.T).reshape(rows.shape[1], -1)), 0))
    thin = int((widths < last / 10).sum())
    if thin:
        found.append(
            f"the data are thinner than a tenth of the last level in {thin} of {rows.shape[1]} "
            "directions: they lie on a manifold, where the score without noise is infinite. "
            "Denoising losses see it through the noise; implicit and sliced ones have no minimum."
        )
    away = np.where(np.eye(len(apart), dtype=bool), np.inf, apart).min(axis=1)
    near = float(np.median(away))
    if last < near / 10 / math.sqrt(rows.shape[1]):
        found.append(
            f"the last level is far below the distance between neighbouring rows ({near:.3g}): "
            "a large network will learn the rows by heart there. Give a larger sigma_min."
        )
    if near == 0:
        found.append("most rows occur more than once: their density is infinite without noise.")
    return found
