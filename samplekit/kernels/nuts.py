"""The no-U-turn sampler, by BlackJAX, in the round coordinates of the metric."""

from typing import Any, ClassVar

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
    library_rules,
    metric_of,
)


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
    BlackJAX's iterative multinomial NUTS. Invariant: the target. Bias: none. Cost: `n_steps` scores
    a step. Hoffman and Gelman 2014, jmlr.org/papers/v15/hoffman14a.html; Betancourt 2017,
    arXiv:1701.02434.

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
        from blackjax.mcmc import hmc, nuts

        there: Any
        info: Any
        metric = metric_of(self)
        x, unravel = ravel_pytree(state.position)
        score = ravel_pytree(state.score)[0]
        here: Any = hmc.HMCState(
            jnp.zeros_like(x),
            state.log_density,  # pyright: ignore[reportArgumentType]  # an array, as BlackJAX means
            metric.pull(score),
        )

        def log_density(z: Array) -> Array:
            return target.log_density(unravel(x + metric.apply(z)))

        with library_rules():
            kernel = nuts.build_kernel()
            there, info = kernel(
                key, here, log_density, self.step_size, jnp.ones_like(x), self.max_treedepth
            )
        # A chain that did not move keeps its bits: mapping the score there and back would round.
        moved = jnp.any(there.position != 0)
        new = GradientState(
            unravel(jnp.where(moved, x + metric.apply(there.position), x)),
            there.logdensity,
            unravel(jnp.where(moved, metric.push(there.logdensity_grad), score)),
        )
        ends = (
            info.trajectory_leftmost_state.logdensity,
            info.trajectory_rightmost_state.logdensity,
        )
        nonfinite = jnp.isnan(ends[0]) | jnp.isnan(ends[1])
        depth = info.num_trajectory_expansions
        return new, {
            "lp": new.log_density,
            "acceptance_rate": info.acceptance_rate,
            "diverging": info.is_divergent,
            "energy": info.energy,
            "n_steps": info.num_integration_steps.astype(jnp.int32),
            "tree_depth": depth.astype(jnp.int32),
            "reached_max_treedepth": (depth >= self.max_treedepth) & ~info.is_turning,
            "nonfinite": nonfinite.astype(jnp.int32),
            "step_size": self.step_size,
        }
