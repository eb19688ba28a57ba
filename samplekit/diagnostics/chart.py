# SPDX-License-Identifier: Apache-2.0
r"""The axes of a picture of a target: which scalars to draw, and the target's values over them.

Kernels move unconstrained values :math:`u`, people read constrained ones, :math:`y = T(u)`. Log
densities at :math:`u` have the Jacobian of :math:`T` in them, so

.. math::

    p_Y(y) = p_U(u) \, / \, |\det T'(u)|, \qquad
    \nabla_y \log p_Y = T'(u)^{-\mathsf T} (\nabla_u \log p_U - \nabla_u \log|\det T'(u)|).
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from samplekit.core.errors import TargetError
from samplekit.core.protocols import DensityTarget, ScoreTarget
from samplekit.sampling.run import safe_name
from samplekit.sampling.view import View, with_space
from samplekit.targets.space import Space, make_space

# Points evaluated at once: a model with 10⁵ observations then takes some 100 MB.
_BATCH = 256


@dataclasses.dataclass(frozen=True)
class Chart:
    """A target with the scalars that are its axes."""

    target: Any
    labels: tuple[str, ...]  # of all scalars of its constrained value
    axes: tuple[int, ...]  # which of them are drawn
    smooth: bool  # whether it has a score

    @property
    def dim(self) -> int:
        """One or two."""
        return len(self.axes)

    def evaluate(self, points: np.ndarray) -> "Values":
        """Return what the target is at unconstrained points (*grid, axis)."""
        flat = jnp.asarray(points.reshape(-1, self.dim), jnp.result_type(float))
        found = _evaluate(self.target, flat, axes=self.axes, smooth=self.smooth)
        return Values(*(np.asarray(a, float).reshape(*points.shape[:-1], *a.shape[1:])
                         for a in found))  # fmt: skip

    def unconstrained(self, values: np.ndarray) -> np.ndarray:
        """Return the flat positions of constrained scalars (row, scalar)."""
        return np.asarray(_position(self.target, jnp.asarray(values, jnp.result_type(float))))


class Values(NamedTuple):
    """A target at some points u, y = T(u) being the constrained value."""

    value: Any  # y
    log_slope: Any  # log|det T'(u)|
    log_density: Any  # of u
    free_score: Any  # ∇_u log p_U
    score: Any  # ∇_y log p_Y


def chart_of(target: Any) -> Chart:
    """Choose as axes the first scalars that together tell the whole position."""
    u = jnp.full((target.space.size,), 0.1, jnp.result_type(float))
    slopes = np.asarray(jax.jacfwd(functools.partial(_shown, target))(u), float)
    axes: list[int] = []
    for i in range(len(slopes)):
        # A simplex says its last share twice, and a correlation matrix holds constants.
        if np.linalg.matrix_rank(slopes[[*axes, i]], tol=1e-5) > len(axes):
            axes.append(i)
    try:
        jax.eval_shape(View(target, flat=True).for_kernel.score, u)
        smooth = True
    except Exception:  # whatever the user's function raises when it is differentiated
        smooth = False
    return Chart(target, tuple(_labels(target)), tuple(axes), smooth)


def is_plain(target: Any) -> bool:
    """Tell whether people read the very values that kernels move."""
    free = all(leaf.support is None for leaf in target.space.leaves)
    return free and not hasattr(target, "constrain")


def _constrained(target: Any, u: Array) -> dict[str, Array]:
    """Return the latent values that a run shows for a flat position; nothing derived."""
    shown = View(target, flat=True).shown(u)
    return {leaf.name: shown[leaf.name] for leaf in target.space.leaves}


def _shown(target: Any, u: Array) -> Array:
    return jnp.concatenate([jnp.ravel(a) for a in _constrained(target, u).values()])


def _shapes(target: Any) -> dict[str, tuple[int, ...]]:
    u = jax.ShapeDtypeStruct((target.space.size,), jnp.result_type(float))
    shapes = jax.eval_shape(functools.partial(_constrained, target), u)
    return {leaf.name: shapes[leaf.name].shape for leaf in target.space.leaves}


def _labels(target: Any) -> Iterator[str]:
    coords = dict(target.space.coords)
    for leaf, shape in zip(target.space.leaves, _shapes(target).values(), strict=True):
        names = [
            coords.get(leaf.dims[i] if leaf.dims else "", range(n)) for i, n in enumerate(shape)
        ]
        for place in itertools.product(*names):
            yield f"{leaf.name}[{', '.join(map(str, place))}]" if shape else leaf.name


def draws_of(chart: Chart, variables: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the draws of a run of the target, (draw, scalar)."""
    parts = []
    for name, shape in _shapes(chart.target).items():
        values = variables.get(safe_name(name))
        if values is None or values.shape[2:] != shape:
            there = {n: list(v.shape[2:]) for n, v in variables.items()}
            raise TargetError(
                f"The run is not one of this target: it holds {there} (shape of a draw), and the "
                f"target has {name!r} of shape {list(shape)}. Pass the run that sampled it."
            )
        parts.append(values.reshape(values.shape[0] * values.shape[1], -1))
    return np.concatenate(parts, axis=1).astype(float)


