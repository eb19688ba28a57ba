"""Correlated draws under the bootstrap: blocks that share a sign, and signs that remember.

Quadratic statistics Σᵢⱼ h(xᵢ, xⱼ) of draws that fit have, with Markov signs wᵢ = ±1, the law of
Σᵢⱼ wᵢ wⱼ h(xᵢ, xⱼ): the wild bootstrap. Draws next to each other need nearly the same sign, so a
sign may as well be held over a short block. The sums of h over pairs of blocks are then all that
the bootstrap needs, and ten thousand replications cost less than the sums themselves.
"""

import dataclasses
import math

import numpy as np

from samplekit.sampling.convergence import ess_bulk

# Blocks: enough for the law of a quadratic form (its few large eigenvalues), cheap as a matrix.
MOST_BLOCKS = 400

# The signs' memory over that of the draws. The bootstrap variance is then 1/6 too small, which
# `Blocks.inflation` puts right to first order; a longer memory would leave too few free signs.
_MEMORY = 5.0


@dataclasses.dataclass(frozen=True)
class Blocks:
    """A cut of draws, chain after chain, into blocks.

    Attributes
    ----------
    starts
        Where each block begins among the draws of all chains, joined.
    chains
        Number of independent sign processes; each has equally many blocks.
    flip
        Probability that a sign differs from the block before.
    inflation
        What the bootstrap statistic is multiplied by, for correlation beyond the signs' memory.
    """

    starts: np.ndarray
    chains: int
    flip: float
    inflation: float

    def signs(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Return `count` rows of Markov signs ±1, one a block."""
        each = len(self.starts) // self.chains
        flips = rng.random((count, self.chains, each), dtype=np.float32) < self.flip
        flips[:, :, 0] = rng.random((count, self.chains)) < 0.5
        odd = np.cumsum(flips, axis=2, dtype=np.int32) % 2
        return 1.0 - 2.0 * odd.reshape(count, -1)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Return the sums over blocks of rows."""
        return np.add.reduceat(values, self.starts, axis=0)


def autocorrelation_time(series: np.ndarray) -> float:
    """Return the longest integrated autocorrelation time of series (chain, draw, k), in draws.

    At least 1: antithetic draws are treated as independent. Series that are constant, or too short
    to tell, do not count.
    """
    chains, draws = series.shape[:2]
    ess = ess_bulk(series)
    ess = ess[np.isfinite(ess)]
    return max(1.0, chains * draws / max(float(ess.min()), 1.0)) if ess.size else 1.0


def make_blocks(chains: int, draws: int, time: float, most: int = MOST_BLOCKS) -> Blocks:
    """Cut chains into blocks whose signs fit an integrated autocorrelation time.

    Notes
    -----
    Signs at distance k have the correlation w(k) = exp(−k/ℓ), and the bootstrap sees Σ γ(k)w(k) of
    the autocovariances γ instead of Σ γ(k): less by the factor 1 + w'(0) Σ|k|γ(k)/Σγ(k), where for
    geometric γ the last ratio is m = (t² − 1)/2t, t the autocorrelation time. ℓ is 5 m. Signs held
    over L draws make w linear in between, with w'(0) = −(1 − exp(−L/ℓ))/L.
    """
    if chains >= most:  # a block is a few whole chains, independent of all others
        starts = np.linspace(0, chains, most, endpoint=False).astype(int) * draws
        return Blocks(starts, most, 0.5, 1.0)
    each = min(draws, most // chains)
    within = np.linspace(0, draws, each, endpoint=False).astype(int)
    starts = (np.arange(chains)[:, None] * draws + within).ravel()
    length = draws / each
    memory = (time * time - 1) / (2 * time)
    kept = math.exp(-length / (_MEMORY * memory)) if memory > 1e-3 else 0.0
    return Blocks(starts, chains, (1 - kept) / 2, 1 / (1 - memory * (1 - kept) / length))


def tail_probability(statistic: float, replicates: np.ndarray) -> float:
    """Return how often replicates reach the statistic, itself counted as one of them."""
    # Rounding must not tell equal numbers apart: few blocks repeat the statistic exactly.
    reached = replicates >= statistic - 1e-9 * abs(statistic)
    return float((1 + np.count_nonzero(reached)) / (1 + len(replicates)))
