r"""Live convergence numbers: rank-normalized R-hat, bulk and tail effective sample size.

They equal ArviZ's (``arviz_stats``) wherever those are defined. They live here a second time
because importing ArviZ costs a second, and because ArviZ handles one scalar after the other
while a progress bar has to look at a hundred in a few milliseconds.

Notes
-----
Write :math:`z_{mn}` for a quantity in split chain :math:`m` of :math:`M`, draw :math:`n` of
:math:`N`, with :math:`W` the mean variance within and :math:`B/N` the variance of the means
between the split chains. With :math:`\operatorname{var}^+ = (N-1)W/N + B/N`,

.. math::

    \hat R = \sqrt{\operatorname{var}^+ / W}, \qquad
    \mathrm{ESS} = \frac{MN}{-1 + 2 \sum_k \hat P_k}, \qquad
    \hat\rho_t = 1 - \frac{W - \frac1M \sum_m \gamma_m(t)}{\operatorname{var}^+},

where :math:`\hat P_k` is the running minimum of :math:`\hat\rho_{2k} + \hat\rho_{2k+1}`, cut
at its first negative value [2]_. Ranks are mapped to normal scores
:math:`z = \Phi^{-1}((r - 3/8)/(S + 1/4))`, so nothing here needs moments to exist [1]_.

Undefined is never fine: non-finite draws, fewer than four draws, a single chain (R-hat only)
and constant values all give NaN, where ArviZ returns the number of draws for a frozen chain.

References
----------
.. [1] Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), Bayesian Analysis 16(2),
   doi:10.1214/20-BA1221.
.. [2] Geyer (1992), Statistical Science 7(4), doi:10.1214/ss/1177011137.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

# Draws ranked at once. A block and its half dozen temporaries (8 bytes each) then stay within
# about ten megabytes however large the variable is; larger blocks were not faster.
_BLOCK_DRAWS = 2**17

# Below four draws a split chain has a single draw and no variance.
_FEWEST_DRAWS = 4

_TAILS = (0.05, 0.95)


class Convergence(NamedTuple):
    """The worst convergence numbers over a set of scalars."""

    rhat: float
    ess_bulk: float
    ess_tail: float


def rank_rhat(x: ArrayLike) -> np.ndarray:
    """Compute the rank-normalized split R-hat of every scalar.

    Parameters
    ----------
    x
        Draws of shape (chain, draw, *event).

    Returns
    -------
    R-hat of shape (*event), NaN where it is undefined.

    Notes
    -----
    The larger of the R-hat of the normal scores of x (bulk) and of |x − median| (tail), after
    Vehtari et al. (2021), doi:10.1214/20-BA1221. Chains frozen in different places give inf.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(4, 1000))
    >>> bool(rank_rhat(x) < 1.01), bool(rank_rhat(x + np.arange(4)[:, None]) > 1.5)
    (True, True)
    """
    return _over_events(x, lambda rows: _measure(rows, rhat=True)[0])


def ess_bulk(x: ArrayLike) -> np.ndarray:
    """Compute the bulk effective sample size of every scalar.

    Parameters
    ----------
    x
        Draws of shape (chain, draw, *event).

    Returns
    -------
    Effective sample size of shape (*event), NaN where it is undefined.

    Notes
    -----
    The effective sample size of the normal scores of the ranks, with Geyer's initial monotone
    sequence; Vehtari et al. (2021), doi:10.1214/20-BA1221.
    """
    return _over_events(x, lambda rows: _measure(rows, bulk=True)[1])


def ess_tail(x: ArrayLike) -> np.ndarray:
    """Compute the tail effective sample size of every scalar.

    Parameters
    ----------
    x
        Draws of shape (chain, draw, *event).

    Returns
    -------
    Effective sample size of shape (*event), NaN where it is undefined.

    Notes
    -----
    The smaller effective sample size of the two indicators x ≤ q₅ and x ≤ q₉₅ of the 5 % and
    95 % quantiles; Vehtari et al. (2021), doi:10.1214/20-BA1221. A discrete variable may have
    one of its quantiles at its largest value: that indicator says nothing and, as in ArviZ,
    counts as independent.
    """
    return _over_events(x, lambda rows: _measure(rows, tail=True)[2])


def summarize(draws: Mapping[str, np.ndarray], limit: int = 50) -> Convergence:
    """Give the worst convergence numbers over at most `limit` scalars.

    Parameters
    ----------
    draws
        Variables of shape (chain, draw, *event).
    limit
        The most scalars to look at. Every variable gets an equal share, spread evenly over
        it, so that a scalar is not drowned by a long vector.

    Returns
    -------
    The largest R-hat and the smallest effective sample sizes. One undefined scalar makes them
    NaN; scalars that are equal in all chains and draws (the unit diagonal of a correlation
    matrix) are left out, unless nothing else is there.
    """
    found = [_varying(x) for x in draws.values()]
    found = [(flat, scalars) for flat, scalars in found if scalars.size]
    shares = _shares([scalars.size for _, scalars in found], limit)
    chosen = [
        (flat, scalars[np.linspace(0, scalars.size - 1, share).astype(int)])
        for (flat, scalars), share in zip(found, shares, strict=True)
    ]
    blocks = np.array([_worst(rows) for rows in _gather(chosen)])
    if not blocks.size:
        return Convergence(np.nan, np.nan, np.nan)
    rhat, bulk, tail = blocks.T
    return Convergence(float(rhat.max()), float(bulk.min()), float(tail.min()))


def summarize_blocks(draws: Mapping[str, np.ndarray]) -> Iterator[Convergence]:
    """Yield the worst convergence numbers of all scalars, block by block.

    A caller that needs every scalar but only a verdict can stop at the first bad block.

    Parameters
    ----------
    draws
        Variables of shape (chain, draw, *event).

    Yields
    ------
    The largest R-hat and the smallest effective sample sizes of a block of scalars. Constants
    are left out as in `summarize`, so nothing is yielded where everything is constant.
    """
    for rows in _gather(_varying(x) for x in draws.values()):
        yield _worst(rows)


def _worst(rows: np.ndarray) -> Convergence:
    """Give the worst numbers over (scalar, chain, draw); NaN wins."""
    rhat, bulk, tail = _measure(rows, rhat=True, bulk=True, tail=True)
    return Convergence(float(rhat.max()), float(bulk.min()), float(tail.min()))


def _over_events(x: ArrayLike, measure: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Apply a function of (scalar, chain, draw) to every scalar of (chain, draw, *event)."""
    x = np.asarray(x)
    flat = _flat(x)
    values = [measure(_rows(flat, chosen)) for chosen in _blocks(flat, np.arange(flat.shape[2]))]
    return np.concatenate([np.empty(0), *values]).reshape(x.shape[2:])


