"""`compare`: the right order, paired errors, honest splits, common coordinates."""

import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from jax.scipy.special import logsumexp
from jax.tree_util import Partial
from matplotlib.figure import Figure
from numpyro.distributions import constraints

import samplekit as sk
from samplekit.core.errors import EstimatorError, TargetError
from samplekit.estimators import families
from samplekit.estimators.comparison import Comparison, _forward, _shuffled, compare
from samplekit.estimators.hyvarinen import hyvarinen_score


def normal(mean, sd):
    return sk.targets.gaussian([mean], sd**2)


@pytest.fixture(scope="module")
def gamma_rows():
    return np.random.default_rng(1).gamma(2.0, 0.5, size=(1500, 1))


@pytest.fixture(scope="module")
def by_folds(gamma_rows):
    models = {"lognormal": families.lognormal(), "gamma": families.gamma()}
    return compare(models, gamma_rows)


def test_targets_are_judged_as_given():
    x = np.random.default_rng(0).normal(0.3, 1.0, size=(400, 1))
    models = {"far": normal(1.0, 1.0), "near": normal(0.25, 1.0), "wide": normal(0.3, 2.0)}
    result = compare(models, x)
    assert isinstance(result, Comparison)
    assert list(result.table.index) == sorted(models, key=result.scores.mean().get)
    assert result.best == "near"
    for name, target in models.items():
        np.testing.assert_array_equal(result.scores[name], hyvarinen_score(target, x))
    far, near = result.scores["far"], result.scores["near"]
    line = result.table.loc["far"]
    assert np.isclose(line["score"], far.mean())
    assert np.isclose(line["score_error"], far.std(ddof=1) / 20)
    assert np.isclose(line["difference"], (far - near).mean())
    # Paired: the difference is linear in x, its spread is |1 − 0.25| times that of x.
    assert np.isclose(line["difference_error"], 0.75 * x.std(ddof=1) / 20)
    assert list(result.table.loc["near", ["difference", "difference_error"]]) == [0.0, 0.0]
    assert set(result.table["judged"]) == {"as given"}


def test_expected_difference_is_half_the_fisher_divergence():
    x = np.random.default_rng(2).normal(size=(20_000, 1))
    result = compare({"true": normal(0.0, 1.0), "off": normal(0.5, 1.0)}, x)
    line = result.table.loc["off"]
    # ½ E‖∇ log p − ∇ log q‖² = 0.5²/2; five standard errors of a mean of independent rows
    assert abs(line["difference"] - 0.125) < 5 * line["difference_error"]
    assert line["difference_error"] < 0.01


def test_cross_validation_finds_the_family(by_folds):
    assert by_folds.best == "gamma"
    line = by_folds.table.loc["lognormal"]
    assert line["difference"] > 3 * line["difference_error"] > 0
    assert set(by_folds.table["judged"]) == {"5 folds"}


def test_rows_are_judged_by_fits_to_other_rows(gamma_rows, by_folds):
    for train, test in _shuffled(len(gamma_rows), 5, 0):
        fit = families.gamma().fit(gamma_rows[train])
        expected = hyvarinen_score(fit, gamma_rows[test])
        np.testing.assert_allclose(by_folds.scores["gamma"].to_numpy()[test], expected, rtol=1e-9)


def test_splits():
    parts = list(_shuffled(23, 4, 0))
    assert np.array_equal(np.sort(np.concatenate([t for _, t in parts])), np.arange(23))
    for train, test in parts:
        assert not set(train) & set(test)
        assert len(train) + len(test) == 23
    for train, test in _forward(103, None):
        assert train[-1] + 1 == test[0]
        assert np.array_equal(test, np.arange(test[0], test[-1] + 1))
    assert [len(t) for _, t in _forward(10, 3)] == [1] * 7


def test_prequential_fits_see_the_past_only(gamma_rows):
    x = gamma_rows[:200]
    result = compare(
        {"gamma": families.gamma(), "fixed": families.gamma().fit(x)}, x, prequential=True, start=80
    )
    assert result.prequential
    assert list(result.scores.index) == list(range(80, 200))
    first = next(_forward(200, 80))[1]
    expected = hyvarinen_score(families.gamma().fit(x[:80]), x[first])
    np.testing.assert_allclose(result.scores["gamma"].loc[first], expected, rtol=1e-9)
    assert dict(result.table["judged"]) == {"gamma": "forecast", "fixed": "as given"}


