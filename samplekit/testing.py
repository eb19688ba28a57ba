"""Checks for targets, kernels and averages, public as scikit-learn's estimator checks are.

A Monte Carlo test can be wrong in two ways: fail by chance, or be too weak to notice anything.
Everything here states both: the chance of a false alarm, and the error that must not pass.
"""

import warnings
from collections.abc import Sequence
from functools import partial
from statistics import NormalDist
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from samplekit.core.errors import SettingsError
from samplekit.core.protocols import DensityTarget, Kernel, Position, ScoreTarget
from samplekit.core.stats import STATISTICS

type PyTree = Any
type Target = Any  # has log_density, score or both
type Facts = tuple[list[str], Array, np.ndarray]  # names, values (draw, scalar), exact means

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
    mean, error = values.mean(axis=(0, 1)), _mcse(values)
    _judge(mean, error, expected, resolves=resolves, false_fail=false_fail, name=name)


def check_target(
    target: Target, key: Array | None = None, x: Position | None = None, *, draws: int = 32_768
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
        raise AssertionError(f"{_type(target)} has neither log_density nor score.")
    _check_pytree(target, "target")
    stack = _positions(target, key, x)
    x = _row(stack, 0)
    if isinstance(target, DensityTarget):
        out = jax.eval_shape(target.log_density, x)
        dtype = ravel_pytree(x)[0].dtype
        if getattr(out, "shape", None) != () or out.dtype != dtype:
            raise AssertionError(f"log_density returns {out} for positions of {dtype}, not one.")
        _check_calls(_log_density, target, stack)
    if isinstance(target, ScoreTarget):
        _assert_same_type(jax.eval_shape(target.score, x), x, "The score")
        _check_calls(_score, target, stack)
    if isinstance(target, DensityTarget) and isinstance(target, ScoreTarget):
        _check_score(target, stack, key)
    if hasattr(target, "draw"):
        _check_draws(target, key, draws)


def check_kernel(
    kernel: Kernel,
    target: Target,
    key: Array | None = None,
    *,
    x: Position | None = None,
    chains: int = 4096,
    steps: int = 20,
    resolves: float = 0.25,
    invariant: bool | None = None,
) -> None:
    """Assert that a kernel keeps its contract and leaves the target invariant.

    Types are preserved by a step, so that it can be scanned; a step depends on its key alone;
    compiled, mapped and plain steps agree; statistics are scalars with known names. Then, where
    the target has exact draws, many independent chains start in equilibrium and must still be
    there after some steps. No burn-in or autocorrelation enters: the standard errors are exact.

    Parameters
    ----------
    kernel
        With its step size set.
    target
        What it samples; one with exact draws (the zoo) makes the strong test possible.
    key
        Randomness; the default is always the same.
    x
        A position to start from; needed if the target has neither exact draws nor a space.
    chains, steps
        How many independent chains, and how many steps each takes.
    resolves
        The smallest error that must not pass, in standard deviations of each quantity. Halving
        it takes four times the chains.
    invariant
        Whether to test invariance; by default unless the kernel says that it is not `exact`.

    Examples
    --------
    >>> import samplekit as sk
    >>> sk.testing.check_kernel(sk.RandomWalk(step_size=1.0), sk.targets.gaussian(2))
    """
    key = jax.random.key(0) if key is None else key
    stack = _positions(target, key, x)
    flat = ravel_pytree(_row(stack, 0))[0]
    if hasattr(kernel, "prepare"):  # ours: gives settings that were left open a number
        kernel = kernel.prepare(flat.size, flat.dtype)  # pyright: ignore
    _check_pytree(kernel, "kernel")
    _check_step(kernel, target, key, _row(stack, 0))
    _check_mapped(kernel, target, key, stack)
    if invariant is None:
        invariant = bool(getattr(kernel, "exact", True))
    if not (invariant and hasattr(target, "draw")):
        return
    draw_key, run_key = jax.random.split(key)
    start = target.draw(draw_key, chains)
    end, moved = _walk(kernel, target, jax.random.split(run_key, chains), start, steps)
    if not np.any(np.asarray(moved)):
        raise AssertionError(f"{_type(kernel)} never moved: {chains} chains of {steps} steps.")
    _, before, _ = _facts(target, start)
    names, after, expected = _facts(target, end)
    values = np.asarray(after, np.float64)
    # The chains are independent, so this is exact whatever the autocorrelation.
    error = values.std(axis=0, ddof=1) / np.sqrt(chains)
    scale = np.asarray(before, np.float64).std(axis=0)
    _judge(values.mean(axis=0), error, expected, resolves=resolves * scale, name=names)


def _z(tail: float) -> float:
    """Return the two-sided normal quantile."""
    return -NormalDist().inv_cdf(tail / 2)


def _mcse(values: np.ndarray) -> np.ndarray:
    """Return the Monte Carlo standard error of each mean of (chain, draw, scalar)."""
    from arviz_stats.base import array_stats

    spread = values.std(axis=(0, 1))
    error = np.full(values.shape[2], np.nan)
    varies = np.isfinite(spread) & (spread > 0)
    if varies.any():
        error[varies] = array_stats.mcse(values[:, :, varies], chain_axis=0, draw_axis=1)
    error[spread == 0] = 0.0
    return error


def _judge(
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
        weak = (z + _z(MISSED)) * error / limit

    def fail(which: np.ndarray, verdict: str, why: str) -> None:
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
            f"an error of {weak[i] * limit[i]:.3g} could pass, resolves {limit[i]:.3g}; {more}.",
        )


def _type(thing: object) -> str:
    return type(thing).__name__


def _check_pytree(thing: PyTree, what: str) -> None:
    """A pytree whose leaves are arrays and whose code can be hashed runs in one program."""
    leaves, structure = jax.tree.flatten(thing)
    if any(leaf is thing for leaf in leaves):
        raise AssertionError(
            f"{_type(thing)} is no pytree. A {what} is an argument of compiled programs: make it "
            "a samplekit.core.pytree.pytree class or an Equinox module."
        )
    strange = [leaf for leaf in leaves if not _is_number(leaf)]
    if strange:
        raise AssertionError(
            f"{_type(thing)} has leaves that are no arrays: {strange}. Declare such fields static."
        )
    hash(structure)
    if jax.tree.structure(jax.tree.unflatten(structure, leaves)) != structure:
        raise AssertionError(f"{_type(thing)} is another {what} after flatten and unflatten.")


def _is_number(leaf: object) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | float | int | complex)


