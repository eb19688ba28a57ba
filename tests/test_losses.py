"""Every loss against closed forms, every sign pinned, and the usual mistakes caught."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import samplekit as sk
from samplekit import losses
from samplekit.core.errors import SettingsError, TargetError
from samplekit.losses import divergence
from samplekit.losses.noisy import _deal
from samplekit.testing import assert_mean

EXACT = 1e-12  # some thousand float64 roundings


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def now(loss, *args):
    """Evaluate as one program: op by op, each would compile on its own."""
    return jax.jit(loss)(*args)


# A linear score that is no gradient, so that a transposed or symmetrised derivative shows.
A = np.array([[-1.0, 0.3, 0.5], [-0.4, -0.7, 0.2], [0.1, 0.6, -0.9]])
B = np.array([0.2, -0.5, 1.0])
MEAN = np.array([1.0, -0.5, 0.3])
ROOT = np.array([[1.0, 0.0, 0.0], [0.4, 0.8, 0.0], [-0.3, 0.2, 0.6]])
COVARIANCE = ROOT @ ROOT.T


def linear(x):
    return jnp.asarray(A) @ x + jnp.asarray(B)


def gaussian_score(x):
    return -jnp.asarray(np.linalg.inv(COVARIANCE)) @ (x - jnp.asarray(MEAN))


def sigma_points():
    """Six points with exactly the mean and covariance: exact means of quadratic functions."""
    spread = math.sqrt(3) * ROOT.T
    return jnp.asarray(np.concatenate([MEAN + spread, MEAN - spread]))


def energy_of_score(a=A, b=B, mean=MEAN, covariance=COVARIANCE):
    """½E‖Ax + b‖² for x with this mean and covariance."""
    return (np.sum((a @ mean + b) ** 2) + np.trace(a @ covariance @ a.T)) / 2


IMPLICIT = energy_of_score() + np.trace(A)


def weights(net):
    k1, k2 = jax.random.split(jax.random.key(net))
    return jax.random.normal(k1, (4, 2)), jax.random.normal(k2, (2, 4))


def bent(x, net=3):
    """A nonlinear score in 2-D that is no gradient."""
    inner, outer = weights(net)
    return outer @ jnp.tanh(inner @ x) - x / 2


def quartic(x):
    return jnp.sum(x**4) / 4 + x[0] * x[1] / 3 + jnp.cos(x).sum()


# Exact and implicit ---------------------------------------------------------------------------


def test_explicit_and_implicit_are_their_closed_forms():
    points = sigma_points()
    precision = np.linalg.inv(COVARIANCE)
    fisher = np.trace(precision) / 2
    implicit = now(lambda: losses.implicit(linear, points))
    np.testing.assert_allclose(implicit, IMPLICIT, rtol=EXACT)
    explicit = now(lambda: losses.explicit(linear, gaussian_score, points))
    expected = energy_of_score(A + precision, B - precision @ MEAN)
    np.testing.assert_allclose(explicit, expected, rtol=EXACT)
    np.testing.assert_allclose(explicit - implicit, fisher, rtol=EXACT)
    best = now(lambda: losses.implicit(gaussian_score, points))
    np.testing.assert_allclose(best, -fisher, rtol=EXACT)


@pytest.mark.parametrize("net", [1, 2, 3])
def test_implicit_is_explicit_plus_a_constant_on_a_mixture(net):
    """The constant is ½E‖∇ log p‖², whatever the score; by the trapezoid on a grid."""
    target = sk.targets.mixture(
        [0.3, 0.7], [[-1.5, 0.0], [1.0, 1.0]], covariances=[np.diag([0.5, 1.0]), np.diag([1, 0.7])]
    )
    axis = jnp.linspace(-9, 9, 121)
    grid = jnp.stack(jnp.meshgrid(axis, axis), -1).reshape(-1, 2)
    density = jax.vmap(lambda x: jnp.exp(target.log_density(x)))(grid)
    density = density / density.sum()

    def mean(loss):
        return float(density @ jax.jit(jax.vmap(lambda x: loss(x[None])))(grid))

    def score(x):
        return bent(x, net)

    explicit = mean(lambda x: losses.explicit(score, target.score, x))
    implicit = mean(lambda x: losses.implicit(score, x))
    fisher = mean(lambda x: losses.explicit(target.score, lambda x: 0 * x, x))
    assert explicit > 0.1
    np.testing.assert_allclose(explicit, implicit + fisher, rtol=1e-10)  # of the trapezoid
    np.testing.assert_allclose(mean(lambda x: losses.implicit(target.score, x)), -fisher, rtol=1e-9)


def test_loss_is_the_mean_over_the_samples(key):
    data = jax.random.normal(key, (7, 2))
    loss = jax.jit(lambda x: losses.implicit(bent, x))
    np.testing.assert_allclose(loss(data), np.mean([loss(x[None]) for x in data]), rtol=EXACT)


def test_trace_of_many_dimensions_is_exact_and_holds_no_jacobian(key):
    data = jax.random.normal(key, (3, 50))

    def score(x, scale=1.0):
        return jnp.sin(scale * x) * jnp.cos(jnp.roll(x, 1))

    slope = jnp.cos(data) * jnp.cos(jnp.roll(data, 1, axis=1))
    expected = (jax.vmap(score)(data) ** 2 / 2 + slope).sum(1).mean()

    @jax.jit
    def loss(scale):
        return losses.implicit(lambda x: score(x, scale), data)

    np.testing.assert_allclose(loss(1.0), expected, rtol=EXACT)
    assert "50,50" not in str(jax.make_jaxpr(jax.grad(loss))(1.0))
    h = 1e-5  # central difference: error of order h² and 1e-16/h
    difference = (loss(1 + h) - loss(1 - h)) / (2 * h)
    np.testing.assert_allclose(jax.grad(loss)(1.0), difference, rtol=1e-8)


# Random directions ----------------------------------------------------------------------------


def all_signs(key, samples, probes, noise):
    """Stand in for the draws: every sign vector once, so that the mean is the expectation."""
    del key, probes
    assert noise == "rademacher"
    dim = samples[0].size
    signs = jnp.asarray(list(itertools.product([-1.0, 1.0], repeat=dim)))
    signs = signs.reshape(1, 2**dim, *samples.shape[1:])
    return jnp.broadcast_to(signs, (len(samples), *signs.shape[1:]))


PROBED = {"hutchinson": losses.hutchinson, "sliced": losses.sliced, "sliced_vr": losses.sliced_vr}
every_probed = pytest.mark.parametrize("name", PROBED)


@every_probed
def test_expectation_over_signs_is_the_implicit_loss(name, key, monkeypatch):
    monkeypatch.setattr(divergence, "draw_probes", all_signs)
    loss = PROBED[name]
    found = now(lambda key: loss(linear, sigma_points(), key), key)
    np.testing.assert_allclose(found, IMPLICIT, rtol=EXACT)
    data = jax.random.normal(key, (5, 2))
    found, exact = now(lambda key: (loss(bent, data, key), losses.implicit(bent, data)), key)
    np.testing.assert_allclose(found, exact, rtol=EXACT)


def over_keys(loss, key, n=4000):
    return np.asarray(jax.jit(jax.vmap(loss))(jax.random.split(key, n))).reshape(8, -1)


@pytest.mark.statistical
@pytest.mark.parametrize("noise", ["rademacher", "gaussian"])
@every_probed
def test_mean_over_keys_is_the_implicit_loss(name, noise, key):
    points = sigma_points()
    draws = over_keys(lambda k: PROBED[name](linear, points, k, probes=3, noise=noise), key)
    # A flipped trace would be off by 5.2, one divided by the dimension by 1.7.
    assert_mean(draws, IMPLICIT, resolves=0.3)


def divided(score, data, key, **settings):
    """Mutant: the trace over the dimension (FORMULAS §12, trap 3)."""
    half = losses.explicit(score, lambda x: 0 * x, data)
    return half + (losses.hutchinson(score, data, key, **settings) - half) / data[0].size


def flipped(score, data, key, **settings):
    """Mutant: the trace of +∇E."""
    half = losses.explicit(score, lambda x: 0 * x, data)
    return 2 * half - losses.hutchinson(score, data, key, **settings)


@pytest.mark.statistical
@pytest.mark.parametrize("mutant", [divided, flipped])
def test_mutants_of_the_trace_fail(mutant, key, monkeypatch):
    points = sigma_points()
    draws = over_keys(lambda k: mutant(linear, points, k, probes=3), key)
    with pytest.raises(AssertionError, match="is wrong"):
        assert_mean(draws, IMPLICIT, resolves=0.3)
    monkeypatch.setattr(divergence, "draw_probes", all_signs)
    assert abs(float(now(lambda key: mutant(linear, points, key), key)) - IMPLICIT) > 1


@pytest.mark.parametrize("dim", [2, 8, 64])
def test_trace_is_a_sum_over_the_dimensions(dim, key):
    """At the mode of a standard normal the loss is −d, by signs exactly."""
    data = jnp.zeros((3, dim))
    for loss in (*PROBED.values(), lambda s, x, k: losses.implicit(s, x)):
        assert float(now(lambda key, loss=loss: loss(lambda x: -x, data, key), key)) == -dim
    assert float(now(lambda key: divided(lambda x: -x, data, key), key)) == -1


def test_more_probes_and_reduced_variance_vary_less(key):
    points = sigma_points()

    def spread(loss, **settings):
        return over_keys(lambda k: loss(linear, points, k, **settings), key).var()

    one = spread(losses.sliced_vr)
    # 4000 draws: a variance is known to some 2–3 %.
    np.testing.assert_allclose(spread(losses.sliced_vr, probes=4), one / 4, rtol=0.2)
    assert spread(losses.sliced) > 1.5 * one
    assert spread(losses.hutchinson, noise="gaussian") > 1.5 * one


# Finite differences ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "model", "score"),
    [
        (losses.finite_difference_sliced, bent, bent),
        (losses.finite_difference_energy, quartic, losses.score_of(quartic)),
    ],
)
def test_finite_differences_converge_to_sliced_at_second_order(loss, model, score, key):
    data = jax.random.normal(key, (20, 2))
    exact = now(lambda key: losses.sliced(score, data, key, probes=4), key)
    at = jax.jit(lambda step, key: loss(model, data, key, step=step, probes=4))
    off = [float(at(step, key) - exact) for step in (0.1, 0.05, 0.025)]
    ratios = [off[0] / off[1], off[1] / off[2]]
    np.testing.assert_allclose(ratios, 4, rtol=0.02)  # O(step⁴) is next, some step² of it
    assert abs(off[2]) < 1e-2


def test_finite_differences_are_exact_for_linear_scores(key):
    data = sigma_points()
    exact = now(lambda key: losses.sliced(linear, data, key), key)
    found = now(lambda key: losses.finite_difference_sliced(linear, data, key, step=0.5), key)
    np.testing.assert_allclose(found, exact, rtol=EXACT)

    def energy(x):
        return 1.5 * jnp.sum(x**2) + x[0] * x[1]

    exact = now(lambda key: losses.sliced(losses.score_of(energy), data, key), key)
    found = now(lambda key: losses.finite_difference_energy(energy, data, key, step=0.5), key)
    np.testing.assert_allclose(found, exact, rtol=1e-11)  # differences lose a digit


def test_finite_differences_hold_in_float32(key):
    """The default step leaves 1e-3 of the loss, both by its length and by rounding."""
    with jax.enable_x64(False):
        data = jax.random.normal(key, (256, 64))

        def energy(x):
            return jnp.sum(jnp.log(jnp.cosh(x)))

        score = losses.score_of(energy)
        exact, *found = now(
            lambda key: (
                losses.sliced(score, data, key),
                losses.finite_difference_sliced(score, data, key),
                losses.finite_difference_energy(energy, data, key),
            ),
            key,
        )
        assert found[1].dtype == jnp.float32
        np.testing.assert_allclose(found, exact, rtol=1e-3)


# Denoising ------------------------------------------------------------------------------------

SIGMA = 0.7
SMOOTHED = COVARIANCE + SIGMA**2 * np.eye(3)
DENOISING = energy_of_score(covariance=SMOOTHED) + np.trace(A) + 3 / (2 * SIGMA**2)


def wrong_sign(score, data, key, sigma):
    """Mutant: matches +ε/σ (PEERS B, defect 2)."""
    noise = jax.random.normal(key, data.shape)
    off = jax.vmap(score)(data + sigma * noise) - noise / sigma
    return jnp.sum(off**2, axis=1).mean() / 2


def wrong_scale(score, data, key, sigma):
    """Mutant: −ε/σ² (FORMULAS §3d)."""
    noise = jax.random.normal(key, data.shape)
    off = jax.vmap(score)(data + sigma * noise) + noise / sigma**2
    return jnp.sum(off**2, axis=1).mean() / 2


def wrong_size(score, data, key, sigma):
    """Mutant: the mean over the dimensions."""
    return losses.denoising(score, data, key, sigma) / data[0].size


def check_value(loss, key):
    points = jnp.tile(sigma_points(), (4, 1))
    draws = over_keys(lambda k: loss(linear, points, k, SIGMA), key, 8000)
    assert_mean(draws, DENOISING, resolves=0.3)


def check_minimiser(loss, key):
    """The gradient in A and b vanishes at the score of the smoothed density."""
    points = jnp.tile(sigma_points(), (4, 1))
    best = -np.linalg.inv(SMOOTHED)

    def gradient(k):
        slopes = jax.grad(lambda a, b: loss(lambda x: a @ x + b, points, k, SIGMA), argnums=(0, 1))(
            jnp.asarray(best), jnp.asarray(-best @ MEAN)
        )
        return jnp.concatenate([slopes[0].ravel(), slopes[1]])

    draws = np.asarray(jax.jit(jax.vmap(gradient))(jax.random.split(key, 8000)))
    assert_mean(draws.reshape(8, -1, 12), 0.0, resolves=0.1)


@pytest.mark.statistical
def test_denoising_is_explicit_on_the_smoothed_density(key):
    """In value up to a constant, E[½‖ε/σ‖²] − ½E‖∇ log p_σ‖², and in minimiser."""
    check_value(losses.denoising, key)
    check_minimiser(losses.denoising, key)
    precision = np.linalg.inv(SMOOTHED)
    explicit = energy_of_score(A + precision, B - precision @ MEAN, covariance=SMOOTHED)
    constant = 3 / (2 * SIGMA**2) - np.trace(precision) / 2
    np.testing.assert_allclose(explicit + constant, DENOISING, rtol=EXACT)


@pytest.mark.statistical
@pytest.mark.parametrize("mutant", [wrong_sign, wrong_scale, wrong_size])
def test_mutants_of_denoising_fail(mutant, key):
    with pytest.raises(AssertionError, match="is wrong"):
        check_value(mutant, key)
    if mutant is not wrong_size:  # a factor moves no minimum
        with pytest.raises(AssertionError, match="is wrong"):
            check_minimiser(mutant, key)


def test_denoising_is_exact_for_data_at_one_point(key):
    data = jnp.ones((6, 4))

    def value(loss):
        return float(now(lambda key: loss(lambda x: -(x - 1) / 0.09, data, key, 0.3), key))

    assert value(losses.denoising) < 1e-24  # the square of rounding, (1e-16/0.09)²
    assert min(value(wrong_sign), value(wrong_scale)) > 1


def test_general_noise_is_gaussian_where_it_is_gaussian(key):
    data = jax.random.normal(key, (50, 3))

    def draw(key, x):
        return x + SIGMA * jax.random.normal(key, x.shape)

    def log_density(noisy, x):
        return -jnp.sum((noisy - x) ** 2) / (2 * SIGMA**2) + 5.0

    found = now(
        lambda key: losses.denoising_general(linear, data, key, draw=draw, log_density=log_density),
        key,
    )
    keys = jax.random.split(key, len(data))
    noise = jax.vmap(lambda k: jax.random.normal(k, (3,)))(keys)
    off = jax.vmap(linear)(data + SIGMA * noise) + noise / SIGMA
    np.testing.assert_allclose(found, jnp.sum(off**2, axis=1).mean() / 2, rtol=EXACT)


@pytest.mark.statistical
def test_general_noise_of_student_t(key):
    """½E‖Ax̃ + b‖² + tr A + ½I, with I = d(ν + 1)/(ν + 3) the information of Student's t."""
    df = 12.0
    points = jnp.tile(sigma_points(), (4, 1))

    def draw(key, x):
        return x + jax.random.t(key, df, x.shape)

    def log_density(noisy, x):
        return -(df + 1) / 2 * jnp.sum(jnp.log1p((noisy - x) ** 2 / df))

    draws = over_keys(
        lambda k: losses.denoising_general(linear, points, k, draw=draw, log_density=log_density),
        key,
        8000,
    )
    noisy = COVARIANCE + df / (df - 2) * np.eye(3)
    expected = energy_of_score(covariance=noisy) + np.trace(A) + 3 * (df + 1) / (df + 3) / 2
    assert_mean(draws, expected, resolves=0.3)


