"""Where the density of data lives: the domain of any target or fitted estimator.

`place` gives the density of the data themselves, without the Jacobian that a target with a support
carries for the kernels; `common_domain` the coordinates in which several models are comparable.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from samplekit.core.errors import EstimatorError, TargetError
from samplekit.core.protocols import DensityTarget, ScoreTarget
from samplekit.core.pytree import pytree
from samplekit.estimators.domains import REALS, Box, Domain, Simplex
from samplekit.estimators.moments import Model
from samplekit.estimators.punctured import Punctured
from samplekit.sampling.view import View, with_space
from samplekit.targets.density import Density, Score
from samplekit.targets.space import Space, make_space

type Rows = NDArray[np.float64]


@pytree
class FamilyDensity:
    """θᵀs(y) + a(y) of a fitted exponential family."""

    model: Model
    theta: Any

    def log_density(self, y: Array, /) -> Array:
        """Return log p(y), up to a constant."""
        theta = jnp.asarray(self.theta, y.dtype)
        return jnp.vdot(theta, self.model.statistics_of(y)) + self.model.base_of(y)


class Placed(NamedTuple):
    """The density of the data on flat rows."""

    field: Any
    domain: Domain | None  # None: `free` maps rows to the target's own unconstrained coordinates
    space: Space
    free: Any = None


def place(model: Any, X: Any) -> Placed:
    """Return the density of the data that a target or a fitted estimator describes."""
    if hasattr(model, "fit"):
        if not hasattr(model, "target"):
            raise TargetError(
                f"{type(model).__name__} has no target(), so its density cannot be differentiated. "
                "Write the density with sk.from_log_density."
            )
        from sklearn.utils.validation import check_is_fitted

        from samplekit.estimators.density import FittedDensity

        check_is_fitted(model)
        if isinstance(model, FittedDensity):
            dim = model.n_features_in_
            inside = model._setup(dim).model
            field = FamilyDensity(inside, np.asarray(model.theta_))
            return Placed(field, inside.domain, make_space(dim))
        model = model.target()
    if not isinstance(model, DensityTarget | ScoreTarget):
        hint = " Take one member of the family first: family.at(level)." * hasattr(model, "at")
        raise TargetError(
            f"{type(model).__name__} has neither a log density nor a score, and is no fitted "
            f"estimator, so it has no Hyvärinen score.{hint}"
        )
    space = getattr(model, "space", None) or make_space(_columns(X))
    if any(leaf.dtype is not None for leaf in space.leaves):
        raise TargetError("The target is discrete: a Hyvärinen score needs derivatives.")
    model = with_space(model, space)
    domain = None if hasattr(model, "unconstrain") else _domain_of(space)
    if any(leaf.support is not None for leaf in space.leaves):
        if isinstance(model, Density | Score) and domain is not None:
            space = _without_support(space)
            model = dataclasses.replace(model, space=space)
        else:
            domain = None
    return Placed(View(model, flat=True).for_kernel, domain, space, model)


def common_domain(placed: Iterable[Placed], dim: int) -> Domain:
    """Return the domain in whose coordinates all models can be judged: where their supports meet.

    A model with a larger support is then judged as if cut off at the bounds of the others.
    """
    domains = [p.domain for p in placed]
    boxes = [d for d in domains if isinstance(d, Box)]
    if len(boxes) == len(domains):
        bounds = [d.bounds(dim) for d in boxes]
        lower = np.max([low for low, _ in bounds], axis=0)
        upper = np.min([high for _, high in bounds], axis=0)
        if not np.all(lower < upper):
            raise EstimatorError(
                f"The supports of the models do not meet: the largest lower bound is {lower} and "
                f"the smallest upper bound {upper}. Compare models of the same data."
            )
        if not np.isfinite([lower, upper]).any():
            return next((d for d in boxes if isinstance(d, Punctured)), REALS)
        return Box(tuple(lower.tolist()), tuple(upper.tolist()), "interval")
    if None in domains or len(set(domains)) > 1:
        names = sorted({"coordinates of its own" if d is None else d.name for d in domains})
        raise EstimatorError(
            f"The models live on different domains ({', '.join(names)}), so no coordinates are "
            "common to them. Write each as a density of the same columns (sk.from_log_density)."
        )
    (only,) = {d for d in domains if d is not None}
    return only


@jax.jit
def _freed(target: Any, values: Any) -> Array:
    free = getattr(target, "unconstrain", target.space.from_support)
    return jax.vmap(lambda value: target.space.ravel(free(value)))(values)


def free_rows(target: Any, X: Any) -> Rows:
    """Return the unconstrained rows of values as the target gives them."""
    with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):  # noqa: FBT003
        whole = dict(X) if isinstance(X, Mapping) else np.asarray(X)
        values = jax.tree.map(lambda a: jnp.asarray(np.asarray(a, np.float64)), whole)
        try:
            return np.asarray(_freed(target, values))
        except (TypeError, ValueError, KeyError, IndexError) as error:
            if isinstance(error, TargetError):
                raise
            raise EstimatorError(
                f"X does not look like values of this target: {str(error).splitlines()[0]}. Give "
                "constrained values, a dict of arrays where there are several variables, each with "
                "the rows as its first axis."
            ) from error


def flat_rows(X: Any, space: Space) -> Rows:
    """Return values as one array (n, size)."""
    if isinstance(X, Mapping) and jax.tree.structure(dict(X)) != space.treedef:
        raise EstimatorError(f"X has the variables {list(X)}, the target {space!r}.")
    leaves = jax.tree.leaves(X) if isinstance(X, Mapping) else [X]
    arrays = [np.asarray(a, np.float64) for a in leaves]
    if any(a.ndim == 0 or len(a) != len(arrays[0]) for a in arrays):
        raise EstimatorError("X needs rows: arrays of the same length, one row per observation.")
    rows = np.concatenate([a.reshape(len(a), math.prod(a.shape[1:])) for a in arrays], axis=1)
    if rows.shape[1] != space.size:
        raise EstimatorError(
            f"X has rows of {rows.shape[1]} numbers and the target {space.size} coordinates. Give "
            "an array of shape (n, d) with one row per observation."
        )
    return rows


def _columns(X: Any) -> int:
    shape = np.shape(X)
    return math.prod(shape[1:]) or 1


def _domain_of(space: Space) -> Domain | None:
    """Return the domain of a space whose supports are bounds, or of one simplex."""
    lower, upper = [], []
    for leaf in space.leaves:
        constraint: Any = None if leaf.support is None else leaf.support.constraint
        while hasattr(constraint, "base_constraint"):
            constraint = constraint.base_constraint
        kind = type(constraint).__name__
        if kind == "_Simplex" and len(space.leaves) == 1 and len(leaf.shape) == 1:
            return Simplex()
        if constraint is not None and kind not in _BOUNDS:
            return None
        for side, name, none in ((lower, "lower_bound", -np.inf), (upper, "upper_bound", np.inf)):
            bound = getattr(constraint, name, none)
            side.append(np.broadcast_to(np.asarray(bound, float), leaf.shape).ravel())
    low, high = np.concatenate(lower), np.concatenate(upper)
    if not np.isfinite([low, high]).any():
        return REALS
    return Box(tuple(low.tolist()), tuple(high.tolist()), "interval")


# NumPyro's constraints that are bounds of every number by itself.
_BOUNDS = {
    "_Real", "_Positive", "_Nonnegative", "_SoftplusPositive", "_GreaterThan", "_GreaterThanEq",
    "_LessThan", "_LessThanEq", "_Interval", "_OpenInterval", "_UnitInterval",
}  # fmt: skip


def _without_support(space: Space) -> Space:
    """Return the space of the constrained values."""
    bare = []
    for leaf in space.leaves:
        shape = leaf.shape
        if leaf.support is not None:
            shape = tuple(leaf.support.bijector.forward_shape(shape))
        bare.append(dataclasses.replace(leaf, shape=shape, support=None))
    return dataclasses.replace(space, leaves=tuple(bare))