def _row(stack: PyTree, i: int) -> PyTree:
    return jax.tree.map(lambda a: a[i], stack)


def _positions(target: Target, key: Array, x: Position | None, n: int = 4) -> PyTree:
    """Return a few positions, stacked: exact draws, or noise around what is known."""
    if x is None and hasattr(target, "draw"):
        return target.draw(key, n)
    if x is None and getattr(target, "space", None) is None:
        raise SettingsError(f"{_type(target)} has neither draw nor space: give a position x.")
    if x is None:
        x = target.space.unravel(jnp.zeros(target.space.size, jnp.result_type(float)))
    flat, unravel = ravel_pytree(jax.tree.map(jnp.asarray, x))
    noise = jax.random.normal(key, (n, flat.size), flat.dtype)
    return jax.vmap(unravel)(flat[None, :] + 0.5 * noise)


def _assert_same_type(out: PyTree, like: PyTree, what: str) -> None:
    def types(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda a: (np.shape(a), str(jnp.result_type(a))), tree)

    if types(out) != types(like):
        raise AssertionError(f"{what} has {types(out)} where {types(like)} is needed.")


def _assert_close(got: PyTree, want: PyTree, what: str) -> None:
    """Compare to rounding: the root of the machine precision, relative to the largest entry."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)  # noqa: PLW2901
        a, b = np.asarray(a), np.asarray(b)  # noqa: PLW2901
        if a.dtype.kind != "f":
            same = np.array_equal(a, b)
        else:
            size = np.max(np.abs(b), initial=1.0, where=np.isfinite(b))
            with np.errstate(invalid="ignore"):  # inf − inf
                close = np.abs(a - b) <= np.sqrt(np.finfo(a.dtype).eps) * size
            same = np.all(close | (a == b) | (np.isnan(a) & np.isnan(b)))
        if not same:
            raise AssertionError(f"{what}: {a} and {b}.")


def _log_density(target: Target, x: Position) -> Array:
    return target.log_density(x)


def _score(target: Target, x: Position) -> Position:
    return target.score(x)


def _check_calls(fn: Any, target: Target, stack: PyTree) -> None:  # noqa: ANN401
    """Plain, compiled and mapped calls agree."""
    name = f"{_type(target)}.{fn.__name__.removeprefix('_')}"
    compiled = jax.jit(fn)
    rows = [compiled(target, _row(stack, i)) for i in range(len(jax.tree.leaves(stack)[0]))]
    if not all(np.isfinite(np.asarray(a)).all() for a in jax.tree.leaves(rows)):
        raise AssertionError(f"{name} is not finite: {rows}. Give a position x where it is.")
    _assert_close(rows[0], fn(target, _row(stack, 0)), f"{name} compiled and not")
    mapped = jax.jit(jax.vmap(fn, in_axes=(None, 0)))(target, stack)
    for i, row in enumerate(rows):
        _assert_close(_row(mapped, i), row, f"{name} mapped and not")


def _check_score(target: Target, stack: PyTree, key: Array) -> None:
    """The score is the gradient, whatever constant is added, and the slope that one measures."""
    unravel = ravel_pytree(_row(stack, 0))[1]

    @jax.jit
    def along(target: Target, line: Array) -> Array:
        return jax.vmap(lambda v: target.log_density(unravel(v)))(line)

    gradient = jax.jit(jax.grad(lambda x, target: target.log_density(x) + 1000.0))
    directions = np.asarray(jax.random.normal(key, (64, ravel_pytree(_row(stack, 0))[0].size)))
    for i in range(len(jax.tree.leaves(stack)[0])):
        x = _row(stack, i)
        score = jax.jit(_score)(target, x)
        _assert_close(score, gradient(x, target), "The score and the gradient of the log density")
        flat = np.asarray(ravel_pytree(x)[0])
        eps, u = np.finfo(flat.dtype).eps, directions[i].astype(flat.dtype)
        # The step that balances rounding and truncation of a central difference.
        h = eps ** (1 / 3) * max(1.0, float(np.abs(flat).max()))
        shifts = np.array([h, -h, h / 2, -h / 2])
        f = np.asarray(along(target, flat + (shifts[:, None] * u).astype(flat.dtype)), np.float64)
        coarse, fine = (f[0] - f[1]) / (2 * h), (f[2] - f[3]) / h
        slope = float(np.dot(np.asarray(ravel_pytree(score)[0], np.float64), u))
        # Truncation is seen from the two steps, rounding follows from the size of the values.
        rounding = 16 * eps * (np.abs(f).max() + np.abs(slope) * np.abs(flat).max()) / h
        allowed = 4 * abs(coarse - fine) + rounding + np.sqrt(eps) * abs(slope)
        if not abs(slope - (4 * fine - coarse) / 3) <= allowed:
            raise AssertionError(
                f"The score of {_type(target)} says the slope {slope:.8g}, finite differences "
                f"of its log density say {fine:.8g} ± {allowed:.2g}, at {x}."
            )


def _flat(stack: PyTree) -> Array:
    return jax.vmap(lambda x: ravel_pytree(x)[0])(stack)


def _facts(target: Target, stack: PyTree) -> Facts:
    """Return what is known exactly of a target's expectations, evaluated at positions."""
    x = _flat(stack)
    mean, variance = np.ravel(target.mean), np.ravel(target.variance)
    names, columns, exact = [], [], []

    def add(label: str, values: Array, expected: np.ndarray) -> None:
        names.extend(f"{label}{[i]}" if values.shape[1] > 1 else label for i in range(len(expected)))
        columns.append(values)
        exact.append(expected)

    if np.isfinite(mean).all() and np.isfinite(variance).all():
        add("x", x, mean)
    if not getattr(target, "heavy_tailed", False):
        offset = x - jnp.asarray(mean, x.dtype)[None, :]
        add("squared deviation", offset**2, variance)
        if hasattr(target, "covariance") and x.shape[1] > 1:
            u = np.random.default_rng(0).standard_normal(x.shape[1]) / np.sqrt(variance)
            along = jnp.matmul(offset, jnp.asarray(u, x.dtype), precision="highest")
            value = np.array([u @ np.asarray(target.covariance) @ u])
            add("squared deviation along a line", along[:, None] ** 2, value)
    for label, (fn, value) in getattr(target, "expectations", {}).items():
        add(label, jax.vmap(fn)(stack)[:, None], np.array([value]))
    return names, jnp.concatenate(columns, axis=1), np.concatenate(exact)