# Many levels ----------------------------------------------------------------------------------

LEVELS = np.array([3.0, 1.0, 0.4])


def at_level(sigma, matrix=A):
    """The denoising loss of the score Ax/σ² at one level."""
    a = matrix / sigma**2
    noisy = COVARIANCE + sigma**2 * np.eye(3)
    return energy_of_score(a, 0 * B, covariance=noisy) + np.trace(a) + 3 / (2 * sigma**2)


def conditional(x, sigma):
    return jnp.asarray(A) @ x / sigma**2


@pytest.mark.statistical
@pytest.mark.parametrize("weight", [None, lambda s: s**2, lambda s: s**3, lambda s: 1 + 0 * s])
def test_noise_conditional_is_the_mean_over_the_levels(weight, key):
    """Also where the levels cannot be dealt out evenly: 6 samples, 4 levels."""
    levels = np.append(LEVELS, 0.6)
    points = sigma_points()
    of = weight or (lambda s: s**2)
    expected = np.mean([of(s) * at_level(s) for s in levels])
    # The levels must not follow the order of the samples, of which each has its own loss.
    draws = over_keys(
        lambda k: losses.noise_conditional(conditional, points, k, levels, weight=weight),
        key,
        16000,
    )
    assert_mean(draws, expected, resolves=0.1 * expected)


