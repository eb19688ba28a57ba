"""Frozen dataclasses that JAX sees as pytrees, and callables split into arrays and code."""

import dataclasses
from collections.abc import Callable
from typing import Any, dataclass_transform

import jax
import numpy as np
from jax import Array

type PyTree = Any

# An array with more numbers than this is shown by its shape.
MOST_NUMBERS = 8


def static(*, default: Any = dataclasses.MISSING) -> Any:
    """Declare a field of a `@pytree` class that is code, not data.

    A changed static field means another compiled program; a changed data field does not.
    """
    return dataclasses.field(default=default, metadata={"static": True})


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(static,))
def pytree[C](cls: type[C]) -> type[C]:
    """Make `cls` a frozen dataclass and register it with JAX.

    Examples
    --------
    >>> import jax
    >>> from samplekit.core.pytree import pytree, static
    >>> @pytree
    ... class Scaled:
    ...     factor: float
    ...     name: str = static(default="scaled")
    >>> jax.tree.leaves(Scaled(2.0))
    [2.0]
    """
    own = "__repr__" in vars(cls)
    cls = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
    if not own:
        cls.__repr__ = _short_repr
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    jax.tree_util.register_dataclass(
        cls,
        data_fields=[f.name for f in fields if not f.metadata.get("static")],
        meta_fields=[f.name for f in fields if f.metadata.get("static")],
    )
    return cls


def _short_repr(self: Any) -> str:
    """Show the fields that were given, arrays as numbers while they are few."""
    given = [
        (f.name, getattr(self, f.name))
        for f in dataclasses.fields(self)
        if f.repr and getattr(self, f.name) is not f.default
    ]
    return f"{type(self).__name__}({', '.join(f'{n}={_shown(v)}' for n, v in given)})"


def _shown(value: Any) -> str:
    if not hasattr(value, "dtype") or isinstance(value, type):
        return repr(value)
    if value.size <= MOST_NUMBERS and value.dtype.kind in "fiub":
        try:
            numbers = np.array2string(np.asarray(value), precision=4, separator=", ")
            return " ".join(numbers.split())
        except jax.errors.TracerArrayConversionError:  # inside a jitted function
            pass
    return f"{value.dtype}{list(value.shape)}"


def is_array(leaf: object) -> bool:
    """Tell arrays, which may change without a new program, from everything else."""
    return isinstance(leaf, jax.Array | np.ndarray)


@pytree
class Function:
    """A callable whose arrays are leaves and whose code is static.

    A plain function has no arrays. An Equinox module or a `jax.tree_util.Partial` gives its
    arrays, so other weights run in the same compiled program.
    """

    arrays: list[Array | np.ndarray]
    code: tuple[Any, tuple[Any, ...]] = static()

    def __call__(self, *args: Any) -> Any:
        """Put the callable together again and call it."""
        treedef, rest = self.code
        arrays = iter(self.arrays)
        leaves = [next(arrays) if leaf is _ARRAY else leaf for leaf in rest]
        return jax.tree.unflatten(treedef, leaves)(*args)  # pyright: ignore[reportUnknownMemberType]

    def __repr__(self) -> str:
        """Return the name of what is called."""
        called = next((leaf for leaf in self.code[1] if callable(leaf)), None)
        return getattr(called, "__qualname__", None) or str(self.code[0])


class _ArrayMark:
    """Marks the place of an array among the static leaves of a `Function`."""


_ARRAY = _ArrayMark()


def as_function(fn: Callable[..., Any]) -> Function:
    """Split a callable into its arrays and its code."""
    leaves, treedef = jax.tree.flatten(fn)  # pyright: ignore
    arrays = [leaf for leaf in leaves if is_array(leaf)]
    rest = tuple(_ARRAY if is_array(leaf) else leaf for leaf in leaves)
    return Function(arrays, (treedef, rest))  # pyright: ignore
