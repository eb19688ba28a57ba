"""Γ and g by autodiff against closed forms written by hand; sums in float32; the solve."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from samplekit.core.errors import EstimatorError
from samplekit.estimators.domains import as_domain
from samplekit.estimators.linear import solve
from samplekit.estimators.moments import (
    accumulate,
    block_terms,
    estimate,
    normal_block,
    psi,
    score_rows,
)
from samplekit.estimators.quadratic import Frame, QuadraticEngine, statistics
from samplekit.estimators.rows import Chunk
from samplekit.estimators.setup import make_model
from samplekit.estimators.weights import distance, log1p_distance
from tests.estimators.table import CASES

TIGHT = 1e-12  # sums of a few hundred float64 numbers of order one


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def normal(model, rows, weights=None):
    weights = np.ones(len(rows)) if weights is None else weights
    return [np.asarray(a) for a in normal_block(model, np.zeros(0), jnp.asarray(rows), weights)]


def test_gamma_with_weight_y(seed):
    """s = (log y, −y), h = y: Γ = [[1/y, −1], [−1, y]], g = −(h s″ + h′ s′) = (0, 1)."""
    y = np.random.default_rng(seed).gamma(2.0, size=200)
    model = make_model(
        lambda y: jnp.concatenate([jnp.log(y), -y]), domain="positive", weight=distance()
    )
    gamma, g = normal(model, y[:, None])
    expected = [[(1 / y).sum(), -200.0], [-200.0, y.sum()]]
    np.testing.assert_allclose(gamma, expected, rtol=TIGHT)
    np.testing.assert_allclose(g, [0.0, 200.0], atol=1e-9)


def test_log_chart_is_the_weight_y_squared(seed):
    y = np.random.default_rng(seed).gamma(2.0, size=(300, 2))
    functions = (lambda y: jnp.concatenate([jnp.log(y), -y]), lambda y: -(y**2).sum() / 7)
    charted = normal(make_model(*functions, domain="positive"), y)
    weighted = normal(make_model(*functions, domain="positive", weight=distance(power=2.0)), y)
    for a, b in zip(charted, weighted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-9)


def test_logit_chart_is_the_weight_of_the_beta(seed):
    y = np.random.default_rng(seed).beta(2.0, 3.0, size=(300, 1))
    function = CASES["beta-2-5"].family.family.statistics
    charted = normal(make_model(function, domain=(0.0, 1.0)), y)
    weighted = normal(
        make_model(function, domain=(0.0, 1.0), weight=lambda y: (y * (1 - y)) ** 2), y
    )
    for a, b in zip(charted, weighted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-9)


def test_half_line_normal_with_log_weight(seed):
    """s = (y, −y²/2), h = log(1+y), h′ = 1/(1+y)."""
    y = np.abs(np.random.default_rng(seed).normal(size=150))
    model = make_model(statistics, domain="positive", weight=log1p_distance())
    gamma, g = normal(model, y[:, None])
    h, tilt = np.log1p(y), 1 / (1 + y)
    expected = [[h.sum(), -(h * y).sum()], [-(h * y).sum(), (h * y**2).sum()]]
    np.testing.assert_allclose(gamma, expected, rtol=TIGHT)
    np.testing.assert_allclose(g, [-tilt.sum(), (h + tilt * y).sum()], rtol=TIGHT)


def test_base_and_row_weights(seed):
    """s = (x⁴, y⁴, xy), a = −½r²: J = [[4x³, 0, y], [0, 4y³, x]]."""
    random = np.random.default_rng(seed)
    x, y = random.normal(size=(2, 100))
    w = random.uniform(size=100)
    model = make_model(
        lambda v: jnp.stack([v[0] ** 4, v[1] ** 4, v[0] * v[1]]), lambda v: -(v**2).sum() / 2
    )
    gamma, g = normal(model, np.stack([x, y], axis=1), w)
    zero = np.zeros(100)
    slopes = np.array([[4 * x**3, zero, y], [zero, 4 * y**3, x]])  # (2, 3, n)
    np.testing.assert_allclose(gamma, np.einsum("jkn,jln,n->kl", slopes, slopes, w), rtol=TIGHT)
    laplacian = np.array([12 * x**2, 12 * y**2, zero])
    pulled = np.einsum("jkn,jn->kn", slopes, -np.array([x, y]))
    np.testing.assert_allclose(g, -((laplacian + pulled) * w).sum(axis=1), rtol=TIGHT)


def test_sphere_has_its_own_gradient_and_laplacian(seed):
    """Degree-1 harmonics: ‖∇s‖² sums to I − yyᵀ and Δs = −(p − 1)s."""
    y = CASES["fisher"].family.draw(seed, 50, **CASES["fisher"].params)
    gamma, g = normal(make_model(lambda y: y, domain="sphere"), y)
    np.testing.assert_allclose(gamma, 50 * np.eye(3) - y.T @ y, rtol=TIGHT, atol=1e-12)
    np.testing.assert_allclose(g, 2 * y.sum(axis=0), rtol=TIGHT)


def test_score_is_quadratic_with_these_coefficients(seed):
    """S(θ) = ½θᵀΓθ − gᵀθ + S(0), row by row, and ψ is its gradient."""
    case = CASES["half-line"]
    rows = jnp.asarray(case.family.draw(seed, 20, **case.params))
    model = case.family._setup(1).model
    theta = jnp.array([0.4, 1.3])
    gamma, g = normal(model, rows)
    difference = score_rows(model, theta, rows) - score_rows(model, 0 * theta, rows)
    np.testing.assert_allclose(difference.sum(), theta @ gamma @ theta / 2 - g @ theta, rtol=TIGHT)
    gradient = jax.jacfwd(lambda t: score_rows(model, t, rows))(theta).T
    np.testing.assert_allclose(psi(block_terms(model, rows), theta), gradient, rtol=TIGHT)


def test_compensated_float32(seed):
    """Many blocks: what float32 loses in adding blocks up is given back."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(2**17, 1)).astype(np.float32)
    model = make_model(lambda y: jnp.concatenate([y, y**2, y**3]))
    sums, lost = accumulate(
        normal_block,
        model,
        jnp.zeros(0, jnp.float32),
        rows=jnp.asarray(rows),
        weights=jnp.ones(len(rows), jnp.float32),
        blocks=jnp.int32(2**14),
        size=8,
    )
    y = rows[:, 0].astype(float)
    expected = (9 * y**4).sum()
    plain = abs(float(sums[0][2, 2]) / expected - 1)
    compensated = abs((float(sums[0][2, 2]) + float(lost[0][2, 2])) / expected - 1)
    # Blocks of eight are right to a few 2⁻²⁴, with random signs over 2¹⁴ blocks.
    assert sums[0].dtype == jnp.float32
    assert compensated < 2**-24
    assert plain > compensated


