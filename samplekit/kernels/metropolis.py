"""Metropolis–Hastings: random walk, any proposal, and independence."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from samplekit.core.errors import KernelError
from samplekit.core.protocols import DensityTarget, Position, Stats
from samplekit.core.pytree import Function, as_function, pytree, static
from samplekit.kernels.base import (
    Base,
    DensityState,
    Noise,
    NoiseKernel,
    all_finite,
    check_acceptance,
    check_positive,
    density_state,
    log_uniform,
    metric_of,
    metropolis,
    noise_rows,
)


@pytree
class RandomWalk(NoiseKernel):
    """Random-walk Metropolis: propose y = x + η A z, z standard normal.

    Parameters
    ----------
    step_size
        η; None tunes it in warm-up to acceptance 0.234 (0.44 in one dimension).
    target_accept
        Another acceptance rate to tune to.
    metric
        Proposal covariance A Aᵀ: "auto" and "dense" learn it from the draws, "diagonal" learns
        variances, an array gives it.

    Notes
    -----
    Invariant: the target. Bias: none. Cost: one log density a step. Optimal scaling: Roberts,
    Gelman and Gilks 1997, doi:10.1214/aoap/1034625254.

    Examples
    --------
    >>> import samplekit as sk
    >>> run = sk.sample(sk.targets.gaussian(2), sk.RandomWalk(), draws=50, progress=False)
    >>> run["posterior"]["x"].shape
    (4, 50, 2)
    """

    step_size: Any = None
    target_accept: float | None = static(default=None)
    metric: Any = "auto"

    def __post_init__(self) -> None:
        """Refuse impossible settings."""
        check_positive("step_size", self.step_size, self)
        check_acceptance(self.target_accept, self)

    def first_step(self, dim: int) -> float:
        """Return 2.38/√d, best for a Gaussian."""
        return 2.38 / dim**0.5

    def goal(self, dim: int) -> float:
        """Return the acceptance rate that explores fastest."""
        return self.target_accept or (0.44 if dim == 1 else 0.234)

    def init(self, key: Array, x: Position, target: DensityTarget, /) -> DensityState:
        """Evaluate the start."""
        del key
        return density_state(x, target)

    def noise(self, key: Array, x: Position, shape: tuple[int, ...] = ()) -> Noise:
        """Draw the proposal's direction and the acceptance threshold."""
        z, u = noise_rows(key, x, shape)
        return (z, jnp.log(u[..., 0])), None

    def move(
        self, noise: Noise, state: DensityState, target: DensityTarget, /
    ) -> tuple[DensityState, Stats]:
        """Propose, accept or reject."""
        (z, log_u), _ = noise
        x, unravel = ravel_pytree(state.position)
        proposal = density_state(unravel(x + self.step_size * metric_of(self).apply(z)), target)
        log_ratio = proposal.log_density - state.log_density
        state, stats = metropolis(log_u, log_ratio, proposal, state)
        return state, {"lp": state.log_density, **stats, "step_size": self.step_size}


