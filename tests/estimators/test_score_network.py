"""`ScoreNetwork`: against exact scores, as a target, as an estimator, and on data it cannot do."""

import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import samplekit as sk
from samplekit.core.errors import DataWarning, EstimatorError, StoreError, TrainingError
from samplekit.core.pytree import pytree
from samplekit.networks import MLP, EnergyMLP
from tests.estimators.learned import (
    Calls,
    Counting,
    excess,
    grid_moments,
    mixture,
    noisy,
    own_error,
    rows,
)

SIGMA = 0.3
QUIET = {"random_state": 0, "progress": False}
TINY = {**QUIET, "epochs": 2}


def network(method="denoising", **settings):
    return sk.ScoreNetwork(method, **{"sigma": SIGMA, **QUIET, **settings})


@pytest.fixture(scope="module")
def data():
    return rows()


@pytest.fixture(scope="module")
def denoising(data):
    return network().fit(data)


@pytest.fixture(scope="module")
def conservative(data):
    return network(conservative=True, epochs=40).fit(data)


def noise_of(model, data):
    """Return the noise in the units of the data: `sigma` standard deviations of each column."""
    return SIGMA * data.std(axis=0) if model.method == "denoising" else 0.0


def check_against_exact(model, data):
    noise = noise_of(model, data)
    exact, fresh = mixture(noise), noisy(rows(seed=1), noise)
    bound = own_error(exact, fresh)
    assert bound < 0.03 * 0.5 * np.sum(np.square(jax.vmap(exact.score)(fresh)), axis=1).mean()
    assert excess(model.target(), exact, fresh) < bound


def test_denoising_finds_the_score_of_data_plus_noise(denoising, data):
    check_against_exact(denoising, data)
    # It is not that of the data themselves.
    fresh = rows(seed=1)
    assert excess(denoising.target(), mixture(), fresh) > 2 * own_error(mixture(), fresh)


def test_conservative_finds_it_as_well(conservative, data):
    check_against_exact(conservative, data)


def test_sliced_finds_the_score_of_the_data(data):
    check_against_exact(network("sliced").fit(data), data)


@pytest.mark.slow
@pytest.mark.parametrize("conservative", [False, True])
@pytest.mark.parametrize("method", ["denoising", "sliced", "implicit"])
def test_every_method_approaches_the_exact_score(data, method, conservative):
    check_against_exact(network(method, conservative=conservative).fit(data), data)


def test_scores_are_those_of_the_data_in_their_units(data):
    model = network(epochs=2).fit(data * np.float32(1000) + np.float32(5))
    plain = network(epochs=2).fit(data)
    ours = model.stein_score(data * np.float32(1000) + np.float32(5))
    # Standardizing 1000·x + 5 in float32 leaves about 1e-4 of a standard deviation.
    np.testing.assert_allclose(1000 * ours, plain.stein_score(data), rtol=0.02, atol=0.02)


def test_denoise_is_the_posterior_mean(denoising, data):
    noise = noise_of(denoising, data)
    exact, at = mixture(noise), noisy(rows(1000, seed=2), noise)
    expected = at + noise**2 * np.asarray(jax.vmap(exact.score)(at))
    off = np.square(denoising.denoise(at) - expected).sum(axis=1).mean()
    moved = np.square(expected - at).sum(axis=1).mean()
    # Half its mean square is the excess loss over σ⁴, and the noise has the wider column's scale.
    assert off < 2 * own_error(exact, rows(seed=1)) * noise.max() ** 4
    assert off < 0.05 * moved


def test_denoise_needs_noise(data):
    model = sk.ScoreNetwork("sliced", **TINY).fit(data[:200])
    with pytest.raises(EstimatorError, match="no noise to remove"):
        model.denoise(data)


def test_a_conservative_score_does_no_work_and_another_does(conservative, denoising, data):
    still = sk.closed_loop_work(conservative.target(), data[:1500])
    # A sum of some ten terms of size `edge` in float32, and the quadrature's own error.
    assert still.work < 20 * np.finfo(np.float32).eps * still.edge + 3 * still.quadrature_error
    turning = sk.closed_loop_work(denoising.target(), data[:1500])
    assert turning.work > 10 * still.work


@pytest.mark.statistical
def test_metropolis_is_exact_on_a_conservative_score(conservative):
    target = conservative.target()
    mean, square = grid_moments(target)
    run = sk.sample(target, sk.MALA(), chains=16, draws=2000, warmup=500, progress=False)
    x = run["posterior"]["x"].values
    sk.testing.assert_mean(x, mean, resolves=0.25)
    sk.testing.assert_mean(x**2, square, resolves=0.4)


