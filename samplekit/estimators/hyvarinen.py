"""The Hyvärinen score of any target: how well a density fits rows, its normaliser unknown.

Rows are data, hence constrained values. The score depends on the coordinates in which derivatives
are taken, so two models are comparable only in the same ones.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from samplekit.core.errors import EstimatorError, TargetError
from samplekit.core.protocols import DensityTarget
from samplekit.core.pytree import Function, as_function, pytree, static
from samplekit.estimators.domains import Box, Domain, Simplex, as_domain, name_rows
from samplekit.estimators.placed import Placed, Rows, flat_rows, free_rows, place
from samplekit.estimators.punctured import Punctured
from samplekit.estimators.rows import Chunk, Runner, array_chunks, refuse_non_finite
from samplekit.estimators.setup import UNWEIGHTED

# Second derivatives along so many axes at once; more would not be faster, only larger.
DIRECTIONS = 16


def hyvarinen_score(target: Any, X: Any, *, domain: Any = None, weight: Any = None) -> Rows:
    """Return the Hyvärinen score of each row of X: lower is better, no normaliser needed.

    Parameters
    ----------
    target
        Any target with a log density or a score, or a fitted estimator of samplekit.
    X
        Data: rows of shape (n, d), constrained where the target is; for targets with several
        variables a dict of arrays with n as their first axis.
    domain
        Where the data live, as in `ExponentialFamily`: "reals", "positive", (lower, upper), ... It
        may be smaller than the target's support, which is the default.
    weight
        None takes derivatives in coordinates without a boundary: log y for positive data, the logit
        between two bounds, log(y_j/y_p) on the simplex, y itself on the reals. A function h(y) with
        one number per column takes them in y, weighted by h. "unweighted" is h = 1, which is wrong
        where the density does not vanish at a boundary.

    Returns
    -------
    scores
        One number per row.

    Notes
    -----
    S(y) = Σ_j ½ (∂_j log p)² + ∂²_j log p, and with weights Σ_j ½ h_j (∂_j log p)² + h_j ∂²_j log p
    + ∂_j h_j ∂_j log p; some authors write twice this. A factor in front of p drops out, and p need
    not have an integral. For data from q, E[S(p)] − E[S(q)] is half the Fisher divergence
    E‖∇ log q − ∇ log p‖² (Hyvärinen 2005, JMLR 6), so the true density has the lowest mean. The
    mean of the scores of a fitted family is minus its `score(X)`, unless it has a weight of its
    own. Log y as coordinate is the weight h(y) = y², up to a constant.

    Computed in float64 on CPU whatever JAX's switch, with two nested forward derivatives per
    coordinate, in blocks of rows and coordinates that bound the memory. A density with kinks (a
    network of ReLUs, Laplace) has second derivatives that autodiff does not see: its score is
    wrong.

    Examples
    --------
    >>> import samplekit as sk
    >>> from samplekit.estimators.hyvarinen import hyvarinen_score
    >>> target = sk.from_energy(lambda x: (x**2).sum() / 2 + 7.0, dim=2)
    >>> hyvarinen_score(target, [[0.0, 0.0], [1.0, 2.0]])
    array([-2. ,  0.5])
    """
    return scores_of(place(target, X), X, domain=domain, weight=weight)


@pytree
class Judged:
    """A density in the coordinates z of a chart, with a weight."""

    field: Any  # of y: has log_density, or a score only
    weight: Function | None
    domain: Domain | None = static()  # None: z is y

    def log_density(self, z: Array) -> Array:
        """Return log p of z."""
        y, log_jacobian = self._placed(z)
        return self.field.log_density(y) + log_jacobian

    def score(self, z: Array) -> Array:
        """Return ∇ log p of z, for a field without log density."""
        (y, log_jacobian), pull = jax.vjp(self._placed, z)
        return pull((self.field.score(y), jnp.ones_like(log_jacobian)))[0]

    def _placed(self, z: Array) -> tuple[Array, Array]:
        return (z, jnp.zeros((), z.dtype)) if self.domain is None else self.domain.place(z)

    def along(self, z: Array, index: Array) -> Array:
        """Return the part of the Hyvärinen score that belongs to one coordinate."""
        axis = jax.nn.one_hot(index, z.shape[0], dtype=z.dtype)
        if isinstance(self.field, DensityTarget):

            def first(at: Array) -> Array:
                return jax.jvp(self.log_density, (at,), (axis,))[1]

            slope, bend = jax.jvp(first, (z,), (axis,))
        else:
            slope, bend = jax.jvp(lambda at: jnp.vdot(self.score(at), axis), (z,), (axis,))
        if self.weight is None:
            return slope**2 / 2 + bend
        own = self.weight

        def height(at: Array) -> Array:
            h = jnp.asarray(own(self._placed(at)[0]), z.dtype)
            return jnp.vdot(jnp.broadcast_to(h, z.shape), axis)

        h, tilt = jax.jvp(height, (z,), (axis,))
        return h * (slope**2 / 2 + bend) + tilt * slope


def _score_block(judged: Judged, theta: Array, rows: Array) -> Array:
    """Return the Hyvärinen scores of a block of rows, some directions at a time."""
    del theta  # what `Runner.each` hands to families
    axes = jnp.arange(rows.shape[1])
    at_once = min(DIRECTIONS, rows.shape[1])

    def row(z: Array) -> Array:
        return jax.lax.map(functools.partial(judged.along, z), axes, batch_size=at_once).sum()

    return jax.vmap(row)(rows)


def scores_of(placed: Placed, X: Any, *, domain: Any = None, weight: Any = None) -> Rows:
    """Return the Hyvärinen score of each row."""
    judged, rows = _judged(placed, X, None if domain is None else as_domain(domain), weight)
    runner = Runner(judged, rows.shape[1], min(DIRECTIONS, rows.shape[1]))  # pyright: ignore
    parts = [
        runner.each(_score_block, chunk, np.zeros(0))
        for chunk in array_chunks(rows, None, runner.chunk)
    ]
    scores = np.concatenate([np.zeros(0), *parts]).astype(np.float64)
    bad = ~np.isfinite(scores)
    if bad.any():
        raise EstimatorError(
            f"{name_rows(bad, 0)} at which the log density has no finite first and second "
            "derivatives: outside the support, or where it is not smooth. Remove them, or give "
            "the target its support."
        )
    return scores


def _judged(placed: Placed, X: Any, domain: Domain | None, weight: Any) -> tuple[Judged, Rows]:
    """Return the density in the chosen coordinates, and the rows in them."""
    if placed.domain is None:
        if domain is not None or weight is not None:
            raise TargetError(
                "This target's variables are not plain columns between bounds, so it can be "
                "judged in its own unconstrained coordinates only. Leave domain and weight "
                "out, or write the density of the data with sk.from_log_density."
            )
        rows = free_rows(placed.free, X)
        refuse_non_finite(Chunk(rows, rows[:0], 0))
        return Judged(placed.field, None, None), rows
    rows = flat_rows(X, placed.space)
    refuse_non_finite(Chunk(rows, rows[:0], 0))
    rows = placed.domain.check(rows, 0)
    if domain is not None:
        _check_inside(domain, placed.domain, rows.shape[1])
        rows = domain.check(rows, 0)
    chart = domain or placed.domain
    if weight is None:
        if isinstance(placed.domain, Punctured) and _holds_zero(chart, rows.shape[1]):
            raise EstimatorError(
                "The density has a kink or a pole at zero, which the unweighted score cannot "
                "see. Give a weight that vanishes there, such as weight=lambda y: abs(y)."
            )
        with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):  # noqa: FBT003
            return Judged(placed.field, None, chart), np.asarray(_charted(chart, rows))
    if isinstance(chart, Simplex):
        raise EstimatorError(
            "There is no weight on the simplex: its coordinates are not free. Leave weight "
            "out; derivatives are then taken in log(y_j / y_p)."
        )
    if not callable(weight) and weight != UNWEIGHTED:
        raise EstimatorError(
            f"weight={weight!r} is not usable. Give None, a function h(y) that vanishes at the "
            "boundary, or 'unweighted'."
        )
    flat = chart if not isinstance(chart, Box) else None  # on a sphere, y/‖y‖
    return Judged(placed.field, as_function(weight) if callable(weight) else None, flat), rows


def _holds_zero(chart: Domain, dim: int) -> bool:
    if not isinstance(chart, Box):
        return True
    lower, upper = chart.bounds(dim)
    return bool(np.any((lower < 0) & (upper > 0)))


@functools.partial(jax.jit, static_argnums=0)
def _charted(domain: Domain, rows: Array) -> Array:
    return jax.vmap(domain.chart)(rows)


def _check_inside(domain: Domain, support: Domain, dim: int) -> None:
    """Refuse coordinates in which the density would end at an edge."""
    if isinstance(domain, Box) and isinstance(support, Box):
        (low, high), (least, most) = domain.bounds(dim), support.bounds(dim)
        fits = bool(np.all(least <= low) and np.all(high <= most))
    else:
        fits = domain == support
    if not fits:
        raise EstimatorError(
            f"The domain {domain.name!r} is larger than the support of the density, which would "
            "end at an edge that the score does not see. Leave domain out, or give a part of the "
            "support."
        )
