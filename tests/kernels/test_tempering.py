"""Replica exchange: invariant jointly, right weights of separated modes, tuned ladders."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import samplekit as sk
from samplekit.core.pytree import pytree
from samplekit.kernels import tempering
from samplekit.kernels.cycle import Cycle
from samplekit.kernels.tempering import Tempering
from samplekit.testing import assert_mean
from samplekit.testing.averages import judge

WELL = sk.targets.double_well()  # x⁴/4 + x²/2, one dimension
BETAS = np.array([1.0, 0.4, 0.1])
CHAINS = 16_384
LECTURE = sk.targets.mixture([0.2, 0.8], [[-5.0, -5.0], [5.0, 5.0]])


def tempered_grid(beta):
    """Return a fine grid and the probabilities of p^β on it."""
    x = np.linspace(-12, 12, 40_001)
    log_p = np.asarray(jax.vmap(WELL.log_density)(jnp.asarray(x[:, None], jnp.float32)))
    p = np.exp(beta * (log_p.astype(float) - log_p.max()))
    return x, p / p.sum()


def joint_state(kernel):
    """Return exact independent draws of all replicas: stationarity is that of the whole state."""
    rng = np.random.default_rng(8)
    grids = [tempered_grid(b) for b in BETAS]
    x = np.stack([g[rng.choice(len(g), CHAINS, p=p)] for g, p in grids], axis=1)
    x = jnp.asarray(x[:, :, None], jnp.float32)
    keys = jax.random.split(jax.random.key(1), CHAINS)
    states = jax.vmap(lambda k, x: kernel.init(k, x[0], WELL))(keys, x)
    inner = jax.tree.map(lambda a: a[0], kernel.kernel)
    replicas = jax.vmap(jax.vmap(lambda x: inner.init(keys[0], x, WELL)))(x)
    return dataclasses.replace(
        states, position=x[:, 0], replicas=replicas, log_density=replicas.log_density[:, 0]
    )


def assert_invariant(kernel, steps=20):
    """Assert E|x|, E[x²] of every replica after some steps from exact draws."""
    kernel = kernel.prepare(1, jnp.float32)
    state = joint_state(kernel)

    @jax.jit
    def walk(kernel, state):
        def body(i, state):
            keys = jax.random.split(jax.random.fold_in(jax.random.key(2), i), CHAINS)
            return jax.vmap(lambda k, s: kernel.step(k, s, WELL)[0])(keys, state)

        return jax.lax.fori_loop(0, steps, body, state)

    end = walk(kernel, state)
    x = np.asarray(end.replicas.position, float)[:, :, 0]
    np.testing.assert_array_equal(x[:, 0], np.asarray(end.position)[:, 0])
    values = np.concatenate([np.abs(x), x**2], axis=1)
    exact = [p @ f(g) for f in (np.abs, np.square) for g, p in map(tempered_grid, BETAS)]
    spread = values.std(0)
    judge(values.mean(0), spread / np.sqrt(CHAINS), exact, resolves=0.15 * spread, name="a replica")


@pytest.mark.statistical
@pytest.mark.parametrize(
    "inner",
    [
        sk.HMC(0.5, leapfrogs=2),
        pytest.param(sk.RandomWalk(1.2), marks=pytest.mark.slow),
        pytest.param(Cycle(sk.MALA(0.4), sk.RandomWalk(1.0)), marks=pytest.mark.slow),
    ],
)
def test_all_replicas_stay_in_equilibrium(inner):
    assert_invariant(Tempering(inner, BETAS))


@pytest.mark.statistical
@pytest.mark.parametrize(
    "mutant", ["always", "sign", pytest.param("unscaled", marks=pytest.mark.slow)]
)
def test_mutants_are_caught(mutant, monkeypatch):
    """Swaps that are always taken, taken the wrong way, or that forget whose score it is."""
    right = tempering._swaps

    def always(key, log_density, betas, odd):
        turn = jnp.arange(betas.size - 1, dtype=jnp.int32) % 2 == odd.astype(jnp.int32)
        return turn, right(key, log_density, betas, odd)[1]

    def sign(key, log_density, betas, odd):
        return right(key, -log_density, betas, odd)

    if mutant == "unscaled":
        monkeypatch.setattr(tempering, "_times", lambda states, factors: states)
    else:
        monkeypatch.setattr(tempering, "_swaps", {"always": always, "sign": sign}[mutant])
    with pytest.raises(AssertionError, match="is wrong"):
        assert_invariant(Tempering(sk.MALA(0.5), BETAS))


def test_swap_probability_by_hand():
    """Minimum of 1 and exp((β_i − β_j)(log p(x_j) − log p(x_i))), pair by pair."""
    with jax.enable_x64(True):
        log_p, betas = jnp.asarray([-1.0, -3.0, -2.5]), jnp.asarray([1.0, 0.5, 0.2])
        takes = []
        for odd in (False, True):
            accept, rates = tempering._swaps(jax.random.key(0), log_p, betas, jnp.asarray(odd))
            np.testing.assert_allclose(rates, [np.exp(-0.5 * 2.0), 1.0], rtol=1e-14)
            takes.append(np.asarray(accept))
        assert not takes[0][1]  # even and odd pairs in turn
        assert not takes[1][0]
        assert takes[1][1]


def test_positions_travel_the_ladder_straight():
    """Where every swap is taken (a flat density), one position arrives every other step."""
    flat = sk.from_log_density(lambda x: 0.0 * x.sum(), 1)
    levels, steps = 5, 60
    kernel = Tempering(sk.RandomWalk(1.0), np.geomspace(1, 0.1, levels)).prepare(1, jnp.float32)
    state = kernel.init(jax.random.key(0), jnp.zeros(1), flat)
    step, arrived, stats = jax.jit(kernel.step), [], {}
    for i in range(steps):
        state, stats = step(jax.random.key(i), state, flat)
        arrived.append(int(stats["round_trips"]))
    later = arrived[2 * levels :]
    assert sum(later) == len(later) / 2
    assert sum(arrived[: levels - 1]) == 0  # nothing can have come down yet
    assert int(stats["n_steps"]) == levels


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("target", "resolves"),
    [(LECTURE, 0.15), pytest.param(sk.targets.grid(), 0.06, marks=pytest.mark.slow)],
    ids=["lecture", "grid"],
)
def test_weights_of_separated_modes(target, resolves, seed):
    """⅕–⅘ and 25 modes, which no single chain would get right."""
    kernel = Tempering(sk.HMC(leapfrogs=5))
    run = sk.sample(target, kernel, chains=8, draws=4000, thin=2, seed=seed, progress=False)
    x = run["posterior"]["x"].values
    mode = np.asarray(jax.vmap(jax.vmap(target.mode_of))(x))
    weights = mode[..., None] == np.arange(len(target.mode_weights))
    assert_mean(weights, target.mode_weights, resolves=resolves, name="weight of a mode")
    stats = run["sample_stats"]
    assert float(stats["round_trips"].sum() / stats["n_steps"].sum()) > 1e-3  # a gradient

    # What warm-up chose: equal rates between fixed ends, longer steps where it is hotter.
    rates = stats["swap_rate"].mean(("chain", "draw")).values
    assert rates.max() - rates.min() < 0.1
    assert 0.3 < rates.mean() < 0.9
    tuned = sk.kernel_of(run)
    assert tuned.betas[[0, -1]] == pytest.approx([1.0, 0.01])
    assert (np.diff(tuned.betas) < 0).all()
    step = np.asarray(tuned.kernel.step_size)
    assert (step[1:] > 0.9 * step[:-1]).all()  # each is tuned by itself, to some percent
    assert step[-1] > 2 * step[0]
    assert float(stats["acceptance_rate"].mean()) == pytest.approx(0.8, abs=0.05)


@pytest.mark.statistical
def test_a_plain_chain_would_get_them_wrong(seed):
    run = sk.sample(LECTURE, sk.HMC(leapfrogs=5), chains=8, draws=500, seed=seed, progress=False)
    right = run["posterior"]["x"].values[..., 0] > 0
    assert set(np.unique(right.mean(1))) <= {0.0, 1.0}  # no chain ever crosses


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(Tempering(sk.MALA()), id="tuned"),
        pytest.param(Tempering(sk.NUTS(0.5), [1, 0.3]), id="given", marks=pytest.mark.slow),
    ],
)
def test_resumed_runs_are_the_same_to_the_bit(kernel, tmp_path):
    settings = {"chains": 2, "warmup": 60, "progress": False}
    straight = sk.sample(LECTURE, kernel, draws=50, **settings)
    short = sk.sample(LECTURE, kernel, draws=20, store=tmp_path / "run.zarr", **settings)
    stored = sk.resume(tmp_path / "run.zarr", LECTURE, draws=30, progress=False)
    given = sk.resume(short, LECTURE, draws=30, kernel=kernel, progress=False)
    for run in (stored, given):
        for group, name in (("posterior", "x"), ("sample_stats", "swap_rate")):
            np.testing.assert_array_equal(run[group][name], straight[group][name])
    with pytest.raises(sk.errors.ResumeError, match="Resume with the same kernel"):
        sk.resume(short, LECTURE, draws=5, kernel=Tempering(sk.HMC()), progress=False)
    again = sk.sample(LECTURE, sk.kernel_of(straight), draws=5, warmup=0, progress=False)
    assert np.isfinite(again["posterior"]["x"].values).all()


def test_many_chains_are_one_batch_and_tune_together():
    run = sk.sample(LECTURE, Tempering(sk.MALA()), chains=20, warmup=100, draws=10, progress=False)
    assert run["sampler"].attrs["layout"] == "batch"
    assert run["sample_stats"]["swap_rate"].shape == (20, 10, 5)
    assert np.unique(run["sample_stats"]["step_size"].values).size == 1


def test_a_discrete_target():
    """Replicas of a discrete target move by Gibbs with gradients."""
    from samplekit.kernels.discrete import GibbsWithGradients

    target = sk.from_log_density(
        lambda s: 0.3 * jnp.sum(s[1:] * s[:-1], dtype=jnp.float32),
        like=np.ones(6, np.int8),
        values=(-1, 1),
    )
    kernel = Tempering(GibbsWithGradients(), [1, 0.5])
    run = sk.sample(target, kernel, chains=2, warmup=10, draws=50, progress=False)
    assert set(np.unique(run["posterior"]["x"])) == {-1, 1}


@pytree
class Plain:
    """Not a kernel of ours."""

    def init(self, key, x, target): ...

    def step(self, key, state, target): ...


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: Tempering(sk.MALA(), [0.5, 0.1]), "1 among them"),
        (lambda: Tempering(sk.MALA(), [1.0]), "two or more"),
        (lambda: Tempering(sk.MALA(), [1.0, 0.0]), "between 0 and 1"),
        (lambda: Tempering(sk.MALA(), [1.0, 0.5, 0.5]), "different"),
        (lambda: Tempering(sk.MALA(), "hot"), "cannot be read"),
        (lambda: Tempering(sk.MALA), "needs a kernel"),
        (lambda: Tempering(Plain()), "needs a kernel"),
        (lambda: Tempering(sk.Langevin(0.1)), "by log densities"),
        (lambda: sk.sample(sk.from_score(lambda x: -x, 2), Tempering(sk.MALA())), "log density"),
    ],
)
def test_what_cannot_work_is_refused(attempt, message):
    with pytest.raises(sk.errors.KernelError, match=message):
        attempt()