def _check_draws(target: Target, key: Array, n: int) -> None:
    """Exact draws have the moments stated, and the score is that of their distribution."""
    draws = target.draw(key, n)
    names, values, expected = _facts(target, draws)
    parts = [np.asarray(values, np.float64)]
    if isinstance(target, ScoreTarget):
        x, score = _flat(draws), _flat(jax.jit(jax.vmap(target.score))(draws))
        x, score = np.asarray(x, np.float64), np.asarray(score, np.float64)
        center = np.where(np.isfinite(target.mean), target.mean, 0.0)
        parts += [score, (x - np.ravel(center)) * score]
        expected = np.concatenate([expected, np.zeros(x.shape[1]), np.full(x.shape[1], -1.0)])
        for label in ("score", "x · score"):
            names += [f"{label}[{i}]" for i in range(x.shape[1])]
    every = np.concatenate(parts, axis=1)
    every = every[: n - n % MIN_CHAINS].reshape(MIN_CHAINS, -1, every.shape[1])
    assert_mean(every, expected, resolves=0.1 * every.std(axis=(0, 1)), name=names)


def _init_and_step(kernel: Any, target: Target, key: Array, x: Position) -> PyTree:  # noqa: ANN401
    init_key, step_key = jax.random.split(key)
    return kernel.step(step_key, kernel.init(init_key, x, target), target)


