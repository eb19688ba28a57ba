"""Boltzmann machines as estimators: planted machines, chains, units, refusals, scikit-learn."""

import os
import pickle
import signal
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import samplekit as sk
from samplekit.core.errors import DataWarning, EstimatorError, ResumeError, TrainingError
from samplekit.core.pytree import pytree
from samplekit.estimators.rbm_objectives import Contrastive, Fisher
from samplekit.targets.boltzmann import GaussBernoulli
from samplekit.training import epochs

QUIET = {"progress": False, "random_state": 0}


def real_rows(count=300, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 4)) @ np.diag([0.5, 1.0, 1.5, 1.0])


def binary_rows(count=300, seed=0):
    random = np.random.default_rng(seed)
    group = random.random((count, 1)) < 0.4
    return (random.random((count, 6)) < np.where(group, 0.85, 0.2)).astype(float)


def gauss(**settings):
    return sk.GaussBernoulliRBM(3, **{"epochs": 2, **QUIET, **settings})


def bernoulli(**settings):
    return sk.BernoulliRBM(3, **{"epochs": 2, **QUIET, **settings})


@pytest.fixture(scope="module")
def fitted():
    return gauss().fit(real_rows())


@pytest.fixture(scope="module")
def binary():
    return bernoulli().fit(binary_rows())


# A planted machine --------------------------------------------------------------------------------


def planted(count, seed=0):
    """Return a machine of 16 × 10 units and exact rows of it, by its 2¹⁰ hidden states."""
    random = np.random.default_rng(7)
    weights, c = 0.5 * random.normal(size=(10, 16)), random.normal(size=16)
    b = -weights @ c - weights @ weights.sum(axis=0) / 2  # every unit is on half of the time
    machine = GaussBernoulli.of(*(jnp.asarray(p, jnp.float32) for p in (weights, b, c, 0 * c)))
    states = (np.arange(1024)[:, None] >> np.arange(10) & 1).astype(float)
    log_w = states @ b + ((states @ weights + c) ** 2).sum(axis=1) / 2
    random = np.random.default_rng(seed)
    h = states[random.choice(1024, count, p=np.exp(log_w - logsumexp(log_w)))]
    return machine, c + h @ weights + random.normal(size=(count, 16))


def as_fitted(machine):
    """Return an estimator that holds a machine."""
    model = sk.GaussBernoulliRBM(machine.weights.shape[0], **QUIET)
    model.machine_, model.n_features_in_ = machine, machine.weights.shape[1]
    return model


@pytest.mark.statistical
def test_fisher_training_recovers_a_planted_density():
    machine, rows = planted(22_000)
    train, test = rows[:20_000], rows[20_000:]
    model = sk.GaussBernoulliRBM(
        10, epochs=60, batch_size=200, learning_rate=0.03, schedule="cosine", **QUIET
    ).fit(train)
    truth = as_fitted(machine).log_likelihood(test)
    lost = (truth - model.log_likelihood(test)).mean()
    # 186 parameters and 20,000 rows cost a maximum of likelihood 186/40,000 = 0.005 nats; score
    # matching is allowed five times that. Independent Gaussians lose 1.8.
    alone = -((test - train.mean(0)) ** 2 / train.var(0) + np.log(2 * np.pi * train.var(0))) / 2
    assert lost < 0.025
    assert (truth - alone.sum(axis=1)).mean() > 1
    # The held-out Fisher score, too, is the true machine's.
    assert abs(model.score(test) - as_fitted(machine).score(test)) < 0.05


@pytest.mark.statistical
@pytest.mark.slow
@pytest.mark.parametrize("method", ["cd", "pcd"])
def test_contrastive_training_comes_near_a_planted_density(method):
    machine, rows = planted(22_000)
    settings = {"epochs": 60, "batch_size": 200, "learning_rate": 0.01, "schedule": "cosine"}
    model = sk.GaussBernoulliRBM(10, method=method, **settings, **QUIET).fit(rows[:20_000])
    lost = as_fitted(machine).log_likelihood(rows[20_000:]) - model.log_likelihood(rows[20_000:])
    assert lost.mean() < 0.3  # CD-1 is biased, PCD noisy; independent Gaussians lose 1.8


