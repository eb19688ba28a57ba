"""The trajectories of NUTS against a plain recursion, and its law against BlackJAX's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import samplekit as sk
from samplekit.kernels import nuts as own
from samplekit.kernels.base import library_rules

SCALES = np.array([0.3, 1.0, 2.5, 7.0])
START = np.minimum(0.8 * SCALES, 0.8)  # within the target, so that no trajectory runs away


def log_density(x):
    return -0.5 * jnp.sum((x / SCALES) ** 2) - 0.1 * jnp.sum(x**4)


def score(x):
    return -x / SCALES**2 - 0.4 * x**3


def turns(velocities):
    """Tell whether a trajectory turns back, from all its velocities in order of time."""
    way = np.sum(velocities, 0) - (velocities[0] + velocities[-1]) / 2
    return velocities[0] @ way <= 0 or velocities[-1] @ way <= 0


def turns_when_joined(left, right):
    """Look at two neighbors together, and at each with the nearest leaf of the other."""
    return turns(left + right) or turns(left + right[:1]) or turns(left[-1:] + right)


def any_balanced_turns(velocities):
    """Look at every balanced subtree that ends with the last of a branch's leaves so far."""
    count, size = len(velocities), 2
    while size <= count and count % size == 0:
        if turns_when_joined(velocities[-size : -size // 2], velocities[-size // 2 :]):
            return True
        size *= 2
    return False


def plain_trajectory(x, v, forward, step):
    """Double until a turn, in plain Python: depth, leapfrog steps, and whether it turned."""
    ends = {False: (x, v), True: (x, v)}
    whole, leaves = [v], 0
    for depth, ahead in enumerate(forward):
        branch = []
        for _ in range(2**depth):
            x, v = ends[ahead]
            eta = step if ahead else -step
            half = v + 0.5 * eta * score(x)
            x = x + eta * half
            v = half + 0.5 * eta * score(x)
            ends[ahead] = (x, v)
            branch.append(v)
            leaves += 1
            if any_balanced_turns(branch):
                return depth + 1, leaves, True
        left, right = (whole, branch) if ahead else (branch[::-1], whole)
        if turns_when_joined(left, right):
            return depth + 1, leaves, True
        whole = left + right
    return len(forward), leaves, False


@pytest.mark.parametrize("step", [0.05, 0.11, 0.3, 0.5])  # the last turns within two leaves
def test_trajectories_are_those_of_the_plain_recursion(key, step):
    with jax.enable_x64(True):
        target = sk.from_log_density(log_density, 4)
        kernel = sk.NUTS(step, max_treedepth=7)
        move = jax.jit(kernel.step)
        seen = set()
        for number in range(150):
            k = jax.random.fold_in(key, number)
            x = jnp.asarray(START * np.random.default_rng(number).normal(size=4))
            v, forward, *_ = kernel._noise(k, x)
            depth, leaves, turned = plain_trajectory(
                np.asarray(x), np.asarray(v), np.asarray(forward).tolist(), step
            )
            _, stats = move(k, kernel.init(k, x, target), target)
            assert int(stats["tree_depth"]) == depth
            assert int(stats["n_steps"]) == leaves
            assert bool(stats["reached_max_treedepth"]) == (not turned)
            seen.add((depth, leaves == 2**depth - 1))
    # Whole and cut branches of several depths were among them.
    assert {whole for _, whole in seen} == {True, False}
    assert len({depth for depth, _ in seen}) >= (3 if step < 0.5 else 2)


@pytest.fixture
def without_the_seam(monkeypatch):
    """Look for U-turns between the ends of subtrees alone, as BlackJAX does."""
    monkeypatch.setattr(own, "_turn_between", lambda left, right: jnp.zeros((), bool))


def test_trajectories_do_not_run_in_circles(key):
    """With seven steps to a circle the ends of eight leaves meet, and point the same way."""
    step = 2 * np.sin(np.pi / 7)
    kernel, target = sk.NUTS(step), sk.targets.gaussian(3)
    points = jnp.asarray(np.random.default_rng(0).normal(size=(2000, 3)), jnp.float32)

    def leaves(k, x):
        return kernel.step(k, kernel.init(k, x, target), target)[1]["n_steps"]

    counts = np.asarray(jax.jit(jax.vmap(leaves))(jax.random.split(key, 2000), points))
    assert counts.max() <= 7


def test_trajectories_would_run_in_circles(key, without_the_seam):
    with pytest.raises(AssertionError):
        test_trajectories_do_not_run_in_circles(key)


def test_the_law_is_that_of_blackjax(key, without_the_seam):
    """Tree depth, leapfrog steps, acceptance and energy, from the same points: 4 errors at most."""
    from blackjax.mcmc import hmc, nuts

    count, step = 20_000, 0.25
    with jax.enable_x64(True):
        target = sk.from_log_density(log_density, 4)
        x = jnp.asarray(START * np.random.default_rng(0).normal(size=(count, 4)))
        keys = jax.random.split(key, count)
        mine = sk.NUTS(step)

        def ours(k, x):
            state, stats = mine.step(k, mine.init(k, x, target), target)
            return {**stats, "x2": state.position**2, "moved": jnp.abs(state.position - x)}

        def theirs(k, x):
            state, info = nuts.build_kernel()(
                k, hmc.init(x, log_density), log_density, step, jnp.ones(4), 10
            )
            return {
                "tree_depth": info.num_trajectory_expansions,
                "n_steps": info.num_integration_steps,
                "acceptance_rate": info.acceptance_rate,
                "energy": info.energy,
                "x2": state.position**2,
                "moved": jnp.abs(state.position - x),
            }

        with library_rules():
            a = jax.jit(jax.vmap(ours))(keys, x)
            b = jax.jit(jax.vmap(theirs))(jax.random.split(jax.random.fold_in(key, 1), count), x)
        for name, values in b.items():
            one, two = np.asarray(a[name], float), np.asarray(values, float)
            error = np.sqrt((one.var(0) + two.var(0)) / count)
            assert np.all(np.abs(one.mean(0) - two.mean(0)) <= 4 * error), name


def test_nan_and_infinite_densities_are_counted_and_never_drawn(key):
    """NaN and +inf are broken; −inf is a wall, where a trajectory ends without being broken."""
    for beyond, broken in ((jnp.nan, 1), (jnp.inf, 1), (-jnp.inf, 0)):
        target = sk.from_log_density(
            lambda x, beyond=beyond: jnp.where(x[0] > 0.5, beyond, -0.5 * x[0] ** 2), 1
        )
        kernel = sk.NUTS(0.4)
        step = jax.jit(
            jax.vmap(lambda k, t=target, m=kernel: m.step(k, m.init(k, jnp.zeros(1), t), t))
        )
        state, stats = step(jax.random.split(key, 500))
        assert np.all(np.asarray(state.position) <= 0.5)
        ended = np.asarray(stats["diverging"])
        assert 0.2 < ended.mean() < 0.9
        np.testing.assert_array_equal(np.asarray(stats["nonfinite"]), broken * ended)
        assert np.isfinite(np.asarray(stats["acceptance_rate"])).all()
