"""A run that was interrupted and resumed equals a straight one, bit for bit, or is refused."""

import contextlib
import dataclasses
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import samplekit as sk
from samplekit.core.errors import ResumeError, SettingsError, StoreError
from samplekit.sampling import loop

COVARIANCE = np.array([[1.0, 0.8], [0.8, 2.0]], np.float32)
TARGET = sk.targets.gaussian(2, covariance=COVARIANCE)
WARMUP, DRAWS, CHAINS = 60, 30, 2

MULTIPLY = sk.MetropolisHastings(
    lambda key, x: x + jax.random.normal(key, x.shape), log_proposal="symmetric"
)
INDEPENDENT = sk.Independence(
    lambda key: 2 * jax.random.normal(key, (2,)), lambda y: -jnp.sum(y**2) / 8
)
KERNELS = {
    "NUTS": sk.NUTS(max_treedepth=4),
    "NUTS diagonal": sk.NUTS(max_treedepth=4, metric="diagonal", target_accept=0.7),
    "NUTS fixed": sk.NUTS(0.5, max_treedepth=4),
    "HMC": sk.HMC(),
    "HMC given": sk.HMC(0.3, leapfrogs=3, metric=COVARIANCE),
    "MALA": sk.MALA(),
    "RandomWalk": sk.RandomWalk(),
    "Barker": sk.Barker(),
    "ScoreMALA": sk.ScoreMALA(rule="gauss", nodes=3),
    "Langevin": sk.Langevin(0.3),
    "Langevin given": sk.Langevin(0.3, metric=np.array([1.0, 2.0])),
    "MCLMC": sk.MCLMC(),
    "MCLMC adjusted": sk.MCLMC(adjusted=True, length=2.0),
    "MetropolisHastings": MULTIPLY,
    "Independence": INDEPENDENT,
}
HOLD_FUNCTIONS = ("MetropolisHastings", "Independence")


def sample(kernel, target=TARGET, **options):
    options = {"draws": DRAWS, "warmup": WARMUP, "chains": CHAINS, "seed": 3} | options
    return sk.sample(target, kernel, progress=False, **options)


def assert_same(a, b):
    """Assert that two runs hold the same draws, statistics and states, to the bit."""
    assert set(a.children) == set(b.children)
    for name in a.children:
        one, two = a[name].to_dataset(), b[name].to_dataset()
        assert set(one.data_vars) == set(two.data_vars), name
        for variable in one.data_vars:
            x, y = one[variable].values, two[variable].values
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y, err_msg=f"{name}/{variable}")


@contextlib.contextmanager
def ctrl_c_at(tick, rounds=7):
    """Make Ctrl-C come in the round that reaches a tick; rounds have a fixed length."""
    with pytest.MonkeyPatch.context() as patch:
        ends = []

        def fixed(self, ticks, spent):
            self._quantum = rounds
            ends.append(self.tick + ticks)

        def wait(jobs):
            loop.futures.wait(jobs)
            return bool(ends) and ends[-1] + rounds >= tick

        patch.setattr(loop.Loop, "_adapt_round", fixed)
        patch.setattr(loop, "_wait", wait)
        patch.setattr(loop, "FIRST_ROUND", rounds)
        patch.setattr(loop, "QUICK_ROUND", rounds)
        yield


def resume(run, target=TARGET, **options):
    return sk.resume(run, target, progress=False, **options)


@pytest.mark.parametrize("name", KERNELS)
def test_resumed_equals_straight(name):
    kernel = KERNELS[name]
    given = {"kernel": kernel} if name in HOLD_FUNCTIONS else {}
    straight = sample(kernel, keep_warmup=True)
    for tick in (20, WARMUP + 12):  # in warm-up, and while sampling
        with ctrl_c_at(tick):
            part = sample(kernel, keep_warmup=True)
        reached = part["sampler"].attrs["tick"]
        assert 0 < reached < WARMUP + DRAWS
        assert (reached < WARMUP) == (tick < WARMUP)
        assert part["sampler"].attrs["interrupted"]
        assert part["posterior"].sizes["draw"] == max(0, reached - WARMUP)
        assert part["warmup_posterior"].sizes["draw"] == min(WARMUP, reached)
        whole = resume(part, **given)
        assert_same(whole, straight)
        assert whole["sampler"].attrs["finished"]
        assert not whole["sampler"].attrs["interrupted"]


