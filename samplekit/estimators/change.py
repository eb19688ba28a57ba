"""`ScoreCUSUM`: notice quickly that a stream has changed, from unnormalised models."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplekit.core.errors import EstimatorError
from samplekit.estimators.hyvarinen import scores_of
from samplekit.estimators.placed import Rows, common_domain, place

if TYPE_CHECKING:
    import pandas as pd


# Rows simulated at once, over all runs.
BATCH = 2**16

# A simulated run that has not ended after so many times e^threshold steps is cut off.
PATIENCE = 50.0


class ScoreCUSUM:
    """Detect a change from one density to another; neither needs its normaliser.

    Parameters
    ----------
    before, after
        The two densities: targets or fitted estimators, as in `hyvarinen_score`.
    average_run_length
        Rows between false alarms, on average at least: the threshold is its logarithm.
    threshold
        The threshold itself, instead.
    multiplier
        λ, if known; else `fit` finds it.
    domain, weight
        The coordinates of the scores, as in `hyvarinen_score`; None is where both supports meet.

    Attributes
    ----------
    multiplier_, multiplier_error_
        λ and its standard error; NaN before `fit`.
    statistic_
        Z after the last row.
    n_seen_
        Rows seen since the last `reset`.
    alarm_
        The number of the row (from 0, since the last reset) at which Z first reached the
        threshold; None before that.
    change_
        The row from which on Z stayed above zero: where the change seems to have been. None
        without an alarm.

    Notes
    -----
    Z_t = max(0, Z_{t−1} + λ(S_before(x_t) − S_after(x_t))) with Hyvärinen scores S = ½‖∇ log p‖² +
    Δ log p takes the place of the CUSUM of log likelihood ratios, which needs normalisers. λ is
    the positive root of E_before[exp(λ(S_before − S_after))] = 1; then, as for the likelihood, the
    average run length to a false alarm is at least exp(threshold), and after the change Z grows by
    λ times half the Fisher divergence of `after` from `before` per row, on average: Wu, Diao,
    Banerjee and Tarokh 2023, AISTATS (PMLR 206), score-based quickest change detection. For a shift
    of a Gaussian along an axis of its covariance the two CUSUMs are the same.

    Examples
    --------
    >>> import numpy as np
    >>> import samplekit as sk
    >>> from samplekit.estimators.change import ScoreCUSUM
    >>> before, after = sk.targets.gaussian([0.0]), sk.targets.gaussian([1.0])
    >>> random = np.random.default_rng(0)
    >>> cusum = ScoreCUSUM(before, after).fit(random.normal(size=(5000, 1)))
    >>> round(cusum.multiplier_, 1)
    1.0
    >>> stream = random.normal(size=(300, 1)) + (np.arange(300) >= 200)[:, None]
    >>> cusum.update(stream).alarm_, cusum.change_
    (219, 199)
    """

    def __init__(
        self,
        before: Any,
        after: Any,
        *,
        average_run_length: float = 1000.0,
        threshold: float | None = None,
        multiplier: float | None = None,
        domain: Any = None,
        weight: Any = None,
    ) -> None:
        if threshold is None and not average_run_length > 1:
            raise EstimatorError(
                f"average_run_length={average_run_length}: give the number of rows, above 1, that "
                "should pass between false alarms."
            )
        if threshold is not None and not threshold > 0:
            raise EstimatorError(f"threshold={threshold} is not positive: every row would alarm.")
        if multiplier is not None and not multiplier > 0:
            raise EstimatorError(f"multiplier={multiplier} is not positive. Leave it out and fit.")
        self.before, self.after = before, after
        self.threshold = float(np.log(average_run_length) if threshold is None else threshold)
        self.domain, self.weight = domain, weight
        self.multiplier_ = np.nan if multiplier is None else float(multiplier)
        self.multiplier_error_ = np.nan if multiplier is None else 0.0
        self.reset()

    def __repr__(self) -> str:
        """Say what was found and where the stream stands."""
        known = "not fitted" if np.isnan(self.multiplier_) else f"multiplier {self.multiplier_:.4g}"
        alarm = "no alarm" if self.alarm_ is None else f"alarm at row {self.alarm_}"
        return f"ScoreCUSUM({known}, threshold {self.threshold:.4g}, {self.n_seen_} rows, {alarm})"

    def fit(self, X_before: Any) -> Self:
        """Find the multiplier λ from rows before any change, and start anew.

        λ makes the mean of exp(λ(S_before − S_after)) over these rows equal to one. That mean is
        convex in λ and one at λ = 0, so it has one positive root if it falls first (the scores
        prefer `before` on average) and rises later (some row prefers `after`).
        """
        gain = self._gains(X_before)
        self.multiplier_, self.multiplier_error_ = find_multiplier(gain)
        return self.reset()

    def reset(self) -> Self:
        """Forget the stream, keep the multiplier."""
        self.statistic_, self.n_seen_ = 0.0, 0
        self.alarm_: int | None = None
        self.change_: int | None = None
        self._risen = 0  # the row after the last at which Z was zero
        return self

    def update(self, x: Any) -> Self:
        """Take the next row, or the next rows, of the stream."""
        self.path(x)
        return self

    def path(self, x: Any) -> Rows:
        """Take the next rows and return Z after each of them."""
        z = cusum(self.increments(x), self.statistic_)
        if self.alarm_ is None:
            over = np.flatnonzero(z >= self.threshold)
            zeros = np.flatnonzero(z[: over[0] if over.size else len(z)] <= 0)
            if zeros.size:
                self._risen = self.n_seen_ + int(zeros[-1]) + 1
            if over.size:
                self.alarm_, self.change_ = self.n_seen_ + int(over[0]), self._risen
        self.n_seen_ += len(z)
        self.statistic_ = float(z[-1]) if len(z) else self.statistic_
        return z

    def increments(self, x: Any) -> Rows:
        """Return λ(S_before − S_after) of rows, which the statistic adds up."""
        if np.isnan(self.multiplier_):
            raise EstimatorError(
                "The multiplier is not known. Call fit with rows from before the change, or give "
                "multiplier=."
            )
        return self.multiplier_ * self._gains(x)

    def _gains(self, x: Any) -> Rows:
        """Return S_before − S_after of rows, in common coordinates."""
        rows = np.asarray(x, np.float64)
        if rows.ndim < 2:  # one row, or a column of numbers
            dim = place(self.before, rows).space.size
            rows = rows.reshape(-1, dim) if rows.size % dim == 0 else rows.reshape(1, -1)
        placed = [place(model, rows) for model in (self.before, self.after)]
        domain = self.domain
        if domain is None:
            domain = common_domain(placed, rows.shape[1])
        first, second = (scores_of(one, rows, domain=domain, weight=self.weight) for one in placed)
        return first - second

    def run_length(
        self,
        draw_before: Any,
        draw_after: Any = None,
        *,
        thresholds: ArrayLike | None = None,
        runs: int = 500,
        seed: int = 0,
    ) -> "pd.DataFrame":
        """Return average run length and delay by simulation, one line per threshold.

        Parameters
        ----------
        draw_before, draw_after
            Where rows come from: a target or a fitted family with `draw`, a function of a NumPy
            generator and n that returns n rows, or an array of rows, from which they are drawn
            with replacement. Without `draw_after` there are no delays.
        thresholds
            None is the detector's own.
        runs
            Independent streams.
        seed
            Of the simulation.

        Returns
        -------
        table
            `bound` is exp(threshold); `average_run_length` the rows to a false alarm and `delay`
            those to the alarm when the change comes with the first row, the worst case, both with
            standard errors. `unfinished` streams did not alarm within 50·exp(threshold) rows; the
            average is then the rows of all streams over the number of alarms, which assumes that
            alarms come at a constant rate.
        """
        import pandas as pd

        levels = np.atleast_1d(
            np.asarray(self.threshold if thresholds is None else thresholds, float)
        )
        random = np.random.default_rng(seed)
        table: dict[str, Any] = {"threshold": levels, "bound": np.exp(levels)}
        for name, draw in (("average_run_length", draw_before), ("delay", draw_after)):
            if draw is None:
                continue
            source = _source(draw)
            lengths, ended = first_passages(
                lambda n, source=source: self.increments(source(random, n)), levels, runs=runs
            )
            table[name], table[f"{name}_error"] = _average(lengths, ended)
            if name == "average_run_length":
                table["unfinished"] = (~ended).sum(axis=1)
        return pd.DataFrame(table)


def cusum(increments: Rows, start: ArrayLike = 0.0) -> Rows:
    """Return Z_t = max(0, Z_{t−1} + increment_t) along the last axis, from Z_0 = `start`.

    Unrolled, Z_t = C_t − min(−Z_0, min_{s≤t} C_s) with the running sums C.

    Examples
    --------
    >>> cusum(np.array([1.0, -3.0, 2.0, 1.0]))
    array([1., 0., 2., 3.])
    """
    sums = np.cumsum(increments, axis=-1)
    lowest = np.minimum.accumulate(sums, axis=-1)
    return sums - np.minimum(lowest, -np.asarray(start, np.float64)[..., None])


def find_multiplier(gain: Rows) -> tuple[float, float]:
    """Return the λ > 0 with mean exp(λ·gain) = 1, and its standard error.

    Examples
    --------
    >>> odds = np.log([2.0, 0.5])  # 2^λ/3 + 2·2^−λ/3 = 1 at λ = 1
    >>> round(find_multiplier(odds[[0, 1, 1]])[0], 12)
    1.0
    """
    from scipy.optimize import brentq

    scale = gain.max(initial=0.0)

    def excess(factor: float) -> float:  # convex, zero at zero, negative just above it
        return float(np.mean(np.expm1(factor / scale * gain)))

    # The best row alone brings the mean above one at log n: the root lies below.
    high = low = np.log(max(len(gain), 1))
    while scale > 0 and excess(low) >= 0 and low > np.finfo(float).eps:
        low /= 2
    if not len(gain) or not gain.mean() < 0 or not low > np.finfo(float).eps:
        raise EstimatorError(
            "On average the rows given to fit score no worse under the model after the change than "
            "under the one before, so no multiplier exists. Fit with rows from before the change, "
            "and check that `before` fits them and that the two models differ."
        )
    if not scale > 0:
        raise EstimatorError(
            f"None of the {len(gain)} rows given to fit scores better under the model after the "
            "change, so any multiplier would do and none can be chosen. Give more rows, or "
            "multiplier=."
        )
    found: Any = brentq(excess, low, high, xtol=1e-15)
    root = float(found) / float(scale)
    weight = np.exp(root * gain)
    error = weight.std(ddof=1) / np.sqrt(len(gain)) / np.mean(gain * weight)
    return root, float(error)


def first_passages(
    increments: Callable[[int], Rows], levels: Sequence[float] | Rows, *, runs: int
) -> tuple[Rows, NDArray[np.bool_]]:
    """Simulate streams; return the steps until each level is reached, and whether it was.

    Both have the shape (levels, runs). `increments(n)` returns n independent increments.
    """
    levels = np.asarray(levels, np.float64)
    longest = PATIENCE * np.exp(levels.max())
    steps = int(np.clip(BATCH // runs, 1, longest))
    lengths = np.zeros((len(levels), runs))
    ended = np.zeros((len(levels), runs), bool)
    z, taken = np.zeros(runs), 0
    while not ended.all() and taken < longest:
        live = np.flatnonzero(~ended.all(axis=0))
        path = cusum(increments(len(live) * steps).reshape(len(live), steps), z[live])
        for row, level in enumerate(levels):
            over = path >= level
            first = np.where(over.any(axis=1), over.argmax(axis=1) + 1, steps)
            fresh = ~ended[row, live]
            lengths[row, live[fresh]] += first[fresh]
            ended[row, live] |= over.any(axis=1)
        z[live] = path[:, -1]
        taken += steps
    return lengths, ended


def _average(lengths: Rows, ended: NDArray[np.bool_]) -> tuple[Rows, Rows]:
    """Return averages and standard errors per level; with unfinished runs, those of a rate."""
    alarms, whole = ended.sum(axis=1), ended.all(axis=1)
    with np.errstate(divide="ignore"):
        mean = lengths.sum(axis=1) / alarms
        of_rate = mean / np.sqrt(alarms)
    spread = lengths.std(axis=1, ddof=1) / np.sqrt(lengths.shape[1])
    return mean, np.where(whole, spread, of_rate)


def _source(draw: Any) -> Callable[[np.random.Generator, int], Rows]:
    """Return a function that draws rows, from what `run_length` was given."""
    if hasattr(draw, "draw"):
        import jax

        def exact(random: np.random.Generator, n: int) -> Rows:
            key = jax.random.key(int(random.integers(2**31)))
            # Few sizes, hence few programs.
            return np.asarray(draw.draw(key, 1 << (n - 1).bit_length())[:n], np.float64)

        return exact
    if callable(draw):
        function: Any = draw
        return function
    rows = np.asarray(draw, np.float64)
    rows = rows[:, None] if rows.ndim == 1 else rows
    return lambda random, n: rows[random.integers(len(rows), size=n)]