def test_second_moments_are_the_general_system(seed):
    random = np.random.default_rng(seed)
    rows, weights = (
        random.normal(size=(60, 3)) @ random.normal(size=(3, 3)),
        random.uniform(size=60),
    )
    engine = QuadraticEngine(3)
    sums = engine.sums([Chunk(rows, weights, 0)])
    model = make_model(statistics)
    expected = normal(model, rows, weights)
    for a, b in zip(engine.normal(sums), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)
    means = tuple(part / weights.sum() for part in sums)
    short, full = engine.solve(means).theta, engine.full(means).theta
    np.testing.assert_allclose(short, full, rtol=1e-10, atol=1e-10)
    meat, total = engine.meat([Chunk(rows, weights, 0)], short)
    each = np.asarray(psi(block_terms(model, jnp.asarray(rows)), short)) * weights
    np.testing.assert_allclose(meat, each @ each.T, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(total, each.sum(axis=1), atol=1e-10)


def test_frame_maps_the_parameter_back(seed):
    """θᵀs(y) and θ_uᵀs(u) differ by a constant."""
    random = np.random.default_rng(seed)
    frame = Frame(random.normal(size=3), random.uniform(0.5, 2.0, size=3))
    inner = random.normal(size=9)
    rows = random.normal(size=(5, 3))
    outside = jax.vmap(statistics)(jnp.asarray(rows)) @ frame.back(inner)
    inside = jax.vmap(statistics)(jnp.asarray(frame.rows(rows))) @ inner
    np.testing.assert_allclose(np.ptp(outside - inside), 0.0, atol=1e-12)
    np.testing.assert_allclose(frame.jacobian() @ inner, frame.back(inner), rtol=1e-12)


def test_solve_names_collinear_statistics():
    basis = np.array([[1.0, 0.0, 0.0, 2.0], [0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]])
    gamma = basis.T @ basis
    with pytest.raises(EstimatorError, match="statistics a, b, d are collinear"):
        solve(gamma, np.ones(4), list("abcd"))
    gamma[2, 2] = 0.0
    with pytest.raises(EstimatorError, match="statistics c do not vary"):
        solve(gamma, np.ones(4), list("abcd"))
    assert np.isfinite(solve(gamma, np.ones(4), list("abcd"), ridge=0.1).theta).all()


def test_ridge_is_relative_to_the_diagonal():
    gamma, g = np.diag([1.0, 1e6]), np.array([1.0, 1e6])
    np.testing.assert_allclose(solve(gamma, g, ["a", "b"], ridge=1.0).theta, [0.5, 0.5])
    theta = solve(gamma, g, ["a", "b"], ridge=1.0, scaled=False).theta
    np.testing.assert_allclose(theta, [0.5, 1 / (1 + 1e-6)])


@pytest.mark.parametrize("name", ["gamma-3", "dirichlet", "fisher"])
def test_pure_estimate_is_the_estimators(name, seed):
    """What is vmapped in the coverage tests is what users get."""
    family, params = CASES[name]
    rows = family.draw(seed, 1000, **params)
    checked = as_domain(family.family.domain).check(rows, 0)
    theta, covariance = estimate(family._setup(rows.shape[1]).model, jnp.asarray(checked))
    fitted = family.fit(rows)
    np.testing.assert_allclose(fitted.theta_, theta, rtol=1e-10)
    np.testing.assert_allclose(fitted.covariance_, covariance, rtol=1e-8, atol=1e-14)
