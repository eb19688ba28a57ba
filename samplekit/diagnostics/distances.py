"""Distances between a run and exact draws or data, where those exist."""

import dataclasses
from typing import Any

import jax
import numpy as np

from samplekit.core.errors import SettingsError
from samplekit.diagnostics.blocks import autocorrelation_time, make_blocks, tail_probability
from samplekit.diagnostics.evidence import gather
from samplekit.diagnostics.scores import thin

# Rows of distances computed at once.
_TILE = 512


@dataclasses.dataclass(frozen=True)
class Distance:
    """A distance between two sets of draws.

    Attributes
    ----------
    value
        The distance, in the units of the draws.
    p_value
        Probability of one as large if both were from the same law, as correlated as they are.
    null
        Mean of the distances that such draws would give: what `value` cannot fall below.
    draws_used
        Draws of the run and of the other that were compared.
    """

    value: float
    p_value: float
    null: float
    draws_used: tuple[int, int]


def energy_distance(
    run: Any, exact: Any, *, max_draws: int = 5000, bootstrap: int = 999, seed: int = 0
) -> Distance:
    """Compute the energy distance between a run and exact draws or data.

    Parameters
    ----------
    run
        A run, its path, or an array (draw, dim) or (chain, draw, dim).
    exact
        Independent draws or data, (draw, dim); or another run.
    max_draws
        Thin each side evenly to at most so many; the cost grows with the square.
    bootstrap
        Replications for the p-value.
    seed
        Of the bootstrap.

    Returns
    -------
    A `Distance`: value, p_value, null, draws_used.

    Notes
    -----
    D² = 2E‖X − Y‖ − E‖X − X'‖ − E‖Y − Y'‖, zero only for equal laws with finite means (Székely and
    Rizzo 2013, doi:10.1016/j.jspi.2013.03.018), in the units of the draws: divide coordinates of
    different scale beforehand. The p-value is from the wild bootstrap for two correlated samples:
    centered Markov signs on each chain, with a memory fitted to its autocorrelation (Chwialkowski,
    Sejdinovic and Gretton 2014, arXiv:1408.5404).

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.normal(size=(4, 250, 2)), rng.normal(size=(1000, 2))
    >>> energy_distance(x, y).p_value > 0.05, energy_distance(x * 1.3, y).p_value < 0.01
    (True, True)
    """
    x, y = _pair(run, exact, max_draws)
    rng = np.random.default_rng(seed)
    times = [autocorrelation_time(_with_squares(a)) for a in (x, y)]
    cuts = [make_blocks(a.shape[0], a.shape[1], t) for a, t in zip((x, y), times, strict=True)]
    rows = [a.reshape(-1, a.shape[-1]) for a in (x, y)]
    joined = np.concatenate(rows)
    starts = np.concatenate([cuts[0].starts, cuts[1].starts + len(rows[0])])
    sums = _distance_sums(joined, starts)
    sizes = np.diff(np.append(starts, len(joined))).astype(float)
    own = np.arange(len(starts)) < len(cuts[0].starts)
    weight = np.where(own, 1 / len(rows[0]), -1 / len(rows[1]))
    square = -float(weight @ sums @ weight)
    inflation = np.where(own, cuts[0].inflation, cuts[1].inflation) ** 0.5
    signs = np.concatenate([cut.signs(rng, bootstrap) for cut in cuts], axis=1)
    for side in (own, ~own):  # centered, as means are what the two sides may share
        means = signs[:, side] @ sizes[side] / sizes[side].sum()
        signs[:, side] -= means[:, None]
    signs = signs * (weight * inflation)
    replicates = -np.einsum("ij,ij->i", signs @ sums, signs)
    return Distance(
        value=max(square, 0.0) ** 0.5,
        p_value=tail_probability(square, replicates),
        null=float(np.mean(np.maximum(replicates, 0.0) ** 0.5)),
        draws_used=(len(rows[0]), len(rows[1])),
    )


