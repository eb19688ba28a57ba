"""Targets from targets: tempered, multiplied, smoothed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import samplekit as sk
from samplekit.core.protocols import DensityTarget, ScoreTarget
from samplekit.testing import check_target


def gamma(shape: float, rate: float, **options):
    """A gamma density on the positive reals; kernels move log y."""
    return sk.from_log_density(
        lambda y: jnp.sum((shape - 1) * jnp.log(y) - rate * y),
        dim=1,
        support=constraints.positive,
        **options,
    )


def gamma_score(shape: float, rate: float):
    return sk.from_score(lambda y: (shape - 1) / y - rate, dim=1, support=constraints.positive)


X = jnp.array([0.3])


# Tempering ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0, 2.5])
def test_tempered_multiplies_log_density_and_score(beta):
    target = sk.targets.mixture([1, 2], [[0.0, 1.0], [3.0, -1.0]])
    hot = sk.tempered(target, beta)
    x = jnp.array([0.5, -0.2])
    assert float(hot.log_density(x)) == pytest.approx(beta * float(target.log_density(x)), rel=1e-6)
    np.testing.assert_allclose(hot.score(x), beta * np.asarray(target.score(x)), rtol=1e-6)
    assert hot.space == target.space


def test_tempered_gaussian_is_a_wider_gaussian():
    hot = sk.tempered(sk.targets.gaussian(2, [[2.0, 0.5], [0.5, 1.0]]), 0.25)
    wide = sk.targets.gaussian(2, [[8.0, 2.0], [2.0, 4.0]])
    x = jnp.array([1.0, -2.0])
    np.testing.assert_allclose(hot.score(x), wide.score(x), rtol=1e-5)


@pytest.mark.parametrize("make", [gamma, gamma_score])
@pytest.mark.parametrize("beta", [0.0, 0.4, 3.0])
def test_tempering_leaves_the_jacobian_alone(make, beta):
    """Gamma(a, b) to the β is Gamma(1 + β(a − 1), βb), as a density of y and not of log y."""
    hot = sk.tempered(make(3.0, 2.0), beta)
    exact = gamma(1 + beta * 2.0, beta * 2.0)
    np.testing.assert_allclose(hot.score(X), exact.score(X), rtol=1e-5)
    if make is gamma:
        difference = [float(hot.log_density(x) - exact.log_density(x)) for x in (X, X + 1, X - 2)]
        np.testing.assert_allclose(difference, difference[0], atol=1e-5)


def test_tempered_score_is_score_only():
    hot = sk.tempered(sk.from_score(lambda x: -x, dim=2), 0.5)
    assert isinstance(hot, ScoreTarget)
    assert not isinstance(hot, DensityTarget)
    np.testing.assert_allclose(hot.score(jnp.array([1.0, 2.0])), [-0.5, -1.0])


def test_temperatures_share_a_program_and_map():
    traces = []

    @jax.jit
    def log_density(target, x):
        traces.append(1)
        return target.log_density(x)

    target, x = sk.targets.gaussian(2), jnp.ones(2)
    values = [float(log_density(sk.tempered(target, b), x)) for b in (0.1, 0.5, 1.0)]
    assert len(traces) == 1
    stack = dataclasses.replace(sk.tempered(target, 1.0), beta=jnp.array([0.1, 0.5, 1.0]))
    axes = jax.tree.map(lambda _: None, stack)
    axes = dataclasses.replace(axes, beta=0)
    mapped = jax.vmap(lambda t: t.log_density(x), in_axes=(axes,))(stack)
    np.testing.assert_allclose(mapped, values, rtol=1e-6)


def test_outside_the_support_stays_forbidden_at_every_temperature():
    box = sk.from_log_density(lambda x: jnp.where(jnp.abs(x[0]) < 1, 0.0, -jnp.inf), dim=1)
    for beta in (0.0, 0.5):
        assert float(sk.tempered(box, beta).log_density(jnp.array([2.0]))) == -np.inf


# Products ----------------------------------------------------------------------------------------


def test_product_of_gaussians_is_a_gaussian():
    both = sk.product(sk.targets.gaussian([0.0, 0.0], 1.0), sk.targets.gaussian([3.0, 0.0], 0.5))
    exact = sk.targets.gaussian([2.0, 0.0], 1 / 3)
    x = jnp.array([0.3, -0.4])
    np.testing.assert_allclose(both.score(x), exact.score(x), rtol=1e-5)
    difference = [float(both.log_density(y) - exact.log_density(y)) for y in (x, x + 1)]
    assert difference[0] == pytest.approx(difference[1], abs=1e-5)
    check_target(both)


@pytest.mark.parametrize(
    "makes", [(gamma, gamma), (gamma, gamma_score), (gamma_score, gamma_score, gamma)]
)
def test_product_counts_the_jacobian_once(makes):
    """Π Gamma(a, b) is Gamma(1 + Σ(a_i − 1), Σ b_i)."""
    shapes, rates = [3.0, 2.0, 1.5][: len(makes)], [2.0, 0.5, 1.0][: len(makes)]
    both = sk.product(*(m(a, b) for m, a, b in zip(makes, shapes, rates, strict=True)))
    exact = gamma(1 + sum(a - 1 for a in shapes), sum(rates))
    np.testing.assert_allclose(both.score(X), exact.score(X), rtol=1e-5)
    assert isinstance(both, DensityTarget) == all(m is gamma for m in makes)
    if isinstance(both, DensityTarget):
        difference = [float(both.log_density(x) - exact.log_density(x)) for x in (X, X + 1)]
        assert difference[0] == pytest.approx(difference[1], abs=1e-5)


def test_combinators_nest():
    """A geometric bridge of constrained densities."""
    a, b = gamma(3.0, 2.0), gamma(2.0, 0.5)
    bridge = sk.product(sk.tempered(a, 0.25), sk.tempered(sk.product(b), 0.75))
    exact = gamma(1 + 0.25 * 2 + 0.75 * 1, 0.25 * 2.0 + 0.75 * 0.5)
    np.testing.assert_allclose(bridge.score(X), exact.score(X), rtol=1e-5)
    check_target(bridge)


def test_density_without_score_joins_a_score():
    class Rough:
        space = sk.targets.gaussian(2).space

        def log_density(self, x):
            return -jnp.sum(x**2)

    both = sk.product(Rough(), sk.from_score(lambda x: -x, dim=2))
    np.testing.assert_allclose(both.score(jnp.ones(2)), [-3.0, -3.0])


def test_product_of_dicts():
    like = {"a": 0.0, "b": jnp.zeros(2)}
    one = sk.from_energy(lambda x: x["a"] ** 2 / 2 + (x["b"] ** 2).sum() / 2, like=like)
    two = sk.from_score(lambda x: jax.tree.map(lambda v: 1 - v, x), like=like)
    score = sk.product(one, two).score(jax.tree.map(jnp.asarray, like))
    np.testing.assert_allclose(score["b"], [1.0, 1.0])
    assert float(score["a"]) == 1.0


def test_run_labels_are_those_of_the_first():
    named = sk.from_energy(lambda x: (x**2).sum(), dim=2, name="theta", dims=["place"])
    for made in (sk.tempered(named, 0.5), sk.product(named, sk.targets.gaussian(2))):
        assert made.space == named.space
        assert not hasattr(made, "draw")
        assert not hasattr(made, "constrain")


def test_constrained_model_passes_its_labels_and_jacobian_on():
    """What a NumPyro target offers: its own constraints instead of a space's."""

    class Model:
        space = sk.targets.gaussian(1).space

        def log_density(self, x):  # an exponential variable y = exp x of rate 1
            return jnp.sum(-jnp.exp(x) + x)

        def log_jacobian(self, x):
            return jnp.sum(x)

        def constrain(self, x):
            return {"y": jnp.exp(x)}

    hot = sk.tempered(sk.tempered(Model(), 0.5), 0.5)
    exact = gamma(1.0, 0.25)
    np.testing.assert_allclose(hot.score(X), exact.score(X), rtol=1e-5)
    assert float(hot.log_density(X)) == pytest.approx(float(exact.log_density(X)), rel=1e-5)
    assert float(hot.constrain(X)["y"][0]) == pytest.approx(float(jnp.exp(X)[0]))


