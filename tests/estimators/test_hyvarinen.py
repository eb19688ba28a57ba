"""The Hyvärinen score: against closed forms, in every coordinate, of every kind of target."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import integrate

import samplekit as sk
from samplekit.core.errors import EstimatorError, TargetError
from samplekit.estimators import families
from samplekit.estimators.hyvarinen import DIRECTIONS, Judged, _score_block, hyvarinen_score
from samplekit.estimators.placed import common_domain, place
from samplekit.estimators.rows import Runner, _row_program
from tests.estimators.table import CASES

ROUNDING = 1e-12  # float64, sums of a few terms of order one to a hundred


def rows(seed, n, d):
    return np.random.default_rng(seed).normal(size=(n, d))


COVARIANCE = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, -0.3], [0.0, -0.3, 0.7]])
MEAN = np.array([1.0, -2.0, 0.5])


def gaussian_score(x):
    """½‖K(x − μ)‖² − tr K."""
    precision = np.linalg.inv(COVARIANCE)
    return ((x - MEAN) @ precision @ precision * (x - MEAN)).sum(axis=1) / 2 - np.trace(precision)


def gaussian_energy(x):
    away = x - jnp.asarray(MEAN, x.dtype)
    return away @ jnp.asarray(np.linalg.inv(COVARIANCE), x.dtype) @ away / 2


class Own:
    """A class of the user's own: no pytree, no space."""

    def log_density(self, x):
        return -gaussian_energy(x)


TARGETS = {
    "zoo": sk.targets.gaussian(MEAN, COVARIANCE),
    "energy": sk.from_energy(gaussian_energy, 3),
    "log density": sk.from_log_density(lambda x: 5.0 - gaussian_energy(x), 3),
    "score": sk.from_score(jax.grad(lambda x: -gaussian_energy(x)), 3),
    "own class": Own(),
    "tempered": sk.tempered(sk.targets.gaussian(MEAN, COVARIANCE / 2), 0.5),
    "tempered score": sk.tempered(
        sk.from_score(jax.grad(lambda x: -2.0 * gaussian_energy(x)), 3), 0.5
    ),
    "dict": sk.from_energy(
        lambda v: gaussian_energy(jnp.concatenate([v["a"], v["b"][None]])),
        like={"a": jnp.zeros(2), "b": 0.0},
    ),
}


@pytest.mark.parametrize("name", TARGETS)
def test_gaussian_in_closed_form(name):
    x = rows(0, 50, 3)
    found = hyvarinen_score(TARGETS[name], x)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, gaussian_score(x), rtol=ROUNDING, atol=ROUNDING)


def test_variables_by_name():
    x = rows(0, 50, 3)
    found = hyvarinen_score(TARGETS["dict"], {"b": x[:, 2], "a": x[:, :2]})
    np.testing.assert_allclose(found, gaussian_score(x), rtol=ROUNDING, atol=ROUNDING)
    with pytest.raises(EstimatorError, match="variables"):
        hyvarinen_score(TARGETS["dict"], {"a": x[:, :2]})


@pytest.mark.parametrize("dim", [1, 2, DIRECTIONS, DIRECTIONS + 5])
def test_network_energy_against_the_hessian(dim):
    """The Laplacian, whatever part of the directions goes at once."""
    network = eqx.nn.MLP(dim, "scalar", 8, 2, jnp.tanh, key=jax.random.key(1))
    target = sk.from_energy(network, dim)
    x = rows(2, 7, dim)
    with jax.enable_x64(True):
        wide = jax.tree.map(
            lambda a: a.astype(jnp.float64) if eqx.is_inexact_array(a) else a, network
        )
        slope = jax.vmap(jax.grad(wide))(x)
        bend = jax.vmap(lambda x: jnp.trace(jax.hessian(wide)(x)))(x)
    expected = (np.asarray(slope) ** 2).sum(axis=1) / 2 - np.asarray(bend)
    np.testing.assert_allclose(hyvarinen_score(target, x), expected, rtol=1e-11, atol=1e-13)


def test_a_factor_changes_no_bit():
    x = rows(3, 20, 2)
    banana = sk.targets.banana()
    scaled = sk.from_log_density(lambda x: banana.log_density(x) + 1234.5, 2)
    np.testing.assert_allclose(
        hyvarinen_score(scaled, x), hyvarinen_score(banana, x), rtol=ROUNDING, atol=ROUNDING
    )
    plain, shifted = (
        sk.from_log_density(lambda x, c=c: -((x - 1.0) ** 4).sum() + c, 2) for c in (0.0, 1e6)
    )
    assert np.array_equal(hyvarinen_score(plain, x), hyvarinen_score(shifted, x))


