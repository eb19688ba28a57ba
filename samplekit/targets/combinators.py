"""Targets made from targets: tempered, multiplied, smoothed.

A target with constraints gives its log density at the unconstrained x, Jacobian included:
log f(y) + log|J(x)|. Only f is to be tempered or multiplied, so the Jacobian is counted once
whatever the number of factors and the temperature.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from samplekit.core.errors import TargetError
from samplekit.core.protocols import DensityTarget, Position, Scalar, ScoreTarget
from samplekit.core.pytree import pytree
from samplekit.targets.space import Space

type Target = Any  # has log_density, score or both; and a space

# How a run names and shows the positions of a target; a target made from it shows the same.
_LABELS = frozenset({"constrain", "unconstrain", "dims", "coords", "variables"})
_DATA = frozenset({"observed", "observed_dims", "observed_coords"})


class OnSpaceOf:
    """Take the space and the labels of a run from another target."""

    def _labels(self) -> Target:
        raise NotImplementedError

    @property
    def space(self) -> Space:
        """The space of the positions."""
        return self._labels().space

    def log_jacobian(self, x: Position, /) -> Array | float:
        """Return log|J| of the map from `x` to the constrained value."""
        return _log_jacobian(self._labels(), x)

    def __getattr__(self, name: str) -> Any:
        """Pass on what the labels' target says about them; never its draws or moments."""
        if name in _LABELS or name in _DATA:
            return getattr(self._labels(), name)
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")


@pytree
class TemperedScore(OnSpaceOf):
    """A score multiplied by β: the target f^β of a target known only by its score."""

    target: Target
    beta: ArrayLike

    def _labels(self) -> Target:
        return self.target

    def score(self, x: Position, /) -> Position:
        """Return β ∇ log f + ∇ log|J|, the Stein score."""
        return _combine([(self.beta, _score(self.target, x))], self.target, x)


@pytree
class Tempered(TemperedScore):
    """The target f^β of a density f."""

    def log_density(self, x: Position, /) -> Scalar:
        """Return β log f + log|J|."""
        value = self.target.log_density(x)
        beta = jnp.asarray(self.beta, value.dtype)
        # 0 · (−inf) is NaN, but outside the support nothing is allowed at any temperature.
        hot = jnp.where(value == -jnp.inf, value, beta * value)
        if not _constrained(self.target):
            return hot
        return hot + (1 - beta) * jnp.asarray(_log_jacobian(self.target, x), value.dtype)


@pytree
class ProductScore(OnSpaceOf):
    """A sum of scores: the product of targets of which one is known only by its score."""

    targets: tuple[Target, ...]

    def _labels(self) -> Target:
        return self.targets[0]

    def score(self, x: Position, /) -> Position:
        """Return Σ ∇ log f_i + ∇ log|J|, the Stein score."""
        return _combine([(1.0, _score(t, x)) for t in self.targets], self.targets[0], x)


@pytree
class Product(ProductScore):
    """The product of densities."""

    def log_density(self, x: Position, /) -> Scalar:
        """Return Σ log f_i + log|J|."""
        first, *others = [t.log_density(x) for t in self.targets]
        total = functools.reduce(jnp.add, others, first)
        if not others or not _constrained(self.targets[0]):
            return total
        return total - jnp.asarray(len(others) * _log_jacobian(self.targets[0], x), total.dtype)


def tempered(target: Target, beta: ArrayLike) -> Tempered | TemperedScore:
    """Return the target p^β, β the inverse temperature.

    A density gives a density, a score a score. On a constrained space the density of the
    constrained value is tempered, not the Jacobian. `beta` is a leaf: other values, traced ones
    and stacks of them under vmap run in the same compiled program.

    Examples
    --------
    >>> import jax.numpy as jnp, samplekit as sk
    >>> hot = sk.tempered(sk.from_energy(lambda x: (x**2).sum() / 2, dim=1), 0.25)
    >>> float(hot.log_density(jnp.array([2.0])))
    -0.5
    """
    _check(target, "tempered")
    if not isinstance(beta, jax.Array):
        value = np.asarray(beta, np.float64)
        if value.shape != () or not np.isfinite(value) or value < 0:
            raise TargetError(
                f"beta={beta!r} is not an inverse temperature: one finite number, 0 or larger."
            )
        beta = value
    made = Tempered if isinstance(target, DensityTarget) else TemperedScore
    return made(target, beta)


