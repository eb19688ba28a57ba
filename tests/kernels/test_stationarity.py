"""Every kernel leaves every target invariant, from exact draws; every mutant is caught by that."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import samplekit as sk
from samplekit.core.pytree import pytree
from samplekit.kernels.base import GradientState, metropolis
from samplekit.testing import check_kernel
from tests.kernels.table import ROWS, TARGETS, Row, log_scaled, propose_scaled

pytestmark = pytest.mark.statistical

# The default run takes the two targets that have caught every bug so far; `make test-slow` all.
QUICK = ("double_well", "banana")
PAIRS = [
    pytest.param(row, name, id=f"{kernel}-{name}", marks=() if name in QUICK else pytest.mark.slow)
    for kernel, row in ROWS.items()
    for name in TARGETS
]


@pytest.mark.parametrize(("row", "name"), PAIRS)
def test_invariant(row: Row, name: str, key: jax.Array) -> None:
    make, scale = TARGETS[name]
    resolves = 0.15 * (16_384 / row.chains) ** 0.5
    check_kernel(
        row.fixed(scale), make(), key, resolves=resolves, chains=row.chains,
        invariant=not row.joint,
    )  # fmt: skip


class _AlwaysAccept:
    """The acceptance step dropped: the threshold is always met."""

    def noise(self, key, x, shape=()):
        rows, shared = super().noise(key, x, shape)  # pyright: ignore
        return (*rows[:-1], jnp.full_like(rows[-1], -jnp.inf)), shared


@pytree
class RandomWalkAccepts(_AlwaysAccept, sk.RandomWalk): ...


@pytree
class MALAAccepts(_AlwaysAccept, sk.MALA): ...


@pytree
class BarkerAccepts(_AlwaysAccept, sk.Barker): ...


@pytree
class HMCAccepts(_AlwaysAccept, sk.HMC): ...


@pytree
class ScoreMALAAccepts(_AlwaysAccept, sk.ScoreMALA): ...


def _leapfrog(kernel, noise, state, target, *, first, second):
    """MALA's step with other factors of the two half kicks."""
    (v, log_u), _ = noise
    half = v + first * state.score
    x = state.position + kernel.step_size * half
    proposal = GradientState(x, *jax.value_and_grad(target.log_density)(x))
    end = half + second * proposal.score
    ratio = proposal.log_density - state.log_density + 0.5 * (jnp.sum(v**2) - jnp.sum(end**2))
    state, stats = metropolis(log_u, ratio, proposal, state)
    return state, {"lp": state.log_density, **stats, "step_size": kernel.step_size}


@pytree
class MALANotes(sk.MALA):
    """The step of the lecture notes: η²/2 in the first half kick (FORMULAS §3b)."""

    def move(self, noise, state, target, /):
        eta = self.step_size
        return _leapfrog(self, noise, state, target, first=eta**2 / 2, second=eta / 2)


@pytree
class MALASign(sk.MALA):
    """The second half kick with its sign flipped."""

    def move(self, noise, state, target, /):
        eta = self.step_size
        return _leapfrog(self, noise, state, target, first=eta / 2, second=-eta / 2)


@pytree
class MALARoot(sk.MALA):
    """The √2 of another step size convention missing in the noise."""

    def noise(self, key, x, shape=()):
        (v, log_u), shared = super().noise(key, x, shape)
        return (v / jnp.sqrt(2.0).astype(v.dtype), log_u), shared


@pytree
class BarkerSign(sk.Barker):
    """Barker without its Hastings factor: a symmetric proposal is assumed."""

    def move(self, noise, state, target, /):
        (z, signs, log_u), _ = noise
        w = self.step_size * z
        delta = jnp.where(signs < jax.nn.sigmoid(w * state.score), w, -w)
        x = state.position + delta
        proposal = GradientState(x, *jax.value_and_grad(target.log_density)(x))
        ratio = proposal.log_density - state.log_density
        state, stats = metropolis(log_u, ratio, proposal, state)
        return state, {"lp": state.log_density, **stats, "step_size": self.step_size}


@pytree
class ScoreMALATrapezoid(sk.ScoreMALA):
    """The two-node trapezoid on leapfrog nodes, which cancels (FORMULAS §7)."""

    def move(self, noise, state, target, /):
        (v, log_u), _ = noise
        eta = self.step_size
        half = v + 0.5 * eta * state.score
        delta = eta * half
        x = state.position + delta
        proposal = dataclasses.replace(state, position=x, score=target.score(x))
        end = half + 0.5 * eta * proposal.score
        work = 0.5 * jnp.sum((state.score + proposal.score) * delta)
        ratio = work + 0.5 * (jnp.sum(v**2) - jnp.sum(end**2))
        state, stats = metropolis(log_u, ratio, proposal, state)
        return state, {**stats, "step_size": eta}


