"""Kernels in turn: as by hand, each tuned on its own, states handed over without waste."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import samplekit as sk
from samplekit.kernels.cycle import Cycle

TARGET = sk.targets.gaussian(2, [[1.0, 0.6], [0.6, 1.0]])


def test_a_cycle_is_its_parts_in_turn():
    mala, walk = sk.MALA(0.5), sk.RandomWalk(1.0)
    cycle, key, x = Cycle(mala, walk), jax.random.key(3), jnp.asarray([0.3, -0.2])
    state, stats = jax.jit(cycle.step)(key, cycle.init(key, x, TARGET), TARGET)
    keys = jax.random.split(key, 5)
    first, one = mala.step(keys[1], mala.init(key, x, TARGET), TARGET)
    second, two = walk.step(keys[3], walk.init(key, first.position, TARGET), TARGET)
    np.testing.assert_allclose(state.position, second.position, rtol=1e-6)
    np.testing.assert_allclose(state.score, TARGET.score(second.position), rtol=1e-5)
    rates = [float(s["acceptance_rate"]) for s in (one, two)]
    assert float(stats["acceptance_rate"]) == pytest.approx(np.mean(rates), rel=1e-5)
    assert float(stats["lp"]) == pytest.approx(float(two["lp"]), rel=1e-5)
    assert int(stats["n_steps"]) == 2


@pytest.mark.parametrize(
    ("kernels", "evaluations"),
    [
        ((sk.MALA(0.5), sk.HMC(0.5, leapfrogs=1)), 2),  # the same state: nothing to evaluate again
        ((sk.MALA(0.5), sk.RandomWalk(1.0)), 3),  # a score after the walk
    ],
)
def test_states_are_handed_over(kernels, evaluations):
    """Count the places in a step's program where the density is evaluated: it has one arctan."""
    target = sk.from_log_density(lambda x: -jnp.arctan(jnp.sum(x**2)), 2)
    cycle, key = Cycle(*kernels), jax.random.key(0)
    state = cycle.init(key, jnp.ones(2), target)
    assert str(jax.make_jaxpr(cycle.step)(key, state, target)).count(" atan ") == evaluations


def test_each_part_is_tuned_to_its_own_goal():
    kernel = Cycle(sk.HMC(leapfrogs=3), sk.RandomWalk(), sk.MALA(0.4))
    run = sk.sample(TARGET, kernel, warmup=500, draws=300, progress=False)
    hmc, walk, mala = sk.kernel_of(run).kernels
    assert mala.step_size == pytest.approx(0.4)
    for part, name in ((hmc, "acceptance_rate"), (walk, "acceptance_rate")):
        alone = sk.sample(TARGET, part, warmup=0, draws=2000, progress=False)
        rate = float(alone["sample_stats"][name].mean())
        assert rate == pytest.approx(part.goal(2), abs=0.1)


def test_resumed_runs_are_the_same_to_the_bit(tmp_path):
    kernel = Cycle(sk.MALA(), sk.RandomWalk(2.0))
    settings = {"chains": 2, "warmup": 50, "progress": False}
    straight = sk.sample(TARGET, kernel, draws=50, **settings)
    sk.sample(TARGET, kernel, draws=20, store=tmp_path / "run.zarr", **settings)
    stored = sk.resume(tmp_path / "run.zarr", TARGET, draws=30, progress=False)
    np.testing.assert_array_equal(stored["posterior"]["x"], straight["posterior"]["x"])


def test_a_cycle_needs_what_its_parts_need():
    score = sk.from_score(lambda x: -x, 2)
    with pytest.raises(sk.errors.KernelError, match="MALA needs a log density"):
        sk.sample(score, Cycle(sk.Langevin(0.3), sk.MALA()))
    run = sk.sample(
        score, Cycle(sk.Langevin(0.3), sk.ScoreMALA(0.5)), warmup=10, draws=20, progress=False
    )
    assert not Cycle(sk.Langevin(0.3), sk.MALA()).exact
    assert np.isfinite(run["posterior"]["x"].values).all()
    for wrong in ((), (sk.MALA,)):
        with pytest.raises(sk.errors.KernelError, match="Give kernels"):
            Cycle(*wrong)
