"""The zoo keeps its word: densities, scores, exact draws and exact values."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import samplekit as sk
from samplekit.testing import check_target

MATRIX = [[2.0, 0.5], [0.5, 1.0]]
ZOO = {
    "gaussian": lambda: sk.targets.gaussian([1.0, -2.0], MATRIX),
    "gaussian diagonal": lambda: sk.targets.gaussian(3, [1.0, 4.0, 0.25]),
    "correlated": lambda: sk.targets.correlated(5, 0.9, scale_ratio=3.0),
    "ill_conditioned": lambda: sk.targets.ill_conditioned(20),
    "mixture": lambda: sk.targets.mixture(
        [1, 2], [[0.0, 0.0], [3.0, 1.0]], covariances=[MATRIX, [[0.5, -0.2], [-0.2, 0.3]]]
    ),
    "bimodal": sk.targets.bimodal,
    "grid": sk.targets.grid,
    "noised_mixture": lambda: sk.targets.noised_mixture([1, 1], [-3.0, 3.0], 0.3).at(1.5),
    "banana": sk.targets.banana,
    "rosenbrock": sk.targets.rosenbrock,
    "funnel": sk.targets.funnel,
    "student_t": lambda: sk.targets.student_t(
        2, df=4.0, location=[1.0, 0.0], scale=[[1.0, 0.5], [0.5, 1.0]]
    ),
    "ring": sk.targets.ring,
    "double_well": sk.targets.double_well,
    "double_well, two wells": lambda: sk.targets.double_well(-3.0, dim=2),
}
every_entry = pytest.mark.parametrize("name", ZOO)


@pytest.mark.statistical
@every_entry
def test_contract_in_float64(name, key):
    with jax.enable_x64(True):
        check_target(ZOO[name](), key)


@every_entry
def test_float32_agrees_with_float64(name, key):
    target = ZOO[name]()
    x = target.draw(key, 4)
    assert x.shape == (4, *target.space.leaves[0].shape)

    def values(x):
        both = jax.vmap(lambda v: (target.log_density(v), target.score(v)))
        return jax.tree.map(np.asarray, jax.jit(both)(x))

    single = values(x)
    with jax.enable_x64(True):
        double = values(np.asarray(x, np.float64))
    for a, b in zip(single, double, strict=True):
        assert (a.dtype, b.dtype) == (np.float32, np.float64)
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5 * np.abs(b).max())


@pytest.mark.parametrize("name", ["gaussian", "bimodal", "banana", "ring", "double_well"])
def test_float32_and_float64_positions_under_x64(name, key):
    """The parameters follow the position's precision, not JAX's switch."""
    target = ZOO[name]()
    with jax.enable_x64(True):
        x = target.draw(key, 1)[0]
        small = x.astype(jnp.float32)
        assert target.log_density(small).dtype == jnp.float32
        assert target.score(small).dtype == jnp.float32
        np.testing.assert_allclose(target.log_density(small), target.log_density(x), rtol=1e-4)


FLAT = ["gaussian", "mixture", "bimodal", "grid", "student_t", "ring", "double_well"]


@pytest.mark.parametrize("name", [*FLAT, "double_well, two wells", "noised_mixture"])
def test_normalizer_by_quadrature(name):
    target = ZOO[name]()
    t = np.linspace(-1, 1, 4001 if target.space.size == 1 else 1201)
    step = np.full_like(t, t[1] - t[0])
    if target.heavy_tailed:  # far out, where a power law ends, but dense in the middle
        t, step = 100 * t**5, 500 * t**4 * step
    lines = [m + 8 * s * t for m, s in zip(target.mean, np.sqrt(target.variance), strict=True)]
    points = np.stack(np.meshgrid(*lines, indexing="ij"), axis=-1).reshape(-1, len(lines))
    mass = np.prod(np.meshgrid(*[step] * len(lines)), axis=0).ravel()
    mass = mass * np.prod(8 * np.sqrt(target.variance))
    with jax.enable_x64(True):
        log_p = np.asarray(jax.jit(jax.vmap(target.log_density))(points))
    total = np.log(np.sum(mass * np.exp(log_p)))
    tolerance = 1e-7 if target.heavy_tailed else 1e-9
    assert total == pytest.approx(target.log_normalizer, abs=tolerance)


@pytest.mark.parametrize("name", ["gaussian diagonal", "correlated", "ill_conditioned"])
def test_gaussians_are_normalized(name):
    target = ZOO[name]()
    x = np.linspace(-1, 2, target.space.size)
    with jax.enable_x64(True):
        got = float(jax.jit(target.log_density)(x))
    exact = scipy.stats.multivariate_normal(target.mean, target.covariance).logpdf(x)
    assert got == pytest.approx(exact, rel=1e-9)


def test_curved_targets_are_normalized():
    normal = scipy.stats.norm.logpdf
    x = np.array([0.7, -1.3, 0.4])
    banana = normal(x[0], 0, 2) + normal(x[1], 0.5 * (x[0] ** 2 - 4), 1)
    valley = normal(x[0], 1, 0.5**0.5) + normal(x[1], x[0] ** 2, 0.05**0.5)
    funnel = normal(x[0], 0, 3) + normal(x[1:], 0, np.exp(x[0] / 2)).sum()
    with jax.enable_x64(True):
        x = jnp.asarray(x)
        assert float(sk.targets.banana().log_density(x[:2])) == pytest.approx(banana)
        assert float(sk.targets.rosenbrock().log_density(x[:2])) == pytest.approx(valley)
        assert float(sk.targets.funnel(3).log_density(x)) == pytest.approx(funnel)


def test_signs_are_pinned():
    """Closed forms by hand: the score points uphill, whatever autodiff says."""
    one = jnp.ones(1)
    assert float(sk.targets.gaussian(1, 4.0).score(one)[0]) == pytest.approx(-0.25)
    assert float(sk.targets.double_well().score(2 * one)[0]) == pytest.approx(-10.0)
    assert float(sk.targets.double_well().log_density(2 * one)) == pytest.approx(-6.0)
    right_of_ring = sk.targets.ring(3.0, 0.5).score(jnp.array([4.0, 0.0]))
    np.testing.assert_allclose(right_of_ring, [-4.0, 0.0], atol=1e-6)
    t = sk.targets.student_t(1, df=4.0).score(one)
    assert float(t[0]) == pytest.approx(-1.0)  # −(ν+1)x/(ν+x²)
    bend = sk.targets.banana(0.5, (2.0, 1.0)).score(jnp.array([0.0, 0.0]))
    np.testing.assert_allclose(bend, [0.0, -2.0], atol=1e-6)  # the ridge passes (0, −2)
    v = sk.targets.funnel(2, 3.0).score(jnp.array([0.0, 2.0]))
    np.testing.assert_allclose(v, [1.5, -2.0], atol=1e-6)  # ½x²e^−v − ½, −xe^−v


def test_bimodal_is_the_density_of_the_demo():
    target = sk.targets.bimodal()
    x = np.linspace(-6, 10, 33)
    expected = np.log(3 * np.exp(-((x + 2) ** 2) / 2) + np.exp(-((x - 4) ** 2) / 8))
    with jax.enable_x64(True):
        got = np.asarray(jax.vmap(target.log_density)(jnp.asarray(x)[:, None]))
    np.testing.assert_allclose(got, expected - math.log(5 * math.sqrt(2 * math.pi)), rtol=1e-12)
    np.testing.assert_allclose(target.mode_weights, [0.6, 0.4])
    assert [int(target.mode_of(jnp.array([v]))) for v in (-2.0, 4.0)] == [0, 1]
    np.testing.assert_allclose(target.mean, [0.4])
    np.testing.assert_allclose(target.variance, [0.6 * 5 + 0.4 * 20 - 0.16])


def test_published_values():
    """Numbers from the formula sheet and from elementary integrals."""
    assert sk.targets.double_well().variance[0] == pytest.approx(0.46792, abs=5e-6)
    np.testing.assert_allclose(sk.targets.rosenbrock().covariance, [[0.5, 1.0], [1.0, 2.55]])
    assert sk.targets.banana().expectations["x0^2*x1"][1] == 16.0
    assert sk.targets.funnel().expectations["v<-3"][1] == pytest.approx(0.15865525393145707)
    assert sk.targets.funnel().variance[1] == pytest.approx(math.exp(4.5))
    # A ring of radius 0 is the normal distribution N(0, w²I).
    assert sk.targets.ring(0.0, 2.0).variance[0] == pytest.approx(4.0)
    t = sk.targets.student_t(5, df=2.0)
    assert np.isinf(t.variance).all()
    assert np.isnan(sk.targets.student_t(1, df=1.0).mean).all()


def test_ring_has_a_finite_score_at_its_center():
    target = sk.targets.ring()
    assert np.isfinite(np.asarray(target.score(jnp.zeros(2)))).all()


@every_entry
def test_parameters_are_leaves(name):
    """Other numbers, same program: nothing is traced again."""
    target = ZOO[name]()
    traces = []

    @jax.jit
    def log_density(target, x):
        traces.append(1)
        return target.log_density(x)

    x = jnp.ones(target.space.size)
    first = log_density(target, x)
    other = jax.tree.map(lambda a: a * 1.1, target)
    assert all(
        isinstance(leaf, np.ndarray | np.generic | jax.Array) for leaf in jax.tree.leaves(other)
    )
    second = log_density(other, x)
    assert len(traces) == 1
    assert float(first) != float(second)


def test_making_a_target_compiles_nothing():
    compiled = []

    def listen(event, *_, **__):
        if "compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for make in ZOO.values():
            target = make()
            assert all(isinstance(a, np.ndarray | np.generic) for a in jax.tree.leaves(target))
            assert len(target.mean) == target.space.size
            assert len(target.variance) == target.space.size
            _ = target.expectations, target.log_normalizer
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert not compiled


def test_noised_mixture_is_traced_over_sigma():
    family = sk.targets.noised_mixture([1, 3], [[-3.0, 0.0], [3.0, 1.0]], 0.3)
    x = jnp.array([1.0, -1.0])
    scores = jax.jit(jax.vmap(lambda s: family.at(s).score(x)))(jnp.array([0.1, 1.0, 10.0]))
    for sigma, score in zip([0.1, 1.0, 10.0], scores, strict=True):
        np.testing.assert_allclose(score, family.at(sigma).score(x), rtol=2e-4)
    assert family.space == family.at(1.0).space


def test_changed_mean_moves_the_draws(key):
    target = sk.targets.gaussian(2)
    moved = dataclasses.replace(target, mean=np.array([5.0, 5.0]))
    np.testing.assert_allclose(moved.draw(key, 4), target.draw(key, 4) + 5.0, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sk.targets.gaussian(0), "positive integer"),
        (lambda: sk.targets.gaussian([[0.0]]), "give a vector"),
        (lambda: sk.targets.gaussian(2, [1.0, 2.0, 3.0]), "shape"),
        (lambda: sk.targets.gaussian(2, [[1.0, 2.0], [2.0, 1.0]]), "eigenvalue -1"),
        (lambda: sk.targets.gaussian(2, [[1.0, 0.5], [0.0, 1.0]]), "not symmetric"),
        (lambda: sk.targets.gaussian(1, float("nan")), "not finite"),
        (lambda: sk.targets.gaussian("a"), "cannot be read"),
        (lambda: sk.targets.mixture([1, -1], [0.0, 1.0]), "positive weight"),
        (lambda: sk.targets.mixture([1, 1], [0.0, 1.0, 2.0]), "one mean for each"),
        (lambda: sk.targets.mixture([1, 1], [0.0, 1.0], 1.0, covariances=1.0), "Give one"),
        (lambda: sk.targets.mixture([1, 1], [0.0, 1.0], -1.0), "positive"),
        (lambda: sk.targets.mixture([1, 1], [0.0, 1.0], [1.0, 1.0, 1.0]), "2 components"),
        (lambda: sk.targets.noised_mixture([1], [0.0]).at(-1.0), "noise level"),
        (lambda: sk.targets.noised_mixture([1], [0.0]).at(jnp.ones(2)), "one number"),
        (lambda: sk.targets.correlated(3, 1.0), "correlation"),
        (lambda: sk.targets.banana(1.0, (1.0, -1.0)), "two positive"),
        (lambda: sk.targets.funnel(-2), "positive integer"),
        (lambda: sk.targets.student_t(2, df=-1.0), "positive number"),
        (lambda: sk.targets.student_t(2, location=[1.0, 2.0, 3.0]), "location"),
        (lambda: sk.targets.ring(-1.0), "0 or larger"),
    ],
)
def test_bad_input_is_explained(make, says):
    with pytest.raises(sk.errors.TargetError, match=says):
        make()


def test_names_are_listed_and_unknown_ones_refused():
    assert "funnel" in dir(sk.targets)
    with pytest.raises(AttributeError, match="no attribute 'unicorn'"):
        _ = sk.targets.unicorn