@pytree
class NUTSSign(sk.NUTS):
    """The trajectory's end taken to the other side of the start."""

    def step(self, key, state, target, /):
        new, stats = super().step(key, state, target)
        x = 2 * state.position - new.position
        return GradientState(x, *jax.value_and_grad(target.log_density)(x)), stats


@pytree
class NUTSTempered(sk.NUTS):
    """A batch-averaged energy: the chain samples p^(1/B) (FORMULAS §12.5), B = 2."""

    def step(self, key, state, target, /):
        half = sk.tempered(target, jnp.asarray(0.5, state.position.dtype))
        warm = GradientState(state.position, 0.5 * state.log_density, 0.5 * state.score)
        new, stats = super().step(key, warm, half)
        return GradientState(new.position, 2 * new.log_density, 2 * new.score), stats


@pytree
class HMCSign(sk.HMC):
    """The kinetic energy with its sign flipped in the acceptance: v and v' exchanged."""

    def noise(self, key, x, shape=()):
        (v, log_u), shared = super().noise(key, x, shape)
        return (jnp.sqrt(2.0).astype(v.dtype) * v, log_u), shared


@pytree
class MCLMCUnadjusted(sk.MCLMC):
    """The adjusted sampler with its acceptance dropped."""

    def step(self, key, state, target, /):
        loose = dataclasses.replace(self, adjusted=False)
        return sk.MCLMC.step(loose, key, state, target)


def _swapped(y, x):
    return log_scaled(x, y)


MUTANTS = {
    "random walk, no rejection": RandomWalkAccepts(1.0),
    "MALA, no rejection": MALAAccepts(0.5),
    "MALA, η²/2 for η/2, at 0.3": MALANotes(0.3),
    "MALA, η²/2 for η/2, at 0.6": MALANotes(0.6),
    "MALA, sign": MALASign(0.6),
    "MALA, √2": MALARoot(0.6),
    "Barker, no rejection": BarkerAccepts(1.0),
    "Barker, no Hastings factor": BarkerSign(1.0),
    "HMC, no rejection": HMCAccepts(0.5, leapfrogs=1),
    "HMC, √2": HMCSign(0.6, leapfrogs=3),
    "NUTS, sign": NUTSSign(0.6),
    "NUTS, tempered": NUTSTempered(0.6),
    "MCLMC, no rejection": MCLMCUnadjusted(1.6, length=2.0, adjusted=True),
    "ScoreMALA, no rejection": ScoreMALAAccepts(0.5),
    "ScoreMALA, trapezoid": ScoreMALATrapezoid(0.6),
    "MH, factor the wrong way": sk.MetropolisHastings(propose_scaled, _swapped),
    "MH, no factor": sk.MetropolisHastings(propose_scaled, "symmetric"),  # pyright: ignore
    "independence, flat density": sk.Independence(
        lambda key: 0.9 * jax.random.normal(key, (2,)), lambda y: jnp.zeros(())
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str, key: jax.Array) -> None:
    target = sk.targets.double_well(dim=2)
    dear = isinstance(MUTANTS[name], sk.NUTS | sk.MCLMC)
    chains, resolves = (4096, 0.3) if dear else (16_384, 0.15)
    with pytest.raises(AssertionError, match="is wrong"):
        check_kernel(
            MUTANTS[name], target, key, resolves=resolves, chains=chains, steps=40, invariant=True
        )


def test_langevin_has_the_bias_that_theory_says(key: jax.Array) -> None:
    """On N(0, 1) ULA is x' = (1 − η²/2) x + η z: its variance is 1 / (1 − η²/4)."""
    eta, n = 0.8, 200_000
    kernel, target = sk.Langevin(eta), sk.targets.gaussian(1)
    variance = 1 / (1 - eta**2 / 4)
    start, walk = jax.random.split(key)
    x = np.sqrt(variance) * jax.random.normal(start, (n, 1))

    def chain(key, x):
        state = kernel.init(key, x, target)
        step = lambda s, k: (kernel.step(k, s, target)[0], None)  # noqa: E731
        return jax.lax.scan(step, state, jax.random.split(key, 5))[0].position

    end = np.asarray(jax.jit(jax.vmap(chain))(jax.random.split(walk, n), x))
    error = variance * np.sqrt(2 / n)  # of a Gaussian sample variance
    assert abs(end.var() - variance) < 4.9 * error  # false alarm 1e-6
    assert abs(1.0 - variance) > 20 * error  # the unbiased value is far outside
    assert not kernel.exact
