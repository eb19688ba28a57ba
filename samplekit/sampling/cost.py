"""How much arithmetic a program does, read from what JAX traced of it."""

import math
from collections.abc import Iterator
from typing import Any

UNKNOWN = ("while", "pure_callback", "io_callback", "ffi_call")


def arithmetic(jaxpr: Any) -> float:
    """Return about how many numbers a traced program works out; infinity if it cannot be told.

    Every operation counts the numbers it makes, a product of matrices its multiplications, and a
    scan its body as often as it runs. What a `while` or a callback does is not known.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> arithmetic(jax.make_jaxpr(lambda x: jnp.sum(x * x))(jnp.ones(100)).jaxpr)
    200.0
    """
    return math.fsum(_counted(jaxpr))


def _counted(jaxpr: Any) -> Iterator[float]:
    for equation in jaxpr.eqns:
        inner = [getattr(p, "jaxpr", p) for p in _programs(equation.params)]
        if equation.primitive.name in UNKNOWN:
            yield math.inf
        elif inner:
            times = equation.params.get("length", 1)
            yield times * math.fsum(number for part in inner for number in _counted(part))
        else:
            yield _numbers(equation)


def _programs(params: dict[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if hasattr(one, "eqns") or hasattr(one, "jaxpr"):
                yield one


def _numbers(equation: Any) -> float:
    made = sum(math.prod(v.aval.shape) for v in equation.outvars)
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        return float(made * math.prod(shape[axis] for axis in contracted))
    # A sum makes one number of many: what goes in counts where it is more.
    taken = max((math.prod(getattr(v.aval, "shape", ())) for v in equation.invars), default=0)
    return float(max(made, taken))
