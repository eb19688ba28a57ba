"""Arithmetic of convergence over arrays (scalar, chain, draw): ranks, R-hat, ESS.

What the numbers mean, and their references, is said in `samplekit.sampling.convergence`.
"""

import functools

import numpy as np

_TAILS = (0.05, 0.95)


def split_chains(rows: np.ndarray) -> np.ndarray:
    """Split every chain into halves; an odd number of draws loses the middle one."""
    half = rows.shape[2] // 2
    return np.concatenate((rows[:, :, :half], rows[:, :, -half:]), axis=1)


@functools.lru_cache(maxsize=1)  # all blocks of a run have the same size
def _normal_scores(size: int) -> np.ndarray:
    """Tabulate Φ⁻¹((r − 3/8)/(S + 1/4)) for the average ranks r = 1, 3/2, 2, ..., S."""
    # The standard library's inverse (Wichura's AS241, 16 digits) rather than SciPy's, whose
    # import takes 0.25 s. Ranks repeat in every scalar, so the table costs next to nothing.
    from statistics import NormalDist

    ranks = 1 + np.arange(size - 1) / 2
    inverse = NormalDist().inv_cdf
    lower = np.fromiter(map(inverse, ((ranks - 3 / 8) / (size + 1 / 4)).tolist()), float, size - 1)
    return np.concatenate((lower, [0.0], -lower[::-1]))


def normal_ranks(split: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Replace values by the normal scores of their average ranks; also give the medians."""
    size = split.shape[1] * split.shape[2]
    flat = split.reshape(-1, size)
    order = np.argsort(flat, axis=1)
    ordered = np.take_along_axis(flat, order, axis=1)
    differs = ordered[:, 1:] != ordered[:, :-1]
    edge = np.ones((len(flat), 1), bool)
    place = np.arange(size)
    # Tied values share the mean of their first and last place; the sum indexes the table.
    first = np.where(np.hstack((edge, differs)), place, 0)
    np.maximum.accumulate(first, axis=1, out=first)
    last = np.where(np.hstack((differs, edge)), place, size - 1)
    last = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]
    z = np.empty_like(flat)
    np.put_along_axis(z, order, _normal_scores(size)[first + last], axis=1)
    # Halves make the size even: the median is the mean of the two middle values.
    median = (ordered[:, size // 2 - 1] + ordered[:, size // 2]) / 2
    return z.reshape(split.shape), median[:, None, None]


def split_rhat(z: np.ndarray) -> np.ndarray:
    """Compute R-hat over (scalar, split chain, draw)."""
    draws = z.shape[2]
    between = draws * z.mean(axis=2).var(axis=1, ddof=1)
    within = z.var(axis=2, ddof=1).mean(axis=1)
    return np.sqrt((between / within + draws - 1) / draws)


def split_ess(split: np.ndarray) -> np.ndarray:
    """Compute the effective sample size over (scalar, half chain, draw)."""
    means = split.mean(axis=2)
    covariance = autocovariance(split - means[:, :, None])
    return geyer_ess(covariance, means.var(axis=1, ddof=1), chains=split.shape[1])


def geyer_ess(covariance: np.ndarray, between: np.ndarray, *, chains: int) -> np.ndarray:
    """Compute effective sample sizes from autocovariances.

    Parameters
    ----------
    covariance
        Autocovariances, averaged over (half) chains, (scalar, lag); as many lags as draws.
    between
        Variance of the means of the chains, (scalar,).
    chains
        How many chains were averaged.

    Notes
    -----
    Geyer's initial monotone sequence (1992), doi:10.1214/ss/1177011137, with Stan's conventions:
    of the first pair that is not positive the even lag is kept.
    """
    count, draws = covariance.shape
    variance = covariance[:, :1]
    rho = 1 - (variance * draws / (draws - 1) - covariance) / (variance + between[:, None])
    rho[:, 0] = 1
    # Lags in pairs; as in Stan, the pairs that would touch the last lags are not looked at.
    pairs = 1 + max(0, (draws - 3) // 2)
    sums = rho[:, 0 : 2 * pairs : 2] + rho[:, 1 : 2 * pairs : 2]
    ended = sums <= 0
    ended[:, -1] = True
    end = ended.argmax(axis=1)
    # The monotone sequence, pair by pair, up to the first pair that is not positive ...
    monotone = np.minimum.accumulate(sums, axis=1)
    kept = np.where(np.arange(pairs) < end[:, None], monotone, 0).sum(axis=1)
    # ... of which Stan keeps the even lag: antithetic chains have ESS above the draws.
    scalar = np.arange(count)
    even = rho[scalar, 2 * end]
    even = np.where(sums[scalar, end] < 0, np.maximum(even, 0), even)
    size = chains * draws
    return size / np.maximum(-1 + 2 * kept + even, 1 / np.log10(size))


def autocovariance(centered: np.ndarray) -> np.ndarray:
    """Average the autocovariances of the split chains at every lag (scalar, lag)."""
    draws = centered.shape[2]
    length = _fast_length(2 * draws)
    spectrum = np.fft.rfft(centered, n=length, axis=2)
    # The transform is linear: averaging before it is inverted saves half of the work.
    power = (spectrum.real**2 + spectrum.imag**2).mean(axis=1)
    return np.fft.irfft(power, n=length, axis=1)[:, :draws] / draws


def _fast_length(least: int) -> int:
    """Give the smallest odd·2ᵏ ≥ `least` with an odd part whose transform is fast."""
    return min(odd << max(0, (-(-least // odd) - 1).bit_length()) for odd in (1, 3, 5, 9, 15))


def tail_ess(rows: np.ndarray) -> np.ndarray:
    """Compute the smaller effective sample size of the two quantile indicators."""
    quantiles = np.quantile(rows, _TAILS, axis=(1, 2))
    smallest = np.full(len(rows), np.inf)
    for quantile in quantiles:
        indicator = split_chains(rows <= quantile[:, None, None])
        same = indicator.all(axis=(1, 2)) | ~indicator.any(axis=(1, 2))
        size = indicator.shape[1] * indicator.shape[2]
        values = np.where(same, size, split_ess(indicator.astype(float)))
        smallest = np.minimum(smallest, np.where(np.isfinite(quantile), values, np.nan))
    return smallest