def test_learned_variances_are_found():
    rows = np.random.default_rng(0).normal(size=(5000, 3)) * np.asarray([0.3, 1.0, 4.0])
    settings = {"epochs": 30, "learning_rate": 0.02, "schedule": "linear", **QUIET}
    model = sk.GaussBernoulliRBM(1, variance="learned", standardize=True, **settings).fit(rows)
    # What the hidden unit explains is taken off the variance given it: little.
    np.testing.assert_allclose(model.variance_, rows.var(axis=0), rtol=0.1)


# Contrastive divergence ---------------------------------------------------------------------------


@pytree
class Still(GaussBernoulli):
    """Chains that stand still but for a mark that counts their sweeps."""

    def sweep(self, noise, v):
        del noise
        return v.at[-1].add(1.0)


def test_persistent_chains_return_to_their_slots():
    """FORMULAS.md §12, trap 4: every lineage lives on, each in its own slot."""
    machine = Still.of(jnp.ones((2, 3)), jnp.zeros(2), jnp.zeros(3), jnp.zeros(3))
    objective = Contrastive(True, 5, 40)
    data = jnp.stack([jnp.arange(50.0), jnp.zeros(50), jnp.zeros(50)], axis=1)
    key = jax.random.key(0)
    start = carry = objective.start(key, machine, data)
    assert start is not None
    assert len(np.unique(start[:, 0])) == 40
    for batch in range(31):
        here = jax.random.fold_in(key, batch)
        _, carry, _ = objective.gradient(here, machine, carry, data[:10])
    assert carry is not None
    np.testing.assert_array_equal(carry[:, 0], start[:, 0])
    np.testing.assert_array_equal(carry[:, -1], 31 * 5)


@pytest.mark.parametrize("kind", ["real", "binary"])
def test_the_gradient_is_data_against_chains(kind):
    """−∂/∂W of the mean log density is −⟨ρ vᵀ⟩, so the gap's gradient is chains minus data."""
    model = gauss().fit(real_rows()) if kind == "real" else bernoulli().fit(binary_rows())
    rows = real_rows() if kind == "real" else binary_rows()
    machine, batch = model.machine_, jnp.asarray(rows[:50], jnp.float32)
    objective = Contrastive(kind == "real", 1, 0)
    key = jax.random.key(3)
    gradient, carry, numbers = objective.gradient(key, machine, None, batch)
    noise = machine.noise(jax.random.split(key, 1)[0], 50)
    after = np.asarray(jax.vmap(machine.sweep)(noise, batch))
    before = np.asarray(batch)
    expected = (model.transform(after).T @ after - model.transform(before).T @ before) / 50
    # Unit variance: q = 1, so the real machine has the same form.
    np.testing.assert_allclose(gradient.weights, expected, atol=1e-5)
    assert carry is None
    assert "reconstruction" in numbers


def test_chains_that_run_away_stop_the_training():
    rows = [{"epoch": 1, "chain_spread": 3.0}], [{"epoch": 1, "chain_spread": 300.0}]
    objective = Contrastive(True, 1, 10)
    assert objective.trouble(rows[0]) is None
    assert "smaller learning_rate" in (objective.trouble(rows[1]) or "")


@pytest.mark.parametrize("make", [gauss, bernoulli])
@pytest.mark.parametrize("method", ["cd", "pcd"])
def test_methods_fit_and_keep_a_history(make, method):
    rows = real_rows() if make is gauss else binary_rows()
    model = make(method=method, gibbs_steps=2, validation_fraction=0.2, epochs=3).fit(rows)
    assert {"energy_gap", "held_out", "gradient_norm", "seconds"} <= set(model.history_.columns)
    assert len(model.history_) == model.n_iter_ == 3
    assert model.plot_history().axes


# Units and precision ------------------------------------------------------------------------------


@pytest.mark.parametrize("variance", ["unit", "learned"])
def test_standardize_is_the_same_machine_in_units_of_the_data(variance):
    rows = real_rows() * [100.0, 1.0, 0.01, 7.0] + [5.0, -1000.0, 0.0, 3.0]
    center, scale = rows.mean(axis=0), rows.std(axis=0)
    with jax.enable_x64():
        settings = {"variance": variance, "learning_rate": 0.05}
        raw = gauss(standardize=True, **settings).fit(rows)
        scaled = gauss(**settings).fit((rows - center) / scale)
        # log p(v) = log p'((v − center)/scale) − Σ log scale, exactly.
        expected = scaled.log_likelihood((rows - center) / scale) - np.log(scale).sum()
        np.testing.assert_allclose(raw.log_likelihood(rows), expected, rtol=1e-8)
        np.testing.assert_allclose(
            raw.transform(rows), scaled.transform((rows - center) / scale), rtol=1e-8
        )


