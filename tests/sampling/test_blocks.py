"""Many chains in blocks: the draws of the whole batch, whatever the devices, and resumed."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import samplekit as sk
from samplekit.core.errors import TargetError
from samplekit.sampling import task
from samplekit.sampling.engine import Engine
from samplekit.sampling.run import Draws

CHAINS = 1536  # blocks of 768
# In nine dimensions no program works column by column, in two all do.
TARGETS = {
    dim: sk.targets.gaussian(
        dim, covariance=np.array(np.eye(dim) + 0.5 * np.eye(dim, k=1) + 0.5 * np.eye(dim, k=-1))
    )
    for dim in (2, 9)
}
KERNELS = [
    sk.RandomWalk(0.5),
    sk.Langevin(0.3),
    sk.MALA(0.5),
    sk.Barker(0.5),
    sk.ScoreMALA(0.5),
    sk.HMC(0.4, leapfrogs=3),
    sk.HMC(0.4, leapfrogs=None),  # one jitter for all chains
]


@pytest.fixture
def engines(monkeypatch):
    """Record the engines that are made."""
    made = []
    begin = Engine.__init__

    def watched(self, *args):
        begin(self, *args)
        made.append(self)

    monkeypatch.setattr(Engine, "__init__", watched)
    return made


def sample(target, kernel, **options):
    settings = {"chains": CHAINS, "draws": 4, "warmup": 0, "progress": False, "seed": 3}
    return sk.sample(target, kernel, **settings | options)


@pytest.mark.parametrize("dim", TARGETS)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: f"{type(k).__name__}")
def test_blocks_are_parts_of_the_whole(kernel, dim, engines, monkeypatch):
    """Two blocks draw what one batch does: noise by rows, and what all chains share."""
    runs = [sample(TARGETS[dim], kernel, thin=2)]
    monkeypatch.setattr(task, "LEAST_BLOCK", CHAINS)
    runs.append(sample(TARGETS[dim], kernel, thin=2, devices=1))
    assert [len(e.parts) for e in engines] == [2, 1]
    for group in ("posterior", "sample_stats"):
        for name in runs[1][group].data_vars:
            blocks, whole = (r[group][name].values for r in runs)
            np.testing.assert_allclose(blocks, whole, rtol=2e-4, atol=2e-4, err_msg=str(name))
    x = runs[0]["posterior"]["x"].values
    assert len(np.unique(x[:, -1], axis=0)) == CHAINS


@pytest.mark.multidevice
def test_devices_change_nothing(engines):
    draws = [
        sample(TARGETS[2], sk.MALA(0.5), chains=1024, devices=devices)["posterior"]["x"].values
        for devices in (None, 1, 2, 4)
    ]
    assert {len(e.parts) for e in engines} == {2}
    for other in draws[1:]:
        np.testing.assert_array_equal(other, draws[0])


@pytest.mark.parametrize("stored", [False, True])
def test_resumed_equals_straight(stored, tmp_path):
    options = {"store": tmp_path / "run.zarr"} if stored else {}
    target, kernel = TARGETS[2], sk.HMC(0.4, leapfrogs=None)
    run = sample(target, kernel, keep_warmup=True, warmup=3, **options)
    more = sk.resume(options.get("store", run), target, draws=5, progress=False)
    straight = sample(target, kernel, keep_warmup=True, warmup=3, draws=9)
    for group in ("posterior", "warmup_posterior", "sample_stats"):
        for name in straight[group].data_vars:
            np.testing.assert_array_equal(more[group][name], straight[group][name])


def test_a_block_that_cannot_start_is_named():
    init = np.zeros((CHAINS, 2), np.float32)
    init[1000] = np.nan
    with pytest.raises(TargetError, match="chain 1000"):
        sample(TARGETS[2], sk.MALA(0.5), init=init)


def test_starts_are_looked_for_in_each_block():
    """Half of the plane is forbidden: chains of all blocks end up in the other half."""
    target = sk.from_log_density(
        lambda x: jnp.where(x[0] > 0, -jnp.sum(x * x), -jnp.inf), 2
    )  # the score is finite everywhere
    run = sample(target, sk.RandomWalk(0.5))
    assert float(run["posterior"]["x"][..., 0].min()) > 0


def test_who_runs_in_blocks(engines):
    """Not those that learn from each other, nor a number of chains without a divisor."""
    cases = [
        (sk.MALA(0.5), 1536, {}),
        (sk.MALA(0.5), 5000, {}),
        (sk.MALA(0.5), 512, {}),
        (sk.MALA(0.5), 511, {}),
        (sk.MALA(0.5), 1021, {}),
        (sk.MALA(), 1536, {"warmup": 4}),
        (sk.Cycle(sk.MALA(0.5), sk.RandomWalk(0.5)), 1536, {}),
    ]
    for kernel, chains, options in cases:
        sample(TARGETS[2], kernel, chains=chains, draws=1, **options)
    assert [len(e.parts) for e in engines] == [2, 5, 2, 1, 1, 1, 1]


def test_blocks_compile_once(engines):
    """One program serves any number of blocks of one size."""
    target = sk.from_log_density(lambda x: -jnp.sum(x**4), 2)
    for chains in (2048, 4096):
        sample(target, sk.MALA(0.5), chains=chains, draws=1, stats=())
    first, second = engines
    assert first._program is second._program


def test_memory_of_a_round_is_bounded(engines, monkeypatch):
    """Calls that run at the same time return no more than a batch may."""
    monkeypatch.setattr("samplekit.sampling.engine.CALL_BYTES", 2**16)
    sample(TARGETS[2], sk.MALA(0.5), draws=20, stats=())
    (engine,) = engines
    each = 2 * 4 * 2  # a position, and what is shown of it
    assert engine.plan.capacity == max(1, 2**16 // (4 * each * CHAINS // 2))


def test_noise_of_blocks_is_that_of_rows():
    """Keys of rows with an axis of chains: the numbers of the whole, cut."""
    from samplekit.core.keys import quick, row_of

    key = quick(jax.random.key(5))
    whole = jax.random.bits(key, (12, 3))
    cut = [jax.random.bits(row_of(key, i), (4, 3)) for i in range(3)]
    np.testing.assert_array_equal(np.concatenate(cut), whole)
    assert all((a != b).any() for a, b in itertools.combinations(cut, 2))


def test_parts_of_a_group_are_joined_in_the_order_of_their_chains():
    draws = Draws()
    for first, value in ((4, 2.0), (0, 0.0), (4, 3.0), (0, 1.0)):
        draws.add(first, {"x": np.full((2, 1), value)})
    np.testing.assert_array_equal(draws.joined()["x"], [[0, 1], [0, 1], [2, 3], [2, 3]])
    draws.clear()
    assert draws.joined() == {}