def with_axes(
    target: Any, variables: Mapping[str, np.ndarray] | None, bounds: np.ndarray | None
) -> Any:
    """Return the target with a space of one or two continuous scalars, or say why not."""
    if not isinstance(target, DensityTarget | ScoreTarget):
        family = "Take one level of the family: target.at(level)."
        other = "Make one with sk.from_energy, from_log_density, from_score or from_numpyro."
        raise TargetError(
            f"A {type(target).__name__} has neither log_density nor score, so there is nothing to "
            f"draw. {family if hasattr(target, 'at') else other}"
        )
    if getattr(target, "space", None) is None:
        target = with_space(target, make_space(_implied_shape(target, variables, bounds)))
    space: Space = getattr(target, "space")  # noqa: B009 (the protocols do not name it)
    size = space.size
    if size not in (1, 2):
        raise TargetError(
            f"The target has {size} coordinates, and a picture has one or two. "
            "sk.plot_mixing(run) shows the worst of any number of them, "
            "az.plot_pair(run, var_names=[...]) two at a time."
        )
    if any(leaf.dtype is not None for leaf in space.leaves):
        raise TargetError(
            "The target is discrete: it has no density to shade and no score. "
            "sk.plot_mixing(run) shows its draws."
        )
    if bounds is not None and len(bounds) != size:
        raise TargetError(
            f"bounds= has {len(bounds)} pairs, but the target has {size} coordinates: give "
            "(low, high) for each."
        )
    return target


def _implied_shape(
    target: Any, variables: Mapping[str, np.ndarray] | None, bounds: np.ndarray | None
) -> Any:
    if variables is not None and len(variables) == 1:
        return next(iter(variables.values())).shape[2:]
    if bounds is not None:
        return len(bounds)
    raise TargetError(
        f"{type(target).__name__} does not say what its positions look like. Pass a run of it or "
        "bounds=, or give it a `space` (as sk.from_log_density does)."
    )


@functools.partial(jax.jit, static_argnames=("axes", "smooth"))
def _evaluate(target: Any, points: Array, *, axes: tuple[int, ...], smooth: bool) -> Any:
    flat = View(target, flat=True).for_kernel

    def value(u: Array) -> Array:
        return _shown(target, u)[jnp.array(axes)]

    def log_slope(u: Array) -> Array:
        return jnp.log(jnp.abs(_determinant(jax.jacfwd(value)(u))))

    def at(u: Array) -> Values:
        nothing = jnp.full_like(u, jnp.nan)
        density = nothing[0]  # not known; what a density leaves undefined is no mass
        if isinstance(target, DensityTarget):
            density = flat.log_density(u)
            density = jnp.where(jnp.isfinite(density), density, -jnp.inf)
        score = flat.score(u) if smooth else nothing
        if is_plain(target):
            return Values(u, jnp.zeros_like(u[0]), density, score, score)
        slope, gradient = jax.jacfwd(value)(u), jax.grad(log_slope)(u)
        shown = _inverse(slope).T @ (score - gradient)
        return Values(value(u), log_slope(u), density, score, shown)

    return jax.lax.map(at, points, batch_size=_BATCH)


def _determinant(m: Array) -> Array:
    return m[0, 0] if len(m) == 1 else m[0, 0] * m[1, 1] - m[0, 1] * m[1, 0]


def _inverse(m: Array) -> Array:
    """Return the inverse; written out, it compiles in a third of the time."""
    if len(m) == 1:
        return 1 / m
    return jnp.array([[m[1, 1], -m[0, 1]], [-m[1, 0], m[0, 0]]]) / _determinant(m)


@jax.jit
def _position(target: Any, values: Array) -> Array:
    def one(row: Array) -> Array:
        parts, start = {}, 0
        for name, shape in _shapes(target).items():
            stop = start + math.prod(shape)
            parts[name], start = row[start:stop].reshape(shape), stop
        if hasattr(target, "unconstrain"):
            return target.space.ravel(target.unconstrain(parts))
        tree = jax.tree.unflatten(target.space.treedef, list(parts.values()))
        return target.space.ravel(target.space.from_support(tree))

    return jax.vmap(one)(values)
