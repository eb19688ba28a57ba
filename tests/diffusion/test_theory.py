"""Total variation to a known mixture, by time, by step and by error of the score.

Each step of the reverse SDE is Gaussian, so in one dimension the law of the sampler itself, steps
and all, is a product of matrices: no Monte Carlo error hides a rate. That law is then compared with
draws of `reverse`. The bounds are those of Chen et al. 2023, arXiv:2209.11215, for
dx = −x dt + √2 dW up to time T.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2

import samplekit as sk
from samplekit import diffusion
from samplekit.core.pytree import pytree
from samplekit.diffusion.reverse import tables

FAMILY = sk.targets.noised_mixture([1, 2], [[-1.5], [1.0]], 0.4)
# The trapezoidal rule is exact to exp(−2π²(c/dx)²) for noise c: dx = c/2 is enough.
GRID = np.linspace(-7, 7, 281)
DX = GRID[1] - GRID[0]
NORMAL = np.exp(-(GRID**2) / 2) / np.sqrt(2 * np.pi)


@pytree
class Shifted:
    """The family with a constant error of the score of x_t, whatever the time."""

    epsilon: float

    def __call__(self, x, t):
        scale, sd = diffusion.VP(8.0, 8.0).marginal(t)
        epsilon = jnp.asarray(self.epsilon, x.dtype)
        return FAMILY.at(sd / scale).score(x / scale) / scale + epsilon


@jax.jit
def scores(process, times):
    def at(t):
        scale, sd = process.marginal(t)
        target = FAMILY.at(sd / scale)
        return jax.vmap(lambda x: target.score(x[None] / scale)[0] / scale)(jnp.asarray(GRID))

    return jax.lax.map(at, times)


@functools.cache
def law(time, steps, *, solver="exponential", epsilon=0.0, begin="prior"):
    """Return the density of what the sampler draws, on the grid."""
    process, times = diffusion.VP(2 * time, 2 * time), np.linspace(1, 0, steps + 1)
    density = NORMAL if begin == "prior" else noisy(process)
    with jax.enable_x64(True):
        table = np.asarray(scores(process, times[:-1])) + epsilon
    for (r, w, c), score in zip(tables(process, solver, times)[0], table, strict=True):
        mean = r * GRID + w * score
        move = np.exp(-(((GRID[:, None] - mean) / c) ** 2) / 2) / (c * np.sqrt(2 * np.pi))
        density = move @ density * DX
    return density


def noisy(process):
    """Return the true density at t = 1."""
    with jax.enable_x64(True):
        scale, sd = process.marginal(1.0)
        target = FAMILY.at(sd / scale)
        return np.asarray(
            jax.vmap(lambda x: jnp.exp(target.log_density(x[None] / scale)) / scale)(GRID)
        )


@functools.cache
def data():
    with jax.enable_x64(True):
        return np.exp(np.asarray(jax.vmap(lambda x: FAMILY.at(0.0).log_density(x[None]))(GRID)))


def distance(p, q):
    """Return the total variation."""
    return np.abs(p - q).sum() * DX / 2


def rate(x, y):
    return np.polyfit(x, np.log(y), 1)[0]


@pytest.mark.parametrize("solver", ["euler", "exponential"])
def test_falls_with_the_step(solver):
    """The bound has √h; the law itself is off by O(h), twice as good a rate."""
    steps = np.array([40, 80, 160])
    off = [distance(law(4.0, n, solver=solver), data()) for n in steps]
    assert rate(np.log(1 / steps), off) == pytest.approx(1.0, abs=0.06)
    assert off[-1] == pytest.approx(0.045, abs=0.003)


def test_falls_with_time():
    """The prior's part is below e^{−T} √(KL/2), and falls by e^{−2T}: the way back forgets too."""
    p = data()
    divergence = np.sum(p * np.log(p / NORMAL), where=p > 1e-300) * DX
    times = np.array([0.5, 1.0, 1.5])
    pairs = [[law(t, int(60 * t), begin=begin) for begin in ("prior", "law")] for t in times]
    off = np.array([distance(*pair) for pair in pairs])
    assert (off < np.exp(-times) * np.sqrt(divergence / 2)).all()
    assert rate(times, off) == pytest.approx(-2.0, abs=0.15)
    total = [distance(law(t, int(60 * t)), p) for t in times]
    assert (np.diff(total) < 0).all()


def test_grows_with_the_error_of_the_score():
    """Linear in ε and below ε √(T/2), which is Girsanov's and Pinsker's."""
    time, epsilons = 4.0, np.array([0.02, 0.05, 0.1, 0.2])
    right = law(time, 160)
    off = np.array([distance(law(time, 160, epsilon=e), right) for e in epsilons])
    assert (off < epsilons * np.sqrt(time / 2)).all()
    assert rate(np.log(epsilons), off) == pytest.approx(1.0, abs=0.03)
    assert off[0] / epsilons[0] == pytest.approx(0.82, abs=0.03)


@pytest.mark.statistical
@pytest.mark.parametrize("epsilon", [0.0, 0.2])
def test_draws_follow_that_law(epsilon, seed):
    """The cells of a histogram, by χ²; and the law of another ε is told apart."""
    n = 65_536
    out = diffusion.reverse(
        diffusion.VP(8.0, 8.0), Shifted(epsilon), dim=1, steps=40, particles=n, seed=seed,
        denoise=False, progress=False,
    )  # fmt: skip
    x = out["posterior"]["x"].values.ravel()
    edges = GRID[::5]  # cells of whole steps of the grid
    seen = np.histogram(x, edges)[0]

    def statistic(other):
        density = law(4.0, 40, epsilon=other)
        mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2) * DX])
        cells = np.diff(mass[::5]) * n
        large = cells > 20
        return ((seen - cells)[large] ** 2 / cells[large]).sum(), large.sum()

    value, cells = statistic(epsilon)
    assert value < chi2.isf(1e-6, cells)
    value, cells = statistic(epsilon + 0.05)
    assert value > chi2.isf(1e-6, cells)
