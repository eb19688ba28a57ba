"""Where the closed form equals maximum likelihood or the method of moments, to 1e-10."""

import numpy as np
import pytest

from samplekit.estimators import families
from samplekit.estimators.weights import distance
from tests.estimators.table import CASES

EXACT = 1e-10


def fit(name, seed, n=4000):
    family, params = CASES[name]
    rows = family.draw(seed, n, **params)
    return rows, family.fit(rows).params_


@pytest.mark.parametrize("name", ["gaussian-4", "graph"])
def test_gaussian_is_the_mle(name, seed):
    rows, params = fit(name, seed)
    np.testing.assert_allclose(params["mean"], rows.mean(axis=0), rtol=EXACT, atol=EXACT)
    covariance = np.cov(rows.T, bias=True)
    np.testing.assert_allclose(
        np.linalg.inv(params["precision"]), covariance, rtol=EXACT, atol=EXACT
    )


def test_gaussian_in_one_dimension_is_the_mle(seed):
    rows, params = fit("gaussian", seed)
    np.testing.assert_allclose(
        [params["mean"], params["sd"]], [rows.mean(), rows.std()], rtol=EXACT
    )


def test_exponential_is_the_mle(seed):
    rows, params = fit("exponential", seed)
    np.testing.assert_allclose(params["rate"], 1 / rows.mean(), rtol=EXACT)


def test_gamma_is_the_method_of_moments(seed):
    rows, params = fit("gamma-1.5", seed)
    np.testing.assert_allclose(params["rate"], rows.mean() / rows.var(), rtol=EXACT)
    np.testing.assert_allclose(params["shape"], rows.mean() ** 2 / rows.var(), rtol=EXACT)


def test_lognormal_is_the_mle(seed):
    rows, params = fit("lognormal", seed)
    logs = np.log(rows)
    np.testing.assert_allclose(params["log_mean"], logs.mean(), rtol=EXACT)
    np.testing.assert_allclose(params["log_sd"], logs.std(), rtol=EXACT)


@pytest.mark.parametrize("power", [1.0, 1.5, 3.0, 4.0])
def test_generalized_gaussian_is_the_mle(power, seed):
    rows, params = fit(f"power-{power:g}", seed)
    np.testing.assert_allclose(
        params["rate"], 1 / (power * (np.abs(rows) ** power).mean()), rtol=EXACT
    )


def test_a_zero_does_not_hurt_the_generalized_gaussian(seed):
    family = families.generalized_gaussian(1.5)
    rows = np.append(family.draw(seed, 99, rate=1.0), 0.0)[:, None]
    expected = 1 / (1.5 * (np.abs(rows) ** 1.5).mean())
    np.testing.assert_allclose(family.fit(rows).params_["rate"], expected, rtol=EXACT)


def test_pairwise_with_ones_is_the_truncated_gaussian(seed):
    """Two roads to the same estimate: the frame rescales the weight's cap, so it is given."""
    family, params = CASES["orthant"]
    rows = family.draw(seed, 3000, **params)
    one = families.truncated_gaussian(2, weight=distance(cap=3.0)).fit(rows)
    other = families.pairwise(1.0, 1.0, 2).fit(rows)
    np.testing.assert_allclose(one.theta_, other.theta_, rtol=1e-9)
    np.testing.assert_allclose(one.standard_errors_, other.standard_errors_, rtol=1e-8)


@pytest.mark.parametrize("sizes", [(1000.0, 1.0), (1e6, 1000.0), (0.0, 1e-6)])
def test_a_far_away_mean_costs_no_digits(sizes, seed):
    """Mean/sd = 10³ ruins uncentred sums in float32 (1.9e-2); centred float64 has no trouble."""
    mean, sd = sizes
    rows = np.random.default_rng(seed).normal(mean, sd, size=(5000, 2))
    params = families.gaussian().fit(rows).params_
    exact = np.linalg.inv(np.cov(rows.T, bias=True))
    np.testing.assert_allclose(params["precision"], exact, rtol=1e-9, atol=1e-9 * exact[0, 0])


def test_units_do_not_matter_to_truncated_families(seed):
    """The weight is in units of the data's spread: other units, the same fit."""
    rows = families.truncated_normal().draw(seed, 4000, location=-0.5, scale=1.0)
    one = families.truncated_normal().fit(rows)
    far = families.truncated_normal().fit(1e6 * rows)
    np.testing.assert_allclose(far.params_["location"], 1e6 * one.params_["location"], rtol=1e-8)
    np.testing.assert_allclose(
        far.params_errors_["scale"], 1e6 * one.params_errors_["scale"], rtol=1e-8
    )
    shifted = families.truncated_normal(1000.0).fit(1000.0 + rows)
    np.testing.assert_allclose(
        shifted.params_["location"], 1000.0 + one.params_["location"], rtol=1e-8
    )
