"""Where a density lives: boxes, the simplex, the sphere and the torus.

A domain checks rows and offers a *chart*: coordinates z in which the density has no boundary, so
that plain score matching is consistent and its standard errors are valid. On y > 0 the chart is
log y, which is the same as the weight h(y) = y² in the data's own coordinates.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from samplekit.core.errors import EstimatorError

type Rows = NDArray[np.float64]

# A value on the boundary is moved inside by this much: its square and the square of its inverse
# are still numbers, so h·s′² has its limit and not 0·∞.
NUDGE = 1e-100

# Rows on the simplex and the sphere may be off by the rounding of float32.
ROUNDING = 1e-5


class Domain(Protocol):
    """What an estimator asks of a domain. All methods but `check` take one row."""

    @property
    def name(self) -> str:
        """What the domain is called."""
        ...

    @property
    def boundary(self) -> bool:
        """Whether an unweighted fit in the data's coordinates would be wrong."""
        ...

    def check(self, rows: Rows, start: int) -> Rows:
        """Return the rows, put onto the domain to the last digit; name those outside."""
        ...

    def chart(self, y: Array) -> Array:
        """Return the unbounded coordinates z of y."""
        ...

    def place(self, z: Array) -> tuple[Array, Array]:
        """Return y and the log-Jacobian of z ↦ y."""
        ...


@dataclasses.dataclass(frozen=True)
class Box:
    """The coordinates between `lower` and `upper`, either of which may be infinite."""

    lower: tuple[float, ...] = (-np.inf,)
    upper: tuple[float, ...] = (np.inf,)
    name: str = "reals"

    @property
    def boundary(self) -> bool:
        """Whether any bound is finite."""
        return any(np.isfinite([*self.lower, *self.upper]))

    def bounds(self, dim: int) -> tuple[Rows, Rows]:
        """Return both bounds, one number per coordinate."""
        try:
            lower, upper = (np.broadcast_to(np.asarray(b), dim) for b in (self.lower, self.upper))
        except ValueError as error:
            raise EstimatorError(
                f"The domain has {max(len(self.lower), len(self.upper))} bounds for rows of {dim} "
                "numbers. Give one bound for all columns or one per column."
            ) from error
        return lower, upper

    def check(self, rows: Rows, start: int) -> Rows:
        """Name the rows outside; move values on a bound inside by a hair."""
        if not self.boundary:
            return rows
        lower, upper = self.bounds(rows.shape[1])
        bad = ((rows < lower) | (rows > upper)).any(axis=1)
        if bad.any():
            spans = f"between {self.lower} and {self.upper}"
            why = spans if self.name == "interval" else "y ≥ 0: Negative values in data"
            _refuse(bad, start, f"outside the domain {self.name!r} ({why})")
        return np.clip(rows, _inside(lower, 1.0), _inside(upper, -1.0))

    def _kinds(self, dim: int) -> list[tuple[Any, Any, Any]]:
        """Group the coordinates by kind: (index, lower, upper), None for infinite."""
        lower, upper = self.bounds(dim)
        kinds = np.isfinite(lower) + 2 * np.isfinite(upper)
        groups = []
        for kind in np.unique(kinds):
            at = np.flatnonzero(kinds == kind)
            index = slice(None) if at.size == dim else at
            groups.append((index, lower[at] if kind & 1 else None, upper[at] if kind & 2 else None))
        return groups

    def chart(self, y: Array) -> Array:
        """Return log(y − l), −log(u − y), or the logit between two bounds."""
        z = y
        for index, lower, upper in self._kinds(y.shape[0]):
            part = y[index]
            if lower is not None:
                value = jnp.log(part - lower.astype(y.dtype))
                if upper is not None:
                    value = value - jnp.log(upper.astype(y.dtype) - part)
            elif upper is not None:
                value = -jnp.log(upper.astype(y.dtype) - part)
            else:
                continue
            z = z.at[index].set(value)
        return z

    def place(self, z: Array) -> tuple[Array, Array]:
        """Return y and Σ log |dy/dz|."""
        y, log_jacobian = z, jnp.zeros((), z.dtype)
        for index, lower, upper in self._kinds(z.shape[0]):
            part = z[index]
            if lower is not None and upper is not None:
                low, span = lower.astype(z.dtype), (upper - lower).astype(z.dtype)
                value = low + span * jax.nn.sigmoid(part)
                slope = jnp.log(span) + jax.nn.log_sigmoid(part) + jax.nn.log_sigmoid(-part)
            elif lower is not None:
                value, slope = lower.astype(z.dtype) + jnp.exp(part), part
            elif upper is not None:
                value, slope = upper.astype(z.dtype) - jnp.exp(-part), -part
            else:
                continue
            y = y.at[index].set(value)
            log_jacobian = log_jacobian + slope.sum()
        return y, log_jacobian