@pytest.mark.parametrize("name", ["NUTS", "MALA", "MetropolisHastings"])
def test_more_draws_equal_a_longer_run(name):
    kernel = KERNELS[name]
    given = {"kernel": kernel} if name in HOLD_FUNCTIONS else {}
    longer = resume(sample(kernel), draws=12, **given)
    assert longer["posterior"].sizes["draw"] == DRAWS + 12
    assert_same(longer, sample(kernel, draws=DRAWS + 12))


def test_a_finished_run_comes_back_as_it_was():
    run = sample(KERNELS["NUTS"])
    assert_same(resume(run), run)


def test_a_batch_of_chains():
    many = {"chains": 20, "warmup": 40}
    straight = sample(sk.MALA(), **many)
    assert straight["sampler"].attrs["layout"] == "batch"
    with ctrl_c_at(15):
        part = sample(sk.MALA(), **many)
    assert part["sampler"].attrs["tick"] < 40
    assert_same(resume(part), straight)


def test_a_stop_rule_goes_on():
    rule = {"until": sk.Converged(rhat=1.5, ess=100), "draws": 2000}
    straight = sample(KERNELS["NUTS"], **rule)
    assert 100 <= straight["posterior"].sizes["draw"] < 2000
    with ctrl_c_at(WARMUP + 40):
        part = sample(KERNELS["NUTS"], **rule)
    assert_same(resume(part), straight)
    assert resume(straight)["posterior"].sizes == straight["posterior"].sizes


class Plain:
    """A target as users write it: no space, its positions a dict."""

    def log_density(self, x):
        return -0.5 * jnp.sum(x["a"] ** 2) - 0.5 * jnp.sum(x["b"]["c"] ** 2)


@pytest.mark.parametrize("name", ["MALA", "MetropolisHastings"])
def test_a_target_of_the_users_own(name):
    init = {"a": np.zeros((CHAINS, 2), np.float32), "b": {"c": np.ones((CHAINS,), np.float32)}}
    kernel = KERNELS["MALA"]
    if name == "MetropolisHastings":
        kernel = sk.MetropolisHastings(
            lambda key, x: jax.tree.map(lambda a: a + jax.random.normal(key, a.shape), x),
            "symmetric",
        )
    given = {"kernel": kernel} if name == "MetropolisHastings" else {}
    straight = sample(kernel, Plain(), init=init, draws=20, warmup=0)
    part = sample(kernel, Plain(), init=init, draws=12, warmup=0)
    assert_same(resume(part, Plain(), draws=8, **given), straight)


@dataclasses.dataclass(frozen=True)
class Jump:
    """A kernel as users write it, with a plain number in it."""

    width: float = 0.5

    def init(self, key, x, target, /):
        return State(x, target.log_density(x))

    def step(self, key, state, target, /):
        y = state.position + self.width * jax.random.normal(key, state.position.shape)
        new = State(y, target.log_density(y))
        log_u = jnp.log(jax.random.uniform(jax.random.fold_in(key, 1)))
        take = log_u < new.log_density - state.log_density
        state = jax.tree.map(lambda a, b: jnp.where(take, a, b), new, state)
        return state, {"lp": state.log_density, "accepted": take}


@dataclasses.dataclass(frozen=True)
class State:
    position: jax.Array
    log_density: jax.Array


for cls in (Jump, State):
    jax.tree_util.register_dataclass(cls)


def test_a_kernel_of_the_users_own(tmp_path):
    straight = sample(Jump(), warmup=5)
    part = sample(Jump(), warmup=5, draws=10, store=tmp_path / "run.zarr")
    with pytest.raises(ResumeError, match=r"Jump.*kernel="):
        resume(part)
    assert_same(resume(tmp_path / "run.zarr", draws=DRAWS - 10, kernel=Jump()), straight)


