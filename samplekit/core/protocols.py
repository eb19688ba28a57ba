"""The contracts: what a target offers and what a kernel does.

A target is asked only for what a kernel needs, so capabilities are types:
`isinstance(target, DensityTarget)` is the whole test (see `fits`).
"""

from typing import Any, Protocol, runtime_checkable

import jax
from jax import Array

type PyTree = Any
type Position = PyTree  # floats; integers or booleans for discrete targets
type Scalar = Array
type Numbers = Any  # an array: NumPy's where the host fills it, JAX's inside a program
type Stats = dict[str, Array]


@runtime_checkable
class ScoreTarget(Protocol):
    """All that Langevin needs: the Stein score ∇ log p."""

    def score(self, x: Position, /) -> Position:
        """Return ∇ log p(x), shaped as `x`."""
        ...


@runtime_checkable
class DensityTarget(Protocol):
    """All that Metropolis needs; a smooth density offers `score` as well."""

    def log_density(self, x: Position, /) -> Scalar:
        """Return log p(x) up to a constant."""
        ...


@runtime_checkable
class BlockTarget(Protocol):
    """What Gibbs needs: Boltzmann machines, Ising fields."""

    def gibbs(self, key: Array, x: Position, /) -> Position:
        """Return a draw of every block given the others, once around."""
        ...


@runtime_checkable
class TargetFamily[T](Protocol):
    """Targets indexed by a level: noise-conditional scores, tempered densities."""

    def at(self, level: Scalar, /) -> T:
        """Return the ordinary target at `level`."""
        ...


@runtime_checkable
class Kernel[S, T](Protocol):
    """One Markov transition; frozen, a pytree, the target is always an argument."""

    def init(self, key: Array, x: Position, target: T, /) -> S:
        """Return the state that the first step needs."""
        ...

    def step(self, key: Array, state: S, target: T, /) -> tuple[S, Stats]:
        """Return the next state and what is worth keeping of the step."""
        ...


def log_density_and_score(target: DensityTarget, x: Position) -> tuple[Scalar, Position]:
    """Return log p(x) and ∇ log p(x) from one evaluation."""
    return jax.value_and_grad(target.log_density)(x)  # pyright: ignore[reportUnknownMemberType]
