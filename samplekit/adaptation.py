"""Warm-up: kernel → better kernel, the same class with other leaves.

Two clocks. Every warm-up step, inside the compiled program: the step size by BlackJAX's dual
averaging, and what a kernel learns by itself (`Base.learn`). At the end of each window, on the host
in float64: the metric, from the draws and scores that the window recorded.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from samplekit.core.protocols import Numbers, Stats
from samplekit.core.pytree import pytree
from samplekit.kernels.base import Base
from samplekit.kernels.metric import Dense, Identity, LowRank, with_scale

# A window remembers its last draws; this many are enough for a metric, fewer where they are large.
MOST_RECORDED = 512
RECORD_BYTES = 4 * 2**20
# From this condition number of the scaled problem on, correlations are worth their arithmetic.
WORTH_MIXING = 4.0
# Stan's: large steps are cheap to try, so the first guess is tried tenfold. A later window begins
# with a step size that is nearly right, and short windows would be drawn off it.
FIRST_BOLDNESS = 10.0
# Nesterov's γ: how little one surprise moves the step size. Stan's 0.05 finds the order of
# magnitude; what suits later windows is the kernel's to say (`Base.later_gamma`).
FIRST_GAMMA = 0.05
# Ends of the windows as parts of warm-up; the last tenth settles the step size alone.
WINDOW_ENDS = (0.05, 0.15, 0.4, 0.9)


@pytree
class Tuning:
    """What warm-up carries along."""

    # every step: dual averaging of the log step size, and steps since the window began
    log_step: Numbers
    log_step_mean: Numbers
    count: Numbers
    error_mean: Numbers
    shrink_to: Numbers
    gamma: Numbers
    # every recorded step: a ring of draws and scores, and how many were written
    draws: Numbers
    scores: Numbers
    recorded: Numbers


def windows(warmup: int, kernel: Any) -> list[int]:
    """Return the warm-up steps at which the metric is learned anew, then the last step."""
    if not getattr(kernel, "tunes_metric", False) or warmup < 20:
        return [warmup]
    return [*(max(1, round(part * warmup)) for part in WINDOW_ENDS), warmup]


def ring_rows(dim: int, itemsize: int) -> int:
    """Return how many draws a window records."""
    return max(16, min(MOST_RECORDED, RECORD_BYTES // (2 * dim * itemsize)))


def start_tuning(kernel: Any, state: Any, chains: int | None, *, metric: bool) -> Tuning:
    """Return the tuning state before the first step, as NumPy arrays.

    `state` may hold shapes only. `chains` is the number of pooled chains, None for one.
    """
    x, score = _flat_shape(state.position), getattr(state, "score", None)
    dtype = x.dtype if np.issubdtype(x.dtype, np.floating) else np.dtype(np.float32)
    rows = ring_rows(x.size, dtype.itemsize) if metric else 0
    shape = (rows, x.size)
    if chains is not None and rows:
        pooled = min(chains, rows)
        shape = (max(1, rows // pooled), pooled, x.size)
    scores = shape if score is not None else (0,)
    step = np.asarray(getattr(kernel, "step_size", 1.0), dtype)
    number, count = np.zeros((), dtype), np.zeros((), np.int32)
    blank = Tuning(
        log_step=number,
        log_step_mean=number,
        count=count,
        error_mean=number,
        shrink_to=number,
        gamma=number,
        draws=np.zeros(shape, dtype),
        scores=np.zeros(scores, dtype),
        recorded=count,
    )
    return _restart_step_size(blank, step)


def _flat_shape(position: Any) -> jax.ShapeDtypeStruct:
    leaves = jax.tree.leaves(position)
    size = sum(math.prod(leaf.shape) for leaf in leaves)
    return jax.ShapeDtypeStruct((size,), jnp.result_type(*(leaf.dtype for leaf in leaves)))


def _restart_step_size(tuning: Tuning, step: np.ndarray, gamma: float | None = None) -> Tuning:
    """Begin dual averaging anew at `step`: boldly the first time, gently later."""
    log_step = np.log(step)
    boldness, gamma = (FIRST_BOLDNESS, FIRST_GAMMA) if gamma is None else (1.0, gamma)
    zero = np.zeros_like(log_step)
    return dataclasses.replace(
        tuning,
        log_step=log_step,
        log_step_mean=zero,
        count=np.zeros((), np.int32),
        error_mean=zero,
        shrink_to=(log_step + np.log(boldness)).astype(log_step.dtype),
        gamma=np.asarray(gamma, log_step.dtype),
        recorded=np.zeros((), np.int32),
    )


def tune(kernel: Base, tuning: Tuning, stats: Stats, goal: float | None) -> tuple[Base, Tuning]:
    """Learn from one warm-up step, inside the compiled program."""
    count = jnp.asarray(tuning.count) + 1
    kernel = kernel.learn(stats, count)
    if goal is None:
        return kernel, dataclasses.replace(tuning, count=count)
    from blackjax.adaptation.step_size import (
        DualAveragingAdaptationState,
        dual_averaging_adaptation,
    )

    dtype = tuning.log_step.dtype
    rate = jnp.mean(jnp.nan_to_num(stats["acceptance_rate"])).astype(dtype)
    update: Any = dual_averaging_adaptation(goal, gamma=tuning.gamma)[1]
    state: Any = DualAveragingAdaptationState(
        tuning.log_step,
        tuning.log_step_mean,
        count.astype(dtype),  # pyright: ignore  # BlackJAX counts from 1: the number of this update
        tuning.error_mean,
        tuning.shrink_to,
    )
    new = update(state, rate)
    tuning = dataclasses.replace(
        tuning,
        log_step=jnp.asarray(new.log_step_size, dtype),
        log_step_mean=jnp.asarray(new.log_step_size_avg, dtype),
        count=count,
        error_mean=jnp.asarray(new.avg_error, dtype),
    )
    step = jnp.exp(tuning.log_step)
    return dataclasses.replace(kernel, step_size=step), tuning  # pyright: ignore


def record(tuning: Tuning, state: Any, pooled: int | None) -> Tuning:
    """Write the present draw and score into the ring of the window."""
    row = jnp.asarray(tuning.recorded) % tuning.draws.shape[0]

    def vectors(tree: Any) -> Array:
        if pooled is None:
            return ravel_pytree(tree)[0]
        some = jax.tree.map(lambda a: a[: tuning.draws.shape[1]], tree)
        return jax.vmap(lambda p: ravel_pytree(p)[0])(some)

    scores = tuning.scores
    if scores.ndim > 1:
        scores = jnp.asarray(scores).at[row].set(vectors(state.score).astype(scores.dtype))
    draws = (
        jnp.asarray(tuning.draws).at[row].set(vectors(state.position).astype(tuning.draws.dtype))
    )
    return dataclasses.replace(tuning, draws=draws, scores=scores, recorded=tuning.recorded + 1)


def finish_window(
    kernel: Any,
    tuning: Tuning,
    goal: float | None,
    *,
    metric: bool,
    force: bool,
) -> tuple[Any, Tuning]:
    """Return the kernel with the step size and metric that the window taught, on the host.

    `metric` learns it from the recorded draws; `force` mixes coordinates even where a diagonal
    would nearly do.
    """
    step = np.asarray(kernel.step_size) if hasattr(kernel, "step_size") else None
    if goal is not None and int(tuning.count) > 0:
        step = np.exp(np.asarray(tuning.log_step_mean))
        kernel = dataclasses.replace(kernel, step_size=step)
    if metric:
        kernel = kernel.moved(_window_metric(kernel.metric, tuning, force=force))
    if step is not None:
        tuning = _restart_step_size(tuning, step, kernel.later_gamma)
    return kernel, tuning


def _window_metric(metric: Any, tuning: Tuning, *, force: bool) -> Any:
    rows, dim = min(int(tuning.recorded), tuning.draws.shape[0]), tuning.draws.shape[-1]
    draws = np.asarray(tuning.draws)[:rows].astype(np.float64).reshape(-1, dim)
    scores = None
    if tuning.scores.ndim > 1:
        scores = np.asarray(tuning.scores)[:rows].astype(np.float64).reshape(-1, dim)
        if not math.isfinite(np.add.reduce(scores, axis=None)):
            fine = np.isfinite(scores).all(1)
            draws, scores = draws[fine], scores[fine]
    # A rejected proposal repeats the draw: what counts is how many differ, seen in one coordinate.
    first = draws[:, 0]
    distinct = 1 + int(np.count_nonzero(first[1:] != first[:-1]))
    if isinstance(metric, Identity) or distinct < 10:
        return metric
    mixing = isinstance(metric, Dense | LowRank)
    scale, mix = fisher_metric(draws, scores, distinct, mixing=mixing, force=force)
    return with_scale(metric, scale, mix)


def fisher_metric(
    draws: np.ndarray,
    scores: np.ndarray | None,
    distinct: int,
    *,
    mixing: bool = True,
    force: bool = False,
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray] | None]:
    """Return scales, and eigenvalues and -vectors of what remains, for the best linear map.

    The Fisher divergence between the target in new coordinates and a standard normal is least for
    M⁻¹ = cov(x) # cov(∇log p)⁻¹, the geometric mean: exact for a Gaussian as soon as there are more
    draws than dimensions, however few. Without scores it is cov(x). Seyboldt, Carlson and Carpenter
    2026, as in nutpie; first the diagonal, then the rest where its condition number pays.
    """
    n, dim = draws.shape
    x = _centered(draws)
    g = None if scores is None else _centered(scores)
    if not mixing:
        return _scales(n, _squares(x), None if g is None else _squares(g)), None
    weight = _ridge(distinct, dim)
    if n * (1 if g is None else 2) >= dim:
        # Enough draws: second moments are all that is needed of them.
        basis, covariance, dual = None, x.T @ x, None if g is None else g.T @ g
        scale = _scales(n, covariance.diagonal(), None if dual is None else dual.diagonal())
        both = scale[:, None] * scale
        covariance = _ridged(covariance / (n * both), weight)
        dual = None if dual is None else _ridged(dual * (both / n), weight)
    else:
        scale = _scales(n, _squares(x), None if g is None else _squares(g))
        seen = x / scale if g is None else np.concatenate([x / scale, g * scale])
        basis = np.linalg.qr(seen.T)[0]  # orthonormal, of what was seen
        covariance = _ridged_in(basis, x / scale, weight)
        dual = None if g is None else _ridged_in(basis, g * scale, weight)
    if dual is not None:
        covariance = _geometric_mean(covariance, dual)
    values, vectors = np.linalg.eigh(covariance)
    if not force and values[-1] < WORTH_MIXING * values[0]:
        return scale, None
    return scale, (np.maximum(values, 1e-10), vectors if basis is None else basis @ vectors)


def _centered(x: np.ndarray) -> np.ndarray:
    return x - np.add.reduce(x) / len(x)


def _squares(x: np.ndarray) -> np.ndarray:
    return np.einsum("ij,ij->j", x, x)


def _scales(n: int, x: np.ndarray, g: np.ndarray | None) -> np.ndarray:
    """Return the best diagonal from sums of squares: (var x / var ∇log p)^¼, or sds of x."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.sqrt(x / n if g is None else np.sqrt(x / g))
    fine = (scale > 1e-20) & (scale < np.inf)  # NaN is neither
    return scale if fine.all() else np.where(fine, scale, 1.0)