def test_tempered_numpyro_model():
    """The prior of the constrained values is tempered, supports that move included."""

    def model():
        scale = numpyro.sample("scale", dist.Gamma(3.0, 2.0))
        numpyro.sample("below", dist.Uniform(0.0, scale))

    target = sk.from_numpyro(model)
    hot = sk.tempered(target, 0.5)
    for shift in (0.0, 1.0):
        x = {"scale": jnp.array(0.3 + shift), "below": jnp.array(0.2)}
        scale = target.constrain(x)["scale"]
        prior = dist.Gamma(3.0, 2.0).log_prob(scale) - jnp.log(scale)
        exact = float(0.5 * prior + target.log_jacobian(x))
        assert float(hot.log_density(x)) == pytest.approx(exact, abs=1e-5)
        gradient = jax.grad(hot.log_density)(x)
        assert float(hot.score(x)["scale"]) == pytest.approx(float(gradient["scale"]), abs=1e-5)
    assert hot.constrain(x).keys() == {"scale", "below"}


# Smoothing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.2, 1.0, 3.0])
def test_smoothed_mixture_is_the_convolution(sigma):
    target = sk.targets.bimodal()
    grid = np.linspace(-40, 40, 8001)
    density = jax.jit(jax.vmap(lambda t, x: jnp.exp(t.log_density(x)), in_axes=(None, 0)))
    with jax.enable_x64(True):
        p = np.asarray(density(target, grid[:, None]))
        smooth = np.asarray(density(sk.smoothed(target, sigma), grid[:, None]))
    step = grid[1] - grid[0]
    noise = np.exp(-0.5 * (grid / sigma) ** 2) / (sigma * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(np.convolve(p, noise, mode="same") * step, smooth, atol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda: sk.targets.gaussian(2, [[2.0, 0.5], [0.5, 1.0]]),
        lambda: sk.targets.correlated(3, 0.9),
        lambda: sk.targets.grid(2),
        lambda: sk.targets.mixture([1, 1], np.eye(2), covariances=np.array([[[2, 1], [1, 2]]] * 2)),
    ],
)
def test_smoothing_adds_to_the_covariance(make):
    target = make()
    expected = target.covariance + 0.49 * np.eye(target.space.size)
    np.testing.assert_allclose(sk.smoothed(target, 0.7).covariance, expected, atol=1e-12)
    twice = sk.smoothed(sk.smoothed(target, 0.6), np.sqrt(0.13))
    np.testing.assert_allclose(twice.covariance, expected, atol=1e-12)
    traced = jax.jit(lambda s: sk.smoothed(target, s))(0.7)
    np.testing.assert_allclose(traced.covariance, expected, rtol=1e-5, atol=1e-5)


