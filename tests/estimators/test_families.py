"""Every named family: names, both forms of its parameters, draws, normaliser, target."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import dblquad

import samplekit as sk
from samplekit.core.errors import EstimatorError
from samplekit.estimators import draws, families
from samplekit.estimators.domains import as_domain
from samplekit.estimators.moments import estimate
from tests.estimators.table import AXES, CASES, PAIR, PRECISION


def draw(name, seed, n):
    family, params = CASES[name]
    rows = family.draw(seed, n, **params)
    return family, as_domain(family.family.domain).check(rows, 0), family.natural(**params)


@pytest.mark.parametrize("name", CASES)
def test_every_constructor_is_in_the_table(name):
    assert CASES[name].family.family.name in families.__all__


def test_every_family_is_tested():
    tested = {case.family.family.name for case in CASES.values()}
    assert tested == {n for n in families.__all__ if n[0].islower()}


@pytest.mark.parametrize("name", CASES)
def test_usual_and_natural_forms_agree(name):
    family, params = CASES[name]
    theta = family.natural(**params)
    dim = family.draw(0, 1, **params).shape[1]
    assert len(family.family.names(dim)) == len(theta)
    with jax.enable_x64(True):
        usual = {n: np.asarray(v) for n, v in family.family.usual(jnp.asarray(theta), dim).items()}
    np.testing.assert_allclose(family.natural(**usual), theta, rtol=1e-12, atol=1e-12)


@pytest.mark.statistical
@pytest.mark.parametrize("name", CASES)
def test_fit_recovers_the_truth_of_exact_draws(name, seed):
    """Draws and fit check each other: all parameters within five standard errors."""
    family, rows, theta = draw(name, seed, 20_000)
    model = family._setup(rows.shape[1]).model
    with jax.enable_x64(True):
        found, covariance = map(np.asarray, jax.jit(estimate)(model, rows))
    errors = np.sqrt(np.diag(covariance))
    assert np.all(errors < 0.2 * (1 + np.abs(theta)))  # the test can see something
    assert np.abs((found - theta) / errors).max() < 5


REFERENCES = {
    "gaussian": stats.norm(1.3, 0.7),
    "exponential": stats.expon(scale=0.5),
    "gamma-3": stats.gamma(3.0, scale=0.5),
    "inverse-gamma": stats.invgamma(3.0, scale=2.0),
    "lognormal": stats.lognorm(0.6, scale=np.exp(0.4)),
    "half-line": stats.truncnorm(0.5, np.inf, -0.5, 1.0),
    "interval": stats.truncnorm(-1.5, 1.5, 0.5, 1.0),
    "von-mises": stats.vonmises(2.5, loc=0.7),
    "fisher": stats.vonmises_fisher(np.array([1.0, 2.0, 2.0]) / 3, 4.0),
    "dirichlet": stats.dirichlet([0.4, 1.5, 3.0, 0.8]),
    "beta-small": stats.beta(0.5, 0.7),
    "power-1.5": stats.gennorm(1.5),
    "gaussian-4": stats.multivariate_normal([1.0, -2.0, 0.5, 0.0], np.linalg.inv(PRECISION)),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_log_normalizer(name, seed):
    family, rows, theta = draw(name, seed, 5)
    model = family._setup(rows.shape[1]).model
    with jax.enable_x64(True):
        values = np.array([theta @ model.statistics_of(y) + model.base_of(y) for y in rows])
    points = rows.T if name == "dirichlet" else rows if rows.shape[1] > 1 else rows[:, 0]
    expected = REFERENCES[name].logpdf(points)
    np.testing.assert_allclose(values - family.log_normalizer(theta), expected, rtol=1e-10)


def test_log_normalizer_of_the_quartic():
    integral = dblquad(lambda x, y: np.exp(-2 * (x**4 + y**4 + x**2 * y**2)), -4, 4, -4, 4)[0]
    np.testing.assert_allclose(
        families.quartic().log_normalizer([2.0]), np.log(integral), rtol=1e-7
    )


def test_delta_method(seed):
    """The gamma's mean is the sample mean: its standard error is sd/√n."""
    family, params = CASES["gamma-3"]
    rows = family.draw(seed, 5000, **params)
    fitted = family.fit(rows)
    np.testing.assert_allclose(fitted.params_["mean"], rows.mean(), rtol=1e-10)
    np.testing.assert_allclose(fitted.params_errors_["mean"], rows.std() / np.sqrt(5000), rtol=1e-8)
    table = fitted.summary()
    assert table.loc[("usual", "mean"), "standard_error"] == fitted.params_errors_["mean"]
    assert list(table.loc["natural"].index) == ["shape - 1", "rate"]