def sliced_wasserstein(
    run: Any,
    exact: Any,
    *,
    projections: int = 50,
    max_draws: int = 5000,
    permutations: int = 199,
    seed: int = 0,
) -> Distance:
    """Compute the sliced Wasserstein distance of order 1 between a run and exact draws or data.

    Parameters
    ----------
    run
        A run, its path, or an array (draw, dim) or (chain, draw, dim).
    exact
        Independent draws or data, (draw, dim); or another run.
    projections
        Random directions; one dimension needs none.
    max_draws
        Thin each side evenly to at most so many.
    permutations
        Replications for the p-value.
    seed
        Of directions and permutations.

    Returns
    -------
    A `Distance`: value, p_value, null, draws_used.

    Notes
    -----
    SW₁ is the mean over unit directions θ of ∫|F(t) − G(t)| dt, F and G the distribution functions
    of θ·x on either side (Bonneel, Rabin, Peyré and Pfister 2015, doi:10.1007/s10851-014-0506-3).
    `value` uses all draws. For the p-value and `null` each side is thinned to its effective size,
    so that its draws are nearly independent and labels may be permuted.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.normal(size=(4, 250, 2)), rng.normal(size=(1000, 2))
    >>> sliced_wasserstein(x, y).p_value > 0.05, sliced_wasserstein(x + 0.5, y).p_value < 0.01
    (True, True)
    """
    sides = _pair(run, exact, max_draws)
    rng = np.random.default_rng(seed)
    dim = sides[0].shape[2]
    directions = rng.normal(size=(projections, dim)) if dim > 1 else np.ones((1, 1))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    rows = [a.reshape(-1, dim) for a in sides]
    value = _sliced(rows, directions, np.arange(len(rows[0]) + len(rows[1]))[None])[0]
    few = [_independent(a) for a in sides]
    total = len(few[0]) + len(few[1])
    orders = rng.permuted(np.tile(np.arange(total), (permutations + 1, 1)), axis=1)
    orders[0] = np.arange(total)
    thinned, *replicates = _sliced(few, directions, orders)
    return Distance(
        value=float(value),
        p_value=tail_probability(float(thinned), np.asarray(replicates)),
        null=float(np.mean(replicates)),
        draws_used=(len(rows[0]), len(rows[1])),
    )


def _sliced(rows: list[np.ndarray], directions: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """Return SW₁ for each relabeling of the joined rows: place i is the first side's if below n."""
    joined = np.concatenate(rows)
    first, second = len(rows[0]), len(rows[1])
    steps = np.where(orders < first, 1 / first, -1 / second)  # of F − G, place by place
    total = np.zeros(len(orders))
    for direction in directions:
        along = joined @ direction
        order = np.argsort(along)
        gaps = np.diff(along[order])
        total += np.abs(np.cumsum(steps[:, order[:-1]], axis=1)) @ gaps
    return total / len(directions)


def _independent(draws: np.ndarray) -> np.ndarray:
    """Thin chains to their effective size."""
    every = int(np.ceil(autocorrelation_time(_with_squares(draws)) - 0.5))
    return draws[:, ::every].reshape(-1, draws.shape[2])


def _with_squares(draws: np.ndarray) -> np.ndarray:
    """Append squared deviations: antithetic draws are slow in those, not in the mean."""
    centered = draws - np.median(draws, axis=(0, 1))
    return np.concatenate([draws, centered**2], axis=2)


def _pair(run: Any, exact: Any, most: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = _draws(run), _draws(exact)
    if x.shape[2] != y.shape[2]:
        raise SettingsError(
            f"One side has {x.shape[2]} coordinates, the other {y.shape[2]}. Give both the same, "
            "in the same order."
        )
    return thin(x, most), thin(y, most)


def _draws(run: Any) -> np.ndarray:
    """Return draws (chain, draw, dim) of a run or an array, as they are shown."""
    if isinstance(run, np.ndarray | jax.Array | list):
        draws = np.asarray(run, dtype=np.float64)
        draws = draws[None] if draws.ndim == 2 else draws
    else:
        variables = gather(run).variables.values()
        flat = [v.reshape(*v.shape[:2], -1) for v in variables]
        draws = np.concatenate(flat, axis=2, dtype=np.float64)
    if draws.ndim != 3 or not draws.size:
        raise SettingsError(
            f"Draws of shape {list(draws.shape)} are not (draw, dim) or (chain, draw, dim)."
        )
    if not np.isfinite(draws).all():
        raise SettingsError("Some draws are not finite, so no distance is. Remove them first.")
    return draws


def _distance_sums(rows: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the sums of ‖x − y‖ over pairs of blocks."""
    rows = rows - np.median(rows, axis=0)  # far from zero, differences of squares lose digits
    squares = np.sum(rows**2, axis=1)
    partial = np.empty((len(rows), len(starts)))
    for begin in range(0, len(rows), _TILE):
        part = slice(begin, begin + _TILE)
        square = squares[part, None] + squares - 2 * rows[part] @ rows.T
        partial[part] = np.add.reduceat(np.sqrt(np.maximum(square, 0.0)), starts, axis=1)
    return np.add.reduceat(partial, starts, axis=0)
