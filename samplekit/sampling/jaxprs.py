"""Reading what JAX traced: equation by equation, each worked out in a way of one's own."""

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import Literal

# Primitives that only call a program, which may be read in their place.
CALLS = ("jit", "pjit", "closed_call")


def evaluate(
    jaxpr: Any,
    consts: Sequence[Any],
    values: Sequence[Any],
    apply: Callable[[Any, list[Any]], Sequence[Any]],
) -> list[Any]:
    """Return the values of a jaxpr whose equations are worked out by `apply(equation, inputs)`."""
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    known |= dict(zip(jaxpr.invars, values, strict=True))

    def read(v: Any) -> Any:
        return v.val if isinstance(v, Literal) else known[v]

    for equation in jaxpr.eqns:
        out = apply(equation, [read(v) for v in equation.invars])
        known |= dict(zip(equation.outvars, out, strict=True))
    return [read(v) for v in jaxpr.outvars]


def bind(equation: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    """Return the values of one equation, as JAX itself works them out."""
    found = equation.primitive.get_bind_params(equation.params)
    # Older versions of JAX return the functions that are called apart.
    functions, params = found if isinstance(found, tuple) else ((), found)
    with equation.ctx.manager:
        out = equation.primitive.bind(*functions, *inputs, **params)
    return out if equation.primitive.multiple_results else [out]
