"""Hamiltonian Monte Carlo with a fixed number of leapfrog steps or a tuned, jittered length."""

import dataclasses
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from samplekit.core.errors import KernelError
from samplekit.core.protocols import DensityTarget, Position, Stats
from samplekit.core.pytree import pytree, static
from samplekit.kernels.base import (
    GradientState,
    Noise,
    NoiseKernel,
    check_acceptance,
    check_positive,
    gradient_state,
    metric_of,
    metropolis,
    noise_rows,
    shared_uniforms,
)

# A trajectory is never longer than this many leapfrog steps (NUTS at depth 10 has 1023).
MOST_LEAPFROGS = 1023
# Nor is a turn looked for beyond so many: before the metric is known trajectories would take
# thousands of steps (30 s for 3 on a regression with condition 10⁵).
MOST_LEARNED = 255
# Energy error from which a trajectory counts as divergent (Stan's value).
DIVERGENCE = 1000.0
# The U-turn time is noisy: its 90 % quantile times 1.5, shortened at random, was the best of the
# rules tried on eight schools, a logistic regression, gauss100 and the banana (BENCH.md).
QUANTILE, STRETCH, SHORTEST = 0.9, 1.5, 0.3
# The turn time that warm-up begins with: a quarter period of a standard normal.
FIRST_TURN = np.pi / 2


class _Path(NamedTuple):
    """Where a leapfrog trajectory is; its momentum is half a step ahead, which saves a half."""

    x: Array
    ahead: Array
    log_density: Array
    score: Array