def _ridge(distinct: int, dim: int) -> float:
    """Return the share of a multiple of the identity that a covariance is mixed with.

    With plenty of draws almost nothing: the geometric mean cancels their noise. With fewer than two
    a dimension, directions never seen must not look flat: five draws' worth.
    """
    weight = 1e-5 * distinct if distinct >= 2 * dim else 5.0
    return weight / (distinct + weight)


def _ridged(covariance: np.ndarray, share: float) -> np.ndarray:
    diagonal = covariance.ravel()[:: len(covariance) + 1]  # a view
    ridge = share * diagonal.mean()
    covariance *= 1 - share
    diagonal += ridge
    return covariance


def _ridged_in(basis: np.ndarray, x: np.ndarray, share: float) -> np.ndarray:
    """Return the same in a subspace; the identity's multiple is that of the whole space."""
    inner = x @ basis
    ridge = share * np.mean(x**2) * np.eye(basis.shape[1])
    return (1 - share) * (inner.T @ inner) / len(x) + ridge


def _geometric_mean(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a # b⁻¹: the matrix M with M b M = a; a itself where b is not positive definite."""
    try:
        lower = np.linalg.cholesky(b)  # M = L⁻ᵀ (Lᵀ a L)^½ L⁻¹
    except np.linalg.LinAlgError:  # scores that do not vary: a chain that hardly moved
        return a
    values, vectors = np.linalg.eigh(lower.T @ a @ lower)
    root = np.linalg.solve(lower.T, vectors * np.sqrt(np.sqrt(np.maximum(values, 0))))
    return root @ root.T