@pytree
class MetropolisHastings(Base):
    """Metropolis–Hastings with any proposal and its density.

    Parameters
    ----------
    propose
        `propose(key, x) -> y`, on unconstrained positions.
    log_proposal
        `log_proposal(y, x)` = log q(y | x), up to a constant that does not depend on x or y. It is
        required: without it a proposal that is not symmetric gives wrong draws silently. Write
        `log_proposal="symmetric"` where q(y | x) = q(x | y).

    Notes
    -----
    Accepts with probability min(1, p(y) q(x|y) / (p(x) q(y|x))). Invariant: the target. Bias: none.
    Cost: one log density a step. Hastings 1970, doi:10.1093/biomet/57.1.97.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, samplekit as sk
    >>> gamma = sk.from_log_density(lambda x: jnp.sum(2 * jnp.log(x) - x), dim=1)
    >>> kernel = sk.MetropolisHastings(  # multiply by a lognormal factor
    ...     lambda key, x: x * jnp.exp(jax.random.normal(key, x.shape)),
    ...     lambda y, x: -jnp.sum(0.5 * jnp.log(y / x) ** 2 + jnp.log(y)),
    ... )
    >>> run = sk.sample(gamma, kernel, init=jnp.ones((4, 1)), draws=50, progress=False)
    """

    propose: Callable[[Array, Position], Position]
    log_proposal: Callable[[Position, Position], Array] | None = None
    symmetric: bool = static(default=False)

    flat: ClassVar[bool] = False
    discrete: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Split the functions into code and arrays; insist on the proposal's density."""
        _check_proposal(self, self.propose, "propose(key, x) -> y")
        if isinstance(self.log_proposal, str):
            if self.log_proposal != "symmetric":
                raise KernelError(
                    f"MetropolisHastings(log_proposal={self.log_proposal!r}) is not known. Give a "
                    'function log_proposal(y, x) = log q(y | x), or "symmetric".'
                )
            object.__setattr__(self, "symmetric", True)
            object.__setattr__(self, "log_proposal", None)
        elif self.log_proposal is None and not self.symmetric:
            raise KernelError(
                "MetropolisHastings has no log_proposal. Without the density of the proposal the "
                "Hastings correction is missing and the draws are wrong unless the proposal is "
                'symmetric. Give log_proposal(y, x) = log q(y | x), or log_proposal="symmetric".'
            )
        _freeze(self, "propose", "log_proposal")

    def init(self, key: Array, x: Position, target: DensityTarget, /) -> DensityState:
        """Evaluate the start."""
        del key
        return density_state(x, target)

    def step(
        self, key: Array, state: DensityState, target: DensityTarget, /
    ) -> tuple[DensityState, Stats]:
        """Propose, accept or reject with the Hastings correction."""
        key_propose, key_accept = jax.random.split(key)
        x, y = state.position, self.propose(key_propose, state.position)
        proposal = density_state(y, target)
        log_ratio = proposal.log_density - state.log_density
        if self.log_proposal is not None:
            log_ratio = log_ratio + self.log_proposal(x, y) - self.log_proposal(y, x)
        log_ratio = jnp.where(all_finite(y), log_ratio, jnp.nan)
        log_u = log_uniform(key_accept, x, ())
        state, stats = metropolis(log_u, log_ratio, proposal, state)
        return state, {"lp": state.log_density, **stats}


@pytree
class Independence(Base):
    """Independence Metropolis: proposals that do not look at where the chain is.

    Parameters
    ----------
    draw
        `draw(key) -> y`, on unconstrained positions.
    log_proposal
        `log_proposal(y)` = log q(y) up to a constant; required, for without it the draws are those
        of neither the target nor the proposal.

    Notes
    -----
    Accepts with probability min(1, p(y) q(x) / (p(x) q(y))). Invariant: the target. Bias: none.
    Cost: one log density a step. Good only when q covers the target, tails included.

    Examples
    --------
    >>> import jax, samplekit as sk
    >>> kernel = sk.Independence(
    ...     lambda key: 2 * jax.random.normal(key, (1,)), lambda y: -(y**2).sum() / 8
    ... )
    >>> run = sk.sample(sk.targets.gaussian(1), kernel, draws=50, progress=False)
    """

    draw: Callable[[Array], Position]
    log_proposal: Callable[[Position], Array] | None = None

    flat: ClassVar[bool] = False
    discrete: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Split the functions into code and arrays; insist on the proposal's density."""
        _check_proposal(self, self.draw, "draw(key) -> y")
        if self.log_proposal is None:
            raise KernelError(
                "Independence has no log_proposal. Without the density of the proposal the draws "
                "are biased (variance .80 where 1 is right, on a Gaussian). Give log_proposal(y) = "
                "log q(y), up to a constant."
            )
        _freeze(self, "draw", "log_proposal")

    def init(self, key: Array, x: Position, target: DensityTarget, /) -> DensityState:
        """Evaluate the start."""
        del key
        return density_state(x, target)

    def step(
        self, key: Array, state: DensityState, target: DensityTarget, /
    ) -> tuple[DensityState, Stats]:
        """Propose, accept or reject."""
        assert self.log_proposal is not None
        key_draw, key_accept = jax.random.split(key)
        proposal = density_state(self.draw(key_draw), target)
        log_ratio = proposal.log_density - state.log_density
        log_ratio = (
            log_ratio + self.log_proposal(state.position) - self.log_proposal(proposal.position)
        )
        log_ratio = jnp.where(all_finite(proposal.position), log_ratio, jnp.nan)
        log_u = log_uniform(key_accept, state.position, ())
        state, stats = metropolis(log_u, log_ratio, proposal, state)
        return state, {"lp": state.log_density, **stats}


def _check_proposal(kernel: object, fn: object, form: str) -> None:
    if not callable(fn) and type(fn) is not object:
        raise KernelError(f"{type(kernel).__name__} needs a function {form}, not {fn!r}.")


def _freeze(kernel: object, *names: str) -> None:
    """Store functions so that JAX sees their arrays as leaves and their code as static."""
    for name in names:
        fn = getattr(kernel, name)
        if callable(fn) and not isinstance(fn, Function):
            object.__setattr__(kernel, name, as_function(fn))
