"""Batches of small vectors, one array of all chains for each element.

`vmap` puts the chains first: arrays (N, d), whose inner loops have length d. For d = 2 a processor
then works on two numbers at a time. Here a function of a few numbers is evaluated element by
element, each an array (N,), so that every loop runs over the chains: three to five times faster for
thousands of chains in a few dimensions. What it cannot read (`UnreadableError`) is left to `vmap`.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from samplekit.sampling.jaxprs import CALLS, bind, evaluate

# A function with more elementwise operations than this is left to vmap: its program would be long.
MOST_OPERATIONS = 3000

type Columns = np.ndarray  # of objects: one array (N,) for each element of a value
_ELEMENTWISE = {
    "abs", "acos", "add", "add_any", "and", "asin", "atan", "atan2", "cbrt", "ceil", "clamp",
    "convert_element_type", "copy", "cos", "cosh", "digamma", "div", "eq", "erf", "erf_inv",
    "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le",
    "lgamma", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter",
    "not", "or", "pow", "rem", "round", "rsqrt", "select_n", "sign", "sin", "sinh", "sqrt",
    "square", "stop_gradient", "sub", "tan", "tanh", "xor",
}  # fmt: skip
_FOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "reduce_sum": operator.add,
    "reduce_prod": operator.mul,
    "reduce_max": jnp.maximum,
    "reduce_min": jnp.minimum,
    "reduce_and": operator.and_,
    "reduce_or": operator.or_,
}
_CALLS = (*CALLS, "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint")


class UnreadableError(Exception):
    """The function does something that has no rule here."""


def map_columns(fn: Callable[..., Any], batched: Any, shared: Any) -> Any:
    """Return what `jax.vmap(fn, (0, None))(batched, shared)` returns, or raise `UnreadableError`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from samplekit.sampling.columns import map_columns
    >>> map_columns(lambda x, a: a * jnp.sum(x**2), jnp.ones((3, 2)), jnp.asarray(2.0))
    Array([4., 4., 4.], dtype=float32)
    """
    rows, rows_tree = jax.tree.flatten(batched)
    others, others_tree = jax.tree.flatten(shared)
    one = [jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for a in rows]

    def flat(rows: list[Any], others: list[Any]) -> Any:
        return fn(jax.tree.unflatten(rows_tree, rows), jax.tree.unflatten(others_tree, others))

    jaxpr, shape = jax.make_jaxpr(flat, return_shape=True)(one, others)
    if any(math.prod(a.shape) > 64 for a in one):
        raise UnreadableError("large values")
    length = rows[0].shape[0]
    reader = _Reader(length)
    values = [_columns(a) for a in rows] + list(others)
    out = reader.run(jaxpr.jaxpr, jaxpr.consts, values)
    whole = [_rows(v, length) for v in out]
    return jax.tree.unflatten(jax.tree.structure(shape), whole)


def _columns(a: Any) -> Columns:
    """Take (N, ...) apart."""
    out = np.empty(a.shape[1:], object)
    for i in np.ndindex(out.shape):
        out[i] = a[(slice(None), *i)]
    return out


def _rows(value: Any, length: int) -> Any:
    """Put (N, ...) together."""
    if not _is_columns(value):
        return jnp.broadcast_to(value, (length, *jnp.shape(value)))
    flat = [jnp.asarray(v) for v in value.ravel()]
    if not flat:
        raise UnreadableError("empty values")
    return jnp.stack(flat, -1).reshape(length, *value.shape)


def _is_columns(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == object


class _Reader:
    """Evaluates a jaxpr on columns and plain (unbatched) arrays."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.operations = 0

    def run(self, jaxpr: Any, consts: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        """Return the values of a jaxpr."""
        return evaluate(jaxpr, consts, values, self._value)

    def _value(self, eqn: Any, inputs: list[Any]) -> Sequence[Any]:
        return self.apply(eqn, inputs) if any(map(_is_columns, inputs)) else bind(eqn, inputs)

    def apply(self, eqn: Any, inputs: list[Any]) -> list[Any]:
        """Evaluate one equation."""
        name, params = eqn.primitive.name, eqn.params
        self.operations += sum(math.prod(v.aval.shape) for v in eqn.outvars)
        if self.operations > MOST_OPERATIONS:
            raise UnreadableError("too many operations")
        if name in _ELEMENTWISE:
            return [self.elementwise(eqn, inputs)]
        if name in _FOLDS:
            return [_fold(_FOLDS[name], inputs[0], params["axes"])]
        if name in _SHAPES:
            return [_SHAPES[name](params, *(self.lifted(v) for v in inputs))]
        if name in _CALLS:
            inner = params.get("jaxpr") or params.get("call_jaxpr")
            return self.run(inner.jaxpr, inner.consts, inputs)
        if name == "split":
            ends = np.cumsum(params["sizes"])[:-1]
            return np.split(inputs[0], ends, axis=params["axis"])
        if name == "while":
            return self.loop(params, inputs)
        if name == "scan":
            return self.counted(eqn, inputs)
        raise UnreadableError(name)

    def lifted(self, value: Any) -> Columns:
        """Return columns of a plain value: each element the same in all chains."""
        if _is_columns(value):
            return value
        out = np.empty(np.shape(value), object)
        for i in np.ndindex(out.shape):
            out[i] = value[i] if out.shape else value
        return out

    def elementwise(self, eqn: Any, inputs: list[Any]) -> Columns:
        lifted = np.broadcast_arrays(*(self.lifted(v) for v in inputs), subok=False)
        out = np.empty(lifted[0].shape, object)
        for i in np.ndindex(out.shape):
            entries = [jnp.asarray(a[i]) for a in lifted]
            full = any(e.shape for e in entries)
            if full:
                entries = [jnp.broadcast_to(e, (self.length,)) for e in entries]
            out[i] = eqn.primitive.bind(*entries, **_without_sharding(eqn.params))
        return out

    def loop(self, params: dict[str, Any], inputs: list[Any]) -> list[Any]:
        """Run a loop whose number of rounds is the same for all chains."""
        test, body = params["cond_jaxpr"], params["body_jaxpr"]
        first, second = params["cond_nconsts"], params["body_nconsts"]
        test_consts, rest = inputs[:first], inputs[first:]
        body_consts, carry = rest[:second], rest[second:]
        varies = _varying(body, body_consts, carry)
        if _dependent(test.jaxpr, [*map(_is_columns, test_consts), *varies])[0]:
            raise UnreadableError("a loop that each chain leaves on its own")
        shapes = [np.shape(v) for v in carry]

        def step(packed: list[Any]) -> list[Any]:
            values = [*body_consts, *_unpack(packed, shapes, varies)]
            return self._pack(self.run(body.jaxpr, body.consts, values), varies)

        def more(packed: list[Any]) -> Any:
            values = [*test_consts, *_unpack(packed, shapes, varies)]
            return self.run(test.jaxpr, test.consts, values)[0]

        return _unpack(jax.lax.while_loop(more, step, self._pack(carry, varies)), shapes, varies)

    def counted(self, eqn: Any, inputs: list[Any]) -> list[Any]:
        """Run a `fori_loop` of fixed length, which JAX writes as a scan over nothing."""
        body, consts = eqn.params["jaxpr"], len(eqn.invars) - len(eqn.outvars)
        inner = [*body.jaxpr.invars, *body.jaxpr.outvars]
        pairs = zip([*eqn.invars, *eqn.outvars], inner, strict=True)
        if any(a.aval.shape != b.aval.shape for a, b in pairs):
            raise UnreadableError("a scan over arrays")
        carry = inputs[consts:]
        varies = _varying(body, inputs[:consts], carry)
        shapes = [np.shape(v) for v in carry]

        def step(_: Any, packed: list[Any]) -> list[Any]:
            values = [*inputs[:consts], *_unpack(packed, shapes, varies)]
            return self._pack(self.run(body.jaxpr, body.consts, values), varies)

        out = jax.lax.fori_loop(0, eqn.params["length"], step, self._pack(carry, varies))
        return _unpack(out, shapes, varies)

    def _pack(self, values: Sequence[Any], varies: Sequence[bool]) -> list[Any]:
        """Return what a JAX loop can carry: lists of arrays for columns."""
        return [
            [self._full(e) for e in self.lifted(v).ravel()] if varied else v
            for v, varied in zip(values, varies, strict=True)
        ]

    def _full(self, entry: Any) -> Any:
        return jnp.broadcast_to(jnp.asarray(entry), (self.length,))


def _unpack(packed: Sequence[Any], shapes: Sequence[Any], varies: Sequence[bool]) -> list[Any]:
    return [
        _shaped(p, shape) if varied else p
        for p, shape, varied in zip(packed, shapes, varies, strict=True)
    ]


def _shaped(entries: Sequence[Any], shape: tuple[int, ...]) -> Columns:
    out = np.empty(len(entries), object)
    for i, entry in enumerate(entries):
        out[i] = entry
    return out.reshape(shape)


def _varying(body: Any, consts: Sequence[Any], carry: Sequence[Any]) -> list[bool]:
    """Tell which parts of a loop's carry come to depend on the chain."""
    fixed, varies = [_is_columns(v) for v in consts], [_is_columns(v) for v in carry]
    while True:
        found = _dependent(body.jaxpr, fixed + varies)
        if not any(f and not v for f, v in zip(found, varies, strict=True)):
            return varies
        varies = [f or v for f, v in zip(found, varies, strict=True)]


def _dependent(jaxpr: Any, flags: Sequence[bool]) -> list[bool]:
    """Tell which values of a jaxpr depend on the arguments that are marked."""
    known: dict[Any, bool] = dict.fromkeys(jaxpr.constvars, False)
    known |= dict(zip(jaxpr.invars, flags, strict=True))

    def read(v: Any) -> bool:
        return not isinstance(v, Literal) and known[v]

    for eqn in jaxpr.eqns:
        marks = [read(v) for v in eqn.invars]
        inner = eqn.params.get("jaxpr") if eqn.primitive.name in _CALLS else None
        if inner is not None and any(marks):
            found = _dependent(inner.jaxpr, marks)
        else:
            found = [any(marks)] * len(eqn.outvars)
        known |= dict(zip(eqn.outvars, found, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _without_sharding(params: dict[str, Any]) -> dict[str, Any]:
    return {k: (None if k in ("sharding", "out_sharding") else v) for k, v in params.items()}


def _fold(join: Callable[[Any, Any], Any], value: Columns, axes: Sequence[int]) -> Columns:
    kept = [a for a in range(value.ndim) if a not in axes]
    moved = np.transpose(value, [*kept, *axes]).reshape([value.shape[a] for a in kept] + [-1])
    out = np.empty(moved.shape[:-1], object)
    for i in np.ndindex(out.shape):
        out[i] = functools.reduce(join, moved[i])
    return out


def _broadcast(params: dict[str, Any], value: Columns, *_: Any) -> Columns:
    shape, places = params["shape"], params["broadcast_dimensions"]
    open_shape = [1] * len(shape)
    for axis, place in enumerate(places):
        open_shape[place] = value.shape[axis]
    return np.broadcast_to(value.reshape(open_shape), shape)


def _dot(params: dict[str, Any], a: Columns, b: Columns) -> Columns:
    (left, right), (batch, _) = params["dimension_numbers"]
    if batch:
        raise UnreadableError("a batched product")
    return np.asarray(np.tensordot(a, b, (left, right)), object)


def _pad(params: dict[str, Any], value: Columns, fill: Columns) -> Columns:
    widths = params["padding_config"]
    if any(inside or low < 0 or high < 0 for low, high, inside in widths):
        raise UnreadableError("padding inside")
    shape = [low + size + high for (low, high, _), size in zip(widths, value.shape, strict=True)]
    out = np.empty(shape, object)
    for i in np.ndindex(out.shape):
        out[i] = fill[()]
    out[tuple(slice(w[0], w[0] + size) for w, size in zip(widths, value.shape, strict=True))] = (
        value
    )
    return out


def _slice(params: dict[str, Any], value: Columns) -> Columns:
    strides = params["strides"] or (1,) * value.ndim
    ends = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return value[tuple(slice(*end) for end in ends)]


_SHAPES: dict[str, Callable[..., Columns]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": lambda p, v, *_: v.reshape(p["new_sizes"]),
    "squeeze": lambda p, v: np.squeeze(v, tuple(p["dimensions"])),
    "expand_dims": lambda p, v: np.expand_dims(v, tuple(p["dimensions"])),
    "transpose": lambda p, v: np.transpose(v, p["permutation"]),
    "rev": lambda p, v: np.flip(v, p["dimensions"]),
    "concatenate": lambda p, *v: np.concatenate(v, axis=p["dimension"]),
    "slice": _slice,
    "pad": _pad,
    "dot_general": _dot,
}