def test_common_coordinates_are_those_of_the_narrowest_support(gamma_rows):
    x = gamma_rows[:100]
    models = {"gamma": families.gamma().fit(x), "normal": normal(1.0, 1.0)}
    result = compare(models, x)
    expected = hyvarinen_score(models["normal"], x, domain="positive")
    np.testing.assert_array_equal(result.scores["normal"], expected)
    weighted = compare(models, x, weight=jnp.square)  # the same but for a constant
    for name in models:
        np.testing.assert_allclose(weighted.scores[name] + 0.5, result.scores[name], rtol=1e-9)
    # A unit is no model: the same differences for grams and kilograms.
    grams = compare({"gamma": families.gamma(), "lognormal": families.lognormal()}, 1000 * x)
    kilos = compare({"gamma": families.gamma(), "lognormal": families.lognormal()}, x)
    pd.testing.assert_frame_equal(grams.table, kilos.table, rtol=1e-6)


def flat_prior(rows):
    """Return the predictive density of N(μ, 1) under the improper prior dμ: N(x̄, 1 + 1/n)."""
    return normal(rows.mean(), np.sqrt(1 + 1 / len(rows)))


def test_improper_priors_do_no_harm():
    """The prequential score of a Bayesian with a flat prior, against its closed form."""
    x = np.random.default_rng(3).normal(0.7, 1.0, size=(60, 1))
    result = compare({"flat": flat_prior, "zero": normal(0.0, 1.0)}, x, prequential=True, start=35)
    past = np.array([x[:t].mean() for t in range(35, 60)])
    precision = 1 / (1 + 1 / np.arange(35, 60))
    expected = (precision * (x[35:, 0] - past)) ** 2 / 2 - precision
    np.testing.assert_allclose(result.scores["flat"], expected, rtol=1e-12)
    assert result.best == "flat"


def predictive(means, weight, y):
    """Return c·Σ_k p(y | μ_k), any c: posterior predictive from draws."""
    return weight + logsumexp(-((y - means.astype(y.dtype)) ** 2) / 2)


def test_predictive_from_draws_needs_no_evidence():
    draws = np.random.default_rng(4).normal(size=50)
    x = np.random.default_rng(5).normal(size=(30, 1))
    models = {str(c): sk.from_log_density(Partial(predictive, draws, c), 1) for c in (0.0, 1e3)}
    scores = compare(models, x).scores
    np.testing.assert_array_equal(scores["0.0"], scores["1000.0"])


def test_prints_and_plots(by_folds, gamma_rows):
    text = str(by_folds)
    assert "lower is better" in text
    assert "ahead of all others" in text
    assert repr(by_folds) == text
    assert "<table" in by_folds._repr_html_()
    settings = dict(mpl.rcParams)
    figure = by_folds.plot()
    assert isinstance(figure, Figure)
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["gamma", "lognormal"]
    models = {"<b>": normal(1.0, 1.0), "same": normal(1.0, 1.0)}
    close = compare(models, gamma_rows[:40], prequential=True)
    assert len(close.plot().axes) == 2
    assert "<b>" not in close._repr_html_()
    assert dict(mpl.rcParams) == settings


def test_near_models_are_named():
    x = np.random.default_rng(6).normal(size=(50, 1))
    result = compare({"a": normal(0.0, 1.0), "b": normal(0.01, 1.0)}, x)
    assert "within two standard errors" in str(result)
    assert "ahead" not in str(compare({"only": normal(0.0, 1.0)}, x))


def test_refusals(gamma_rows):
    from sklearn.neighbors import KernelDensity

    x = gamma_rows[:20]
    with pytest.raises(EstimatorError, match="dict of models"):
        compare([normal(0.0, 1.0)], x)
    with pytest.raises(EstimatorError, match="two or more rows"):
        compare({"a": normal(0.0, 1.0)}, [[1.0]])
    with pytest.raises(EstimatorError, match="folds=21"):
        compare({"a": families.gamma()}, x, folds=21)
    with pytest.raises(EstimatorError, match="start=20"):
        compare({"a": families.gamma()}, x, prequential=True, start=20)
    with pytest.raises(TargetError, match="KernelDensity has no target"):
        compare({"a": KernelDensity()}, x)
    positive = sk.from_log_density(lambda y: -y.sum(), 1, support=constraints.positive)
    with pytest.raises(EstimatorError, match=r"number 3.* outside"):
        compare({"a": positive}, np.where(np.arange(20)[:, None] == 3, -1.0, x))
