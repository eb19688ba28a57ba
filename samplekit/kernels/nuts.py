"""The no-U-turn sampler in the round coordinates of the metric."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from samplekit.core.errors import KernelError
from samplekit.core.protocols import DensityTarget, Position, Stats
from samplekit.core.pytree import pytree, static
from samplekit.kernels.base import (
    Base,
    GradientState,
    check_acceptance,
    check_positive,
    gradient_state,
    metric_of,
)

# A trajectory whose energy has risen by this much is lost (Stan's).
DIVERGENCE = 1000.0


class _Point(NamedTuple):
    """Where the integrator is: position, velocity, and score in round coordinates."""

    z: Array
    v: Array
    pulled: Array


class _Pick(NamedTuple):
    """The draw of a (sub)trajectory so far."""

    z: Array
    log_density: Array
    score: Array
    energy_error: Array


class _Open(NamedTuple):
    """The first leaves of balanced subtrees that are still open, for their U-turns: rows."""

    v: Array
    sum_v: Array
    before: Array  # the velocity one leaf earlier


class _Branch(NamedTuple):
    """A subtrajectory in the making: 2^depth leaves in one direction."""

    # every leaf
    leaf: Array
    point: _Point
    pick: _Pick
    log_weight: Array
    sum_v: Array
    accepted: Array
    open: _Open
    # what ends it early: a U-turn, or the change of energy at the last leaf
    turning: Array
    error: Array


class _Tree(NamedTuple):
    """A whole trajectory: its two ends, its draw, and what ended it."""

    depth: Array
    ends: _Point  # arrays of two rows: backward, forward
    pick: _Pick
    log_weight: Array
    sum_v: Array
    accepted: Array
    open: _Open  # memory for the branches, which write it before they read it
    turning: Array
    error: Array
    leaves: Array


def _sound(error: Array) -> Array:
    """Tell whether a change of energy is a number, or +inf; else its leaf is never the draw."""
    return error > -jnp.inf


def _goes_on(part: _Branch | _Tree) -> Array:
    return ~part.turning & _sound(part.error) & (part.error < DIVERGENCE)


def _turns(first: Array, last: Array, sum_v: Array) -> Array:
    """Tell whether either end of a trajectory moves against the way from end to end."""
    way = sum_v - (first + last) / 2
    return (jnp.sum(first * way, -1) <= 0) | (jnp.sum(last * way, -1) <= 0)


class _Half(NamedTuple):
    """The velocities at the ends of one of two neighboring parts, and the sum of all in it."""

    first: Array
    last: Array
    sum_v: Array


def _turn_between(left: _Half, right: _Half) -> Array:
    """Tell whether one part and the next leaf of the other turn back.

    The ends of both together may have come round a whole circle, and then point the same way.
    """
    return _turns(left.first, right.first, left.sum_v + right.first) | _turns(
        left.last, right.last, right.sum_v + left.last
    )


def _where(condition: Array, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


class _Trajectory(NamedTuple):
    """What all leaves of one trajectory share."""

    key: Array
    step_size: Array
    energy: Array
    evaluate: Callable[[Array], tuple[Array, Array, Array]]

    def leaf(self, branch: _Branch, sign: Array, before: Array) -> _Branch:
        """Take one leapfrog step, and let its end compete to be the draw."""
        eta = self.step_size * sign
        half = branch.point.v + 0.5 * eta * branch.point.pulled
        z = branch.point.z + eta * half
        log_density, score, pulled = self.evaluate(z)
        v = half + 0.5 * eta * pulled
        error = 0.5 * jnp.sum(v * v) - log_density - self.energy
        log_weight = jnp.where(_sound(error), -error, -jnp.inf)
        total = jnp.logaddexp(branch.log_weight, log_weight)
        u = _uniform(jax.random.fold_in(self.key, before + branch.leaf), z.dtype)
        sum_v = branch.sum_v + v
        turning, opened = _balanced(branch, v, sum_v)
        new = _Pick(z, log_density, score, error)
        return _Branch(
            leaf=branch.leaf + 1,
            point=_Point(z, v, pulled),
            pick=_where(jnp.log(u) <= log_weight - total, new, branch.pick),
            log_weight=total,
            sum_v=sum_v,
            accepted=branch.accepted + jnp.exp(jnp.minimum(log_weight, 0)),
            open=opened,
            turning=turning,
            error=error,
        )


def _uniform(key: Array, dtype: Any) -> Array:
    """Return a number in (0, 1) from the words of a key that serves for nothing else.

    A call of the generator would make the same words once more of these.
    """
    word = jax.random.key_data(key)[0]
    return (word >> 9).astype(dtype) * np.asarray(2**-23, dtype) + np.asarray(2**-24, dtype)


def _balanced(branch: _Branch, v: Array, sum_v: Array) -> tuple[Array, _Open]:
    """Look for U-turns in the balanced subtrees that end at this leaf; open those that begin.

    Leaf n of a branch, in binary: it ends one subtree for each of its trailing ones. The subtrees
    begun and not ended are kept in rows, one for each one of n // 2. Subtrees begin at even leaves,
    and end at odd ones, which write to a row that nobody reads.
    """
    n = branch.leaf
    last = jax.lax.population_count(n >> 1)
    ended = jax.lax.population_count(n ^ (n + 1)) - 1
    row = jnp.where(n % 2 == 0, last, branch.open.v.shape[0] - 1)
    now = _Open(v, sum_v, branch.point.v)
    opened = jax.tree.map(
        lambda rows, new: jax.lax.dynamic_update_index_in_dim(rows, new, row, 0), branch.open, now
    )

    def look(row: Array, turning: Array) -> Array:
        first = jax.tree.map(lambda rows: rows[row], opened)
        second = jax.tree.map(lambda rows: rows[row + 1], opened)
        whole = _turns(first.v, v, sum_v - first.sum_v + first.v)
        left = _Half(first.v, second.before, second.sum_v - second.v - first.sum_v + first.v)
        right = _Half(second.v, v, sum_v - second.sum_v + second.v)
        return turning | whole | _turn_between(left, right)

    # The subtree of the last row is the last two leaves, and its halves are leaves.
    turning = (n % 2 == 1) & _turns(branch.point.v, v, branch.point.v + v)
    return jax.lax.fori_loop(last - ended + 1, last, look, turning), opened


@pytree
class NUTS(Base):
    """No-U-turn sampler: Hamiltonian trajectories that stop when they turn back.

    Parameters
    ----------
    step_size
        Leapfrog length η; None tunes it in warm-up to acceptance 0.8.
    max_treedepth
        A trajectory has at most 2^max_treedepth − 1 leapfrog steps.
    target_accept
        Another acceptance rate to tune to; nearer to 1 takes smaller, safer steps.
    metric
        Inverse mass matrix A Aᵀ: "auto" starts diagonal and goes dense (low-rank in many
        dimensions) where draws and gradients show that it pays; "diagonal", "dense" and "low_rank"
        force it; an array gives it.

    Notes
    -----
    Multinomial NUTS [1]_ [2]_ with the doublings in loops instead of recursion [3]_: a branch of
    2^j leapfrog steps is added forward or backward until the trajectory, or a balanced part of it,
    turns back: v · (Σv − (v₋ + v₊)/2) ≤ 0 at one of its ends v₋, v₊. As in Stan, a half and the
    next leaf of the other count as parts too: where a circle takes 2^j − 1 steps, ends meet, and
    trajectories went round until they were cut (3 to 6 % of the chains on a Gaussian in three to
    five dimensions, up to 20 times the steps). Within a branch a leaf is the draw with probability
    in proportion to exp(−H); a new branch replaces the draw of the old ones with probability
    min(1, W_new / W_old). Invariant: the target. Bias: none. Cost: `n_steps` scores a step.

    BlackJAX has the same algorithm but for these parts, and our tests compare with it. It calls the
    random generator at every leapfrog step and holds the score several times in its program: on
    eight schools this one takes 0.7 of its time a leapfrog step, and half of its time to compile.

    References
    ----------
    .. [1] Hoffman and Gelman 2014, jmlr.org/papers/v15/hoffman14a.html.
    .. [2] Betancourt 2017, arXiv:1701.02434.
    .. [3] Phan, Pradhan and Jankowiak 2019, arXiv:1912.11554.

    Examples
    --------
    >>> import samplekit as sk
    >>> run = sk.sample(sk.targets.gaussian(3), sk.NUTS(), draws=50, progress=False)
    >>> sorted(run["sample_stats"])[:3]
    ['acceptance_rate', 'diverging', 'energy']
    """

    step_size: Any = None
    max_treedepth: int = static(default=10)
    target_accept: float | None = static(default=None)
    metric: Any = "auto"

    later_gamma: ClassVar[float] = 0.05  # as for HMC: safe on curved targets

    def __post_init__(self) -> None:
        """Refuse impossible settings."""
        check_positive("step_size", self.step_size, self)
        check_acceptance(self.target_accept, self)
        if not isinstance(self.max_treedepth, int | np.integer) or self.max_treedepth < 1:
            raise KernelError(
                f"NUTS(max_treedepth={self.max_treedepth!r}) needs an integer above 0."
            )

    def goal(self, dim: int) -> float:
        """Return the acceptance rate that warm-up aims for."""
        del dim
        return self.target_accept or 0.8

    def init(self, key: Array, x: Position, target: DensityTarget, /) -> GradientState:
        """Evaluate the start."""
        del key
        return gradient_state(x, target)

    def step(
        self, key: Array, state: GradientState, target: DensityTarget, /
    ) -> tuple[GradientState, Stats]:
        """Build one trajectory and draw from it."""
        metric = metric_of(self)
        x, unravel = ravel_pytree(state.position)
        score = ravel_pytree(state.score)[0]

        def evaluate(z: Array) -> tuple[Array, Array, Array]:
            new = gradient_state(unravel(x + metric.apply(z)), target)
            score = ravel_pytree(new.score)[0]
            return new.log_density, score, metric.pull(score)

        v, forward, uniform = self._noise(key, x)
        energy = 0.5 * jnp.sum(v * v) - state.log_density
        path = _Trajectory(key, jnp.asarray(self.step_size, x.dtype), energy, evaluate)
        zero = jnp.zeros((), x.dtype)
        rows = jnp.zeros((self.max_treedepth + 1, x.size), x.dtype)
        here = _Point(jnp.zeros_like(x), v, metric.pull(score))
        tree = self._grow(
            path,
            _Tree(
                depth=jnp.zeros((), jnp.int32),
                ends=jax.tree.map(lambda a: jnp.stack([a, a]), here),
                pick=_Pick(here.z, state.log_density, score, zero),
                log_weight=zero,
                sum_v=v,
                accepted=zero,
                open=_Open(rows, rows, rows),
                turning=jnp.zeros((), bool),
                error=zero,
                leaves=jnp.zeros((), jnp.int32),
            ),
            (forward, uniform),
        )
        pick = tree.pick
        new = GradientState(
            unravel(x + metric.apply(pick.z)), pick.log_density, unravel(pick.score)
        )
        capped = (tree.depth >= self.max_treedepth) & _goes_on(tree)
        return new, {
            "lp": new.log_density,
            "acceptance_rate": tree.accepted / tree.leaves.astype(x.dtype),
            "diverging": ~(_sound(tree.error) & (tree.error < DIVERGENCE)),
            "energy": energy + pick.energy_error,
            "n_steps": tree.leaves,
            "tree_depth": tree.depth,
            "reached_max_treedepth": capped,
            "nonfinite": (~_sound(tree.error)).astype(jnp.int32),
            "step_size": self.step_size,
        }

    def _noise(self, key: Array, x: Array) -> tuple[Array, Array, Array]:
        """Draw a velocity, directions, and uniforms on (0, 1), by one call of the generator."""
        dim, depth = x.size, self.max_treedepth
        lowest = np.nextafter(np.asarray(-1, x.dtype), np.asarray(0, x.dtype))
        u = jax.random.uniform(key, (dim + 2 * depth,), x.dtype, lowest, 1.0)
        v = jax.lax.erf_inv(u[:dim]) * np.asarray(np.sqrt(2), x.dtype)
        # Written down, or XLA works it out anew wherever it is used.
        v = jax.lax.optimization_barrier(v)
        return v, u[dim : dim + depth] > 0, 0.5 + 0.5 * u[dim + depth :]

    def _grow(self, path: _Trajectory, tree: _Tree, noise: tuple[Array, Array]) -> _Tree:
        """Double the trajectory until it turns back, runs away or is long enough."""
        forward, uniform = noise

        def double(tree: _Tree) -> _Tree:
            side = forward[tree.depth].astype(jnp.int32)
            sign = jnp.where(forward[tree.depth], 1, -1).astype(tree.sum_v.dtype)
            branch = _Branch(
                leaf=jnp.zeros((), jnp.int32),
                point=jax.tree.map(lambda a: a[side], tree.ends),
                pick=tree.pick,
                log_weight=jnp.full_like(tree.log_weight, -jnp.inf),
                sum_v=jnp.zeros_like(tree.sum_v),
                accepted=tree.accepted,
                open=tree.open,
                turning=jnp.zeros((), bool),
                error=tree.error,
            )
            size = jnp.left_shift(1, tree.depth)
            branch = jax.lax.while_loop(
                lambda b: (b.leaf < size) & _goes_on(b),
                lambda b: path.leaf(b, sign, tree.leaves),
                branch,
            )
            log_ratio = branch.log_weight - tree.log_weight
            taken = _goes_on(branch) & (jnp.log(uniform[tree.depth]) <= log_ratio)
            ends = jax.tree.map(
                lambda rows, row: jax.lax.dynamic_update_index_in_dim(rows, row, side, 0),
                tree.ends,
                branch.point,
            )
            sum_v = tree.sum_v + branch.sum_v
            # From the far end to the seam, and from there to the new end.
            old = _Half(tree.ends.v[1 - side], tree.ends.v[side], tree.sum_v)
            new = _Half(branch.open.v[0], branch.point.v, branch.sum_v)
            turning = _turns(ends.v[0], ends.v[1], sum_v) | _turn_between(old, new)
            return _Tree(
                depth=tree.depth + 1,
                ends=ends,
                pick=_where(taken, branch.pick, tree.pick),
                log_weight=jnp.logaddexp(tree.log_weight, branch.log_weight),
                sum_v=sum_v,
                accepted=branch.accepted,
                open=branch.open,
                turning=branch.turning | turning,
                error=branch.error,
                leaves=tree.leaves + branch.leaf,
            )

        return jax.lax.while_loop(
            lambda t: (t.depth < self.max_treedepth) & _goes_on(t), double, tree
        )