def test_improper_densities_have_a_score():
    x = rows(4, 10, 2)
    flat = sk.from_log_density(lambda x: 0.0 * x.sum(), 2)
    growing = sk.from_log_density(lambda x: (x**2).sum() / 2, 2)
    assert np.array_equal(hyvarinen_score(flat, x), np.zeros(10))
    np.testing.assert_allclose(hyvarinen_score(growing, x), (x**2).sum(axis=1) / 2 + 2)
    positive = sk.from_log_density(
        lambda y: -jnp.log(y).sum(), 1, support=constraints.positive
    )  # 1/y: flat in log y
    np.testing.assert_allclose(hyvarinen_score(positive, [[0.1], [7.0]]), 0.0, atol=ROUNDING)


def gamma_log(y, shape=3.0, rate=2.0):
    return ((shape - 1) * jnp.log(y) - rate * y).sum()


def gamma_score(y, shape=3.0, rate=2.0):
    return (shape - 1) / y - rate


def in_log_y(y, shape=3.0, rate=2.0):
    """log p = shape·z − rate·exp z in z = log y."""
    return ((shape - rate * y) ** 2 / 2 - rate * y).sum(axis=1)


@pytest.mark.parametrize("kind", ["density", "score", "vector support", "scalar"])
def test_positive_data_are_judged_in_their_logarithm(kind):
    y = np.random.default_rng(5).gamma(3.0, 0.5, size=(30, 1 if kind == "scalar" else 2))
    support = constraints.positive
    target = {
        "density": lambda: sk.from_log_density(gamma_log, 2, support=support),
        "score": lambda: sk.from_score(gamma_score, 2, support=support),
        "vector support": lambda: sk.from_log_density(
            gamma_log, 2, support=constraints.independent(support, 1)
        ),
        "scalar": lambda: sk.from_log_density(gamma_log, like=1.0, support=support),
    }[kind]()
    np.testing.assert_allclose(hyvarinen_score(target, y), in_log_y(y), rtol=1e-11, atol=1e-11)
    if kind == "scalar":
        np.testing.assert_allclose(hyvarinen_score(target, y[:, 0]), in_log_y(y), rtol=1e-11)


def test_weights_are_in_the_data_s_own_coordinates():
    y = np.random.default_rng(6).gamma(3.0, 0.5, size=(30, 1))
    target = sk.from_log_density(gamma_log, 1, support=constraints.positive)
    slope, bend = 2 / y - 2, -2 / y**2
    plain = (slope**2 / 2 + bend)[:, 0]
    np.testing.assert_allclose(hyvarinen_score(target, y, weight="unweighted"), plain)
    h, tilt = y**1.5, 1.5 * y**0.5
    weighted = (h * (slope**2 / 2 + bend) + tilt * slope)[:, 0]
    found = hyvarinen_score(target, y, weight=lambda y: y**1.5)
    np.testing.assert_allclose(found, weighted, rtol=1e-11, atol=1e-11)
    # h = y² is score matching in log y, but for ½ a column.
    squared = hyvarinen_score(target, y, weight=lambda y: y**2)
    np.testing.assert_allclose(squared + 0.5, hyvarinen_score(target, y), rtol=1e-11, atol=1e-11)


OWN_COORDINATES = [
    "gaussian-4", "gamma-1.5", "beta-small", "von-mises", "fisher", "dirichlet", "quartic",
]  # fmt: skip


@pytest.mark.parametrize("name", OWN_COORDINATES)
def test_mean_is_minus_the_score_of_a_fitted_family(name):
    family, params = CASES[name]
    x = family.draw(7, 400, **params)
    fitted = family.fit(x)
    found = hyvarinen_score(fitted, x[:100])
    assert np.isclose(found.mean(), -fitted.score(x[:100]), rtol=1e-10, atol=1e-10)
    if name not in {"von-mises", "fisher"}:  # positions are vectors there
        np.testing.assert_allclose(hyvarinen_score(fitted.target(), x[:100]), found, rtol=1e-10)


def test_interval_against_numpyro_s_own_coordinates():
    """The chart is the bijection that kernels use, so the target's own density must agree."""
    target = sk.from_log_density(
        lambda y: jnp.log(y).sum() + 2 * jnp.log1p(-y / 3).sum(),
        2,
        support=constraints.interval(0.0, 3.0),
    )
    y = np.random.default_rng(8).uniform(0.2, 2.8, size=(20, 2))
    with jax.enable_x64(True):
        x = jax.vmap(target.space.from_support)(jnp.asarray(y))
        s = jax.vmap(target.score)(x)
        bend = jax.vmap(lambda a: jnp.trace(jax.jacfwd(target.score)(a)))(x)
        expected = np.asarray((s**2).sum(axis=1) / 2 + bend)
    np.testing.assert_allclose(hyvarinen_score(target, y), expected, rtol=1e-9, atol=1e-10)


