"""Check that a target keeps its contract."""

from typing import Any

import jax
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from samplekit.core.protocols import DensityTarget, Position, ScoreTarget
from samplekit.testing.averages import MIN_CHAINS, assert_mean
from samplekit.testing.contract import (
    PyTree,
    Target,
    assert_close,
    assert_same_type,
    check_pytree,
    facts,
    flat,
    positions,
    row,
    type_name,
)


def check_target(
    target: Target, key: Array | None = None, x: Position | None = None, *, draws: int = 16_384
) -> None:
    """Assert that a target keeps its contract, wherever that can be seen from outside.

    It is a pytree; log density and score have the right shapes and dtypes and agree with each
    other and with finite differences; compiled, mapped and plain calls agree. If it has exact
    draws, as the zoo has, then their moments are those stated, E[score] = 0, and Stein's
    identity E[(x − E[x])_i score_i] = −1 holds.

    Parameters
    ----------
    target
        Anything with a log density, a score, or both.
    key
        Randomness; the default is always the same.
    x
        A position to test at; needed if the target has neither exact draws nor a space.
    draws
        How many exact draws to compare; an error of 0.1 standard deviations is noticed at the
        default.

    Examples
    --------
    >>> import samplekit as sk
    >>> sk.testing.check_target(sk.from_energy(lambda x: (x**4).sum(), dim=2))
    """
    key = jax.random.key(0) if key is None else key
    if not isinstance(target, DensityTarget | ScoreTarget):
        raise AssertionError(f"{type_name(target)} has neither log_density nor score.")
    check_pytree(target, "target")
    exact = target.draw(key, draws) if hasattr(target, "draw") else None  # pyright: ignore
    stack = positions(target, key, x, exact)
    x = row(stack, 0)
    if isinstance(target, DensityTarget):
        out = jax.eval_shape(target.log_density, x)
        dtype = ravel_pytree(x)[0].dtype
        if getattr(out, "shape", None) != () or out.dtype != dtype:
            raise AssertionError(f"log_density returns {out} for positions of {dtype}, not one.")
        _check_calls(_log_density, target, stack)
    if isinstance(target, ScoreTarget):
        assert_same_type(jax.eval_shape(target.score, x), x, "The score")
        _check_calls(_score, target, stack)
    if isinstance(target, DensityTarget) and isinstance(target, ScoreTarget):
        _check_score(target, stack, key)
    if exact is not None:
        _check_draws(target, exact)


def _log_density(target: Target, x: Position) -> Array:
    return target.log_density(x)


def _score(target: Target, x: Position) -> Position:
    return target.score(x)


def _check_calls(fn: Any, target: Target, stack: PyTree) -> None:
    """Assert that plain, compiled and mapped calls agree."""
    name = f"{type_name(target)}.{fn.__name__.removeprefix('_')}"
    compiled = jax.jit(fn)
    rows = [compiled(target, row(stack, i)) for i in range(len(jax.tree.leaves(stack)[0]))]
    if not all(np.isfinite(np.asarray(a)).all() for a in jax.tree.leaves(rows)):
        raise AssertionError(f"{name} is not finite: {rows}. Give a position x where it is.")
    assert_close(rows[0], fn(target, row(stack, 0)), f"{name} compiled and not")
    mapped = jax.jit(jax.vmap(fn, in_axes=(None, 0)))(target, stack)
    for i, one in enumerate(rows):
        assert_close(row(mapped, i), one, f"{name} mapped and not")


def _check_score(target: Target, stack: PyTree, key: Array) -> None:
    """Assert that the score is the gradient, whatever constant is added, and the true slope."""
    unravel = ravel_pytree(row(stack, 0))[1]
    rows = flat(stack)

    @jax.jit
    def along(target: Target, line: Array) -> Array:
        return jax.vmap(lambda v: target.log_density(unravel(v)))(line)

    gradient = jax.jit(jax.grad(lambda x, target: target.log_density(x) + 1000.0))
    directions = np.asarray(jax.random.normal(key, (len(rows), rows.shape[1])))
    for i, place in enumerate(rows):
        x = row(stack, i)
        score = jax.jit(_score)(target, x)
        assert_close(score, gradient(x, target), "The score and the gradient of the log density")
        eps, u = np.finfo(place.dtype).eps, directions[i].astype(place.dtype)
        # The step that balances rounding and truncation of a central difference.
        h = eps ** (1 / 3) * max(1.0, float(np.abs(place).max()))
        shifts = np.array([h, -h, h / 2, -h / 2])
        f = np.asarray(along(target, place + (shifts[:, None] * u).astype(place.dtype)), np.float64)
        coarse, fine = (f[0] - f[1]) / (2 * h), (f[2] - f[3]) / h
        slope = float(np.dot(np.asarray(ravel_pytree(score)[0], np.float64), u))
        # Truncation is seen from the two steps, rounding follows from the size of the values.
        rounding = 16 * eps * (np.abs(f).max() + np.abs(slope) * np.abs(place).max()) / h
        allowed = 4 * abs(coarse - fine) + rounding + np.sqrt(eps) * abs(slope)
        if not abs(slope - (4 * fine - coarse) / 3) <= allowed:
            raise AssertionError(
                f"The score of {type_name(target)} says the slope {slope:.8g}, finite differences "
                f"of its log density say {fine:.8g} ± {allowed:.2g}, at {x}."
            )


def _check_draws(target: Target, draws: PyTree) -> None:
    """Assert that exact draws have the moments stated, and the score is theirs."""
    names, values, expected = facts(target, draws)
    every = [values]
    if isinstance(target, ScoreTarget):
        x, score = flat(draws), flat(jax.jit(jax.vmap(target.score))(draws))
        center = np.nan_to_num(np.ravel(target.mean))  # pyright: ignore
        every += [score, (x - center) * score]
        expected = np.concatenate([expected, np.zeros(x.shape[1]), np.full(x.shape[1], -1.0)])
        names += [f"score[{i}]" for i in range(x.shape[1])]
        names += [f"(x − mean) · score[{i}]" for i in range(x.shape[1])]
    stacked = np.concatenate(every, axis=1, dtype=np.float64)
    length = len(stacked) // MIN_CHAINS
    stacked = stacked[: length * MIN_CHAINS].reshape(MIN_CHAINS, length, -1)
    assert_mean(stacked, expected, resolves=0.1 * stacked.std(axis=(0, 1)), name=names)