# Refusals ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished():
    return sample(KERNELS["NUTS"])


def test_another_target_is_refused(finished):
    other = sk.targets.gaussian(2, covariance=2 * COVARIANCE)
    with pytest.raises(ResumeError, match=r"another target: .* chain \d its log density is -.*was"):
        resume(finished, other, draws=5)
    with pytest.raises(ResumeError, match=r"2 coordinates, this target 3"):
        resume(finished, sk.targets.gaussian(3), draws=5)
    other = sk.from_log_density(TARGET.log_density, 2, name="theta")
    with pytest.raises(ResumeError, match=r"variables \['x'\], this target \['theta'\]"):
        resume(finished, other, draws=5)
    score = sk.from_score(lambda x: -x, 2)
    with pytest.raises(sk.errors.KernelError, match="NUTS needs a log density"):
        resume(finished, score, draws=5)


def test_another_score_is_refused():
    run = sample(sk.Langevin(0.3), sk.from_score(lambda x: -x, 2), warmup=0, draws=4)
    with pytest.raises(ResumeError, match=r"another target: .* its score is"):
        resume(run, sk.from_score(lambda x: -2 * x, 2), draws=5)


@pytest.mark.parametrize(
    ("kernel", "difference"),
    [
        (sk.MALA(), r"kernel name 'NUTS'.*'MALA'"),
        (sk.NUTS(max_treedepth=5), r"max_treedepth': 4.*max_treedepth': 5"),
        (sk.NUTS(max_treedepth=4, metric="diagonal"), r"metric 'Dense'.*'Diagonal'"),
        (sk.NUTS(0.1, max_treedepth=4, metric="dense"), "step size"),
    ],
)
def test_another_kernel_is_refused(finished, kernel, difference):
    with pytest.raises(ResumeError, match=difference):
        resume(finished, draws=5, kernel=kernel)
    assert resume(finished, draws=5, kernel=KERNELS["NUTS"])["posterior"].sizes["draw"] == DRAWS + 5


def test_another_step_size_is_refused():
    run = sample(sk.MALA(0.5), warmup=0, draws=4)
    with pytest.raises(ResumeError, match=r"step_size is 0\.5, now given is 0\.25"):
        resume(run, draws=4, kernel=sk.MALA(0.25))
    assert resume(run, draws=4, kernel=sk.MALA(0.5))["posterior"].sizes["draw"] == 8


def test_another_dtype_is_refused():
    with jax.enable_x64(True):
        target = sk.targets.gaussian(2)
        run = sample(sk.MALA(0.5), target, warmup=0, draws=4)
        longer = resume(run, target, draws=4)
        assert longer["posterior"]["x"].dtype == np.float64
        assert_same(longer, sample(sk.MALA(0.5), target, warmup=0, draws=8))
    with pytest.raises(ResumeError, match=r"float64 but JAX is set to float32.*jax_enable_x64"):
        resume(run, sk.targets.gaussian(2), draws=4)


def test_another_schema_is_refused(finished):
    run = finished.copy()
    run["sampler"].attrs["schema"] = 99
    with pytest.raises(ResumeError, match=r"schema 99.*schema 2"):
        resume(run)
    with pytest.raises(ResumeError, match=r"schema 99"):
        sk.kernel_of(run)


def test_what_is_no_run_is_refused(finished, tmp_path):
    with pytest.raises(ResumeError, match=r"no group 'sampler'"):
        resume(xr.DataTree.from_dict({"posterior": finished["posterior"].to_dataset()}))
    with pytest.raises(ResumeError, match=r"not dict"):
        resume({})
    with pytest.raises(StoreError, match=r"no run of samplekit"):
        resume(tmp_path / "nothing")
    (tmp_path / "file").write_text("text")
    with pytest.raises(StoreError, match=r"no run of samplekit"):
        resume(tmp_path / "file")
    for draws in (0, -1, 2.5, True, "4"):
        with pytest.raises(SettingsError, match=f"draws={draws!r} is not a positive integer"):
            resume(finished, draws=draws)


