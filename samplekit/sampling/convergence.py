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

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from samplekit.sampling.ranks import normal_ranks, split_chains, split_ess, split_rhat, tail_ess

# Draws ranked at once. A block and its half dozen temporaries (8 bytes each) then stay within
# about ten megabytes however large the variable is; larger blocks were not faster.
_BLOCK_DRAWS = 2**17

# Below four draws a split chain has a single draw and no variance.
_FEWEST_DRAWS = 4


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
    split = split_chains(rows)
    lowest, highest = split.min(axis=(1, 2)), split.max(axis=(1, 2))
    defined = np.isfinite(rows).all(axis=(1, 2)) & (lowest < highest)
    if not defined.all():
        rows, split = rows[defined], split[defined]
    # Chains frozen in different places divide by a zero variance: inf is the right answer.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if rhat or bulk:
            numbers[:2, defined] = _ranked(split, rhat=rhat and chains > 1, bulk=bulk)
        if tail:
            numbers[2, defined] = tail_ess(rows)
    return numbers[0], numbers[1], numbers[2]


def _ranked(split: np.ndarray, *, rhat: bool, bulk: bool) -> np.ndarray:
    """Compute R-hat and bulk effective sample size from one ranking of the values."""
    numbers = np.full((2, len(split)), np.nan)
    z, median = normal_ranks(split)
    if rhat:
        folded, _ = normal_ranks(np.abs(split - median))
        # A fold may leave a constant (two values, equally often): then the bulk decides.
        numbers[0] = np.fmax(split_rhat(z), split_rhat(folded))
    if bulk:
        numbers[1] = split_ess(z)
    return numbers
