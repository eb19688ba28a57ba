r"""The numbers of every scalar, in one pass: ArviZ's table, and what the verdicts need beside it.

Notes
-----
Rank R-hat, bulk and tail effective sample size are those of Vehtari et al. (2021),
doi:10.1214/20-BA1221; the Monte Carlo standard errors are

.. math::

    \mathrm{MCSE}(\bar x) = s / \sqrt{\mathrm{ESS}(x)}, \qquad
    \mathrm{MCSE}(s) = \sqrt{\frac{m_4 - m_2^2}{4\, m_2\, \mathrm{ESS}((x - \bar x)^2)}},

with :math:`m_k` the central moments of all draws (Kenney and Keeping 1951, p. 141), as in ArviZ.
They equal ArviZ's to rounding, and are NaN for what is constant or not finite.

Verdicts ask how much of a number is noise. For that the effective sample size must not look at the
differences between chains, which are what is judged: `Halves.ess` uses the autocorrelation within
half chains alone. Subtracting the mean of :math:`n` draws makes every autocovariance too small by
:math:`\sigma^2 \tau / n` in expectation, which is put back, :math:`\tau` being found by iteration.
"""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from samplekit.diagnostics.evidence import Evidence
from samplekit.sampling.ranks import (
    autocovariance,
    geyer_ess,
    normal_ranks,
    split_chains,
    split_ess,
    split_rhat,
    tail_ess,
)

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "mean",
    "sd",
    "q5",
    "median",
    "q95",
    "mcse_mean",
    "mcse_sd",
    "ess_bulk",
    "ess_tail",
    "r_hat",
)

# Below four draws a half chain has a single draw and no variance.
FEWEST_DRAWS = 4

# A computed constant, such as the unit diagonal of a correlation matrix, jitters by rounding: a
# spread of a few units in the last place is none.
_ROUNDING = 8


@dataclasses.dataclass(frozen=True)
class Halves:
    """Half chains of every scalar in normal scores, of x and of |x − median| (first axis).

    Attributes
    ----------
    means
        Means of the half chains, (2, scalar, half chain): all first halves, then all second ones.
    variance
        What noise alone gives such a mean as its variance, (2, scalar).
    ess
        Effective draws of all half chains together, by their autocorrelation within, (2, scalar).
    """

    means: np.ndarray
    variance: np.ndarray
    ess: np.ndarray


@dataclasses.dataclass(frozen=True)
class Numbers:
    """What was measured, in the order of `Evidence.names`.

    Attributes
    ----------
    table
        One row a scalar, the columns `COLUMNS`.
    nonfinite
        NaN or infinite draws, (scalar, chain).
    changes
        How often a draw differs from the one before it, (scalar, chain); 0 is a frozen chain.
    first
        The first draw, (scalar, chain).
    fixed
        Which scalars have one value in all chains and draws (up to rounding).
    halves
        The half chains in normal scores; NaN where undefined.
    """

    table: "pd.DataFrame"
    nonfinite: np.ndarray
    changes: np.ndarray
    first: np.ndarray
    fixed: np.ndarray
    halves: Halves

    @property
    def usable(self) -> np.ndarray:
        """Which scalars can be judged: all draws finite, not frozen at one value everywhere."""
        return ~self.fixed & ~self.nonfinite.any(axis=1)


def measure(evidence: Evidence) -> Numbers:
    """Measure every scalar of a run.

    Parameters
    ----------
    evidence
        The run, opened by `gather`.

    Examples
    --------
    >>> import numpy as np
    >>> from samplekit.diagnostics.evidence import gather
    >>> x = np.random.default_rng(0).normal(size=(4, 500))
    >>> measure(gather({"x": x})).table["ess_bulk"].iloc[0] > 1000
    np.True_
    """
    import pandas as pd

    rounding = np.concatenate(
        [
            np.full(int(np.prod(v.shape[2:])), _ROUNDING * np.finfo(v.dtype).eps)
            for v in evidence.variables.values()
        ]
    )
    blocks, done = [], 0
    for labels, rows in evidence.scalars():
        blocks.append(_block(rows, rounding[done : done + len(labels)]))
        done += len(labels)
    columns = np.concatenate([b.columns for b in blocks], axis=1)
    halves = (
        np.concatenate(parts, axis=1) for parts in zip(*(b.halves for b in blocks), strict=True)
    )
    return Numbers(
        table=pd.DataFrame(columns.T, index=list(evidence.names), columns=list(COLUMNS)),
        nonfinite=np.concatenate([b.nonfinite for b in blocks]),
        changes=np.concatenate([b.changes for b in blocks]),
        first=np.concatenate([b.first for b in blocks]),
        fixed=np.concatenate([b.fixed for b in blocks]),
        halves=Halves(*halves),
    )