def test_numpyro_model_in_its_unconstrained_coordinates():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(mu, tau), obs=y)

    data = np.array([0.3, 1.2, -0.5, 0.8])
    target = sk.from_numpyro(model, data)
    values = {"mu": np.array([0.1, 0.9]), "tau": np.array([0.5, 1.7])}

    def log_density(mu, z):  # z = log tau
        tau = jnp.exp(z)
        fit = -((jnp.asarray(data) - mu) ** 2).sum() / 2 / tau**2 - 4 * z
        return -(mu**2) / 8 - tau**2 / 2 + z + fit

    with jax.enable_x64(True):
        expected = []
        for mu, tau in zip(values["mu"], values["tau"], strict=True):
            at = (jnp.asarray(mu), jnp.log(tau))
            slopes = [jax.grad(log_density, i)(*at) for i in (0, 1)]
            bends = [jax.grad(jax.grad(log_density, i), i)(*at) for i in (0, 1)]
            expected.append(sum(s**2 / 2 + b for s, b in zip(slopes, bends, strict=True)))
    np.testing.assert_allclose(hyvarinen_score(target, values), expected, rtol=1e-6)
    with pytest.raises(TargetError, match="own unconstrained coordinates"):
        hyvarinen_score(target, values, weight="unweighted")
    with pytest.raises(TargetError, match="miss 'tau'"):
        hyvarinen_score(target, {"mu": values["mu"]})


def test_ordered_values_are_judged_in_free_coordinates():
    target = sk.from_log_density(lambda y: -(y**2).sum() / 2, 2, support=constraints.ordered_vector)
    y = np.array([[-0.5, 1.0], [0.2, 0.3]])
    gap = y[:, 1] - y[:, 0]  # z = (y_1, log(y_2 − y_1)), log p = −½(y_1² + y_2²) + z_2
    slopes = np.stack([-y[:, 0] - y[:, 1], 1 - y[:, 1] * gap])
    bends = np.stack([np.full(2, -2.0), -(gap**2) - y[:, 1] * gap])
    expected = (slopes**2 / 2 + bends).sum(axis=0)
    np.testing.assert_allclose(hyvarinen_score(target, y), expected, rtol=1e-10)


def test_smaller_domain_and_larger_domain():
    y = np.random.default_rng(9).gamma(3.0, 0.5, size=(20, 1))
    gaussian = sk.targets.gaussian([1.0])
    found = hyvarinen_score(gaussian, y, domain="positive")  # z = log y, log p + z
    expected = ((1 - y * (y - 1)) ** 2 / 2 - y * (y - 1) - y**2)[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)
    gamma = sk.from_log_density(gamma_log, 1, support=constraints.positive)
    with pytest.raises(EstimatorError, match="larger than the support"):
        hyvarinen_score(gamma, y, domain="reals")
    with pytest.raises(EstimatorError, match=r"number 0.* outside the domain"):
        hyvarinen_score(gaussian, -y, domain="positive")


def test_common_domain_is_where_supports_meet():
    x = np.full((1, 1), 0.5)
    unit = families.beta().fit(families.beta().draw(0, 50, alpha=2.0, beta=2.0))
    gamma = sk.from_log_density(gamma_log, 1, support=constraints.positive)
    domain = common_domain([place(m, x) for m in (unit, gamma, sk.targets.gaussian(1))], 1)
    assert domain.bounds(1) == (np.zeros(1), np.ones(1))
    low = sk.from_log_density(lambda y: -y.sum(), 1, support=constraints.less_than(-1.0))
    with pytest.raises(EstimatorError, match="do not meet"):
        common_domain([place(low, x), place(gamma, x)], 1)
    circle = families.von_mises().fit(np.linspace(0.0, 3.0, 30)[:, None])
    with pytest.raises(EstimatorError, match="different domains"):
        common_domain([place(circle, x), place(gamma, x)], 1)


