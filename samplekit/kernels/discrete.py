"""Gradient-informed Metropolis for targets on two values a coordinate."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from samplekit.core.errors import KernelError
from samplekit.core.protocols import (
    DensityTarget,
    Position,
    Stats,
    log_density_and_score,
)
from samplekit.core.pytree import pytree, static
from samplekit.kernels.base import (
    GradientState,
    Noise,
    NoiseKernel,
    log_uniform,
    metropolis,
)


@pytree
class GibbsWithGradients(NoiseKernel):
    """Gibbs with gradients: flip the coordinates of which the gradient says that they should.

    Parameters
    ----------
    flips
        Coordinates chosen in one step. One mixes well and is nearly always accepted; several
        pay on large fields whose coordinates hardly interact.

    Notes
    -----
    Of the log density, cast to real numbers, the gradient estimates what flipping coordinate i
    would change: Δ_i = (x_i' − x_i) ∂_i log p(x), exact for energies that are linear in each
    coordinate (Ising fields, Boltzmann machines). Coordinates are proposed with probability
    q(i | x) = softmax(Δ/2)_i, drawn independently if there are several flips, and the proposal is
    accepted with probability min(1, p(x') Π q(i | x') / (p(x) Π q(i | x))). Invariant: the target.
    Bias: none, whatever the quality of the estimate. Cost: one log density and its gradient a
    step. Grathwohl, Swersky, Hashemi, Duvenaud and Maddison 2021, arXiv:2102.04509; the square
    root in q is the locally balanced choice of Zanella 2020, doi:10.1080/01621459.2019.1585255.

    Positions are booleans, or integers of which the target's space knows the two values.

    Examples
    --------
    >>> import numpy as np, samplekit as sk
    >>> def log_density(x):  # a chain of six spins
    ...     spins = x.astype(float)
    ...     return 0.5 * (spins[1:] * spins[:-1]).sum()
    >>> target = sk.from_log_density(log_density, like=np.ones(6, np.int8), values=(-1, 1))
    >>> run = sk.sample(target, sk.GibbsWithGradients(), draws=50, progress=False)
    >>> run["posterior"]["x"].dtype
    dtype('int8')
    """

    flips: int = static(default=1)

    flat: ClassVar[bool] = False
    continuous: ClassVar[bool] = False
    discrete: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse impossible settings."""
        if not isinstance(self.flips, int) or self.flips < 1:
            raise KernelError(f"GibbsWithGradients(flips={self.flips!r}) needs a positive integer.")

    def init(self, key: Array, x: Position, target: DensityTarget, /) -> GradientState:
        """Evaluate the start and its gradient."""
        del key
        return _state(x, target)

    def noise(self, key: Array, x: Position, shape: tuple[int, ...] = ()) -> Noise:
        """Draw a uniform number for each flip, and the acceptance threshold."""
        choose, threshold = jax.random.split(key)
        # In (0, 1], so that a coordinate of probability zero is never chosen.
        u = 1 - jax.random.uniform(choose, (*shape, self.flips), jnp.result_type(float))
        return (u, log_uniform(threshold, x, shape)), None

    def move(
        self, noise: Noise, state: GradientState, target: DensityTarget, /
    ) -> tuple[GradientState, Stats]:
        """Choose coordinates by the gradient, flip them, accept or reject."""
        (u, log_u), _ = noise
        x, unravel = ravel_pytree(_real(state.position))
        other = _sums(state.position, target) - x
        log_q = _log_choice(state.score, other - x)
        chosen = _pick(log_q, u)
        # A coordinate chosen twice is flipped back; the way back chooses the same ones.
        odd = jnp.zeros(x.shape, jnp.int32).at[chosen].add(1) % 2 == 1
        y = unravel(jnp.where(odd, other, x))
        proposal = _state(jax.tree.map(lambda a, b: a.astype(b.dtype), y, state.position), target)
        back = _log_choice(proposal.score, jnp.where(odd, x - other, other - x))
        log_ratio = proposal.log_density - state.log_density + jnp.sum(back[chosen] - log_q[chosen])
        state, stats = metropolis(log_u, log_ratio, proposal, state)
        return state, {"lp": state.log_density, **stats}


def _log_choice(score: Position, change: Array) -> Array:
    """Return log q of every coordinate: half of what its flip is estimated to change log p by."""
    return jax.nn.log_softmax(0.5 * change * ravel_pytree(score)[0])


def _pick(log_q: Array, u: Array) -> Array:
    """Return the coordinate at which the cumulative probability first reaches each of `u`."""
    cumulative = jnp.cumsum(jnp.exp(log_q))
    return jnp.sum(cumulative[None, :] < (u * cumulative[-1])[:, None], axis=1)


def _real(x: Position) -> Position:
    return jax.tree.map(lambda a: jnp.asarray(a, jnp.result_type(float)), x)


def _state(x: Position, target: DensityTarget) -> GradientState:
    """Evaluate log density and gradient as if the position were real numbers."""
    return GradientState(x, *log_density_and_score(target, _real(x)))


def _sums(x: Position, target: Any) -> Array:
    """Return low + high of every coordinate: what its value and the other one add up to."""
    arrays = jax.tree.leaves(x)
    space = getattr(target, "space", None)
    known = [None] * len(arrays) if space is None else [leaf.values for leaf in space.leaves]
    sums = []
    for array, values in zip(arrays, known, strict=True):
        values = (0, 1) if array.dtype == bool else values
        if values is None:
            raise KernelError(
                f"GibbsWithGradients flips between two values, but these positions are "
                f"{array.dtype} and the target does not say which two. Use booleans, or name the "
                "values: sk.from_log_density(fn, like=..., values=(-1, 1))."
            )
        sums.append(np.full(array.size, sum(values), jnp.result_type(float)))
    return jnp.asarray(np.concatenate(sums))