@pytest.mark.statistical
def test_score_mala_on_a_learned_score(denoising, data):
    target = denoising.target()
    run = sk.sample(target, sk.ScoreMALA(), chains=16, draws=2000, warmup=500, progress=False)
    assert 0.5 < float(run["sample_stats"]["acceptance_rate"].mean()) < 0.95
    exact = mixture(noise_of(denoising, data))
    # The score is learned: its density differs from the exact one by more than Monte Carlo error.
    assert np.abs(run["posterior"]["x"].values.mean((0, 1)) - exact.mean).max() < 0.2
    assert sk.closed_loop_work(target, run).relative < 0.1


@pytest.mark.statistical
def test_a_learned_prior_times_a_fitted_family(conservative, denoising, data):
    """Targets compose: exact by Metropolis where there is a density, near by the score."""
    seen = np.random.default_rng(5).normal([0.5, -0.5], 0.8, (2000, 2))
    energy = sk.families.gaussian_graphical_model().fit(seen).target()
    settings = {"chains": 16, "draws": 2000, "warmup": 500, "progress": False}
    truth, _ = grid_moments(sk.product(mixture(noise_of(denoising, data)), energy))
    posterior = sk.product(conservative.target(), energy)
    mean, square = grid_moments(posterior)
    x = sk.sample(posterior, sk.MALA(), **settings)["posterior"]["x"].values
    sk.testing.assert_mean(x, mean, resolves=0.25)
    sk.testing.assert_mean(x**2, square, resolves=0.4)
    posterior = sk.product(denoising.target(), energy)
    other = sk.sample(posterior, sk.ScoreMALA(), **settings)["posterior"]["x"].values
    # Learned: as in the test above, a fifth of the prior's width and no better.
    for found in (x, other):
        assert np.abs(found.mean((0, 1)) - truth).max() < 0.2
    prior = grid_moments(mixture(noise_of(denoising, data)))[0]
    assert np.abs(prior - truth).max() > 0.4  # the family has its say


def test_a_score_alone_is_refused_by_metropolis(denoising):
    with pytest.raises(sk.errors.SamplekitError, match="ScoreMALA"):
        sk.sample(denoising.target(), sk.MALA(), draws=5, warmup=5, progress=False)


def test_training_again_with_other_numbers_traces_nothing(data):
    def traces(**settings):
        calls = Calls()
        net = Counting(MLP(jax.random.key(0), 2, width=8), calls)
        sk.ScoreNetwork(network=net, **{**TINY, **settings}).fit(data[:300])
        return calls.count

    # Whatever the number of epochs, the network is gone through as often.
    assert traces(epochs=2) == traces(epochs=9)


def line(count=500):
    t = np.random.default_rng(0).normal(size=count)
    return np.stack([t, 2 * t + 1], axis=1)


def circle(width, count=1500):
    random = np.random.default_rng(0)
    angle = random.uniform(0, 2 * np.pi, count)
    return np.stack([np.cos(angle), np.sin(angle)], 1) + width * random.normal(size=(count, 2))


@pytest.mark.parametrize("method", ["sliced", "implicit"])
@pytest.mark.parametrize("shape", [line(), circle(0.0)], ids=["line", "circle"])
def test_a_thin_manifold_is_said(method, shape):
    with pytest.warns(DataWarning, match=r"thin manifold.*method='denoising'"):
        sk.ScoreNetwork(method, **TINY).fit(shape)


def test_nothing_is_said_of_a_ring_with_width_nor_of_denoising_on_a_line():
    sk.ScoreNetwork("sliced", **TINY).fit(circle(0.05))
    sk.ScoreNetwork(**TINY).fit(line())


def test_repeated_rows_are_said():
    data = np.random.default_rng(0).integers(0, 3, (300, 2)).astype(float)
    with pytest.warns(DataWarning, match="occur more than once"):
        sk.ScoreNetwork("implicit", **TINY).fit(data)


@pytree
class Narrowing:
    """The score of N(0, diag(1, 1/w)): on data without width there, w grows for ever."""

    w: jax.Array

    def __call__(self, x):
        return -x * jnp.stack([jnp.ones_like(self.w), self.w])


def test_a_loss_without_floor_ends_the_training():
    settings = {**QUIET, "learning_rate": 1e3, "clip": None, "average": 0.0, "epochs": 200}
    model = sk.ScoreNetwork("implicit", network=Narrowing(jnp.ones(())), **settings)
    flat = np.stack([np.random.default_rng(0).normal(size=500), np.zeros(500)], axis=1)
    with (
        pytest.warns(DataWarning, match="thin manifold"),
        pytest.raises(TrainingError, match="no floor") as caught,
    ):
        model.fit(flat)
    assert caught.value.history[-1]["loss"] < -1e5