def _flat(x: np.ndarray) -> np.ndarray:
    """View (chain, draw, *event) as (chain, draw, scalar)."""
    if x.ndim < 2:
        msg = (
            f"Draws have shape {x.shape}, but convergence compares chains over draws: "
            "give an array of shape (chain, draw, *event)."
        )
        raise ValueError(msg)
    return x.reshape(*x.shape[:2], int(np.prod(x.shape[2:])))


def _blocks(flat: np.ndarray, scalars: np.ndarray) -> Iterator[np.ndarray]:
    """Cut the wanted scalars into blocks of bounded memory."""
    size = max(1, _BLOCK_DRAWS // max(1, flat.shape[0] * flat.shape[1]))
    for start in range(0, scalars.size, size):
        yield scalars[start : start + size]


def _gather(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> Iterator[np.ndarray]:
    """Collect the chosen scalars of many variables into few blocks of bounded memory."""
    waiting: list[np.ndarray] = []
    for flat, scalars in pairs:
        for chosen in _blocks(flat, scalars):
            rows = _rows(flat, chosen)
            if waiting and sum(r.size for r in waiting) + rows.size > _BLOCK_DRAWS:
                yield np.concatenate(waiting)
                waiting = []
            waiting.append(rows)
    if waiting:
        yield np.concatenate(waiting)


def _rows(flat: np.ndarray, scalars: np.ndarray) -> np.ndarray:
    """Copy the chosen scalars to float64 of shape (scalar, chain, draw)."""
    return np.ascontiguousarray(flat[:, :, scalars].transpose(2, 0, 1), dtype=np.float64)


def _varying(x: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Find the scalars that are not one finite constant over all chains and draws."""
    flat = _flat(np.asarray(x))
    if not flat.size:
        return flat, np.arange(0)
    # The last draws tell almost every scalar apart; only the rest is worth a pass over all.
    same = (flat[:, -1] == flat[0, 0]).all(axis=0) & np.isfinite(flat[0, 0])
    suspects = np.flatnonzero(same)
    for chosen in _blocks(flat, suspects):
        same[chosen] = (flat[:, :, chosen] == flat[0, 0, chosen]).all(axis=(0, 1))
    return flat, np.flatnonzero(~same)


def _shares(sizes: list[int], limit: int) -> list[int]:
    """Divide `limit` looks fairly: nobody gets more than its size, the rest is handed on."""
    shares = [0] * len(sizes)
    # With more variables than looks, evenly spaced ones get one look each.
    spread = np.linspace(0, len(sizes) - 1, min(limit, len(sizes))).astype(int).tolist()
    waiting = sorted(spread, key=lambda i: sizes[i])
    for done, i in enumerate(waiting):
        shares[i] = min(sizes[i], (limit - sum(shares)) // (len(waiting) - done))
    return shares


def _measure(
    rows: np.ndarray, *, rhat: bool = False, bulk: bool = False, tail: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute what is asked for over (scalar, chain, draw); the ranks are shared."""
    count, chains, draws = rows.shape
    numbers = np.full((3, count), np.nan)
    if draws < _FEWEST_DRAWS or not chains or not count:
        return numbers[0], numbers[1], numbers[2]
    split = _split(rows)
    lowest, highest = split.min(axis=(1, 2)), split.max(axis=(1, 2))
    defined = np.isfinite(rows).all(axis=(1, 2)) & (lowest < highest)
    if not defined.all():
        rows, split = rows[defined], split[defined]
    # Chains frozen in different places divide by a zero variance: inf is the right answer.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if rhat or bulk:
            numbers[:2, defined] = _ranked(split, rhat=rhat and chains > 1, bulk=bulk)
        if tail:
            numbers[2, defined] = _tail(rows)
    return numbers[0], numbers[1], numbers[2]


def _ranked(split: np.ndarray, *, rhat: bool, bulk: bool) -> np.ndarray:
    """Compute R-hat and bulk effective sample size from one ranking of the values."""
    numbers = np.full((2, len(split)), np.nan)
    z, median = _z_scale(split)
    if rhat:
        folded, _ = _z_scale(np.abs(split - median))
        # A fold may leave a constant (two values, equally often): then the bulk decides.
        numbers[0] = np.fmax(_rhat(z), _rhat(folded))
    if bulk:
        numbers[1] = _ess(z)
    return numbers


def _split(rows: np.ndarray) -> np.ndarray:
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


def _z_scale(split: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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


def _rhat(z: np.ndarray) -> np.ndarray:
    """Compute R-hat over (scalar, split chain, draw)."""
    draws = z.shape[2]
    between = draws * z.mean(axis=2).var(axis=1, ddof=1)
    within = z.var(axis=2, ddof=1).mean(axis=1)
    return np.sqrt((between / within + draws - 1) / draws)


def _ess(z: np.ndarray) -> np.ndarray:
    """Compute the effective sample size over (scalar, split chain, draw)."""
    count, chains, draws = z.shape
    means = z.mean(axis=2)
    autocovariance = _autocovariance(z - means[:, :, None])
    within = autocovariance[:, :1] * draws / (draws - 1)
    total = autocovariance[:, :1] + means.var(axis=1, ddof=1)[:, None]
    rho = 1 - (within - autocovariance) / total
    rho[:, 0] = 1
    # Lags in pairs; as in Stan, the pairs that would touch the last lags are not looked at.
    pairs = 1 + max(0, (draws - 3) // 2)
    sums = rho[:, 0 : 2 * pairs : 2] + rho[:, 1 : 2 * pairs : 2]
    ended = sums <= 0
    ended[:, -1] = True
    end = ended.argmax(axis=1)
    # Geyer's monotone sequence, pair by pair, up to the first pair that is not positive ...
    monotone = np.minimum.accumulate(sums, axis=1)
    kept = np.where(np.arange(pairs) < end[:, None], monotone, 0).sum(axis=1)
    # ... of which Stan keeps the even lag: antithetic chains have ESS above the draws.
    scalar = np.arange(count)
    even = rho[scalar, 2 * end]
    even = np.where(sums[scalar, end] < 0, np.maximum(even, 0), even)
    size = chains * draws
    return size / np.maximum(-1 + 2 * kept + even, 1 / np.log10(size))


def _autocovariance(centered: np.ndarray) -> np.ndarray:
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


def _tail(rows: np.ndarray) -> np.ndarray:
    """Compute the smaller effective sample size of the two quantile indicators."""
    quantiles = np.quantile(rows, _TAILS, axis=(1, 2))
    smallest = np.full(len(rows), np.inf)
    for quantile in quantiles:
        indicator = _split(rows <= quantile[:, None, None])
        same = indicator.all(axis=(1, 2)) | ~indicator.any(axis=(1, 2))
        size = indicator.shape[1] * indicator.shape[2]
        values = np.where(same, size, _ess(indicator.astype(float)))
        smallest = np.minimum(smallest, np.where(np.isfinite(quantile), values, np.nan))
    return smallest