@pytest.mark.statistical
def test_one_level_is_denoising(key):
    points = sigma_points()
    draws = over_keys(
        lambda k: losses.noise_conditional(lambda x, s: linear(x), points, k, [SIGMA]), key, 16000
    )
    assert_mean(draws, SIGMA**2 * DENOISING, resolves=0.2)


def test_usual_weight_is_sigma_squared(key):
    data = jax.random.normal(key, (9, 3))
    usual = now(lambda key: losses.noise_conditional(conditional, data, key, LEVELS), key)
    named = now(
        lambda key: losses.noise_conditional(conditional, data, key, LEVELS, weight=lambda s: s**2),
        key,
    )
    np.testing.assert_allclose(usual, named, rtol=EXACT)


@pytest.mark.parametrize(("n", "levels"), [(512, 10), (12, 4), (7, 3), (3, 10), (1, 5)])
def test_levels_are_dealt_evenly(n, levels, key):
    ladder = jnp.arange(levels, dtype=float)
    deal = jax.jit(jax.vmap(lambda k: _deal(k, ladder, n)))
    is_level = np.asarray(deal(jax.random.split(key, 2000)))[:, :, None] == np.asarray(ladder)
    counts = is_level.sum(1)
    assert counts.min() >= n // levels
    assert counts.max() <= -(-n // levels)
    # For each sample any level is as likely: 6 standard errors of a share of 1/levels.
    shares = is_level.mean(0)
    error = math.sqrt((1 / levels) * (1 - 1 / levels) / 2000)
    np.testing.assert_allclose(shares, 1 / levels, atol=6 * error)


# Energies -------------------------------------------------------------------------------------


def test_score_of_an_energy_has_the_sign_of_the_density():
    x = jnp.array([0.3, -2.0])
    np.testing.assert_allclose(losses.score_of(lambda x: jnp.sum(x**2) / 2)(x), -x)
    np.testing.assert_allclose(losses.score_of(lambda x, s: jnp.sum(x**2) / s)(x, 4.0), -x / 2)


FITS = {
    "implicit": (lambda s, x, k: losses.implicit(s, x), 1 / 4, 1e-9),
    "hutchinson": (losses.hutchinson, 1 / 4, 1e-9),
    "sliced": (losses.sliced, 1 / 4, 1e-9),
    "sliced_vr": (losses.sliced_vr, 1 / 4, 1e-9),
    "finite_difference_sliced": (losses.finite_difference_sliced, 1 / 4, 1e-9),
    # The precision of the noisy data; E[x̃ε] = 1 is known to √(6/8000), of which 6.
    "denoising": (lambda s, x, k: losses.denoising(s, x, k, 1.0), 1 / 5, 0.17),
}


@pytest.mark.parametrize("name", FITS)
def test_every_loss_fits_an_energy(name, key):
    """E = ½θx²: the minimum of ½θ²m − θ is 1/m, the precision; with a flipped sign it is −1/m."""
    data = 2 * jnp.tile(jnp.array([[-1.0], [1.0]]), (4000, 1))  # second moment 4
    loss, expected, rtol = FITS[name]

    def objective(theta, key):
        return loss(losses.score_of(lambda x: theta / 2 * jnp.sum(x**2)), data, key)

    slope = jax.grad(objective)  # the objective is quadratic in θ
    found = now(lambda key: -slope(0.0, key) / jax.grad(slope)(0.0, key), key)
    np.testing.assert_allclose(found, expected, rtol=rtol)


def test_contrastive_gradient_is_minus_the_likelihoods(key):
    """E = ½θx²: d/dθ mean log p = 1/(2θ) − ½ mean x²."""
    theta = 1.7
    data = jax.random.normal(key, (100, 1))
    negatives = jnp.array([[-1.0], [1.0]]) / math.sqrt(theta)  # the model's second moment

    def loss(theta):
        moved = negatives * (theta / 1.7)  # draws follow the weights; the gradient must not
        return losses.contrastive(lambda x: theta / 2 * jnp.sum(x**2), data, moved)

    likelihood = 1 / (2 * theta) - jnp.mean(data**2) / 2
    value, slope = jax.jit(jax.value_and_grad(loss))(theta)
    np.testing.assert_allclose(slope, -likelihood, rtol=EXACT)
    np.testing.assert_allclose(value, theta / 2 * jnp.mean(data**2) - 0.5, rtol=EXACT)


def test_contrastive_penalty_is_the_mean_square_energy():
    found = losses.contrastive(lambda x: x.sum(), jnp.ones((2, 2)), jnp.zeros((5, 2)), penalty=0.5)
    assert float(found) == 2 - 0 + 0.5 * (4 + 0) / 2


# Shapes, precision, bad input -----------------------------------------------------------------

EVERY = {
    "explicit": lambda s, x, k: losses.explicit(s, lambda x: -x, x),
    "implicit": lambda s, x, k: losses.implicit(s, x),
    "hutchinson": losses.hutchinson,
    "sliced": losses.sliced,
    "sliced_vr": losses.sliced_vr,
    "finite_difference_sliced": losses.finite_difference_sliced,
    "denoising": lambda s, x, k: losses.denoising(s, x, k, 0.5),
    "denoising_general": lambda s, x, k: losses.denoising_general(
        s,
        x,
        k,
        draw=lambda k, x: x + jax.random.normal(k, (x.size,), x.dtype).reshape(x.shape),
        log_density=lambda y, x: -jnp.sum((y - x) ** 2) / 2,
    ),
    "noise_conditional": lambda s, x, k: losses.noise_conditional(
        lambda x, sigma: s(x), x, k, [1.0, 0.5]
    ),
}
every_loss = pytest.mark.parametrize("name", EVERY)


def elementwise(x):
    return -jnp.sin(x) - x**3


@every_loss
def test_images_are_vectors(name, key):
    """Inner products run over all axes: of 24 numbers, 2 × 3 × 4 or flat, or one by one."""
    data = jax.random.normal(key, (5, 24))
    flat = now(lambda key: EVERY[name](elementwise, data, key), key)
    image = now(lambda key: EVERY[name](elementwise, data.reshape(5, 2, 3, 4), key), key)
    np.testing.assert_allclose(image, flat, rtol=EXACT)
    numbers = now(lambda key: EVERY[name](elementwise, data[:, 0], key), key)
    assert numbers.shape == ()


@every_loss
def test_precision_follows_the_data_and_gradients_are_finite(name, key):
    data = jax.random.normal(key, (8, 3), jnp.float32)

    def loss(scale, key):
        return EVERY[name](lambda x: scale * elementwise(x), data, key)

    value, slope = jax.jit(jax.value_and_grad(loss))(jnp.float32(1.0), key)
    assert value.dtype == slope.dtype == jnp.float32
    assert value.shape == ()
    assert jnp.isfinite(value)
    assert jnp.isfinite(slope)
    assert slope != 0


@every_loss
def test_an_energy_in_place_of_a_score_is_refused(name, key):
    with pytest.raises(TargetError, match="score_of"):
        EVERY[name](lambda x: jnp.sum(x**2), jnp.ones((4, 2)), key)


@every_loss
def test_integers_and_nothing_are_refused(name, key):
    with pytest.raises(TargetError, match="Give floats"):
        EVERY[name](elementwise, jnp.ones((4, 2), int), key)
    with pytest.raises(TargetError, match="no mean"):
        EVERY[name](elementwise, jnp.ones((0, 2)), key)


def test_bad_settings_say_what_to_give(key):
    data = jnp.ones((4, 2))
    with pytest.raises(SettingsError, match="probes=0"):
        losses.hutchinson(elementwise, data, key, probes=0)
    with pytest.raises(SettingsError, match="'rademacher' or 'gaussian'"):
        losses.sliced(elementwise, data, key, noise="uniform")
    with pytest.raises(SettingsError, match="positive"):
        losses.denoising(elementwise, data, key, 0.0)
    with pytest.raises(SettingsError, match="positive"):
        losses.noise_conditional(conditional, data, key, [1.0, -0.1])
    with pytest.raises(SettingsError, match="list of noise scales"):
        losses.noise_conditional(conditional, data, key, 1.0)
    with pytest.raises(SettingsError, match="positive"):
        losses.finite_difference_sliced(elementwise, data, key, step=0.0)
    with pytest.raises(TargetError, match="one number"):
        losses.contrastive(elementwise, data, data)
    with pytest.raises(TargetError, match="one number"):
        losses.finite_difference_energy(elementwise, data, key)
    # Scales that are traced are not looked at.
    jax.jit(lambda s: losses.denoising(elementwise, data, key, s))(0.5)
    jax.jit(lambda s: losses.noise_conditional(lambda x, s: -x, data, key, s))(LEVELS)
