"""Chains lost in a hopeless region start again, and that is recorded; NaN never gets in."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import samplekit as sk
from samplekit.sampling import loop
from samplekit.sampling.starts import gaps_above, lost_chains

ISLAND = 100.0  # out of reach for a random walk


def log_density(x):
    """A normal, and beyond a moat of zero density an island too small to move on."""
    far = jnp.max(jnp.abs(x - ISLAND))
    inside = jnp.where(far < 1e-4, -1e4, -jnp.inf)
    return jnp.where(jnp.max(jnp.abs(x)) < 5, -jnp.sum(x**2) / 2, inside)


MOAT = sk.from_log_density(log_density, 2)


def starts(chains, *lost):
    x = np.random.default_rng(0).normal(size=(chains, 2)).astype(np.float32)
    x[list(lost)] = ISLAND
    return x


def sample(target, kernel=None, **options):
    settings = {"draws": 50, "warmup": 100, "chains": 4, "progress": False}
    return sk.sample(target, kernel, **settings | options)


def restarts(run):
    return json.loads(run["sampler"].attrs["restarts"])


@pytest.mark.parametrize("kernel", [sk.NUTS(), sk.RandomWalk()])
def test_a_lost_chain_starts_again(kernel):
    run = sample(MOAT, kernel, init=starts(4, 2))
    assert [r["chain"] for r in restarts(run)] == [2]
    assert 0 < restarts(run)[0]["step"] <= 40
    x = run["posterior"]["x"].values
    assert np.abs(x).max() < 5
    assert x[2].std() > 0.3
    # The others never knew.
    alone = sample(MOAT, kernel, init=starts(4))
    np.testing.assert_array_equal(x[[0, 1, 3]], alone["posterior"]["x"].values[[0, 1, 3]])


def test_in_a_batch():
    run = sample(MOAT, sk.RandomWalk(), chains=20, init=starts(20, 2, 11))
    assert sorted({r["chain"] for r in restarts(run)}) == [2, 11]
    assert np.abs(run["posterior"]["x"].values).max() < 5


def test_restarts_are_stored_and_resumed(tmp_path):
    options = {"init": starts(4, 2), "store": tmp_path / "run.zarr"}
    run = sample(MOAT, sk.NUTS(), **options)
    longer = sk.resume(tmp_path / "run.zarr", MOAT, draws=3, progress=False)
    assert restarts(longer) == restarts(run) != []


def test_a_chain_that_finds_no_start_stays():
    """A target that is finite only where the user says: a restart fails, and must not harm."""

    def hidden(x):
        return log_density(x - 100)

    target = sk.from_log_density(hidden, 2)
    for chains in (4, 20):
        run = sample(target, sk.RandomWalk(), chains=chains, init=100 + starts(chains, 2))
        assert restarts(run) == []
        x = run["posterior"]["x"].values - 100
        home, island = np.abs(x).max(-1) < 5, np.abs(x - ISLAND).max(-1) < 1e-3
        assert (home | island).all()  # it may have jumped the moat by itself
        assert np.isfinite(run["sample_stats"]["lp"]).all()


def test_healthy_runs_never_restart():
    for target in (sk.targets.banana(), sk.targets.funnel(2), sk.targets.gaussian([1e3, 1e-3])):
        assert restarts(sample(target, sk.NUTS(), draws=1)) == []
    # Without tuning there is no warm-up to speak of: nothing is restarted behind the user's back.
    assert restarts(sample(MOAT, sk.RandomWalk(0.5), init=starts(4, 2))) == []
    assert restarts(sample(MOAT, sk.RandomWalk(), warmup=0, init=starts(4, 2))) == []


def test_who_is_lost():
    rng = np.random.default_rng(0)
    before = rng.normal(size=(4, 2))
    now = before + 1
    lp = np.array([-1.0, -2.0, -1.5, -1000.0])
    assert lost_chains(before, now, lp) == []  # it moves
    assert lost_chains(before, now, lp, {3: 5000.0}) == []  # and comes down
    assert lost_chains(before, now, lp, {3: 1200.0}) == [3]  # it moves, and stays as far above
    assert lost_chains(before, now, lp, {2: 1200.0}) == []  # at the last look it was not
    now[3] = before[3]
    assert lost_chains(before, now, lp) == [3]
    assert lost_chains(before, now, np.array([-1.0, -2.0, -1.5, np.nan])) == [3]
    assert lost_chains(before, now, np.array([-1.0, -2.0, -1.5, -10.0])) == []  # not far above
    assert lost_chains(before, now, None) == []
    assert lost_chains(before[:1], now[:1], lp[:1]) == []


@pytest.mark.parametrize("kernel", [sk.HMC(), sk.NUTS()])
def test_a_chain_that_wanders_in_a_mode_without_weight(kernel, tmp_path):
    """It starts again at the second look, in one go or resumed after the first."""

    def log_density(x):
        return jnp.logaddexp(-jnp.sum(x**2) / 2, -jnp.sum((x - 60) ** 2) / 2 - 500)

    target, init = sk.from_log_density(log_density, 2), starts(4)
    init[1] += 60
    options = {"init": init, "warmup": 200, "draws": 200, "seed": 2}
    run = sample(target, kernel, **options)
    assert restarts(run) == [{"chain": 1, "step": 80}]
    assert np.abs(run["posterior"]["x"]).max() < 10
    look = {"n": 0}

    def stop(self):
        look["n"] += 1
        if look["n"] == 1:
            self._asked.set()  # as Ctrl-C does
        return plain(self)

    plain = loop.Loop._rescue
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Loop, "_rescue", stop)
        part = sample(target, kernel, store=tmp_path / "run.zarr", **options)
    assert part["posterior"].sizes["draw"] == 0
    whole = sk.resume(tmp_path / "run.zarr", target, progress=False)
    np.testing.assert_array_equal(whole["posterior"]["x"], run["posterior"]["x"])
    assert restarts(whole) == restarts(run)


def test_a_second_look_only_where_the_first_saw_something(tmp_path, monkeypatch):
    """It holds all chains up; and a resumed run must look as often as one in one go."""
    looks = []

    def looked(*seen):
        looks.append(lost_chains(*seen))
        return looks[-1]

    monkeypatch.setattr(loop, "lost_chains", looked)
    calm = sample(MOAT, sk.NUTS(), init=starts(4), store=tmp_path / "calm.zarr")
    assert calm["sampler"].attrs["calm"] == 1
    assert looks == [[]]
    looks.clear()
    sample(MOAT, sk.NUTS(), init=starts(4, 2))
    assert len(looks) == 2
    assert looks[0] == [2]
    again = sk.resume(tmp_path / "calm.zarr", MOAT, draws=3, progress=False)
    assert again["sampler"].attrs["calm"] == 1
    now, lp = np.zeros((4, 2)), np.array([-1.0, -2.0, -1.5, -1000.0])
    assert gaps_above(now, lp) == {3: 998.5}
    assert gaps_above(now, np.where(lp < -100, np.nan, lp)) == {3: np.inf}
    assert gaps_above(now, None) == {}


# What is not finite -------------------------------------------------------------------------


def boxed(x):
    """A flat box with NaN all around."""
    return jnp.where(jnp.max(jnp.abs(x)) < 2, -jnp.sum(x**2) / 8, jnp.nan)


def boxed_score(x):
    return jnp.where(jnp.max(jnp.abs(x)) < 2, -x / 4, jnp.nan)


BOX = sk.from_log_density(boxed, 2)
BOX_SCORE = sk.from_score(boxed_score, 2)
MEETING_NAN = {
    "NUTS": sk.NUTS(0.8, max_treedepth=3),
    "HMC": sk.HMC(0.8, leapfrogs=3),
    "HMC tuned length": sk.HMC(0.8),
    "MALA": sk.MALA(1.0),
    "Barker": sk.Barker(1.0),
    "RandomWalk": sk.RandomWalk(1.0),
    "Langevin": sk.Langevin(1.0),
    "ScoreMALA": sk.ScoreMALA(1.0),
    "MCLMC": sk.MCLMC(0.8),
    "MCLMC adjusted": sk.MCLMC(0.8, adjusted=True),
    "MetropolisHastings": sk.MetropolisHastings(
        lambda key, x: x + jax.random.normal(key, x.shape), "symmetric"
    ),
    "Independence": sk.Independence(
        lambda key: 2 * jax.random.normal(key, (2,)), lambda y: -jnp.sum(y**2) / 8
    ),
}


@pytest.mark.parametrize("name", MEETING_NAN)
def test_nan_is_rejected_and_counted(name):
    target = BOX_SCORE if name in ("Langevin", "ScoreMALA") else BOX
    init = np.zeros((2, 2), np.float32)
    run = sample(target, MEETING_NAN[name], warmup=0, draws=200, chains=2, init=init)
    x, stats = run["posterior"]["x"].values, run["sample_stats"]
    assert (np.abs(x) < 2).all()
    nonfinite = stats["nonfinite"].values
    assert nonfinite.dtype == np.int32
    assert nonfinite.any()
    assert not nonfinite.all()
    assert ((nonfinite == 0) | (nonfinite == 1)).all()
    assert x.std() > 0.3  # and yet it moves
    for values in stats.data_vars.values():
        if values.name != "energy_error":  # of the step that was not taken
            assert np.isfinite(values).all(), values.name
    if not name.startswith(("NUTS", "MCLMC")):  # those have more than one way to go on
        stays = np.all(np.diff(x, axis=1) == 0, axis=-1)
        assert stays[nonfinite[:, 1:] == 1].all()


@pytest.mark.parametrize("name", ["NUTS", "MALA", "RandomWalk"])
def test_tuning_survives_nan(name):
    kernel = getattr(sk, name)()
    run = sample(BOX, kernel, chains=2, draws=100)
    step = run["sample_stats"]["step_size"].values
    assert np.isfinite(step).all()
    assert (step > 1e-3).all()
    assert run["posterior"]["x"].values.std() > 0.3
