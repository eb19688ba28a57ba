"""Gibbs sampling: the target draws its own blocks, each given the others."""

from typing import Any, ClassVar

from jax import Array

from samplekit.core.protocols import BlockTarget, DensityTarget, Position, Stats
from samplekit.core.pytree import pytree
from samplekit.kernels.base import Base


@pytree
class BlockState:
    """Where a Gibbs chain is."""

    position: Position
    log_density: Array | None  # None for a target that has none


@pytree
class Gibbs(Base):
    """Gibbs sampling of a target that can draw its blocks: Ising fields, Boltzmann machines.

    Notes
    -----
    A step is the target's own `gibbs(key, x)`, once around all blocks, each drawn from its law
    given the others. Invariant: the target. Bias: none. Nothing to tune. Cost: one sweep a step,
    and one log density where the target has one. Geman and Geman 1984,
    doi:10.1109/TPAMI.1984.4767596.

    Examples
    --------
    >>> import samplekit as sk
    >>> run = sk.sample(sk.targets.ising((4, 4), 0.3), sk.Gibbs(), draws=50, progress=False)
    >>> run["posterior"]["x"].shape
    (4, 50, 4, 4)
    """

    requires: ClassVar[type] = BlockTarget
    flat: ClassVar[bool] = False
    discrete: ClassVar[bool] = True
    batched: ClassVar[bool] = True

    def init(self, key: Array, x: Position, target: Any, /) -> BlockState:
        """Evaluate the start, where there is a log density."""
        del key
        return _state(x, target)

    def step(self, key: Array, state: BlockState, target: Any, /) -> tuple[BlockState, Stats]:
        """Let the target draw all blocks once."""
        new = _state(target.gibbs(key, state.position), target)
        return new, {} if new.log_density is None else {"lp": new.log_density}


def _state(x: Position, target: Any) -> BlockState:
    return BlockState(x, target.log_density(x) if isinstance(target, DensityTarget) else None)