def test_tweedie():
    """E[x | x̃] = x̃ + σ² score(x̃): one Gaussian shrinks towards its mean by 1/(1 + σ²)."""
    noisy = sk.smoothed(sk.targets.gaussian([2.0]), 2.0)
    x = jnp.array([7.0])
    assert float((x + 4 * noisy.score(x))[0]) == pytest.approx(2.0 + 5.0 / 5.0)


def test_smoothed_family_is_its_member():
    family = sk.targets.noised_mixture([1, 1], [-1.0, 1.0], 0.5)
    assert sk.smoothed(family, 2.0).variance == pytest.approx(family.at(2.0).variance)


# Bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sk.tempered(sk.targets.gaussian(1), -1.0), "inverse temperature"),
        (lambda: sk.tempered(sk.targets.gaussian(1), np.ones(2)), "inverse temperature"),
        (lambda: sk.tempered(sk.targets.noised_mixture([1], [0.0]), 0.5), "family.at"),
        (lambda: sk.tempered(object(), 0.5), "neither a log density nor a score"),
        (lambda: sk.product(), "no target"),
        (lambda: sk.product(sk.targets.gaussian(1), 3.0), "neither"),
        (lambda: sk.product(sk.targets.gaussian(1), sk.targets.gaussian(2)), r"\(1,\) and \(2,\)"),
        (lambda: sk.product(sk.targets.gaussian(1), gamma(1.0, 1.0)), "supports of 'x'"),
        (
            lambda: sk.product(
                sk.targets.gaussian(1), sk.from_energy(lambda x: x["a"] ** 2, like={"a": 0.0})
            ),
            "structure",
        ),
        (lambda: sk.smoothed(sk.targets.funnel(), 1.0), "Funnel cannot be smoothed"),
        (lambda: sk.smoothed(sk.targets.gaussian(1), -1.0), "noise level"),
    ],
)
def test_bad_input_is_explained(make, says):
    with pytest.raises(sk.errors.TargetError, match=says):
        make()


def test_constraints_without_a_jacobian_are_refused():
    class Model:
        def log_density(self, x):
            return -jnp.sum(x)

        def constrain(self, x):
            return {"y": jnp.exp(x)}

    with pytest.raises(sk.errors.TargetError, match="log_jacobian"):
        sk.tempered(Model(), 0.5)
