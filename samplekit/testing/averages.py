"""Averages of draws against exact values: the one rule for Monte Carlo tolerances."""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from samplekit.core.errors import SettingsError

MISSED = 1e-6  # chance that an error of size `resolves` passes unnoticed
MIN_CHAINS = 8  # fewer give no honest Monte Carlo error


def assert_mean(
    draws: ArrayLike,
    expected: ArrayLike,
    *,
    resolves: ArrayLike,
    false_fail: float = 1e-6,
    name: str | Sequence[str] = "",
) -> None:
    """Assert that the mean of Monte Carlo draws is as expected, and that the test could tell.

    Passes iff |mean − expected| ≤ z·MCSE and (z + z(1e-6))·MCSE ≤ resolves, z the two-sided
    normal quantile of `false_fail` divided by the number of scalars.

    Parameters
    ----------
    draws
        Of shape (chain, draw, ...), at least 8 chains; trailing axes are separate scalars.
        Reshape independent draws to (8, n // 8).
    expected
        The exact mean, one for each scalar or one for all.
    resolves
        The smallest error that must not pass, one for each scalar or one for all.
    false_fail
        Chance that a correct sampler fails.
    name
        What is tested, for the message; or one name for each scalar.

    Examples
    --------
    >>> import numpy as np
    >>> from samplekit.testing import assert_mean
    >>> draws = np.random.default_rng(0).normal(size=(8, 1000))
    >>> assert_mean(draws, 0.0, resolves=0.2)
    >>> assert_mean(draws, 0.3, resolves=0.2)
    Traceback (most recent call last):
    AssertionError: The mean is wrong: ...
    >>> assert_mean(draws, 0.0, resolves=0.01)
    Traceback (most recent call last):
    AssertionError: The mean is too uncertain to tell: ...
    """
    values = np.asarray(draws, np.float64)
    if values.ndim < 2 or values.shape[0] < MIN_CHAINS:
        raise SettingsError(
            f"draws has shape {values.shape}, but (chain, draw, ...) with at least {MIN_CHAINS} "
            f"chains is needed. Reshape independent draws to ({MIN_CHAINS}, -1)."
        )
    values = values.reshape(*values.shape[:2], -1)
    with np.errstate(invalid="ignore", over="ignore"):  # reported as undefined
        mean, error = values.mean(axis=(0, 1)), _mcse(values)
    judge(mean, error, expected, resolves=resolves, false_fail=false_fail, name=name)


def judge(
    mean: np.ndarray,
    error: np.ndarray,
    expected: ArrayLike,
    *,
    resolves: ArrayLike,
    false_fail: float = 1e-6,
    name: str | Sequence[str] = "",
) -> None:
    """Raise an AssertionError that says which scalar fails and how."""
    exact = np.broadcast_to(np.ravel(np.asarray(expected, np.float64)), mean.shape)
    limit = np.broadcast_to(np.ravel(np.asarray(resolves, np.float64)), mean.shape)
    z = _z(false_fail / mean.size)
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.abs(mean - exact) / error
        blind = (z + _z(MISSED)) * error  # the largest error that could pass
        weak = blind / limit

    def fail(which: np.intp, verdict: str, why: str) -> None:
        i = int(which)
        named = name if isinstance(name, str) else name[i]
        place = f"[{i}]" if isinstance(name, str) and mean.size > 1 else ""
        label = f" of {named}{place}" if named else f"{' of ' * bool(place)}{place}"
        raise AssertionError(
            f"The mean{label} {verdict}: {mean[i]:.6g}, expected {exact[i]:.6g}, Monte Carlo "
            f"error {error[i]:.3g}; {why}"
        )

    broken = ~np.isfinite(mean) | ~np.isfinite(error) | ~np.isfinite(exact)
    if broken.any():
        fail(np.argmax(broken), "is undefined", "undefined is failure.")
    if (error == 0).any():
        fail(np.argmax(error == 0), "cannot be judged", "the draws never vary.")
    if (off > z).any():
        i = np.argmax(off)
        chance = f"{false_fail:g} over {mean.size} scalars" if mean.size > 1 else f"{false_fail:g}"
        fail(i, "is wrong", f"{off[i]:.1f} errors off, {z:.2f} allowed (false alarm {chance}).")
    if not (weak <= 1).all():
        i = np.argmax(weak)
        more = f"take {weak[i] ** 2:.2g} times the draws" if weak[i] < np.inf else "give resolves"
        fail(
            i,
            "is too uncertain to tell",
            f"an error of {blind[i]:.3g} could pass, resolves {limit[i]:.3g}; {more}.",
        )


def _z(tail: float) -> float:
    """Return the two-sided normal quantile."""
    return -NormalDist().inv_cdf(tail / 2)


def _mcse(values: np.ndarray) -> np.ndarray:
    """Return the Monte Carlo standard error of each mean of (chain, draw, scalar)."""
    from arviz_stats.base.array import array_stats

    spread = values.std(axis=(0, 1))
    error = np.full(values.shape[2], np.nan)
    varies = np.isfinite(spread) & (spread > 0)
    if varies.any():
        error[varies] = array_stats.mcse(values[:, :, varies], chain_axis=0, draw_axis=1)
    error[spread == 0] = 0.0
    return error