def _check_step(kernel: Any, target: Target, key: Array, x: Position) -> None:  # noqa: ANN401
    """One step keeps types, depends on its key alone, and names its statistics."""
    name = _type(kernel)
    state = jax.eval_shape(kernel.init, key, x, target)
    after, stats = jax.eval_shape(kernel.step, key, state, target)
    _assert_same_type(after, state, f"{name}'s state after a step")
    _assert_same_type(after.position, x, f"{name}'s position")
    if not isinstance(stats, dict) or not all(hasattr(v, "shape") for v in stats.values()):
        raise AssertionError(f"{name}'s statistics are {stats}, but a dict of arrays is needed.")
    unknown = sorted(set(stats) - set(STATISTICS))
    if unknown:
        warnings.warn(
            f"{name} reports {', '.join(unknown)}, which samplekit.core.stats.STATISTICS does not "
            "know; when draws are thinned, the last value is kept.",
            stacklevel=3,
        )
    compiled = jax.jit(_init_and_step)
    once, again = (compiled(kernel, target, key, x) for _ in range(2))
    for a, b in zip(jax.tree.leaves(once), jax.tree.leaves(again), strict=True):
        if not np.array_equal(np.asarray(a), np.asarray(b), equal_nan=a.dtype.kind == "f"):
            raise AssertionError(f"{name} gives {a} and {b} for the same key.")
    if not all(np.isfinite(np.asarray(a)).all() for a in jax.tree.leaves(once[0].position)):
        raise AssertionError(f"{name} moves to a position that is not finite: {once[0].position}.")
    plain = _init_and_step(kernel, target, key, x)
    _assert_close(once, plain, f"{name}'s step compiled and not")


def _check_mapped(kernel: Any, target: Target, key: Array, stack: PyTree) -> None:  # noqa: ANN401
    """Chains side by side move as each alone."""
    keys = jax.random.split(key, len(jax.tree.leaves(stack)[0]))
    mapped = jax.jit(jax.vmap(_init_and_step, (None, None, 0, 0)))(kernel, target, keys, stack)
    compiled = jax.jit(_init_and_step)
    for i, one in enumerate(keys):
        alone = compiled(kernel, target, one, _row(stack, i))
        _assert_close(_row(mapped, i), alone, f"{_type(kernel)}'s step mapped and not")


@partial(jax.jit, static_argnames="steps")
def _walk(kernel: Any, target: Target, keys: Array, x: PyTree, steps: int) -> PyTree:  # noqa: ANN401
    """Return where each chain is after some steps, and whether it has moved."""

    def chain(key: Array, x: Position) -> tuple[Position, Array]:
        init_key, step_key = jax.random.split(key)
        state = kernel.init(init_key, x, target)

        def step(state: Any, key: Array) -> tuple[Any, None]:  # noqa: ANN401
            return kernel.step(key, state, target)[0], None

        state, _ = jax.lax.scan(step, state, jax.random.split(step_key, steps))
        return state.position, jnp.any(ravel_pytree(state.position)[0] != ravel_pytree(x)[0])

    return jax.vmap(chain)(keys, x)
