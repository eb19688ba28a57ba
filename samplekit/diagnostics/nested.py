r"""Nested R-hat: convergence of many short chains, from one draw a chain on."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from samplekit.core.errors import SettingsError
from samplekit.diagnostics.evidence import gather
from samplekit.diagnostics.numbers import FEWEST_DRAWS
from samplekit.sampling.ranks import normal_ranks, split_chains

if TYPE_CHECKING:
    import pandas as pd


def nested_rhat(run: Any, superchains: Sequence[int] | None = None) -> "pd.Series":
    r"""Compute the nested R-hat of every scalar.

    Parameters
    ----------
    run
        A run, or anything else that `diagnose` takes.
    superchains
        One number a chain: chains of the same number began at the same place (and went their own
        ways by their own seeds). All superchains must have equally many chains. None makes each
        chain its own superchain, which is ordinary R-hat up to a term 1/N, and needs two draws.

    Returns
    -------
    One value a scalar, 1 at convergence, NaN where undefined: constant or non-finite draws, fewer
    than two superchains, or no spread within superchains at all.

    Notes
    -----
    Let superchain :math:`k` of :math:`K` have :math:`M` chains of :math:`N` draws, all begun at one
    place :math:`x_k`. Averages over a superchain have the error

    .. math::

        \operatorname{Var}(\bar z_k) = \operatorname{Var}\big(E[\bar z_k \mid x_k]\big)
            + \tfrac1M E\big[\operatorname{Var}(\bar z_{1k} \mid x_k)\big].

    The first term is what was not yet forgotten of the start, and is what convergence is about; the
    second, Monte Carlo noise, falls with the number of chains and hides the first only when
    :math:`M` is small. With :math:`\bar z_{mk}` the mean of chain :math:`m` of superchain
    :math:`k` and :math:`s^2_{mk}` its variance,

    .. math::

        \hat B = \operatorname{var}_k(\bar z_k), \qquad
        \hat W = \frac1K \sum_k \Big(\operatorname{var}_m(\bar z_{mk})
            + \frac1M \sum_m s^2_{mk}\Big), \qquad
        \hat R_\nu = \sqrt{1 + \hat B/\hat W},

    all variances unbiased, and 0 where there is only one value: from a single draw a chain on
    :math:`\hat W` is the variance between chains. At convergence :math:`\hat R_\nu^2 - 1` is about
    1/M for one draw a chain and less for longer ones, so :math:`M` of 100 or more makes 1.01 a
    sensible limit. Margossian, Hoffman, Sountsov, Riou-Durand, Vehtari and Gelman (2024), Bayesian
    Analysis, doi:10.1214/24-BA1453.

    Draws are replaced by the normal scores of their ranks, and of those of :math:`|z|` around the
    median, and the larger value counts; from four draws on chains are split into halves that stay
    in their superchain, as ArviZ does, whose `rhat_nested` this equals where that is defined.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(512, 1))  # one draw of each of 512 chains
    >>> bool(nested_rhat({"x": x}, np.arange(512) % 4)["x"] < 1.02)
    True
    """
    import pandas as pd

    evidence = gather(run)
    chains, draws = evidence.chains, evidence.draws
    ids = np.arange(chains) if superchains is None else np.asarray(superchains)
    _check(ids, chains, draws)
    order = np.argsort(ids, kind="stable")
    count = len(np.unique(ids))
    values = []
    for _, rows in evidence.scalars():
        found = np.full(len(rows), np.nan)
        fine = np.isfinite(rows).all(axis=(1, 2)) & (np.ptp(rows, axis=(1, 2)) > 0)
        if fine.any() and count > 1:
            found[fine] = _nested(rows[fine][:, order], count)
        values.append(found)
    return pd.Series(np.concatenate(values), index=list(evidence.names), name="nested_r_hat")


def _check(ids: np.ndarray, chains: int, draws: int) -> None:
    if ids.shape != (chains,):
        raise SettingsError(
            f"superchains= has shape {list(ids.shape)}, but the run has {chains} chains. Give one "
            "number a chain: the same for chains that began at the same place."
        )
    counts = np.unique(ids, return_counts=True)[1]
    if counts.min() != counts.max():
        raise SettingsError(
            f"superchains= makes groups of {counts.min()} to {counts.max()} chains. Give every "
            "superchain equally many."
        )
    if counts.max() == 1 and draws == 1:
        raise SettingsError(
            "With one draw a chain and every chain its own superchain there is no variance within. "
            "Start several chains at each place, and say which with superchains=."
        )


def _nested(rows: np.ndarray, count: int) -> np.ndarray:
    """Compute nested R-hat of (scalar, chain, draw), chains of a superchain side by side."""
    if rows.shape[2] >= FEWEST_DRAWS:
        halves = split_chains(rows)  # all first halves, then all second ones
        order = np.arange(halves.shape[1]).reshape(2, count, -1).swapaxes(0, 1).ravel()
        rows = halves[:, order]
    # Ranks need an even number for the median of `_z_scale`; shapes stay as they are.
    z = _scores(rows)
    folded = _scores(np.abs(rows - np.median(rows, axis=(1, 2), keepdims=True)))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.fmax(_ratio(z, count), _ratio(folded, count))


def _scores(rows: np.ndarray) -> np.ndarray:
    """Replace values by normal scores."""
    return normal_ranks(rows)[0]


def _ratio(z: np.ndarray, count: int) -> np.ndarray:
    scalars, chains, draws = z.shape
    grouped = z.reshape(scalars, count, chains // count, draws)
    means = grouped.mean(axis=3)
    within = grouped.var(axis=3, ddof=1).mean(axis=2) if draws > 1 else np.zeros((scalars, count))
    if chains > count:
        within = within + means.var(axis=2, ddof=1)
    between = means.mean(axis=2).var(axis=1, ddof=1)
    return np.sqrt(1 + between / within.mean(axis=1))