def test_draws_repeat_themselves_and_take_keys():
    family = families.gamma()
    one, two = (family.draw(3, 5, shape=2.0, rate=1.0) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    key = jax.random.key(3)
    np.testing.assert_array_equal(
        family.draw(key, 5, shape=2.0, rate=1.0), family.draw(key, 5, shape=2.0, rate=1.0)
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: families.gaussian(2).draw(0, 5, mean=[0, 0], precision=-PAIR),
            "positive definite",
        ),
        (lambda: families.polynomial().draw(0, 5, linear=0, square=1, fourth=1), "integrated"),
        (lambda: families.truncated_normal(-np.inf), "infinite"),
        (lambda: families.generalized_gaussian(-1), "positive"),
        (lambda: families.pairwise(0.0, 1.0), "positive"),
        (lambda: families.bingham().log_normalizer(np.ones(5)), "no log normaliser"),
        (
            lambda: families.truncated_gaussian().draw(0, 1, location=[-9, -9], precision=9 * PAIR),
            "hopeless",
        ),
    ],
)
def test_refusals(make, words):
    with pytest.raises(EstimatorError, match=words):
        make()


@pytest.mark.parametrize("name", ["gaussian", "gamma-3", "dirichlet", "fisher", "von-mises"])
def test_target_has_the_fitted_slopes(name, seed):
    """The target's log density on its domain is θᵀs + a, Jacobian and radius apart."""
    family, rows, _ = draw(name, seed, 200)
    target = family.fit(rows).target()
    x = target.space.from_support(jnp.asarray(rows[0], jnp.float32))
    if name == "von-mises":
        x = jnp.stack([jnp.cos(rows[0]), jnp.sin(rows[0])]).astype(jnp.float32)
    _, log_jacobian = target.space.to_support(x)
    radius = 0.5 if name in ("fisher", "von-mises") else 0.0
    value = float(target.log_density(x)) - float(log_jacobian) + radius
    np.testing.assert_allclose(value, family.score_samples(rows[:1])[0], rtol=1e-4)


def test_sample_goes_on_by_chains_where_exact_draws_are_hopeless(seed, monkeypatch):
    family = families.truncated_gaussian().fit(draw("orthant", seed, 500)[1])
    assert family.sample(5, random_state=0).shape == (5, 2)
    monkeypatch.setattr(draws, "MAX_TRIES", 0)
    with pytest.raises(EstimatorError, match="hopeless"):
        family.draw(0, 5)
    monkeypatch.setattr(family, "_sample_by_chains", lambda n, random_state: (n, random_state))
    assert family.sample(5, random_state=0) == (5, 0)


@pytest.mark.slow
@pytest.mark.statistical
def test_sample_by_chains(seed):
    """Rows from our own kernels have the moments of exact draws, on the sphere."""
    family, rows, _ = draw("fisher-bingham", seed, 4000)
    fitted = family.fit(rows)
    chains = fitted._sample_by_chains(4000, random_state=1)
    exact = fitted.sample(20_000, random_state=2)
    np.testing.assert_allclose(np.linalg.norm(chains, axis=1), 1.0, rtol=1e-5)
    # Effective sample size of NUTS here is above 1000: five standard errors of the difference.
    tolerance = 5 * exact.std(axis=0) * np.sqrt(1 / 1000 + 1 / 20_000)
    assert np.all(np.abs(chains.mean(axis=0) - exact.mean(axis=0)) < tolerance)


def test_bingham_matrix_up_to_its_trace():
    family = families.bingham()
    np.testing.assert_allclose(family.natural(matrix=AXES), family.natural(matrix=AXES + np.eye(3)))


def test_public_name():
    assert sk.families is families
    assert sk.errors.EstimatorError is EstimatorError