@pytree
class HMC(NoiseKernel):
    """Hamiltonian Monte Carlo with leapfrog steps of length η.

    Parameters
    ----------
    step_size
        η; None tunes it in warm-up to acceptance 0.8, or 0.95 where the length is tuned too.
    leapfrogs
        Leapfrog steps of a trajectory. None tunes the trajectory's length: warm-up measures when
        trajectories turn back, and sampling jitters the length so that no period can trap it.
    target_accept
        Another acceptance rate to tune to.
    metric
        Inverse mass matrix A Aᵀ: "auto", "diagonal", "dense" or "low_rank" learn it in warm-up; an
        array gives it.

    Notes
    -----
    H = −log p(x) + ½‖v‖², accepted with probability min(1, exp(H − H')). Invariant: the target.
    Bias: none. Cost: one score a leapfrog step. Neal 2011, arXiv:1206.1901. The jitter is one
    number for all chains in a step, so chains keep in step: on a CPU even a few chains of a cheap
    target run as one batch, and pool what they learn in warm-up.

    Examples
    --------
    >>> import samplekit as sk
    >>> run = sk.sample(sk.targets.gaussian(3), sk.HMC(leapfrogs=5), draws=50, progress=False)
    """

    step_size: Any = None
    leapfrogs: int | None = static(default=None)
    target_accept: float | None = static(default=None)
    metric: Any = "auto"
    # Tuned in warm-up: the time at which 90 % of trajectories have turned back.
    turn_time: Any = None
    learning: Any = False

    # Stan's: it ends on the safe side of the goal, which curved targets need (on the banana 223
    # divergences with 0.25, 25 with 0.05).
    later_gamma: ClassVar[float] = 0.05
    lengths: ClassVar[tuple[str, ...]] = ("step_size", "turn_time")
    few_batched: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse impossible settings."""
        check_positive("step_size", self.step_size, self)
        check_acceptance(self.target_accept, self)
        if self.leapfrogs is not None and (
            not isinstance(self.leapfrogs, int | np.integer) or self.leapfrogs < 1
        ):
            raise KernelError(
                f"HMC(leapfrogs={self.leapfrogs!r}) needs a positive integer or None."
            )

    def goal(self, dim: int) -> float:
        """Return the acceptance rate that warm-up aims for.

        Curved targets need the smaller steps: on the banana R-hat of 4 × 1000 draws was up to 1.06
        with 0.8 and 1.006 with 0.95, with more effective draws a second.
        """
        del dim
        return self.target_accept or (0.8 if self.leapfrogs else 0.95)

    def prepare(self, dim: int, dtype: Any) -> Self:
        """Fill in what is open."""
        ready = super().prepare(dim, dtype)
        turn = FIRST_TURN if self.turn_time is None else self.turn_time
        return dataclasses.replace(
            ready, turn_time=np.asarray(turn, dtype), learning=np.zeros((), bool)
        )

    def tuning(self, *, on: Array) -> Self:
        """Follow trajectories to the turn time while warm-up looks."""
        return self if self.leapfrogs else dataclasses.replace(self, learning=on)

    def learn(self, stats: Stats, count: Array) -> Self:
        """Move the turn time towards its quantile: Robbins and Monro on its logarithm."""
        if self.leapfrogs:
            return self
        drift = jnp.mean(QUANTILE - stats["_turned"].astype(self.turn_time.dtype))
        gain = 2.0 * (10.0 + count.astype(drift.dtype)) ** -0.6
        longest = MOST_LEARNED * self.step_size
        time = jnp.minimum(self.turn_time * jnp.exp(gain * drift), longest)
        return dataclasses.replace(self, turn_time=time.astype(self.turn_time.dtype))

    def moved(self, metric: Any) -> Self:
        """Take the metric, and measure the turn time anew: it is that of other coordinates.

        From below: the quantile rises nine times as fast as it falls, and long trajectories cost.
        """
        kernel = super().moved(metric)
        first = np.asarray(FIRST_TURN, np.asarray(self.turn_time).dtype)
        return dataclasses.replace(kernel, turn_time=np.minimum(self.turn_time, first))

    def init(self, key: Array, x: Position, target: DensityTarget, /) -> GradientState:
        """Evaluate the start."""
        del key
        return gradient_state(x, target)

    def noise(self, key: Array, x: Position, shape: tuple[int, ...] = ()) -> Noise:
        """Draw velocities and thresholds for each chain, and one jitter for all."""
        v, u = noise_rows(key, x, shape, uniforms=2)
        shorten = SHORTEST + (1 - SHORTEST) * shared_uniforms(key, x, u)[1]
        return (v, jnp.log(u[..., 0])), shorten

    def move(
        self, noise: Noise, state: GradientState, target: DensityTarget, /
    ) -> tuple[GradientState, Stats]:
        """Integrate, accept or reject."""
        (v, log_u), shorten = noise
        x, unravel = ravel_pytree(state.position)
        metric, eta = metric_of(self), self.step_size
        score = ravel_pytree(state.score)[0]
        start = _Path(x, metric.push(v) + 0.5 * eta * score, state.log_density, score)

        def leapfrog(path: _Path) -> _Path:
            x = path.x + eta * metric.velocity(path.ahead)
            new = gradient_state(unravel(x), target)
            score = ravel_pytree(new.score)[0]
            return _Path(x, path.ahead + eta * score, new.log_density, score)

        if self.leapfrogs:
            end = jax.lax.fori_loop(0, self.leapfrogs, lambda _, p: leapfrog(p), start)
            taken, private = jnp.asarray(self.leapfrogs, jnp.int32), {}
        else:
            end, taken, turned = self._jittered(start, leapfrog, shorten)
            private = {"_turned": turned}
        w = metric.pull(end.ahead - 0.5 * eta * end.score)
        energy_error = start.log_density - end.log_density
        energy_error = energy_error + 0.5 * jnp.sum(w**2 - v**2)
        proposal = GradientState(unravel(end.x), end.log_density, unravel(end.score))
        state, stats = metropolis(log_u, -energy_error, proposal, state)
        # The Hamiltonian of the draw with the velocity it was drawn with, for E-BFMI.
        energy = -start.log_density + 0.5 * jnp.sum(v**2)
        return state, {
            "lp": state.log_density,
            **stats,
            "diverging": ~(energy_error < DIVERGENCE),
            "energy": energy,
            "n_steps": taken,
            "step_size": self.step_size,
            **private,
        }

    def _jittered(self, start: _Path, leapfrog: Any, shorten: Array) -> tuple[_Path, Array, Array]:
        """Run the jittered length; tell how many steps it took and whether it turned back.

        While learning it goes on to the turn time, if that is later. The number of steps is the
        same for all chains of a batch: a loop that each could leave on its own would be slow.
        """

        def steps(time: Array) -> Array:
            count = jnp.ceil(time / self.step_size)
            return jnp.clip(jnp.nan_to_num(count), 1, MOST_LEAPFROGS).astype(jnp.int32)

        wanted, watched = steps(STRETCH * self.turn_time * shorten), steps(self.turn_time)
        taken = jnp.where(self.learning, jnp.maximum(wanted, watched), wanted)

        def one(i: Array, carry: tuple[_Path, Array]) -> tuple[_Path, Array]:
            path, turned = carry
            path = leapfrog(path)
            back = jnp.sum((path.x - start.x) * path.ahead) < 0
            return path, turned | ((i < watched) & back)

        # First to the end, then on to the turn time: two passes of one loop, so that the program
        # has the score once, and no step pays for the choice which path to keep.
        def go(further: Array, carry: tuple[_Path, _Path, Array]) -> tuple[_Path, _Path, Array]:
            path, end, turned = carry
            bounds = jnp.where(further > 0, wanted, 0), jnp.where(further > 0, taken, wanted)
            path, turned = jax.lax.fori_loop(*bounds, one, (path, turned))
            end = jax.tree.map(lambda new, old: jnp.where(further > 0, old, new), path, end)
            return path, end, turned

        passes = 1 + (taken > wanted).astype(jnp.int32)
        carry = (start, start, jnp.zeros((), bool))
        _, end, turned = jax.lax.fori_loop(0, passes, go, carry)
        return end, taken, turned
