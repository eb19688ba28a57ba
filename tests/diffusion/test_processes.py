"""Processes: every coefficient against the marginals, which define it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import samplekit as sk
from samplekit import diffusion

PROCESSES = [diffusion.VE(0.05, 20.0), diffusion.VP(), diffusion.VP(3.0, 3.0)]
every_process = pytest.mark.parametrize("process", PROCESSES, ids=repr)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@every_process
def test_drift_and_diffusion_are_those_of_the_marginals(process):
    """f = (log a)' and g² = (s²)' − 2 f s²."""

    def scale(t):
        return jnp.log(process.marginal(t)[0])

    def variance(t):
        return process.marginal(t)[1] ** 2

    for t in (0.01, 0.3, 1.0):
        rate = jax.grad(scale)(t)
        square = jax.grad(variance)(t) - 2 * rate * variance(t)
        np.testing.assert_allclose(process.rate(t), rate, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(process.diffusion(t) ** 2, square, rtol=1e-10)
        x = jnp.array([1.0, -2.0])
        np.testing.assert_allclose(process.drift(x, t), process.rate(t) * x)


@every_process
@pytest.mark.parametrize(("t", "to"), [(1.0, 0.9), (0.5, 0.2), (0.1, 0.0)])
def test_exponential_step_is_the_integral(process, t, to):
    """With the score held: r = a'/a, w = ∫ g² a'/a(u) du, c² = ∫ g² (a'/a(u))² du."""
    nodes, weights = np.polynomial.legendre.leggauss(40)
    u, du = (t + to) / 2 + (t - to) / 2 * nodes, (t - to) / 2 * weights
    ratio = np.asarray(process.marginal(to)[0] / process.marginal(jnp.asarray(u))[0])
    g = np.asarray(process.diffusion(jnp.asarray(u)))
    r, w, c = process.exponential(t, to)
    np.testing.assert_allclose(r, process.marginal(to)[0] / process.marginal(t)[0], rtol=1e-12)
    np.testing.assert_allclose(w, np.sum(du * g**2 * ratio), rtol=1e-11)
    np.testing.assert_allclose(c**2, np.sum(du * g**2 * ratio**2), rtol=1e-11)


@every_process
def test_euler_step_is_the_first_order_of_the_exponential_one(process):
    for h, digits in ((1e-3, 2e-2), (1e-6, 2e-5)):
        ours, exact = process.euler(0.5, 0.5 - h), process.exponential(0.5, 0.5 - h)
        np.testing.assert_allclose(ours, exact, rtol=digits)


@every_process
def test_ancestral_step_is_the_posterior_given_the_data(process):
    """x' given x and x₀ = Gaussian conditioning, with Tweedie's formula in the place of x₀."""
    t, to, x, data = 0.6, 0.4, 1.7, 0.3
    (a, s), (b, q) = (np.asarray(process.marginal(u)) for u in (t, to))
    step = a / b  # from x' to x, whose noise has the variance below
    left = s**2 - step**2 * q**2
    variance = 1 / (1 / q**2 + step**2 / left)
    mean = variance * (b * data / q**2 + step * x / left)
    r, w, c = process.ancestral(t, to)
    score = -(x - a * data) / s**2
    np.testing.assert_allclose(r * x + w * score, mean, rtol=1e-10)
    np.testing.assert_allclose(c**2, variance, rtol=1e-10)


@every_process
def test_time_of_a_noise_level(process):
    t = jnp.linspace(0.01, 1.0, 7)
    np.testing.assert_allclose(process.time_of(process.noise(t)), t, rtol=1e-10)


def test_ornstein_uhlenbeck():
    scale, sd = diffusion.VP(3.0, 3.0).marginal(1.0)  # dx = −x dt + √2 dW up to T = 1.5
    np.testing.assert_allclose([scale, sd], [np.exp(-1.5), np.sqrt(1 - np.exp(-3.0))])


def test_priors():
    assert diffusion.VE(0.1, 7.0).prior(2).variance == pytest.approx([49.0, 49.0])
    assert diffusion.VE(0.01, 1.0).prior(1, 0.5).variance == pytest.approx([0.01])
    assert diffusion.VP().prior(1).variance == pytest.approx([1.0])


@every_process
def test_tweedie_is_the_posterior_mean(process):
    """Gaussian data: E[x₀ | x] = m + v a (x − a m) / (a² v + s²); FORMULAS §6."""
    m, v, t = 1.3, 0.64, 0.4
    family = sk.targets.noised_mixture([1.0], [[m]], np.sqrt(v))
    x = jnp.array([[-1.0], [0.5], [4.0]])
    a, s = process.marginal(t)
    exact = m + v * a * (x - a * m) / (a**2 * v + s**2)
    np.testing.assert_allclose(diffusion.denoise(process, family, x, t), exact, rtol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda: diffusion.VE(1.0, 0.5),
        lambda: diffusion.VE(0.0, 1.0),
        lambda: diffusion.VP(-1.0),
        lambda: diffusion.VP(1.0, np.inf),
    ],
)
def test_impossible_processes(make):
    with pytest.raises(sk.errors.SettingsError):
        make()


def test_parameters_are_data():
    leaves, _ = jax.tree.flatten(diffusion.VE(0.1, 7.0))
    assert leaves == [0.1, 7.0]
    doubled = jax.jit(lambda p: p.noise(1.0))(diffusion.VE(0.1, 14.0))
    assert float(doubled) == pytest.approx(14.0)
