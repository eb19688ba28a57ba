"""Natural parameters linear in covariates: exact identities, the truths of the formula sheet."""

import pickle

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from samplekit.core.errors import EstimatorError
from samplekit.estimators import families
from samplekit.estimators.conditional import ConditionalFamily
from samplekit.estimators.exponential_family import ExponentialFamily
from samplekit.estimators.weights import distance
from tests.estimators.coverage import CONDITIONAL, draw_conditional


def make(name, **options):
    return ConditionalFamily(getattr(families, name)(), **options)


@pytest.mark.statistical
@pytest.mark.parametrize("name", CONDITIONAL)
def test_recovers_the_truth(name, seed):
    x, y = draw_conditional(name, seed, 20_000)
    fitted = make(name).fit(x, y)
    assert np.all(fitted.standard_errors_ < 0.15)  # the test can see something
    gap = (fitted.coefficients_ - CONDITIONAL[name]).ravel() / fitted.standard_errors_
    assert np.abs(gap).max() < 5
    expected = np.stack([np.ones(3), x[:3, 0]], axis=1) @ fitted.coefficients_.T
    np.testing.assert_allclose(fitted.natural_parameters(x[:3]), expected)


def test_constant_precision_is_linear_regression(seed):
    """The closed form is the least-squares fit and its residual variance."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(400, 3))
    y = x @ [1.0, -2.0, 0.5] + 3.0 + random.normal(0, 0.7, 400)
    fitted = make("gaussian", constant=("precision",)).fit(x, y)
    design = np.column_stack([np.ones(400), x])
    slopes, squares = np.linalg.lstsq(design, y)[:2]
    precision = 400 / squares[0]
    np.testing.assert_allclose(fitted.theta_, np.append(precision * slopes, precision), rtol=1e-9)
    assert fitted.statistic_names_[-2:] == ["precision·mean : x2", "precision"]
    np.testing.assert_allclose(fitted.params(x)["mean"], design @ slopes, rtol=1e-9)
    np.testing.assert_allclose(fitted.coefficients_[1, 1:], 0)


@pytest.mark.parametrize("name", ["gamma", "exponential", "lognormal"])
def test_without_covariates_it_is_the_family(name, seed):
    """A covariate that is always one: the same θ̂ and the same errors, weights included."""
    y = np.random.default_rng(seed).gamma(3.0, 1.0, 500)
    family = getattr(families, name)()
    alone = ConditionalFamily(family, intercept=False).fit(np.ones((500, 1)), y)
    plain = family.fit(y[:, None])
    np.testing.assert_allclose(alone.theta_, plain.theta_, rtol=1e-10)
    np.testing.assert_allclose(alone.standard_errors_, plain.standard_errors_, rtol=1e-8)
    np.testing.assert_allclose(
        alone.score(np.ones((500, 1)), y), plain.score(y[:, None]), rtol=1e-10
    )


def test_groups_are_fitted_apart(seed):
    """With an indicator for every group the fit is that of each group alone."""
    random = np.random.default_rng(seed)
    group = np.repeat([0, 1], [300, 500])
    y = random.dirichlet([1.0, 2.0, 3.0], 800)
    y[300:] = random.dirichlet([4.0, 1.0, 1.0], 500)
    fitted = ConditionalFamily(families.dirichlet(), intercept=False).fit(np.eye(2)[group], y)
    for i in range(2):
        alone = families.dirichlet().fit(y[group == i])
        np.testing.assert_allclose(fitted.coefficients_[:, i], alone.theta_, rtol=1e-9)


def test_own_statistics(seed):
    """The slope of exp(θ(x)·y − y⁴): the second derivative of y vanishes, so θ̂ is least squares."""
    random = np.random.default_rng(seed)
    x, y = random.normal(size=(2, 300))
    family = ExponentialFamily(lambda y: {"tilt": y[0]}, lambda y: -(y[0] ** 4))
    fitted = ConditionalFamily(family).fit(x[:, None], y)
    design = np.column_stack([np.ones(300), x])
    np.testing.assert_allclose(fitted.theta_, np.linalg.lstsq(design, 4 * y**3)[0], rtol=1e-9)
    assert fitted.statistic_names_ == ["tilt", "tilt : x0"]


def test_parts_names_and_copies(seed):
    x, y = draw_conditional("gamma", seed, 3000)
    frame = pd.DataFrame({"age": x[:, 0]})
    whole = make("gamma").fit(frame, y)
    assert list(whole.summary().index) == ["shape - 1", "shape - 1 : age", "rate", "rate : age"]
    parts = make("gamma")
    for rows in np.split(np.arange(3000), 3):
        parts.partial_fit(x[rows], y[rows])
    np.testing.assert_allclose(parts.theta_, whole.theta_, rtol=1e-10)
    np.testing.assert_allclose(parts.standard_errors_, whole.standard_errors_, rtol=1e-8)
    repeats = np.arange(3000) % 3
    weighted = make("gamma").fit(x, y, sample_weight=repeats)
    again = make("gamma").fit(np.repeat(x, repeats, axis=0), np.repeat(y, repeats))
    np.testing.assert_allclose(weighted.theta_, again.theta_, rtol=1e-10)
    copy = pickle.loads(pickle.dumps(whole))
    np.testing.assert_allclose(copy.standard_errors_, whole.standard_errors_)


def test_refusals(seed):
    x, y = draw_conditional("gamma", seed, 100)
    bad = y.copy()
    bad[7] = -1.0
    with pytest.raises(EstimatorError, match=r"1 row \(number 7\) outside the domain 'positive'"):
        make("gamma").fit(x, bad)
    x_bad = x.copy()
    x_bad[3] = np.nan
    with pytest.raises(EstimatorError, match=r"number 3\) with NaN"):
        make("gamma").fit(x_bad, y)
    with pytest.raises(EstimatorError, match="collinear"):
        make("gamma").fit(np.concatenate([x, x], axis=1), y)
    with pytest.raises(EstimatorError, match="They are: shape - 1, rate"):
        make("gamma", constant=("shape",)).fit(x, y)
    with pytest.raises(EstimatorError, match="needs the intercept"):
        make("gamma", constant=("rate",), intercept=False).fit(x, y)
    with pytest.raises(EstimatorError, match="partial_fit"):
        make("gamma").fit(iter([x]), y)
    with pytest.raises(ValueError, match="requires y"):
        make("gamma").fit(x)
    own = families.gamma(weight=distance(power=0.5))
    with pytest.raises(EstimatorError, match="fails silently"):
        ConditionalFamily(own).fit(x, y)
    with pytest.raises(EstimatorError, match="usual parameters"):
        ConditionalFamily(ExponentialFamily(lambda y: jnp.concatenate([y, -(y**2)]))).fit(
            x, y
        ).params(x)
    fitted = make("gamma").fit(x, y)
    with pytest.raises(EstimatorError, match="and 1 before"):
        fitted.partial_fit(x, np.stack([y, y], axis=1))
