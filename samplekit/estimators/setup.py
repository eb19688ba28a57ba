"""From an estimator's settings to the model that is fitted."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_flatten_with_path

from samplekit.core.errors import EstimatorError
from samplekit.core.pytree import as_function
from samplekit.estimators.domains import Box, Domain, Simplex, as_domain
from samplekit.estimators.linear import Matrix, Solution, Vector, solve
from samplekit.estimators.moments import Model, flat, meat_block, normal_block
from samplekit.estimators.quadratic import Frame, QuadraticEngine
from samplekit.estimators.rows import Chunk, Runner, spans_processes
from samplekit.estimators.weights import Distance, Framed

UNWEIGHTED = "unweighted"

# Means of up to this many standard deviations are not taken out: 1 + 10² of 2⁵³ is lost.
NEAR_ZERO = 10.0


@dataclasses.dataclass(frozen=True)
class Setup:
    """What is fitted: the model, the names of its statistics, and how."""

    model: Model
    names: list[str]
    quadratic: bool = False  # the statistics are those of a Gaussian: closed under affine maps
    own_weight: bool = False  # the user's weight, in the units of y
    insisted: bool = False  # an unweighted fit on a bounded domain, asked for by name


class Engine(Protocol):
    """Turns chunks into sums, and sums into θ̂ and its errors."""

    chunk: int

    def sums(self, chunks: Iterable[Chunk]) -> tuple[Matrix, Vector]:
        """Add up over chunks."""
        ...

    def solve(self, sums: tuple[Matrix, ...]) -> Solution:
        """Return θ̂."""
        ...

    def full(self, sums: tuple[Matrix, ...]) -> Solution:
        """Return θ̂ with Γ⁻¹ and the condition number."""
        ...

    def meat(self, chunks: Iterable[Chunk], theta: Vector) -> tuple[Matrix, Vector]:
        """Return Σ w²ψψᵀ and Σ wψ."""
        ...


class AutodiffEngine:
    """The general case: derivatives by autodiff, sums on threads or devices."""

    def __init__(
        self, setup: Setup, dim: int, *, ridge: float, scaled: bool, devices: Any = None
    ) -> None:
        self.names, self.ridge, self.scaled = setup.names, ridge, scaled
        self.runner = Runner(setup.model, dim, len(setup.names), devices=devices)
        self.chunk = self.runner.chunk

    def sums(self, chunks: Iterable[Chunk]) -> tuple[Matrix, Vector]:
        """Return Γ and g, summed."""
        gamma, g = self.runner.total(normal_block, chunks)
        return gamma, g

    def solve(self, sums: tuple[Matrix, ...]) -> Solution:
        """Return θ̂, Γ⁻¹ and the condition number."""
        return solve(sums[0], sums[1], self.names, ridge=self.ridge, scaled=self.scaled)

    def full(self, sums: tuple[Matrix, ...]) -> Solution:
        """Return the same: nothing was left out."""
        return self.solve(sums)

    def meat(self, chunks: Iterable[Chunk], theta: Vector) -> tuple[Matrix, Vector]:
        """Return Σ w²ψψᵀ and Σ wψ."""
        meat, total = self.runner.total(meat_block, chunks, theta)
        return meat, total


def make_model(
    statistics: Callable[..., Any], base: Any = None, *, domain: Any = None, weight: Any = None
) -> Model:
    """Return the model of an estimator's settings; refuse what would be silently wrong."""
    place = as_domain(domain)
    for what, function in (("statistics", statistics), ("base", base)):
        if not callable(function) and not (what == "base" and function is None):
            raise EstimatorError(f"{what}={function!r} is not a function of one row y.")
    return Model(
        as_function(statistics),
        None if base is None else as_function(base),
        as_function(weight) if callable(weight) else None,
        place,
        _charted(place, weight),
    )


def _charted(domain: Domain, weight: Any) -> bool:
    """Tell whether derivatives are taken in the chart."""
    if weight is not None and weight != UNWEIGHTED and not callable(weight):
        raise EstimatorError(
            f"weight={weight!r} is not usable. Give None for the domain's default, a function "
            "h(y) that vanishes at the boundary, or 'unweighted'."
        )
    if isinstance(domain, Simplex) and isinstance(weight, str):
        raise EstimatorError(
            "The simplex cannot be fitted unweighted: its coordinates are not free. Leave weight "
            "out; the fit is then in log(y_j / y_p)."
        )
    return weight is None or not isinstance(domain, Box)