def product(*targets: Target) -> Product | ProductScore:
    """Return the target whose density is the product of those given.

    A prior times a likelihood, or a learned score times a constraint. If one is known only by
    its score, so is the product. All must have the same positions; names and labels in the run
    are those of the first.

    Examples
    --------
    >>> import jax.numpy as jnp, samplekit as sk
    >>> prior = sk.targets.gaussian(2)
    >>> both = sk.product(prior, sk.from_score(lambda x: 1.0 - x, dim=2))
    >>> both.score(jnp.zeros(2)).tolist()
    [1.0, 1.0]
    """
    if not targets:
        raise TargetError("product() was given no target. Give at least one.")
    for target in targets:
        _check(target, "multiplied")
        _check_same(targets[0], target)
    dense = all(isinstance(target, DensityTarget) for target in targets)
    return (Product if dense else ProductScore)(targets)


def smoothed(target: Target, sigma: ArrayLike) -> Target:
    """Return the target plus independent Gaussian noise, p * N(0, σ²I), exactly.

    Gaussians, mixtures of them and noise-conditional families can be smoothed: whatever has a
    method `smoothed(sigma)`. `sigma` may be traced.

    Examples
    --------
    >>> import samplekit as sk
    >>> sk.smoothed(sk.targets.gaussian(2), 2.0).variance
    array([5., 5.])
    """
    if not hasattr(target, "smoothed"):
        raise TargetError(
            f"{type(target).__name__} cannot be smoothed exactly: its convolution with a "
            "Gaussian is not known. Exact are sk.targets.gaussian, correlated, ill_conditioned, "
            "mixture, bimodal, grid and noised_mixture; for other densities fit the smoothed "
            "score by denoising score matching."
        )
    return target.smoothed(sigma)


def _score(target: Target, x: Position) -> Position:
    if isinstance(target, ScoreTarget):
        return target.score(x)
    return jax.grad(target.log_density)(x)


def _combine(terms: list[tuple[ArrayLike, Position]], on: Target, x: Position) -> Position:
    """Return Σ c_i s_i + (1 − Σ c_i) ∇ log|J|."""
    if _constrained(on):
        left = 1.0 - sum(c for c, _ in terms)
        terms = [*terms, (left, jax.grad(lambda p: _log_jacobian(on, p))(x))]

    def add(*leaves: Array) -> Array:
        parts = [
            jnp.asarray(c, leaf.dtype) * leaf for (c, _), leaf in zip(terms, leaves, strict=True)
        ]
        return functools.reduce(jnp.add, parts)

    return jax.tree.map(add, *(s for _, s in terms))


def _constrained(target: Target) -> bool:
    if hasattr(target, "log_jacobian") and not isinstance(target, OnSpaceOf):
        return True
    if isinstance(target, OnSpaceOf):
        return _constrained(target._labels())
    space = getattr(target, "space", None)
    return space is not None and any(leaf.support is not None for leaf in space.leaves)


def _log_jacobian(target: Target, x: Position) -> Array | float:
    """Return log|J| of the map to the constrained value; 0 where there is no constraint."""
    if hasattr(target, "log_jacobian"):
        return target.log_jacobian(x)
    return target.space.to_support(x)[1] if _constrained(target) else 0.0


def _check(target: Target, what: str) -> None:
    if not isinstance(target, DensityTarget | ScoreTarget):
        hint = " Take one member of the family first: family.at(level)." * hasattr(target, "at")
        raise TargetError(
            f"{type(target).__name__} has neither a log density nor a score, so it cannot be "
            f"{what}.{hint}"
        )
    if hasattr(target, "constrain") and not hasattr(target, "log_jacobian"):
        raise TargetError(
            f"{type(target).__name__} constrains its positions but does not say by what "
            f"Jacobian, so it cannot be {what} correctly. Give it a method log_jacobian(x)."
        )


def _check_same(first: Target, other: Target) -> None:
    """Refuse factors that live on different spaces, and say where they differ."""
    ours, theirs = getattr(first, "space", None), getattr(other, "space", None)
    if ours is None or theirs is None or ours is theirs:
        return
    if ours.treedef != theirs.treedef:
        raise TargetError(
            f"The factors' positions differ in structure: {ours.treedef} and {theirs.treedef}. "
            "A product needs factors of the same variables."
        )
    for a, b in zip(ours.leaves, theirs.leaves, strict=True):
        for what, mine, its in (
            ("shapes", a.shape, b.shape),
            ("dtypes", a.dtype or "floating", b.dtype or "floating"),
            ("supports", a.support, b.support),
        ):
            if mine != its:
                mine, its = (getattr(value, "constraint", value) for value in (mine, its))
                raise TargetError(
                    f"The factors differ in the {what} of {a.name!r}: {mine} and {its}. A product "
                    "needs factors on the same space; give both the same dim and support."
                )