def test_single_and_double_rows_give_the_same_machine(fitted):
    again = gauss().fit(real_rows().astype(np.float32))
    np.testing.assert_allclose(again.components_, fitted.components_, rtol=1e-4, atol=1e-6)
    assert fitted.transform(real_rows().astype(np.float32)).dtype == np.float32


# The surface --------------------------------------------------------------------------------------


def test_the_surface_of_a_fitted_machine(fitted, binary):
    for model, rows in ((fitted, real_rows()), (binary, binary_rows())):
        hidden = model.transform(rows)
        assert hidden.shape == (300, 3)
        assert ((hidden > 0) & (hidden < 1)).all()
        assert model.sample(7, gibbs_steps=20).shape == (7, rows.shape[1])
        np.testing.assert_array_equal(model.sample(7, 20), model.sample(7, 20))
        assert model.reconstruct(rows).shape == rows.shape
        exact, annealed = model.log_normalizer(), model.log_normalizer("ais", levels=200)
        assert exact.error == 0
        assert abs(annealed.value - exact.value) < 5 * annealed.error + 1e-4
        likelihood = model.log_likelihood(rows)
        np.testing.assert_allclose(likelihood, -model.free_energy(rows) - exact.value, rtol=1e-6)
        assert list(model.get_feature_names_out()) == [
            f"{type(model).__name__.lower()}{i}" for i in range(3)
        ]
    np.testing.assert_allclose(fitted.score_samples(real_rows()), -fitted.free_energy(real_rows()))
    assert set(np.unique(binary.sample(50, 5))) <= {0.0, 1.0}
    np.testing.assert_allclose(
        binary.score(binary_rows()), binary.score_samples(binary_rows()).mean(), rtol=1e-6
    )


def test_samples_are_of_the_machine():
    """Of 4,000 rows the means are those of the enumeration, within 5.5 errors."""
    machine, _ = planted(10)
    draws = as_fitted(machine).sample(4000, gibbs_steps=300)
    mean, covariance = machine.moments()
    z = (draws.mean(axis=0) - mean) / np.sqrt(np.diag(covariance) / 4000)
    assert np.abs(z).max() < 5.5


def test_targets_go_to_every_door(fitted):
    run = sk.sample(fitted.target(), sk.MALA(0.5), draws=20, warmup=0, chains=2, progress=False)
    assert run["posterior"]["x"].shape == (2, 20, 4)


@pytest.mark.parametrize("make", [gauss, bernoulli])
def test_pickle_and_clone(make):
    rows = real_rows() if make is gauss else binary_rows()
    model = make().fit(rows)
    back = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(back.transform(rows), model.transform(rows))
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        copy.transform(rows)


def test_a_pipeline_of_machines_is_a_deep_belief_net():
    rows = real_rows()
    net = make_pipeline(gauss(), sk.BernoulliRBM(2, epochs=2, **QUIET)).fit(rows)
    top = net.transform(rows)
    assert top.shape == (300, 2)
    np.testing.assert_array_equal(top, net[1].transform(net[0].transform(rows)))


def test_checkpoints_continue_a_fit(tmp_path):
    path = tmp_path / "machine.npz"
    settings = {"method": "pcd", "checkpoint": path}
    gauss(epochs=2, **settings).fit(real_rows())
    on = gauss(epochs=4, **settings).fit(real_rows())
    straight = gauss(epochs=4, method="pcd").fit(real_rows())
    np.testing.assert_array_equal(on.components_, straight.components_)
    assert len(on.history_) == 4
    with pytest.raises(ResumeError, match="objective"):
        gauss(epochs=4, method="fisher", checkpoint=path).fit(real_rows())


def test_ctrl_c_keeps_what_was_learned_and_warns(monkeypatch):
    def press(self, rows):
        if len(rows) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Fisher, "trouble", press)
    monkeypatch.setattr(epochs, "SHORT", 0.0)  # a short third one would have begun
    # A test that runs in the background of a shell does not hear of Ctrl-C otherwise.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.warns(UserWarning, match="after 2 of 50 epochs"):
            model = gauss(epochs=50).fit(real_rows())
    finally:
        signal.signal(signal.SIGINT, before)
    np.testing.assert_array_equal(model.components_, gauss(epochs=2).fit(real_rows()).components_)