def test_refusals():
    y = np.array([[0.2, 0.8], [0.5, 0.5]])
    dirichlet = families.dirichlet(2).fit(np.random.default_rng(0).dirichlet([2, 3], 50))
    with pytest.raises(EstimatorError, match="no weight on the simplex"):
        hyvarinen_score(dirichlet, y, weight="unweighted")
    laplace = families.generalized_gaussian(1.0).fit(rows(0, 50, 1))
    with pytest.raises(EstimatorError, match="kink"):
        hyvarinen_score(laplace, rows(1, 5, 1))
    assert np.isfinite(hyvarinen_score(laplace, rows(1, 5, 1), weight=jnp.abs)).all()
    gaussian = sk.targets.gaussian(2)
    with pytest.raises(EstimatorError, match="rows of 3 numbers"):
        hyvarinen_score(gaussian, rows(0, 4, 3))
    with pytest.raises(EstimatorError, match=r"number 1\) with NaN"):
        hyvarinen_score(gaussian, [[0.0, 0.0], [np.nan, 1.0]])
    with pytest.raises(EstimatorError, match="no finite"):
        hyvarinen_score(sk.from_log_density(lambda y: jnp.log(y).sum(), 1), [[-1.0], [0.0]])
    with pytest.raises(EstimatorError, match="not usable"):
        hyvarinen_score(gaussian, y, weight="h")
    with pytest.raises(TargetError, match=r"family\.at\(level\)"):
        hyvarinen_score(sk.targets.noised_mixture([0.5, 0.5], [[0.0], [1.0]]), y)
    from sklearn.mixture import GaussianMixture

    with pytest.raises(TargetError, match="no target"):
        hyvarinen_score(GaussianMixture(), y)


def test_no_rows_no_scores():
    assert hyvarinen_score(sk.targets.gaussian(2), np.zeros((0, 2))).shape == (0,)


def test_memory_is_bounded_by_the_block():
    """Sixteen times the rows need no more workspace, and all directions at once would."""
    dim = 256
    network = eqx.nn.MLP(dim, "scalar", 64, 2, jnp.tanh, key=jax.random.key(0))
    target = sk.from_energy(network, dim)
    judged = Judged(place(target, rows(0, 1, dim)).field, None, None)
    runner = Runner(judged, dim, DIRECTIONS)

    def workspace(n):
        with runner.precision():
            data = jax.ShapeDtypeStruct((n, dim), np.float64)
            program = _row_program.lower(
                _score_block, runner.model, np.zeros(0), rows=data, size=runner.block
            )
            return program.compile().memory_analysis().temp_size_in_bytes

    small, large = workspace(4 * runner.block), workspace(64 * runner.block)
    assert large - small <= 8 * 64 * runner.block * dim  # at most a copy of the data
    one = dim * 64 * 8 * runner.block  # a hidden layer, along all directions
    assert small < 4 * one


# de Bruijn: d/dt KL(p_t ‖ q_t) = −½ E‖∇ log p_t − ∇ log q_t‖² under noise of variance t -----------

P = sk.targets.mixture([0.4, 0.6], [[-1.0], [1.5]], [0.5, 0.3])
Q = sk.targets.gaussian([0.3], 1.2)
GRID = np.linspace(-14.0, 14.0, 4001)


def noised(target, t):
    return sk.smoothed(target, float(np.sqrt(t)))


def density(target):
    with jax.enable_x64(True):
        return np.asarray(jax.vmap(target.log_density)(jnp.asarray(GRID[:, None])))


def kl(t):
    log_p, log_q = density(noised(P, t)), density(noised(Q, t))
    return integrate.trapezoid(np.exp(log_p) * (log_p - log_q), GRID)


def half_fisher(t):
    """E_p[S(q) − S(p)], from Hyvärinen scores alone."""
    p, q = noised(P, t), noised(Q, t)
    gap = hyvarinen_score(q, GRID[:, None]) - hyvarinen_score(p, GRID[:, None])
    return integrate.trapezoid(np.exp(density(p)) * gap, GRID)


@pytest.mark.parametrize("t", [0.1, 0.5, 2.0])
def test_noise_destroys_kl_at_the_rate_of_fisher(t):
    step = 1e-4  # the central difference errs by step²·KL‴/6 and by rounding, 1e-15/step
    slope = (kl(t + step) - kl(t - step)) / (2 * step)
    assert slope < -1e-3
    assert np.isclose(slope, -half_fisher(t), rtol=1e-5)


def test_divergence_from_scores_is_the_divergence():
    p, q = noised(P, 0.1), noised(Q, 0.1)
    with jax.enable_x64(True):
        grid = jnp.asarray(GRID[:, None])
        gap = np.asarray(jax.vmap(p.score)(grid) - jax.vmap(q.score)(grid))[:, 0]
    direct = integrate.trapezoid(np.exp(density(p)) * gap**2, GRID)
    assert np.isclose(direct / 2, half_fisher(0.1), rtol=1e-9)