@pytest.mark.parametrize("rate", [10.0, 1e4])
def test_a_training_that_diverges_ends_and_leaves_nothing(data, rate):
    model = sk.ScoreNetwork(**{**QUIET, "learning_rate": rate, "clip": None, "epochs": 30})
    with pytest.raises(TrainingError, match="learning_rate") as caught:
        model.fit(data[:1000])
    assert caught.value.history
    assert not [name for name in vars(model) if name.endswith("_")]
    with pytest.raises(NotFittedError):
        model.target()


def test_data_that_cannot_be_learned_are_refused():
    with pytest.raises(EstimatorError, match="same point"):
        sk.ScoreNetwork(**TINY).fit(np.ones((50, 2)))
    column = np.stack([np.random.default_rng(0).normal(size=50), np.ones(50)], axis=1)
    assert np.isfinite(sk.ScoreNetwork(**TINY).fit(column).stein_score(column)).all()
    with pytest.warns(DataWarning, match="by heart"):
        sk.ScoreNetwork(sigma=1e-5, **TINY).fit(np.random.default_rng(0).normal(size=(50, 2)))


@pytest.mark.parametrize(
    ("net", "says"),
    [
        (MLP(jax.random.key(0), 2, 1), r"shape \(1,\).*shaped as the row"),
        (MLP(jax.random.key(0), 3), "fails on one row of 2 numbers"),
        (np.sin, "no weights"),
    ],
)
def test_networks_that_do_not_fit_are_refused(net, says):
    with pytest.raises(EstimatorError, match=says):
        sk.ScoreNetwork(network=net, **TINY).fit(rows(50))


def test_an_energy_is_one_number():
    net = MLP(jax.random.key(0), 2)
    with pytest.raises(EstimatorError, match="an energy is one number"):
        sk.ScoreNetwork(network=net, conservative=True, **TINY).fit(rows(50))


def test_save_and_load_without_pickle(denoising, data, tmp_path):
    path = tmp_path / "score.npz"
    denoising.save(path)
    assert all(
        b"pickle" not in zipfile.ZipFile(path).read(n) for n in zipfile.ZipFile(path).namelist()
    )
    again = sk.ScoreNetwork.load(path)
    np.testing.assert_array_equal(again.stein_score(data[:9]), denoising.stein_score(data[:9]))
    assert again.get_params() == denoising.get_params()
    assert again.history_.equals(denoising.history_)
    with pytest.raises(StoreError, match="other layers"):
        sk.ScoreNetwork.load(path, network=MLP(jax.random.key(0), 2, width=5))
    with pytest.raises(StoreError, match=r"sk\.ScoreNetwork\.load"):
        sk.EnergyNetwork.load(path)
    path.write_bytes(b"no archive")
    with pytest.raises(StoreError, match="not a saved network"):
        sk.ScoreNetwork.load(path)


def test_save_and_load_a_network_of_ones_own(data, tmp_path):
    net = EnergyMLP(jax.random.key(3), 2, width=8)
    model = sk.ScoreNetwork(network=net, conservative=True, **TINY).fit(data[:200])
    model.save(tmp_path / "energy.npz")
    other = EnergyMLP(jax.random.key(4), 2, width=8)
    again = sk.ScoreNetwork.load(tmp_path / "energy.npz", network=other)
    np.testing.assert_array_equal(again.stein_score(data[:9]), model.stein_score(data[:9]))
    with pytest.raises(NotFittedError):
        sk.ScoreNetwork().save(tmp_path / "nothing.npz")


def test_pipelines_clones_and_parameters(data):
    model = sk.ScoreNetwork("sliced", **TINY)
    pipe = make_pipeline(StandardScaler(), model).fit(data[:300])
    assert np.isfinite(pipe.score(data[:300]))
    assert clone(model).set_params(probes=3).get_params()["probes"] == 3
    # The same seed gives the same weights.
    a, b = (clone(model).fit(data[:300]).stein_score(data[:5]) for _ in range(2))
    np.testing.assert_array_equal(a, b)


def test_score_is_minus_the_hyvarinen_score(denoising, data):
    expected = -sk.hyvarinen_score(denoising.target(), data[:500]).mean()
    np.testing.assert_allclose(denoising.score(data[:500]), expected, rtol=1e-4)


def test_rows_set_aside_stop_the_training(data):
    settings = {**QUIET, "epochs": 40, "validation_fraction": 0.2, "patience": 2}
    model = sk.ScoreNetwork(**settings, learning_rate=0.03, schedule="constant").fit(data[:500])
    assert model.n_iter_ < 40
    assert "held_out" in model.history_


@pytest.mark.slow
def test_it_is_an_estimator():
    results = check_estimator(sk.ScoreNetwork(**TINY), on_skip=None)
    skipped = {r["check_name"] for r in results if r["status"] == "skipped"}
    assert skipped <= {"check_array_api_input"}  # needs SCIPY_ARRAY_API in the environment
