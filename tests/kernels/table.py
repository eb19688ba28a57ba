"""The kernels × targets table: a new kernel is one row here, and every test runs on it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import samplekit as sk
from samplekit.core.protocols import ScoreTarget
from samplekit.kernels.cycle import Cycle
from samplekit.kernels.tempering import Tempering


def propose_scaled(key: jax.Array, x: jax.Array) -> jax.Array:
    """Multiply by a lognormal factor and flip signs at random: far from symmetric."""
    stretch, sign = jax.random.split(key)
    flip = jnp.where(jax.random.bernoulli(sign, 0.5, x.shape), 1.0, -1.0).astype(x.dtype)
    return x * flip * jnp.exp(0.8 * jax.random.normal(stretch, x.shape, x.dtype))


def log_scaled(y: jax.Array, x: jax.Array) -> jax.Array:
    ratio = jnp.log(jnp.abs(y)) - jnp.log(jnp.abs(x))
    return -jnp.sum(0.5 * (ratio / 0.8) ** 2 + jnp.log(jnp.abs(y)))


@dataclasses.dataclass(frozen=True)
class Row:
    """A kernel with a fixed step size for a target of unit scale, and the same, self-tuning."""

    fixed: Callable[[float], Any]
    tuned: Callable[[], Any] | None = None
    smallest_dim: int = 1
    chains: int = 16_384  # of the stationarity test; fewer where a step is dear
    # Whether the state is more than a position, so that exact draws of the target do not make an
    # exact start; such a kernel has a stationarity test of its own.
    joint: bool = False


def _independence(scale: float) -> sk.Independence:
    return sk.Independence(
        lambda key: 1.5 * scale * jax.random.normal(key, (2,)),
        lambda y: -jnp.sum((y / (1.5 * scale)) ** 2) / 2,
    )


ROWS: dict[str, Row] = {
    "random_walk": Row(lambda s: sk.RandomWalk(1.2 * s), sk.RandomWalk),
    "metropolis_hastings": Row(lambda s: sk.MetropolisHastings(propose_scaled, log_scaled)),
    "independence": Row(_independence, smallest_dim=2),
    "mala_0.3": Row(lambda s: sk.MALA(0.3 * s), sk.MALA),
    "mala_0.6": Row(lambda s: sk.MALA(0.6 * s)),
    "barker": Row(lambda s: sk.Barker(0.8 * s), sk.Barker),
    # Eight steps of the size that is tuned on a Gaussian go one and a half times round: x² stays.
    "hmc": Row(lambda s: sk.HMC(0.5 * s, leapfrogs=4), lambda: sk.HMC(leapfrogs=4)),
    "hmc_jittered": Row(lambda s: sk.HMC(0.5 * s), sk.HMC),
    "nuts": Row(lambda s: sk.NUTS(0.6 * s), sk.NUTS, chains=4096),
    "mclmc_adjusted": Row(
        lambda s: sk.MCLMC(0.6 * s, length=1.5, adjusted=True),
        lambda: sk.MCLMC(adjusted=True),
        smallest_dim=2,
        chains=4096,
    ),
    "score_mala": Row(lambda s: sk.ScoreMALA(0.5 * s), sk.ScoreMALA),
    "score_mala_gauss": Row(lambda s: sk.ScoreMALA(0.5 * s, rule="gauss", nodes=3)),
    "tempering": Row(
        lambda s: Tempering(sk.HMC(0.5 * s, leapfrogs=2), [1.0, 0.6]),
        lambda: Tempering(sk.HMC(leapfrogs=4), [1.0, 0.6, 0.35]),
        joint=True,
    ),
    "cycle": Row(
        lambda s: Cycle(sk.RandomWalk(1.2 * s), sk.MALA(0.5 * s)),
        lambda: Cycle(sk.RandomWalk(), sk.MALA()),
    ),
}

# Targets with exact draws, and the length scale that a step is measured in.
TARGETS: dict[str, tuple[Callable[[], Any], float]] = {
    "double_well": (lambda: sk.targets.double_well(dim=2), 0.8),
    "gaussian": (lambda: sk.targets.gaussian([1.0, -2.0], [[2.0, 0.9], [0.9, 1.0]]), 0.8),
    # Milder than the zoo's default, in whose horns every kernel at its default acceptance sticks.
    "banana": (lambda: sk.targets.banana(0.25, (1.5, 1.0)), 0.6),
    "ring": (lambda: sk.targets.ring(2.0, 0.5), 0.5),
    "student_t": (lambda: sk.targets.student_t(2, df=6.0), 1.0),
    "mixture": (
        lambda: sk.targets.mixture([0.3, 0.7], [[-1.5, 0.0], [1.5, 1.0]], scales=[0.7, 1.0]),
        0.8,
    ),
    "funnel": (lambda: sk.targets.funnel(2, 1.0), 0.7),
}


def fits(kernel: Any, target: Any) -> bool:
    """Whether the kernel can sample the target at all."""
    needs = getattr(kernel, "requires", None) or ScoreTarget
    return isinstance(target, needs)
