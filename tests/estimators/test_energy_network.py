"""`EnergyNetwork`: every way to train it, its chains and their slots, and trainings gone astray."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import check_estimator

import samplekit as sk
from samplekit.core.errors import EstimatorError, KernelError, TrainingError
from samplekit.core.pytree import pytree
from samplekit.estimators.contrast import ChainContrast, Chains, fitted_kernel
from samplekit.networks import EnergyCNN, EnergyMLP
from samplekit.targets.space import make_space
from tests.estimators.learned import (
    Calls,
    Counting,
    excess,
    grid_moments,
    mixture,
    own_error,
    rows,
)

QUIET = {"random_state": 0, "progress": False}
TINY = {**QUIET, "epochs": 2, "buffer_size": 300}
# One kernel a family: unadjusted, Metropolis, Hamiltonian.
KERNELS = {"ULA": sk.Langevin(0.2), "MALA": sk.MALA(), "HMC": sk.HMC(leapfrogs=3)}
# From noise, Langevin(0.2) forgets its start as e^(−0.02 n) of n steps in a unit normal: 20 leave
# two thirds, and the energy learned makes up for that (Nijkamp et al. 2019); 80 leave a fifth.
CHAINS = {
    "data": {"method": "cd"},
    "noise": {"method": "cd", "begin": "noise", "kernel_steps": 80},
    "buffer": {"method": "pcd"},
}


@pytest.fixture(scope="module")
def data():
    return rows()


@pytest.fixture(scope="module")
def model(data):
    return sk.EnergyNetwork(**QUIET, kernel_steps=5).fit(data)


def error_in_own(model, noise=0.0):
    """Return the excess loss in standard errors of the exact score's own loss."""
    fresh = rows(seed=1)
    return excess(model.target(), mixture(noise), fresh) / own_error(mixture(), fresh)


