"""Langevin kernels: unadjusted, MALA, and Barker's robust proposal."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from samplekit.core.errors import KernelError
from samplekit.core.protocols import DensityTarget, Position, ScoreTarget, Stats
from samplekit.core.pytree import pytree, static
from samplekit.kernels.base import (
    GradientState,
    Noise,
    NoiseKernel,
    ScoreState,
    check_acceptance,
    check_positive,
    gradient_state,
    metric_of,
    metropolis,
    noise_rows,
    normal_rows,
    score_state,
)


@pytree
class Langevin(NoiseKernel):
    """Unadjusted Langevin (ULA): y = x + (η²/2) A Aᵀ ∇log p(x) + η A z. A score is enough.

    Parameters
    ----------
    step_size
        η, required: without an acceptance step nothing tells a good one from a bad one.
    metric
        Covariance A Aᵀ of the noise, as variances or a matrix; None is the identity.

    Notes
    -----
    Invariant: not the target but a law whose moments are off by O(η²), since nothing is rejected;
    `MALA` removes that. Cost: one score a step. A step to a place where position or score is not
    finite is not taken, and counted in `nonfinite`.
    Roberts and Tweedie 1996, doi:10.2307/3318418.

    Examples
    --------
    >>> import samplekit as sk
    >>> target = sk.from_score(lambda x: -x, dim=2)
    >>> run = sk.sample(target, sk.Langevin(0.3), draws=50, progress=False)
    """

    step_size: Any
    metric: Any = None

    requires: ClassVar[type] = ScoreTarget

    def __post_init__(self) -> None:
        """Refuse impossible settings."""
        check_positive("step_size", self.step_size, self)

    @property
    def exact(self) -> bool:
        """Unadjusted: biased by O(η²)."""
        return False

    def first_step(self, dim: int) -> float:
        """Refuse to guess."""
        del dim
        raise KernelError(
            "Langevin has no step_size, and nothing to tune one by: it never rejects. Give one, "
            "for instance a tenth of the target's smallest scale, or use sk.MALA(), which tunes "
            "itself."
        )

    def init(self, key: Array, x: Position, target: ScoreTarget, /) -> ScoreState:
        """Evaluate the start."""
        del key
        return score_state(x, target)

    def noise(self, key: Array, x: Position, shape: tuple[int, ...] = ()) -> Noise:
        """Draw the noise z."""
        return normal_rows(key, x, shape), None

    def move(
        self, noise: Noise, state: ScoreState, target: ScoreTarget, /
    ) -> tuple[ScoreState, Stats]:
        """Drift and diffuse."""
        z, _ = noise
        eta, metric = self.step_size, metric_of(self)
        x, unravel = ravel_pytree(state.position)
        g = metric.pull(ravel_pytree(state.score)[0])
        y = x + metric.apply(0.5 * eta * eta * g + eta * z)
        new = score_state(unravel(y), target)
        fine = jnp.all(jnp.isfinite(y)) & jnp.all(jnp.isfinite(ravel_pytree(new.score)[0]))
        state = jax.tree.map(lambda n, o: jnp.where(fine, n, o), new, state)
        return state, {"nonfinite": (~fine).astype(jnp.int32), "step_size": eta}


@pytree
class MALA(NoiseKernel):
    """Metropolis-adjusted Langevin: one leapfrog step of length η, accepted or rejected.

    Parameters
    ----------
    step_size
        η, in y = x + (η²/2) A Aᵀ ∇log p + η A z; None tunes it to acceptance 0.574.
    target_accept
        Another acceptance rate to tune to.
    metric
        Preconditioner: "auto", "diagonal", "dense" or "low_rank" learn it in warm-up; an array
        gives A Aᵀ.

    Notes
    -----
    With v standard normal and s = Aᵀ∇log p: v½ = v + (η/2) s(x), y = x + η A v½,
    v' = v½ + (η/2) s(y), log α = log p(y) − log p(x) + ½‖v‖² − ½‖v'‖², which equals the usual ratio
    of proposal densities. Invariant: the target. Bias: none. Cost: one score a step.
    Roberts and Rosenthal 1998, doi:10.1111/1467-9868.00123.

    Examples
    --------
    >>> import samplekit as sk
    >>> run = sk.sample(sk.targets.banana(), sk.MALA(), draws=50, progress=False)
    """

    step_size: Any = None
    target_accept: float | None = static(default=None)
    metric: Any = "auto"

    def __post_init__(self) -> None:
        """Refuse impossible settings."""
        check_positive("step_size", self.step_size, self)
        check_acceptance(self.target_accept, self)

    def first_step(self, dim: int) -> float:
        """Return d^(−1/6), its optimal order."""
        return dim ** (-1 / 6)

    def goal(self, dim: int) -> float:
        """Return the acceptance rate that explores fastest."""
        del dim
        return self.target_accept or 0.574

    def init(self, key: Array, x: Position, target: DensityTarget, /) -> GradientState:
        """Evaluate the start."""
        del key
        return gradient_state(x, target)

    def noise(self, key: Array, x: Position, shape: tuple[int, ...] = ()) -> Noise:
        """Draw the velocity and the acceptance threshold."""
        v, u = noise_rows(key, x, shape)
        return (v, jnp.log(u[..., 0])), None

    def move(
        self, noise: Noise, state: GradientState, target: DensityTarget, /
    ) -> tuple[GradientState, Stats]:
        """Leapfrog once, accept or reject."""
        (v, log_u), _ = noise
        eta, metric = self.step_size, metric_of(self)
        x, unravel = ravel_pytree(state.position)
        half = v + 0.5 * eta * metric.pull(ravel_pytree(state.score)[0])
        proposal = gradient_state(unravel(x + eta * metric.apply(half)), target)
        end = half + 0.5 * eta * metric.pull(ravel_pytree(proposal.score)[0])
        kinetic = 0.5 * jnp.sum(v * v - end * end)
        log_ratio = proposal.log_density - state.log_density + kinetic
        state, stats = metropolis(log_u, log_ratio, proposal, state)
        return state, {"lp": state.log_density, **stats, "step_size": eta}


@pytree
class Barker(NoiseKernel):
    """Barker's proposal: the gradient chooses the sign of each step, never its length.

    Parameters
    ----------
    step_size
        Scale η of the proposed steps; None tunes it to acceptance 0.57.
    target_accept
        Another acceptance rate to tune to.
    metric
        Preconditioner, as for `MALA`.

    Notes
    -----
    w = η z; each wᵢ keeps its sign with probability σ(wᵢ sᵢ(x)), s = Aᵀ∇log p, giving δ and
    y = x + Aδ; log α = log p(y) − log p(x) + Σᵢ softplus(−δᵢ sᵢ(x)) − softplus(δᵢ sᵢ(y)). Robust
    where MALA sticks (light tails, a bad step). Invariant: the target. Bias: none. Cost: one score
    a step.
    Livingstone and Zanella 2022, doi:10.1111/rssb.12482.

    Examples
    --------
    >>> import samplekit as sk
    >>> run = sk.sample(sk.targets.double_well(), sk.Barker(), draws=50, progress=False)
    """

    step_size: Any = None
    target_accept: float | None = static(default=None)
    metric: Any = "auto"

    def __post_init__(self) -> None:
        """Refuse impossible settings."""
        check_positive("step_size", self.step_size, self)
        check_acceptance(self.target_accept, self)

    def first_step(self, dim: int) -> float:
        """Return d^(−1/6), its optimal order."""
        return dim ** (-1 / 6)

    def goal(self, dim: int) -> float:
        """Return the acceptance rate that explores fastest."""
        del dim
        return self.target_accept or 0.57

    def init(self, key: Array, x: Position, target: DensityTarget, /) -> GradientState:
        """Evaluate the start."""
        del key
        return gradient_state(x, target)

    def noise(self, key: Array, x: Position, shape: tuple[int, ...] = ()) -> Noise:
        """Draw lengths, the thresholds of the signs, and the acceptance threshold."""
        z, u = noise_rows(key, x, shape, uniforms=1 + ravel_pytree(x)[0].size)
        return (z, u[..., 1:], jnp.log(u[..., 0])), None

    def move(
        self, noise: Noise, state: GradientState, target: DensityTarget, /
    ) -> tuple[GradientState, Stats]:
        """Propose, accept or reject."""
        (z, signs, log_u), _ = noise
        metric = metric_of(self)
        x, unravel = ravel_pytree(state.position)
        score = metric.pull(ravel_pytree(state.score)[0])
        w = self.step_size * z
        delta = jnp.where(signs < jax.nn.sigmoid(w * score), w, -w)
        proposal = gradient_state(unravel(x + metric.apply(delta)), target)
        back = metric.pull(ravel_pytree(proposal.score)[0])
        hastings = jnp.sum(jax.nn.softplus(-delta * score) - jax.nn.softplus(delta * back))
        log_ratio = proposal.log_density - state.log_density + hastings
        state, stats = metropolis(log_u, log_ratio, proposal, state)
        return state, {"lp": state.log_density, **stats, "step_size": self.step_size}
