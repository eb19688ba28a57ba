"""Kernelised Stein discrepancy: how far draws are from a target, from its score alone."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from samplekit.core.cores import one_thread
from samplekit.core.errors import SettingsError
from samplekit.diagnostics.blocks import (
    Blocks,
    autocorrelation_time,
    make_blocks,
    tail_probability,
)
from samplekit.diagnostics.scores import place

# Rows of a tile: its half dozen matrices of 8 bytes stay in a core's second cache or near it.
_TILE = 256
# Draws whose pairwise distances give the median; it needs no precision.
_MEDIAN_DRAWS = 500
# A normal law has its quartiles 1.349 standard deviations apart.
_IQR_OF_SD = 1.349


@dataclasses.dataclass(frozen=True)
class SteinResult:
    """What `stein_discrepancy` found.

    Attributes
    ----------
    value
        The discrepancy, ≥ 0; it has no unit and falls as draws^(−1/2) when the draws fit.
    p_value
        Probability of a value as large for draws from the target, as correlated as these.
    null
        Root mean square of the values that such draws would give.
    contributions
        Of value², by coordinate (sums to it but for each draw's pairing with itself): which
        coordinates drive it. About zero, of either sign, where nothing is wrong.
    draws_used
        Draws compared, after thinning.
    autocorrelation_time
        Of the Stein features, in draws used; the bootstrap's signs remember five times as long.
    """

    value: float
    p_value: float
    null: float
    contributions: dict[str, float]
    draws_used: int
    autocorrelation_time: float


def stein_discrepancy(
    run: Any,
    target: Any,
    *,
    max_draws: int | None = None,
    bandwidth: float | str = "median",
    exponent: float = -0.5,
    bootstrap: int = 9999,
    seed: int = 0,
) -> SteinResult:
    """Measure how far the draws of a run are from the target, from the target's score alone.

    R-hat compares chains with each other and cannot see that all of them sample the wrong law, as
    an unadjusted kernel with a large step does. This compares them with the target.

    **It cannot see the weights of well-separated modes**: between them the density is nearly zero,
    so the score in one mode does not know of the other, and draws that miss a mode, or give it a
    wrong weight, still fit. Compare chains from different starts for that.

    Parameters
    ----------
    run
        A run, its path, or an array of unconstrained positions (draw, dim) or (chain, draw, dim).
    target
        The target; a score is enough.
    max_draws
        Thin evenly to at most so many draws; None uses all. The cost grows with the square, the
        memory does not: 10⁵ draws in 50 dimensions take minutes and less than 1 GiB.
    bandwidth
        c of the kernel, in units of the draws' scale; "median" is the median distance of two draws.
    exponent
        β of the kernel, between −1 and 0, for which the discrepancy detects that draws do not
        converge to the target.
    bootstrap
        Replications for the p-value, which is never below 1/(bootstrap + 1).
    seed
        Of the bootstrap.

    Returns
    -------
    A `SteinResult`: value, p_value, null, contributions, draws_used.

    Notes
    -----
    With s the score, k(x, y) = (c² + ‖x − y‖²)^β the inverse multiquadric kernel, and each
    coordinate divided by its interquartile range over 1.349,

        value² = n⁻² Σᵢⱼ u(xᵢ, xⱼ),  u(x, y) = (s(x) + ∇ₓ)·(s(y) + ∇ᵧ) k(x, y),

    whose expectation is zero only if the draws are from the target (Gorham and Mackey 2017,
    arXiv:1703.01717). The p-value is from the wild bootstrap n⁻² Σᵢⱼ wᵢwⱼ u(xᵢ, xⱼ) with Markov
    signs w, held over short blocks, whose memory is fitted to the autocorrelation of s and x·s, a
    process of its own for each chain (Chwialkowski, Sejdinovic and Gretton 2014, arXiv:1408.5404;
    Chwialkowski, Strathmann and Gretton 2016, arXiv:1602.02964).

    All this happens in unconstrained coordinates: a run shows constrained values, and each draw is
    mapped back to where kernels move, so that supports and NumPyro models need no special care.

    Examples
    --------
    >>> import numpy as np, samplekit as sk
    >>> target = sk.targets.gaussian(2)
    >>> exact = np.random.default_rng(0).normal(size=(1000, 2))
    >>> stein_discrepancy(exact, target).p_value > 0.05
    True
    >>> result = stein_discrepancy(exact * [1.0, 1.3], target)
    >>> result.p_value < 0.01, max(result.contributions, key=result.contributions.get)
    (True, 'x[1]')
    """
    if not -1 < exponent < 0:
        raise SettingsError(
            f"exponent={exponent} is not between −1 and 0; elsewhere the discrepancy may vanish "
            "for draws that do not fit. −0.5 is the usual choice."
        )
    if bootstrap < 1:
        raise SettingsError(f"bootstrap={bootstrap} gives no p-value. Give 1 or more, say 999.")
    placed = place(run, target, max_draws)
    return discrepancy(
        placed.positions,
        placed.scores(),
        placed.names,
        _Settings(bandwidth, exponent, bootstrap, seed),
    )


@dataclasses.dataclass(frozen=True)
class _Settings:
    bandwidth: float | str = "median"
    exponent: float = -0.5
    bootstrap: int = 9999
    seed: int = 0


def discrepancy(
    positions: np.ndarray,
    scores: np.ndarray,
    names: tuple[str, ...],
    settings: _Settings | None = None,
) -> SteinResult:
    """Compute the discrepancy of positions (chain, draw, dim) whose scores are known."""
    settings = settings or _Settings()
    chains, draws, dim = positions.shape
    count = chains * draws
    rng = np.random.default_rng(settings.seed)
    scale = robust_scale(positions.reshape(count, dim))
    center = np.median(positions.reshape(count, dim), axis=0)
    z, s = (positions - center) / scale, scores * scale
    time = autocorrelation_time(np.concatenate([s, z * s], axis=2))
    z, s = z.reshape(count, dim), s.reshape(count, dim)
    c2 = _bandwidth(settings.bandwidth, z, rng) ** 2
    blocks = make_blocks(chains, draws, time)
    # Products of tiles take microseconds: threads would spend ten times that waiting for each other
    # as soon as a core is busy with something else.
    with one_thread():
        sums, parts = _pair_sums(z, s, _Kernel(c2, settings.exponent), blocks)
    total = float(sums.sum())
    signs = blocks.signs(rng, settings.bootstrap)
    replicates = blocks.inflation * np.einsum("ij,ij->i", signs @ sums, signs)
    return SteinResult(
        value=max(total, 0.0) ** 0.5 / count,
        p_value=tail_probability(total, replicates),
        null=max(float(replicates.mean()), 0.0) ** 0.5 / count,
        contributions=dict(zip(names, (parts / count**2).tolist(), strict=True)),
        draws_used=count,
        autocorrelation_time=time,
    )


def robust_scale(rows: np.ndarray) -> np.ndarray:
    """Return a scale per column that heavy tails do not move; 1 for a constant column."""
    low, high = np.quantile(rows, [0.25, 0.75], axis=0)
    scale = (high - low) / _IQR_OF_SD
    # More than half of the draws at one value: a sticking chain still has a spread.
    scale = np.where(scale > 0, scale, rows.std(axis=0))
    return np.where(scale > 0, scale, 1.0)


def _bandwidth(given: float | str, z: np.ndarray, rng: np.random.Generator) -> float:
    if isinstance(given, str):
        if given != "median":
            raise SettingsError(f'bandwidth={given!r} is not known. Give "median" or a number.')
        some = z[rng.choice(len(z), min(len(z), _MEDIAN_DRAWS), replace=False)]
        pairs = np.triu_indices(len(some), 1)
        squares = np.sum(some**2, axis=1)
        distances = (squares[:, None] + squares - 2 * some @ some.T)[pairs]
        median = float(np.median(distances)) if distances.size else 0.0
        return median**0.5 if median > 0 else 1.0
    if not given > 0:
        raise SettingsError(f'bandwidth={given} is not positive. Give "median" or a length.')
    return float(given)


@dataclasses.dataclass(frozen=True)
class _Kernel:
    """(c² + r²)^β."""

    c2: float
    beta: float

    def powers(self, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return q^β and 1/q; q is overwritten."""
        inverse = np.reciprocal(q, out=q)
        return np.sqrt(inverse) if self.beta == -0.5 else inverse**-self.beta, inverse


def _tiles(blocks: Blocks, count: int) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """Yield runs of whole blocks: their rows, their numbers, and their starts within the rows."""
    ends = np.append(blocks.starts[1:], count)
    first = 0
    while first < len(ends):
        begin = blocks.starts[first]
        last = max(first + 1, int(np.searchsorted(ends, begin + _TILE, side="right")))
        yield slice(begin, ends[last - 1]), slice(first, last), blocks.starts[first:last] - begin
        first = last


def _pair_sums(
    z: np.ndarray, s: np.ndarray, kernel: _Kernel, blocks: Blocks
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of u over pairs of blocks, and over pairs of draws by coordinate.

    With d = x − y and q = c² + ‖d‖²:  u = q^β s(x)·s(y) + 2β q^(β−1) (s(y) − s(x))·d
    − 2βD q^(β−1) − 4β(β−1) q^(β−2) ‖d‖², a sum over the D coordinates. Tiles of all pairs, those
    below the diagonal by symmetry; all inner products are matrix products.
    """
    count, dim = z.shape
    beta, c2 = kernel.beta, kernel.c2
    bend = 4 * beta * (beta - 1)
    one = np.ones((count, 1))
    squares, work = np.sum(z * z, axis=1)[:, None], np.sum(z * s, axis=1)[:, None]
    # Row times column gives c² + ‖d‖², and 2β((s(y) − s(x))·d − D) − 4β(β−1).
    near = np.hstack([z, squares + c2, one]), np.hstack([-2 * z, one, squares])
    drift = np.hstack([z, s, work, one]), 2 * beta * np.hstack([s, z, -one, -work])
    drift[1][:, -1] -= 2 * beta * dim + bend
    sums = np.empty((len(blocks.starts),) * 2)
    parts = np.zeros(dim)
    tiles = list(_tiles(blocks, count))
    for i, (rows, a, row_starts) in enumerate(tiles):
        for columns, b, column_starts in tiles[i:]:
            q = near[0][rows] @ near[1][columns].T
            power, inverse = kernel.powers(np.maximum(q, c2, out=q))
            u = drift[0][rows] @ drift[1][columns].T
            u += bend * c2 * inverse
            u *= inverse
            u += s[rows] @ s[columns].T
            u *= power
            tile = np.add.reduceat(np.add.reduceat(u, column_starts, axis=1), row_starts, axis=0)
            sums[a, b], sums[b, a] = tile, tile.T
            twice = 1.0 if a == b else 2.0
            pair = (z[rows], s[rows]), (z[columns], s[columns])
            parts += twice * _by_coordinate(*pair, (power, inverse), beta)
    own = s * s * c2**beta - 2 * beta * c2 ** (beta - 1)  # each draw with itself
    return sums, parts - own.sum(axis=0)


def _by_coordinate(
    x: tuple[np.ndarray, np.ndarray],
    y: tuple[np.ndarray, np.ndarray],
    powers: tuple[np.ndarray, np.ndarray],
    beta: float,
) -> np.ndarray:
    """Return the sums of u's summands over a tile, one a coordinate."""
    (zx, sx), (zy, sy) = x, y
    power, inverse = powers
    value = np.sum(sx * (power @ sy), axis=0)
    power = power * inverse
    rows, columns = power.sum(axis=1), power.sum(axis=0)
    cross = np.sum(zx * (power @ sy) + sx * (power @ zy), axis=0)
    cross -= rows @ (zx * sx) + columns @ (zy * sy)
    value += 2 * beta * (cross - rows.sum())
    power *= inverse
    rows, columns = power.sum(axis=1), power.sum(axis=0)
    spread = rows @ (zx * zx) + columns @ (zy * zy) - 2 * np.sum(zx * (power @ zy), axis=0)
    return value - 4 * beta * (beta - 1) * spread