def test_persistent_chains_find_the_density(model):
    # The gradient is a difference of two averages over batches and not over all rows, as that of
    # score matching is: its noise adds to that of the rows.
    assert error_in_own(model) < 2
    numbers = model.history_.iloc[-1]
    assert abs(numbers["chain_spread"] - 1) < 0.1
    assert abs(numbers["energy_gap"]) < 0.1
    assert 0.5 < numbers["acceptance"] < 0.65
    assert numbers["lost_chains"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("chains", CHAINS.values(), ids=CHAINS)
def test_every_kernel_and_every_kind_of_chains_finds_the_density(data, kernel, chains):
    model = sk.EnergyNetwork(kernel=kernel, **chains, **QUIET).fit(data)
    assert error_in_own(model) < 2.5


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sliced", "implicit", "denoising"])
def test_every_matching_finds_the_density(data, method):
    model = sk.EnergyNetwork(method=method, sigma=0.3, **QUIET).fit(data)
    noise = 0.3 * data.std(axis=0) if method == "denoising" else 0.0
    assert error_in_own(model, noise) < 1.5


# Each kernel and each kind of chains once; the slow tests above take all pairs.
@pytest.mark.parametrize(
    ("kernel", "chains"),
    [
        pytest.param(kernel, chains, id=f"{name}-{kind}")
        for (name, kernel), (kind, chains) in zip(KERNELS.items(), CHAINS.items(), strict=True)
    ],
)
def test_every_kernel_and_every_kind_of_chains_learns(data, kernel, chains):
    settings = {**QUIET, **chains, "kernel": kernel, "kernel_steps": 3, "buffer_size": 1000}
    net = EnergyMLP(jax.random.key(0), 2, width=16, depth=1, confinement=1.0)
    settings |= {"network": net, "epochs": 4, "batch_size": 100, "learning_rate": 0.01}
    model = sk.EnergyNetwork(**settings).fit(data[:2000])
    base = sk.from_energy(lambda x: jnp.sum(x**2) / 2, 2)
    centered = data - data.mean(axis=0)
    assert error_in_own(model) < 0.7 * excess(base, mixture(), centered) / own_error(
        mixture(), rows(seed=1)
    )
    assert np.isfinite(model.history_.to_numpy(float)).all()


@pytest.mark.statistical
def test_metropolis_is_exact_on_the_learned_energy(model):
    mean, square = grid_moments(model.target())
    run = sk.sample(model.target(), sk.MALA(), chains=16, draws=4000, warmup=500, progress=False)
    x = run["posterior"]["x"].values
    sk.testing.assert_mean(x, mean, resolves=0.3)
    sk.testing.assert_mean(x**2, square, resolves=0.6)


def test_energies_scores_and_target_agree_and_are_those_of_the_data(model, data):
    at = data[:7]
    target = model.target()
    np.testing.assert_allclose(model.score_samples(at), -model.energy(at))
    log = jax.vmap(target.log_density)(jnp.asarray(at))
    np.testing.assert_allclose(model.energy(at), -log, rtol=1e-5, atol=1e-5)
    slope = jax.vmap(jax.grad(lambda x: -model.energy_(x)))(jnp.asarray(at))
    np.testing.assert_allclose(jax.vmap(target.score)(jnp.asarray(at)), slope, rtol=1e-4, atol=1e-4)
    expected = -sk.hyvarinen_score(target, data[:500]).mean()
    np.testing.assert_allclose(model.score(data[:500]), expected, rtol=1e-4)


@pytree
class Flat:
    """An energy without slope, with a weight so that it can be trained."""

    weight: jax.Array

    def __call__(self, x):
        return 0.0 * self.weight * jnp.sum(x)


def contrast(begin="buffer", *, slots=8, refresh=0.0):
    kernel, goal = fitted_kernel(sk.Langevin(0.1), 2, jnp.float32)
    zero = np.zeros((), np.float32)
    space, refresh = make_space(2), np.asarray(refresh, np.float32)
    return ChainContrast(kernel, zero, refresh, space, 1, begin, slots, goal)


def step(objective, buffer):
    gradient = eqx.filter_jit(lambda b, k: objective.gradient(k, Flat(jnp.ones(())), b, batch))
    batch = jnp.zeros((4, 2))
    chains = Chains(objective.kernel, jnp.zeros((), jnp.int32), buffer)
    chains = jax.tree.map(jnp.asarray, chains)
    return gradient, chains


def test_chains_go_back_to_the_slots_they_came_from():
    # Chains begin 100 apart and move by 0.1 a step: every slot keeps its own (FORMULAS §12, 4).
    places = 100.0 * jnp.arange(40.0)[:, None] * jnp.ones((1, 2))
    gradient, chains = step(contrast(slots=40), places)
    used = set()
    for key in jax.random.split(jax.random.key(1), 100):
        before = chains.buffer
        _, chains, _ = gradient(chains, key)
        moved = np.flatnonzero((np.asarray(chains.buffer) != np.asarray(before)).any(axis=1))
        assert len(moved) == 4
        used |= set(moved.tolist())
    assert used == set(range(40))
    # 100 batches of 4 among 40: some ten steps of 0.1 each, 25 of them would be 10 errors away.
    assert np.abs(np.asarray(chains.buffer) - np.asarray(places)).max() < 5


def test_a_part_of_the_chains_begins_anew():
    places = jnp.full((4000, 2), 1e3)
    gradient, chains = step(contrast(slots=4000, refresh=0.25), places)
    anew = 0
    for key in jax.random.split(jax.random.key(2), 200):
        chains = Chains(chains.kernel, chains.count, places)
        _, after, _ = gradient(chains, key)
        anew += int((np.asarray(after.buffer)[:, 0] < 500).sum())
    # 800 chains, each anew with chance 1/4: 200 with a standard deviation of 12.
    assert abs(anew - 200) < 5 * 12.3


def test_weights_change_and_nothing_is_compiled_again(data):
    def traces(epochs, seed):
        calls = Calls()
        net = Counting(EnergyMLP(jax.random.key(seed), 2, width=8, confinement=1.0), calls)
        sk.EnergyNetwork(net, **{**TINY, "epochs": epochs}).fit(data[:300])
        return calls.count

    assert traces(2, 0) == traces(8, 1)


@pytest.mark.parametrize("rate", [pytest.param(10.0, marks=pytest.mark.slow), 1e4])
def test_a_training_that_diverges_ends_and_leaves_nothing(data, rate):
    model = sk.EnergyNetwork(**{**TINY, "learning_rate": rate, "clip": None, "epochs": 30})
    with pytest.raises(TrainingError, match="learning_rate") as caught:
        model.fit(data[:500])
    row = caught.value.history[-1]
    assert {"energy_gap", "chain_spread", "acceptance", "gradient_norm"} <= set(row)
    assert not [name for name in vars(model) if name.endswith("_")]
    with pytest.raises(NotFittedError):
        model.target()


def row(**changed):
    usual = {"chain_spread": 1.0, "lost_chains": 0.0, "energy_gap": 0.0, "acceptance": 0.6}
    return {**usual, **changed}


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({"chain_spread": 80.0}, "80 times as wide"),
        ({"lost_chains": 0.9}, "90% of the chains"),
        ({"energy_gap": -5e3}, "no longer reach"),
        ({"acceptance": 1e-3}, "stand still"),
    ],
)
def test_each_way_to_go_astray_has_its_words(numbers, says):
    objective = contrast()
    assert objective.trouble([row()]) is None
    assert says in objective.trouble([row(), row(**numbers)])


def test_what_does_not_fit_is_refused(data):
    with pytest.raises(EstimatorError, match="one number"):
        sk.EnergyNetwork(sk.networks.MLP(jax.random.key(0), 2), **TINY).fit(data[:50])
    with pytest.raises(KernelError):
        sk.EnergyNetwork(kernel=sk.Gibbs(), **TINY).fit(data[:50])
    with pytest.raises(EstimatorError, match="same point"):
        sk.EnergyNetwork(**TINY).fit(np.ones((50, 2)))
    with pytest.raises(ValueError, match="begin"):
        sk.EnergyNetwork(begin="nowhere", **TINY).fit(data[:50])


def test_images_by_convolutions():
    images = np.random.default_rng(0).uniform(size=(60, 64))
    net = EnergyCNN(jax.random.key(0), (8, 8), confinement=1.0)
    settings = {**TINY, "epochs": 1, "kernel_steps": 1, "batch_size": 20}
    model = sk.EnergyNetwork(net, **settings).fit(images)
    assert model.energy(images).shape == (60,)


def test_save_and_load(model, data, tmp_path):
    model.save(tmp_path / "energy.npz")
    again = sk.EnergyNetwork.load(tmp_path / "energy.npz")
    np.testing.assert_array_equal(again.energy(data[:9]), model.energy(data[:9]))
    assert clone(again).get_params() == model.get_params()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pcd", "denoising"])
def test_it_is_an_estimator(method):
    results = check_estimator(sk.EnergyNetwork(method=method, kernel_steps=1, **TINY), on_skip=None)
    skipped = {r["check_name"] for r in results if r["status"] == "skipped"}
    assert skipped <= {"check_array_api_input"}  # needs SCIPY_ARRAY_API in the environment
