"""Check that a kernel keeps its contract and leaves its target invariant."""

import warnings
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from samplekit.core.protocols import Kernel, Position
from samplekit.core.stats import STATISTICS
from samplekit.testing.averages import judge
from samplekit.testing.contract import (
    PyTree,
    Target,
    assert_close,
    assert_same_type,
    check_pytree,
    facts,
    positions,
    row,
    type_name,
)


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
    draw_key, run_key = jax.random.split(key)
    start = target.draw(draw_key, chains) if hasattr(target, "draw") else None
    stack = positions(target, key, x, start)
    flat = ravel_pytree(row(stack, 0))[0]
    if hasattr(kernel, "prepare"):  # ours: gives settings that were left open a number
        kernel = kernel.prepare(flat.size, flat.dtype)  # pyright: ignore
    check_pytree(kernel, "kernel")
    _check_step(kernel, target, key, row(stack, 0))
    _check_mapped(kernel, target, key, stack)
    if invariant is None:
        invariant = bool(getattr(kernel, "exact", True))
    if not invariant or start is None:
        return
    end, moved = _walk(kernel, target, jax.random.split(run_key, chains), start, steps=steps)
    if not np.any(np.asarray(moved)):
        raise AssertionError(f"{type_name(kernel)} never moved: {chains} chains of {steps} steps.")
    both = jax.tree.map(lambda a, b: np.concatenate([a, b]), start, end)
    with np.errstate(invalid="ignore", over="ignore"):  # reported as undefined
        names, values, expected = facts(target, both)
        limit = resolves * values[:chains].std(axis=0)
        mean, spread = values[chains:].mean(axis=0), values[chains:].std(axis=0, ddof=1)
    # The chains are independent, so this error is right whatever the autocorrelation.
    judge(mean, spread / np.sqrt(chains), expected, resolves=limit, name=names)


def _init_and_step(kernel: Any, target: Target, key: Array, x: Position) -> PyTree:
    init_key, step_key = jax.random.split(key)
    return kernel.step(step_key, kernel.init(init_key, x, target), target)


def _check_step(kernel: Any, target: Target, key: Array, x: Position) -> None:
    """Assert that one step keeps types, depends on its key alone, and names its statistics."""
    name = type_name(kernel)
    state = jax.eval_shape(kernel.init, key, x, target)
    after, stats = jax.eval_shape(kernel.step, key, state, target)
    assert_same_type(after, state, f"{name}'s state after a step")
    assert_same_type(after.position, x, f"{name}'s position")
    if not isinstance(stats, dict) or not all(hasattr(v, "shape") for v in stats.values()):
        raise AssertionError(f"{name}'s statistics are {stats}, but a dict of arrays is needed.")
    unknown = sorted(n for n in set(stats) - set(STATISTICS) if not n.startswith("_"))
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
    assert_close(once, plain, f"{name}'s step compiled and not")


def _check_mapped(kernel: Any, target: Target, key: Array, stack: PyTree) -> None:
    """Assert that chains side by side move as each alone."""
    keys = jax.random.split(key, len(jax.tree.leaves(stack)[0]))
    mapped = jax.jit(jax.vmap(_init_and_step, (None, None, 0, 0)))(kernel, target, keys, stack)
    compiled = jax.jit(_init_and_step)
    for i, one in enumerate(keys):
        alone = compiled(kernel, target, one, row(stack, i))
        assert_close(row(mapped, i), alone, f"{type_name(kernel)}'s step mapped and not")


@partial(jax.jit, static_argnames="steps")
def _walk(kernel: Any, target: Target, keys: Array, x: PyTree, *, steps: int) -> PyTree:
    """Return where each chain is after some steps, and whether it has moved."""

    def chain(key: Array, x: Position) -> tuple[Position, Array]:
        init_key, step_key = jax.random.split(key)
        state = kernel.init(init_key, x, target)

        def step(state: Any, key: Array) -> tuple[Any, None]:
            return kernel.step(key, state, target)[0], None

        state, _ = jax.lax.scan(step, state, jax.random.split(step_key, steps))
        return state.position, jnp.any(ravel_pytree(state.position)[0] != ravel_pytree(x)[0])

    return jax.vmap(chain)(keys, x)