@dataclasses.dataclass(frozen=True)
class _Block:
    """What `Numbers` holds, of some scalars."""

    columns: np.ndarray
    nonfinite: np.ndarray
    changes: np.ndarray
    first: np.ndarray
    fixed: np.ndarray
    halves: tuple[np.ndarray, np.ndarray, np.ndarray]


def _block(rows: np.ndarray, rounding: np.ndarray) -> _Block:
    """Measure (scalar, chain, draw)."""
    count, chains, draws = rows.shape
    columns = np.full((len(COLUMNS), count), np.nan)
    means = np.full((2, count, 2 * chains), np.nan)
    variance, ess = np.full((2, count), np.nan), np.full((2, count), np.nan)
    nonfinite = (~np.isfinite(rows)).sum(axis=2)
    changes = (rows[:, :, 1:] != rows[:, :, :-1]).sum(axis=2)
    # NaN and infinite draws make their numbers NaN or inf, which is what the table is to say;
    # chains frozen apart divide by a zero variance: inf is the right R-hat.
    with np.errstate(all="ignore"):
        low, high = rows.min(axis=(1, 2)), rows.max(axis=(1, 2))
        fixed = high - low <= rounding * np.maximum(np.abs(low), np.abs(high))
        columns[0] = rows.mean(axis=(1, 2))
        if chains * draws > 1:
            columns[1] = rows.std(axis=(1, 2), ddof=1)
        columns[2:5] = np.quantile(rows, (0.05, 0.5, 0.95), axis=(1, 2))
        defined = ~nonfinite.any(axis=1) & (low < high)
        if draws >= FEWEST_DRAWS and defined.any():
            chosen = rows if defined.all() else rows[defined]
            columns[5:7, defined] = _errors(chosen, columns[1, defined])
            columns[7:, defined], *halves = _ranked(chosen)
            means[:, defined], variance[:, defined], ess[:, defined] = halves
    first = rows[:, :, 0].copy()
    return _Block(columns, nonfinite, changes, first, fixed, (means, variance, ess))


def _errors(rows: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Compute the Monte Carlo standard errors of mean and standard deviation."""
    centered = rows - rows.mean(axis=(1, 2), keepdims=True)
    squares = centered**2
    second = squares.mean(axis=(1, 2))
    fourth = np.einsum("kcd,kcd->k", squares, squares) / squares[0].size
    of_mean = sd / np.sqrt(split_ess(split_chains(centered)))
    of_sd = np.sqrt((fourth - second**2) / second / split_ess(split_chains(squares))) / 2
    return np.stack((of_mean, of_sd))


def _ranked(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Compute bulk and tail effective sample size, R-hat, and the half chains."""
    split = split_chains(rows)
    z, median = normal_ranks(split)
    folded, _ = normal_ranks(np.abs(split - median))
    covariance = autocovariance(z - z.mean(axis=2, keepdims=True))
    bulk = geyer_ess(covariance, z.mean(axis=2).var(axis=1, ddof=1), chains=z.shape[1])
    # A fold may leave a constant (two values, equally often): then the bulk decides.
    rhat = np.fmax(split_rhat(z), split_rhat(folded))
    if rows.shape[1] == 1:
        rhat = np.full(len(rows), np.nan)
    halves = [_noise(z, covariance)]
    halves.append(_noise(folded, autocovariance(folded - folded.mean(axis=2, keepdims=True))))
    means, variance, ess = (np.stack(parts) for parts in zip(*halves, strict=True))
    return np.stack((bulk, tail_ess(rows), rhat)), means, variance, ess


def _noise(z: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the means of half chains, their variance by noise alone, and the effective draws."""
    chains = z.shape[1]
    between = ess = np.zeros(len(z))
    for _ in range(3):  # τ converges geometrically, by a factor of about τ/n
        ess = geyer_ess(covariance, between, chains=chains)
        # v = (γ₀ + v) τ/n solved for v; a chain shorter than 2τ tells no more than γ₀.
        between = covariance[:, 0] / np.maximum(ess / chains - 1, 1)
    return z.mean(axis=2), between, ess


def ebfmi(energy: np.ndarray) -> np.ndarray:
    r"""Compute the energy Bayesian fraction of missing information of each chain.

    Parameters
    ----------
    energy
        The Hamiltonian at every draw, (chain, draw).

    Notes
    -----
    :math:`\sum_n (E_n - E_{n-1})^2 / (N - 1)` over the variance of :math:`E`: how much of the
    spread of energies one fresh momentum brings. Betancourt 2016, arXiv:1604.00695. NaN where the
    energy is constant or not finite.

    Examples
    --------
    >>> import numpy as np
    >>> ebfmi(np.random.default_rng(0).normal(size=(1, 4000))).round(1)  # independent: 2
    array([2.])
    """
    with np.errstate(all="ignore"):
        energy = np.asarray(energy, np.float64)
        if energy.shape[1] < 2:
            return np.full(len(energy), np.nan)
        return (np.diff(energy, axis=1) ** 2).mean(axis=1) / energy.var(axis=1, ddof=1)