# Ctrl-C -----------------------------------------------------------------------------------


def slow(x):
    """A density that waits: about a millisecond a step."""

    def wait(value):
        time.sleep(0.001)
        return value

    shape = jax.ShapeDtypeStruct((), jnp.float32)
    return -jnp.sum(x**2) / 2 + 0 * jax.pure_callback(wait, shape, x[0])


SLOW = sk.from_log_density(slow, 2)


def kernel_for_slow():
    return sk.RandomWalk(1.0)


@pytest.mark.parametrize("stored", [False, True])
def test_ctrl_c_returns_the_draws_so_far(stored, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "ROUND_SECONDS", 0.02)
    options = {"draws": 400, "warmup": 0, "chains": 2}
    if stored:
        options["store"] = tmp_path / "run.zarr"
    sample(kernel_for_slow(), SLOW, warmup=0, draws=1)  # compiled before the clock runs
    timer = threading.Timer(0.15, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    run = sample(kernel_for_slow(), SLOW, **options)
    timer.join()
    drawn = run["posterior"].sizes["draw"]
    assert 0 < drawn < 400
    assert run["sample_stats"].sizes["draw"] == drawn
    assert run["sampler"].attrs["interrupted"]
    assert not run["sampler"].attrs["finished"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    whole = resume(options.get("store", run), SLOW)
    options.pop("store", None)
    assert_same(whole, sample(kernel_for_slow(), SLOW, **options))


def test_ctrl_c_between_rounds_loses_nothing(monkeypatch):
    """It may come while draws are put away: those of the round are kept all the same."""
    commit = loop.Record.commit

    def interrupted(self, engine):
        if self.tick == 2:
            signal.raise_signal(signal.SIGINT)
        commit(self, engine)

    for name in ("ROUND_SECONDS", "FIRST_ROUND", "QUICK_ROUND"):
        monkeypatch.setattr(loop, name, 0)  # rounds of one tick
    monkeypatch.setattr(loop.Record, "commit", interrupted)
    run = sample(sk.MALA(0.5), warmup=0, draws=50)
    assert run["posterior"].sizes["draw"] == 2
    assert run["sampler"].attrs["interrupted"]


def test_a_second_ctrl_c_goes_through(monkeypatch):
    def impatient(self, engine):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(loop.Record, "commit", impatient)
    with pytest.raises(KeyboardInterrupt):
        sample(sk.MALA(0.5), warmup=0, draws=50)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# The tuned kernel -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["NUTS", "HMC", "ScoreMALA", "Langevin given", "MCLMC adjusted"])
def test_kernel_of(name, tmp_path):
    run = sample(KERNELS[name])
    kernel = sk.kernel_of(run)
    assert type(kernel) is type(KERNELS[name])
    assert "step_size" in repr(kernel)
    steps = run["sampler"]["kernel.step_size"].values
    assert kernel.step_size in steps
    # A tuned kernel is a kernel: reused, it is not tuned again.
    again = sample(kernel, warmup=30, draws=5)
    kept = sk.kernel_of(again)
    for one, two in zip(jax.tree.leaves(kernel), jax.tree.leaves(kept), strict=True):
        np.testing.assert_array_equal(one, two)
    if name == "NUTS":
        run.to_netcdf(tmp_path / "run.nc")
        with xr.open_datatree(tmp_path / "run.nc") as saved:
            loaded = sk.kernel_of(saved)
        assert repr(loaded) == repr(kernel)


@pytest.mark.parametrize("name", HOLD_FUNCTIONS)
def test_kernels_that_hold_functions_are_asked_for(name):
    run = sample(KERNELS[name], warmup=0, draws=4)
    for ask in (resume, sk.kernel_of):
        with pytest.raises(ResumeError, match=f"{name} holds functions"):
            ask(run)