def statistic_names(model: Model, dim: int) -> list[str]:
    """Name the statistics by the keys of their dict, or by number, and check what they return."""
    row = jax.ShapeDtypeStruct((dim,), np.float64)
    try:
        with jax.enable_x64(True):  # noqa: FBT003
            shapes = jax.eval_shape(model.statistics, row)
            vector = jax.eval_shape(flat, shapes)
            base = jax.eval_shape(model.base_of, row)
            if model.weight is not None:
                jax.eval_shape(model.weights, jax.eval_shape(model.coordinates, row))
    except EstimatorError:
        raise
    except Exception as error:
        raise EstimatorError(
            f"The statistics, the base or the weight failed on a row y of shape ({dim},): "
            f"{type(error).__name__}: {str(error).splitlines()[0]}. They take one row, are written "
            "with jax.numpy and return a vector, one number, and one number per column."
        ) from error
    if not all(jnp.issubdtype(s.dtype, jnp.floating) for s in (vector, base)):
        raise EstimatorError("The statistics and the base must return real floating numbers.")
    named = []
    for path, leaf in tree_flatten_with_path(shapes)[0]:
        label = ".".join(str(getattr(p, "key", getattr(p, "idx", p))) for p in path)
        count = int(np.prod(leaf.shape))
        if not label:
            named += [f"theta[{i}]" for i in range(count)]
        else:
            named += [label] if leaf.shape == () else [f"{label}[{i}]" for i in range(count)]
    return named


def make_frame(setup: Setup, pilot: Chunk) -> Frame | None:
    """Return centre and scale for a Gaussian family, None for others."""
    if not setup.quadratic:
        return None
    weight = pilot.weights / max(pilot.weights.sum(), np.finfo(float).tiny)
    center = weight @ pilot.rows
    scale = np.ones_like(center)
    if not np.isfinite(center).all():
        return None  # the sums will say which rows
    spread = np.sqrt(weight @ (pilot.rows - center) ** 2)
    if setup.model.weight is not None:
        scale = np.where(spread > 0, spread, 1.0)
    elif (np.abs(center) <= NEAR_ZERO * spread).all():
        return None  # centring would cost a pass over the data and gain two digits of sixteen
    return Frame(center, scale)


def framed(setup: Setup, frame: Frame | None, default: Any) -> Setup:
    """Return the setup in the coordinates of the frame."""
    weight = setup.model.weight
    if frame is None or weight is None:
        return setup
    if setup.own_weight or not isinstance(default, Distance):
        new: Any = Framed(weight, frame.center, frame.scale)
    else:
        new = default.framed(frame.center, frame.scale)
    return dataclasses.replace(
        setup, model=dataclasses.replace(setup.model, weight=as_function(new))
    )


def make_engine(
    setup: Setup, dim: int, *, ridge: float, scaled: bool, devices: Sequence[Any] | None = None
) -> Engine:
    """Return second moments where they suffice, autodiff otherwise."""
    model = setup.model
    plain = not (model.weight or model.domain.boundary or model.base)
    if setup.quadratic and plain:
        everywhere = spans_processes(devices)
        return QuadraticEngine(dim, ridge=ridge, scaled=scaled, everywhere=everywhere)
    return AutodiffEngine(setup, dim, ridge=ridge, scaled=scaled, devices=devices)


def check_periodic(model: Model, pilot: Chunk) -> None:
    """Refuse statistics on the torus that do not have period 2π."""
    with jax.enable_x64(True):  # noqa: FBT003
        rows = jnp.asarray(pilot.rows[:8])
        values = jax.vmap(model.values)
        here = values(rows)
        for axis in range(rows.shape[1]):
            there = values(rows.at[:, axis].add(2 * np.pi))
            for a, b in zip(here, there, strict=True):
                if not np.allclose(a, b, rtol=1e-6, atol=1e-6):
                    raise EstimatorError(
                        f"The statistics (or the base) change when column {axis} grows by 2π, so "
                        "they are no functions on the torus. Write them with cos and sin."
                    )
