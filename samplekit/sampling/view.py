"""A target as the loop sees it: on flat vectors for the kernel, by names for the run."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from samplekit.core.protocols import DensityTarget, Position, Scalar, ScoreTarget
from samplekit.core.pytree import is_array, pytree, static
from samplekit.sampling.tall import by_columns


@pytree
class Spaced:
    """A target of the user's own class, with the space that its starts imply."""

    target: Any
    space: Any = static()

    def __getattr__(self, name: str) -> Any:
        """Offer what the target offers, no more."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.target, name)


@pytree
class SpacedDensity(Spaced):
    """A density of the user's own class: capabilities are types, so it is a class of its own."""

    def log_density(self, x: Position, /) -> Scalar:
        """Return log p(x)."""
        return self.target.log_density(x)

    def score(self, x: Position, /) -> Position:
        """Return ∇ log p(x)."""
        return jax.grad(self.log_density)(x)


@pytree
class SpacedScore(Spaced):
    """A score of the user's own class."""

    def score(self, x: Position, /) -> Position:
        """Return ∇ log p(x)."""
        return self.target.score(x)


class _Same:
    """An object that is itself and nothing else, whatever its class says of equality."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@pytree
class Opaque:
    """An object that JAX does not know, taken as code."""

    same: _Same = static()

    def __getattr__(self, name: str) -> Any:
        """Offer what the object offers."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.same.value, name)


def with_space(target: Any, space: Any) -> Any:
    """Return the target with a space; one that JAX does not know as a pytree becomes code."""
    known = as_pytree(target)
    if known is target and getattr(target, "space", None) is not None:
        return target
    if isinstance(target, DensityTarget):
        return SpacedDensity(known, space)
    return SpacedScore(known, space) if isinstance(target, ScoreTarget) else Spaced(known, space)


def as_pytree(value: Any) -> Any:
    """Return an object that may be an argument of a program: one unknown to JAX becomes code."""
    leaves = jax.tree.leaves(value)
    known = all(is_array(leaf) or isinstance(leaf, int | float | complex) for leaf in leaves)
    return value if known else Opaque(_Same(value))


@pytree
class FlatDensity:
    """A density on flat vectors."""

    target: Any
    tall: bool = static(default=False)

    def log_density(self, x: Array, /) -> Scalar:
        """Return log p of the position that the vector stands for."""

        def log_density(x: Array) -> Array:
            return jnp.asarray(self.target.log_density(self.target.space.unravel(x)))

        return by_columns(log_density, x) if self.tall else log_density(x)

    def score(self, x: Array, /) -> Array:
        """Return the flat score."""
        return jax.grad(self.log_density)(x)


@pytree
class FlatScore:
    """A score on flat vectors."""

    target: Any

    def score(self, x: Array, /) -> Array:
        """Return the flat score."""
        space = self.target.space
        return space.ravel(self.target.score(space.unravel(x)))


@pytree
class View:
    """A target as the kernel and the run see it."""

    target: Any
    flat: bool = static()
    # Whether the density multiplies tall matrices, and does it by columns (`tall`).
    tall: bool = static(default=False)

    @property
    def for_kernel(self) -> Any:
        """The target on the positions that the kernel moves."""
        if not self.flat:
            return self.target
        if isinstance(self.target, DensityTarget):
            return FlatDensity(self.target, self.tall)
        return FlatScore(self.target)

    def position(self, vector: Array) -> Position:
        """Return the kernel's position for a flat start."""
        return vector if self.flat else self.target.space.unravel(vector)

    def shown(self, position: Position) -> dict[str, Array]:
        """Return the named, constrained values that the run stores."""
        x = self.target.space.unravel(position) if self.flat else position
        if hasattr(self.target, "constrain"):
            return self.target.constrain(x)
        return self.target.space.named(self.target.space.to_support(x)[0])


@functools.partial(jax.jit, static_argnames=("what", "one_by_one"))
def evaluate(target: Any, positions: Position, *, what: str, one_by_one: bool) -> Any:
    """Return "log_density" or "score" of a target at positions with a leading chain axis."""
    fn = getattr(target, what)
    return jax.lax.map(fn, positions) if one_by_one else jax.vmap(fn)(positions)