# scikit-learn -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("make", [gauss, bernoulli])
def test_the_contract_of_scikit_learn(make):
    model = make() if make is gauss else make(binarize=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows of the checks are constant, binary, unscaled
        results = check_estimator(model, on_fail=None)
    failed = {r["check_name"]: r["status"] for r in results if r["status"] != "passed"}
    # This one needs SCIPY_ARRAY_API in the environment before scipy is imported.
    assert failed == {"check_array_api_input": "skipped"}
    assert len(results) > 40


# Bad input ----------------------------------------------------------------------------------------


def constant(rows):
    rows = rows.copy()
    rows[:, 1] = 1.0
    return rows


def with_nan(rows):
    rows = rows.copy()
    rows[3, 2] = np.nan
    return rows


REFUSED = {
    "NaN": (gauss, {}, with_nan(real_rows()), "NaN"),
    "no hidden unit": (gauss, {"n_components": 0}, real_rows(), "n_components"),
    "half a hidden unit": (gauss, {"n_components": 2.5}, real_rows(), "n_components"),
    "unknown method": (gauss, {"method": "mle"}, real_rows(), "method"),
    "constant, learned": (gauss, {"variance": "learned"}, constant(real_rows()), "Column 1 is"),
    "one row": (gauss, {}, real_rows()[:1], "minimum of 2"),
    "words": (gauss, {}, np.asarray([["a", "b"], ["c", "d"]]), "convert"),
    "patience alone": (gauss, {"patience": 3}, real_rows(), "validation_fraction=0.1"),
    "too little held out": (
        gauss, {"validation_fraction": 0.1}, real_rows()[:4], "validation_fraction=0.1 of 4 rows",
    ),
    "real for binary": (bernoulli, {}, real_rows(), "binarize=0.0"),
    "real for binary, named": (bernoulli, {}, real_rows(), "GaussBernoulliRBM"),
    "fisher for binary": (bernoulli, {"method": "fisher"}, binary_rows(), "method"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_with_nothing_half_trained(case):
    make, settings, rows, match = REFUSED[case]
    model = make().set_params(**settings)
    before = dict(vars(model))
    with pytest.raises(ValueError, match=match):
        model.fit(rows)
    assert vars(model) == before


def test_a_failed_fit_leaves_the_last_one(fitted):
    model = gauss().fit(real_rows())
    model.set_params(learning_rate=1e30, optimizer="sgd", epochs=5)
    with pytest.raises(TrainingError, match="smaller learning_rate") as e:
        model.fit(real_rows(seed=1)[:, :3])
    assert e.value.history
    np.testing.assert_array_equal(model.components_, fitted.components_)
    assert model.n_features_in_ == 4
    fresh = gauss(learning_rate=1e30, optimizer="sgd")
    with pytest.raises(TrainingError):
        fresh.fit(real_rows())
    with pytest.raises(NotFittedError):
        fresh.transform(real_rows())


def test_findings_about_the_data():
    with pytest.warns(DataWarning, match=r"0.05 to 0.15.*standardize=True"):
        gauss().fit(0.1 * real_rows() / real_rows().std(axis=0) * [0.5, 1.0, 1.5, 1.0])
    with pytest.warns(DataWarning, match="standardize=True"):
        gauss().fit(1000 * real_rows())
    with pytest.warns(DataWarning, match="BernoulliRBM"):
        gauss().fit(binary_rows())
    with pytest.warns(DataWarning, match="BernoulliRBM"):
        gauss(standardize=True).fit(binary_rows())
    with pytest.warns(DataWarning, match="Column 1 is constant"):
        gauss().fit(constant(real_rows()))
    with pytest.warns(DataWarning, match="Column 1 is constant"):
        bernoulli().fit(constant(binary_rows()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gauss(standardize=True).fit(1000 * real_rows())


def test_too_many_units_for_the_exact_sum_are_told_of_annealing():
    model = sk.GaussBernoulliRBM(26, epochs=1, **QUIET).fit(real_rows())
    with pytest.raises(EstimatorError, match=r"2\^26.*method='ais'"):
        model.log_normalizer("exact")
    assert np.isfinite(model.log_likelihood(real_rows())).all()  # by "ais" of itself
    with pytest.raises(EstimatorError, match="'exact' or 'ais'"):
        model.log_normalizer("laplace")
    with pytest.raises(EstimatorError, match="at least 1"):
        model.sample(0)


def test_other_columns_at_transform_are_refused(fitted):
    with pytest.raises(ValueError, match="features"):
        fitted.transform(real_rows()[:, :2])
