"""Microcanonical Langevin Monte Carlo, by BlackJAX, in the round coordinates of the metric."""

import dataclasses
from typing import Any, ClassVar, Self

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
    check_acceptance,
    check_positive,
    gradient_state,
    library_rules,
    metric_of,
)

# Energy error per dimension that warm-up aims for without a Metropolis step: its bias is then
# below one percent of a standard deviation on Gaussians (Robnik et al. 2023, §5).
ENERGY_VARIANCE = 5e-4


@pytree
class MCLMCState:
    """Where a microcanonical chain is; the momentum has unit length."""

    position: Position
    momentum: Array
    log_density: Array
    score: Position


@pytree
class MCLMC(Base):
    """Microcanonical Langevin Monte Carlo: constant speed, the gradient steers.

    Parameters
    ----------
    step_size
        η; None tunes it in warm-up: to an energy error of 0.0005 per dimension, or to acceptance
        0.9 when adjusted.
    length
        Distance after which the direction is forgotten, in units of the metric; None is √d, the
        radius of a round target.
    adjusted
        Whether trajectories are accepted or rejected, which removes the bias.
    target_accept
        Another acceptance rate to tune to, when adjusted.
    metric
        Preconditioner, as for `NUTS`.

    Notes
    -----
    Invariant: the target when adjusted; otherwise a law biased by the step size as its energy error
    says. Cost: 2 scores a step unadjusted, 2 an integration step adjusted (`n_steps`). Needs two
    dimensions at least. Robnik et al. 2023, jmlr.org/papers/v24/22-1450.html.

    Examples
    --------
    >>> import samplekit as sk
    >>> run = sk.sample(sk.targets.gaussian(3), sk.MCLMC(), draws=50, progress=False)
    """

    step_size: Any = None
    length: Any = None
    adjusted: bool = static(default=False)
    target_accept: float | None = static(default=None)
    metric: Any = "auto"

    later_gamma: ClassVar[float] = 0.05  # as for HMC: safe on curved targets
    lengths: ClassVar[tuple[str, ...]] = ("step_size", "length")

    def __post_init__(self) -> None:
        """Refuse impossible settings."""
        check_positive("step_size", self.step_size, self)
        check_positive("length", self.length, self)
        check_acceptance(self.target_accept, self)

    @property
    def exact(self) -> bool:
        """Unadjusted, it is biased by its step size."""
        return self.adjusted

    def first_step(self, dim: int) -> float:
        """Return a cautious fraction of the radius √d."""
        return 0.2 * dim**0.5

    def goal(self, dim: int) -> float | None:
        """Return the acceptance rate to aim for; unadjusted there is none."""
        del dim
        return (self.target_accept or 0.9) if self.adjusted else None

    def prepare(self, dim: int, dtype: Any) -> Self:
        """Fill in what is open."""
        if dim < 2:
            raise KernelError(
                "MCLMC moves at constant speed and needs at least two dimensions; this target has "
                "one. Use sk.NUTS(), sk.HMC() or sk.RandomWalk()."
            )
        ready = super().prepare(dim, dtype)
        length = dim**0.5 if self.length is None else self.length
        return dataclasses.replace(ready, length=np.asarray(length, dtype))

    def init(self, key: Array, x: Position, target: DensityTarget, /) -> MCLMCState:
        """Evaluate the start and draw a direction."""
        start = gradient_state(x, target)
        v = jax.random.normal(key, ravel_pytree(x)[0].shape, ravel_pytree(x)[0].dtype)
        return MCLMCState(x, v / jnp.linalg.norm(v), start.log_density, start.score)

    def learn(self, stats: Stats, count: Array) -> Self:
        """Move an unadjusted step size towards the wanted energy error: Robbins and Monro."""
        if self.adjusted:
            return self
        excess = stats["_energy_excess"]
        signal = jnp.mean(jnp.clip(1.0 - excess, -5.0, 1.0))
        gain = (10.0 + count.astype(signal.dtype)) ** -0.6
        step = self.step_size * jnp.exp(gain * signal)
        return dataclasses.replace(self, step_size=step.astype(self.step_size.dtype))

    def step(
        self, key: Array, state: MCLMCState, target: DensityTarget, /
    ) -> tuple[MCLMCState, Stats]:
        """Move once, in round coordinates around the present position."""
        metric = metric_of(self)
        x, unravel = ravel_pytree(state.position)
        score = ravel_pytree(state.score)[0]

        def log_density(z: Array) -> Array:
            return target.log_density(unravel(x + metric.apply(z)))

        here = (jnp.zeros_like(x), state.momentum, state.log_density, metric.pull(score))
        with library_rules():
            advance = self._adjusted if self.adjusted else self._unadjusted
            (z, momentum, log_p, g), stats = advance(key, here, log_density)
        # A chain that did not move keeps its bits: mapping the score there and back would round.
        moved = jnp.any(z != 0)
        new = MCLMCState(
            unravel(jnp.where(moved, x + metric.apply(z), x)),
            momentum,
            log_p,
            unravel(jnp.where(moved, metric.push(g), score)),
        )
        return new, {"lp": log_p, **stats, "step_size": self.step_size}

    def _unadjusted(self, key: Array, here: Any, log_density: Any) -> tuple[Any, Stats]:
        from blackjax.mcmc import mclmc
        from blackjax.mcmc.integrators import IntegratorState

        there: Any
        info: Any
        there, info = mclmc.build_kernel()(
            key, IntegratorState(*here), log_density, jnp.ones(()), self.length, self.step_size
        )
        dim = here[0].size
        # A step that failed says nothing of the energy error but that the step was too long.
        excess = info.energy_change**2 / (dim * ENERGY_VARIANCE)
        return tuple(there), {
            "energy_error": info.energy_change,
            "n_steps": jnp.asarray(2, jnp.int32),
            "nonfinite": (~info.nonans).astype(jnp.int32),
            "_energy_excess": jnp.where(info.nonans, excess, 6.0),
        }

    def _adjusted(self, key: Array, here: Any, log_density: Any) -> tuple[Any, Stats]:
        from blackjax.mcmc import adjusted_mclmc
        from blackjax.mcmc.hmc import HMCState

        key_jitter, key_step = jax.random.split(key)
        position, momentum, log_p, score = here
        jitter = jax.random.uniform(key_jitter, (), position.dtype, 0.5, 1.5)
        steps = jnp.clip(jnp.ceil(jitter * self.length / self.step_size), 1, 1000)
        kernel = adjusted_mclmc.build_kernel()
        there: Any
        info: Any
        there, info = kernel(
            key_step,
            HMCState(position, log_p, score),
            log_density,
            self.step_size,
            (steps.astype(jnp.int32),),
        )
        return (there.position, momentum, there.logdensity, there.logdensity_grad), {
            "acceptance_rate": info.acceptance_rate,
            "diverging": info.is_divergent,
            "n_steps": 2 * steps.astype(jnp.int32),
            "nonfinite": (~jnp.isfinite(info.energy)).astype(jnp.int32),
        }
