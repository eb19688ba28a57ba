"""Targets from a function: an energy, a log density or a score."""

from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack

import jax
import jax.numpy as jnp
from jax import Array

from samplekit.core.errors import TargetError
from samplekit.core.protocols import Position, Scalar
from samplekit.core.pytree import Function, as_function, pytree, static
from samplekit.targets.space import Coords, Dims, Space, make_space

type PyTree = Any


class Labels(TypedDict, total=False):
    """Options common to all targets made from a function."""

    like: PyTree
    support: Any
    values: tuple[int, int] | None
    name: str
    dims: Dims
    coords: Coords


@pytree
class Density:
    """p(x) ∝ exp(sign · fn(y)), y the constrained value of the unconstrained x."""

    fn: Function
    sign: float = static()
    space: Space = static()

    def log_density(self, x: Position, /) -> Scalar:
        """Return log p at the unconstrained position `x`, Jacobian included."""
        y, log_jacobian = self.space.to_support(x)
        return self.sign * self.fn(y) + log_jacobian

    def score(self, x: Position, /) -> Position:
        """Return ∇ log p, the Stein score (not scikit-learn's `score`)."""
        return jax.grad(self.log_density)(x)


@pytree
class Score:
    """A target known only by its score s(y) = ∇ log p(y)."""

    fn: Function
    space: Space = static()

    def score(self, x: Position, /) -> Position:
        """Return ∇ log p, the Stein score, at the unconstrained position `x`.

        With y = T(x): ∇_x log p_X = (∂T/∂x)ᵀ s(y) + ∇_x log|∂T/∂x|.
        """
        if all(leaf.support is None for leaf in self.space.leaves):
            return self.fn(x)
        (y, log_jacobian), pull = jax.vjp(self.space.to_support, x)
        return pull((self.fn(y), jnp.ones_like(log_jacobian)))[0]


def from_energy(
    fn: Callable[[Any], Any], dim: int | Sequence[int] | None = None, **labels: Unpack[Labels]
) -> Density:
    """Return the target p(x) ∝ exp(−fn(x)).

    Parameters
    ----------
    fn
        The energy: takes a position, returns a scalar. A plain function is static; a callable
        pytree (Equinox module, `jax.tree_util.Partial`) gives its arrays as leaves, so changed
        weights need no recompilation.
    dim
        Number of coordinates, or the shape of the position. Give `dim` or `like`.
    like
        An example position, for pytrees: `like={"mu": 0.0, "tau": jnp.ones(3)}`.
    support
        NumPyro constraints, one for all leaves or one per leaf. The energy takes constrained
        values and needs no Jacobian: that is added here.
    values
        The two values of integer positions, such as (-1, 1); boolean ones are 0 and 1. Discrete
        targets are sampled by `GibbsWithGradients` or `MetropolisHastings`.
    name
        Variable name in the run when the position is a single array.
    dims, coords
        Labels of the run, as in ArviZ.

    Examples
    --------
    >>> import samplekit as sk
    >>> target = sk.from_energy(lambda x: (x**2).sum() / 2, dim=3)
    >>> float(target.log_density(jax.numpy.ones(3)))
    -1.5
    """
    return _density(fn, -1.0, make_space(dim, **labels))


def from_log_density(
    fn: Callable[[Any], Any], dim: int | Sequence[int] | None = None, **labels: Unpack[Labels]
) -> Density:
    """Return the target p(x) ∝ exp(fn(x)); the options are those of `from_energy`.

    Examples
    --------
    >>> import samplekit as sk
    >>> from numpyro.distributions import constraints
    >>> target = sk.from_log_density(lambda t: -t, like=1.0, support=constraints.positive)
    >>> round(float(target.log_density(0.0)), 3)  # exponential of rate 1, at log t = 0
    -1.0
    """
    return _density(fn, 1.0, make_space(dim, **labels))


def from_score(
    fn: Callable[[Any], Any], dim: int | Sequence[int] | None = None, **labels: Unpack[Labels]
) -> Score:
    """Return a target that is known only by its score ∇ log p(x) = fn(x).

    Kernels that need no density sample it: `Langevin`, `ScoreMALA`. The options are those of
    `from_energy`.

    Examples
    --------
    >>> import samplekit as sk
    >>> target = sk.from_score(lambda x: -x, dim=2)
    >>> hasattr(target, "log_density")
    False
    """
    space = make_space(dim, **labels)
    function = as_function(fn)
    value = constrained_example(space)
    out = _abstract_call(function, value, "score")
    same = jax.tree.structure(out) == jax.tree.structure(value) and all(
        a.shape == b.shape
        for a, b in zip(jax.tree.leaves(out), jax.tree.leaves(value), strict=True)
    )
    if not same:
        raise TargetError(
            f"The score returns {_describe(out)} for a position {_describe(value)}. A score has "
            "one component per coordinate: return an array shaped as the position."
        )
    return Score(function, space)


def constrained_example(space: Space) -> PyTree:
    """Return the shapes of a constrained value, computed without running anything."""
    flat = jax.ShapeDtypeStruct((space.size,), jnp.result_type(float))
    return jax.eval_shape(lambda v: space.to_support(space.unravel(v))[0], flat)


def _density(fn: Callable[[Any], Any], sign: float, space: Space) -> Density:
    function = as_function(fn)
    what = "energy" if sign < 0 else "log density"
    out = _abstract_call(function, constrained_example(space), what)
    if not isinstance(out, jax.ShapeDtypeStruct) or out.shape != ():
        raise TargetError(
            f"The {what} returns {_describe(out)}, but a target needs one number per position. "
            f"Reduce it to a scalar, for instance with .sum(); a batch of positions is never "
            "passed in, samplekit batches by itself."
        )
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise TargetError(f"The {what} returns {out.dtype}, but a real floating number is needed.")
    return Density(function, sign, space)


def _abstract_call(function: Function, value: PyTree, what: str) -> Any:
    """Trace the user's function on shapes only; its own mistakes surface here."""
    try:
        return jax.eval_shape(function, value)
    except TargetError:
        raise
    except Exception as error:
        raise TargetError(
            f"The {what} failed on a position {_describe(value)}: {type(error).__name__}: "
            f"{str(error).splitlines()[0]}. It is called with one position of that shape and "
            "must be written with jax.numpy."
        ) from error


def _describe(tree: PyTree) -> str:
    """Say the shapes of a pytree in a few words."""

    def one(a: Array | jax.ShapeDtypeStruct) -> str:
        return f"{a.dtype}{list(a.shape)}"

    if hasattr(tree, "shape"):
        return f"of shape {list(tree.shape)}"
    return f"like {jax.tree.map(one, tree)}"