@dataclasses.dataclass(frozen=True)
class Simplex:
    """Rows of p positive numbers that sum to one; the chart is log(y_j / y_p).

    Densities are with respect to the first p − 1 coordinates.
    """

    name: str = "simplex"
    boundary: bool = True

    def check(self, rows: Rows, start: int) -> Rows:
        """Name the rows with a negative entry or another sum."""
        total = rows.sum(axis=1)
        bad = (rows < 0).any(axis=1) | (np.abs(total - 1) > ROUNDING)
        if bad.any():
            _refuse(bad, start, "not on the simplex (non-negative entries that sum to 1)")
        return np.maximum(rows, NUDGE) / total[:, None]

    def chart(self, y: Array) -> Array:
        """Return log y_j − log y_p, j < p."""
        return jnp.log(y[:-1]) - jnp.log(y[-1:])

    def place(self, z: Array) -> tuple[Array, Array]:
        """Return softmax(z, 0) and its log-Jacobian Σ_j log y_j."""
        log_y = jax.nn.log_softmax(jnp.append(z, jnp.zeros((), z.dtype)))
        return jnp.exp(log_y), log_y.sum()


@dataclasses.dataclass(frozen=True)
class Sphere:
    """Unit vectors. Functions are extended with degree 0, y ↦ f(y/‖y‖).

    At ‖y‖ = 1 the gradient of such an extension is tangent and its Laplacian is the sphere's, so
    the Euclidean formulas hold as they are.
    """

    name: str = "sphere"
    boundary: bool = False

    def check(self, rows: Rows, start: int) -> Rows:
        """Name the rows that are not of length one."""
        length = np.sqrt((rows**2).sum(axis=1))
        bad = np.abs(length - 1) > ROUNDING
        if bad.any():
            _refuse(bad, start, "not on the unit sphere; divide each row by its length")
        return rows / length[:, None]

    def chart(self, y: Array) -> Array:
        """Return y: the ambient coordinates serve as they are."""
        return y

    def place(self, z: Array) -> tuple[Array, Array]:
        """Return z/‖z‖."""
        return z / jnp.sqrt((z**2).sum()), jnp.zeros((), z.dtype)


@dataclasses.dataclass(frozen=True)
class Torus:
    """Angles in radians; statistics must have period 2π in each."""

    name: str = "torus"
    boundary: bool = False

    def check(self, rows: Rows, start: int) -> Rows:
        """Return the rows: every number is an angle."""
        return rows

    def chart(self, y: Array) -> Array:
        """Return y."""
        return y

    def place(self, z: Array) -> tuple[Array, Array]:
        """Return z."""
        return z, jnp.zeros((), z.dtype)


REALS = Box()
POSITIVE = Box((0.0,), (np.inf,), "positive")
_NAMED: dict[str, Domain] = {
    "reals": REALS,
    "positive": POSITIVE,
    "orthant": dataclasses.replace(POSITIVE, name="orthant"),
    "simplex": Simplex(),
    "sphere": Sphere(),
    "torus": Torus(),
}


def interval(lower: float | Sequence[float], upper: float | Sequence[float]) -> Box:
    """Return the box between two bounds: numbers, or one number per column; ±inf is none.

    Examples
    --------
    >>> from samplekit.estimators.domains import interval
    >>> interval(0, 1).boundary
    True
    """
    low, high = (tuple(np.atleast_1d(np.asarray(b, float)).tolist()) for b in (lower, upper))
    if len(low) != len(high) and 1 not in (len(low), len(high)):
        raise EstimatorError(f"lower has {len(low)} bounds and upper {len(high)}: give as many.")
    if not np.all(np.asarray(low) < np.asarray(high)):
        raise EstimatorError(f"The bounds {lower} and {upper} leave no room: lower < upper needed.")
    return Box(low, high, "interval")


def as_domain(domain: Any) -> Domain:
    """Return the domain of a name, of a pair of bounds, or itself; None is the reals."""
    if domain is None:
        return REALS
    if isinstance(domain, str) and domain in _NAMED:
        return _NAMED[domain]
    if isinstance(domain, tuple | list):
        if len(domain) == 2:
            return interval(*domain)
    elif not isinstance(domain, str) and all(
        hasattr(domain, method) for method in ("check", "chart", "place")
    ):
        return domain
    raise EstimatorError(
        f"domain={domain!r} is not known. Give one of {', '.join(_NAMED)}, or a pair of bounds "
        "(lower, upper)."
    )


def _inside(bound: Rows, sign: float) -> Rows:
    """Return the nearest usable numbers on the inner side of the bounds."""
    step = np.maximum(np.abs(np.where(np.isfinite(bound), bound, 0.0)) * 2**-52, NUDGE)
    return np.where(np.isfinite(bound), bound + sign * step, bound)


def _refuse(bad: NDArray[np.bool_], start: int, why: str) -> None:
    """Raise with the numbers of the offending rows."""
    raise EstimatorError(f"{name_rows(bad, start)} {why}. Remove them or choose another domain.")


def name_rows(bad: NDArray[np.bool_], start: int) -> str:
    """Say which rows are marked, the first five by number.

    Data are read chunk by chunk, and the first with such rows ends the fit: there may be more.
    """
    at = np.flatnonzero(bad)
    shown = ", ".join(str(start + i) for i in at[:5])
    more = f" and {at.size - 5} more" if at.size > 5 else ""
    return f"X has at least {at.size} row{'s' * (at.size > 1)} (number {shown}{more})"
