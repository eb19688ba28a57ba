"""Noise levels for a set of data: how wide, how many, how small, and why."""

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.spatial.distance import cdist
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
# η²/(2σ²) at the last level where the ratio is not NCSNv2's. Its rule for the step supposes data
# without width; modes wider than σ then never settle, and stay as wide as an earlier level left
# them. With 0.2 the noise itself comes out 1/(1 − 0.2/2) = 1.11 times too wide in variance, which
# the next level and the last denoising undo, while all wider than σ/√(0.2 · steps) settles.
_STEP = 0.2
# Rows that are compared with each other.
_ROWS = 2000
# Rows whose neighbourhoods are looked at, and the most columns for which that is quick.
_PLACES, _COLUMNS = 200, 64
# A neighbourhood this many times thinner than long is flat; one of a smooth density in d columns,
# seen through 2d + 2 neighbours, is 1 : 6 (the singular values of a random matrix).
_FLAT = 0.01

ONE_POINT = (
    "All rows are the same point, whose density is infinite: there is nothing to learn. Give rows "
    "that differ."
)


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
    the rule looks at radii only, and in few dimensions leaves too few levels. With a ratio of 1.5
    the step is √0.4 σ, longer than by the rule: see `langevin_size`.

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
    few = _some(rows)
    widest, spread = _widest(few), float(np.sqrt(rows.var(axis=0).mean()))
    if not widest > 0:
        raise EstimatorError(ONE_POINT)
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
    step = langevin_size(levels, dim, steps)
    reasons.append(
        f"step: {'the rule of NCSNv2' if _by_rule(dim) else '√0.4 times the last level'}"
    )
    if _is_thin(few):
        reasons.append("the data lie on a thin manifold: at no noise their score is infinite")
    found = findings(few, sigma=last)
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


def _some(rows: NDArray[Any]) -> NDArray[Any]:
    """Return at most so many rows that all can be compared with each other."""
    if len(rows) <= _ROWS:
        return rows
    return rows[np.random.default_rng(0).choice(len(rows), _ROWS, replace=False)]


def _widest(rows: NDArray[np.float64]) -> float:
    """Return the largest distance between rows."""
    centered = rows - rows.mean(axis=0)
    norms = (centered**2).sum(axis=1)
    squared = norms[:, None] + norms[None] - 2 * centered @ centered.T
    return math.sqrt(max(0.0, squared.max()))


def langevin_size(levels: Any, dim: int, steps: int) -> float:
    """Return η of Langevin at the last of some levels: NCSNv2's where its ratio is, else √0.4 σ."""
    if _by_rule(dim):
        return langevin_step(levels, steps)
    return math.sqrt(2 * _STEP) * float(levels[-1])


def _by_rule(dim: int) -> bool:
    return (_ratio(dim) or math.inf) <= _FALLBACK


def findings(rows: NDArray[Any], *, sigma: float | None = None) -> list[str]:
    """Say what about data is hard for a learned score.

    Parameters
    ----------
    rows
        The data.
    sigma
        The smallest noise they will be seen through; None is none, as in implicit and sliced
        losses.
    """
    found = []
    rows = _some(rows)
    places = rows[:: max(1, len(rows) // _PLACES)]
    # The nearest row but one: the nearest is the place itself. No product of matrices: for so few
    # columns the threads of BLAS cost more than they bring, and much more beside those of XLA.
    near = np.partition(cdist(places, rows), 1, axis=1)[:, 1]
    middle, dim = float(np.median(near)), rows.shape[1]
    if sigma is None:
        if middle == 0:
            found.append(
                "most rows occur more than once, so that their density is infinite, and implicit "
                "and sliced losses have no minimum. Take method='denoising', which adds noise."
            )
        elif _is_thin(rows):
            found.append(
                "they lie on a thin manifold, across which the density is infinite, and implicit "
                "and sliced losses have no minimum. Take method='denoising', which adds noise."
            )
    elif sigma * math.sqrt(dim) < middle / 50:
        found.append(
            f"noise of scale {sigma:.3g} is far below the distance between neighbouring rows "
            f"({middle:.3g}), so that a large network learns the rows by heart. Take more noise."
        )
    return found


def _is_thin(rows: NDArray[Any]) -> bool:
    """Say whether data are flat as a whole, or around most of their rows."""
    rows = np.asarray(rows, np.float64)
    dim, places = rows.shape[1], rows[: min(_PLACES, len(rows))]
    if _flatness(rows) < 1e-4:
        return True
    count = 2 * dim + 2
    if dim == 1 or dim > _COLUMNS or len(rows) < 10 * count:
        return False
    flat = []
    for place in places:
        near = np.argpartition(((rows - place) ** 2).sum(axis=1), count)[:count]
        flat.append(_flatness(rows[near]))
    return float(np.median(flat)) < _FLAT


def _flatness(rows: NDArray[np.float64]) -> float:
    """Return the least width of a cloud over its largest."""
    widths = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)
    return float(widths[-1] / widths[0]) if widths[0] > 0 else 0.0
