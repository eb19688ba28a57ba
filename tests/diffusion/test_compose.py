"""Products and guidance, where Gaussians have the answer in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import samplekit as sk
from samplekit import diffusion

ONE = sk.targets.noised_mixture([1.0], [[0.0]], 1.0)
TWO = sk.targets.noised_mixture([1.0], [[2.0]], 0.5)
X = jnp.linspace(-3.0, 3.0, 7)[:, None]


def scores(family, sigma):
    return np.asarray(jax.vmap(family.at(sigma).score)(X))


def test_weighted_sums_of_scores():
    for sigma in (0.0, 0.7):
        total = 3 * scores(ONE, sigma) - 2 * scores(TWO, sigma)
        both = diffusion.combined([ONE, TWO], [3.0, -2.0])
        np.testing.assert_allclose(scores(both, sigma), total, rtol=1e-5, atol=1e-5)
        product = scores(ONE, sigma) + scores(TWO, sigma)
        np.testing.assert_allclose(scores(diffusion.product(ONE, TWO), sigma), product, rtol=1e-5)
    assert diffusion.product(ONE).at(0.0).log_density(X[0]) == ONE.at(0.0).log_density(X[0])


def test_scores_alone_compose():
    class Learned:
        space, levels = ONE.space, np.array([2.0, 1.0])

        def at(self, level):
            return sk.from_score(lambda x: -x / (1 + level**2), 1)

    both = diffusion.product(Learned(), TWO)
    assert not hasattr(both.at(1.0), "log_density")
    np.testing.assert_allclose(scores(both, 1.0), scores(ONE, 1.0) + scores(TWO, 1.0), rtol=1e-5)
    assert both.space == ONE.space
    np.testing.assert_array_equal(both.levels, [2.0, 1.0])
    assert diffusion.guided(TWO, lambda x, s: -jnp.sum(x)).levels is None


@pytest.mark.statistical
def test_guidance_gives_the_posterior(seed):
    """Prior N(0, 1), y = x + N(0, r): with p(y | x̃, σ) exact, the reverse SDE gives p(x | y)."""
    y, r, n = 1.5, 0.5, 16_384

    def log_likelihood(x, sigma):
        # x given x̃ has mean x̃/(1 + σ²) and variance σ²/(1 + σ²)
        keep = 1 / (1 + sigma**2)
        return -jnp.sum((y - keep * x) ** 2) / (2 * (r + sigma**2 * keep))

    posterior = diffusion.guided(ONE, log_likelihood)
    mean, variance = y / (1 + r), r / (1 + r)
    out = diffusion.reverse(
        diffusion.VP(), posterior, steps=400, particles=n, seed=seed, progress=False
    )
    x = out["posterior"]["x"].values
    assert abs(x.mean() - mean) < 4.9 * np.sqrt(variance / n) + 0.01
    assert abs(x.var() / variance - 1) < 4.9 * np.sqrt(2 / n) + 0.03  # 0.03: of 400 steps
    twice = diffusion.guided(ONE, log_likelihood, 2.0)
    likelihood = scores(posterior, 0.4) - scores(ONE, 0.4)
    np.testing.assert_allclose(
        scores(twice, 0.4), scores(ONE, 0.4) + 2 * likelihood, rtol=1e-4, atol=1e-4
    )


@pytest.mark.statistical
def test_a_product_needs_a_corrector(seed):
    """Noisy factors multiplied are not the noisy product; a corrector mends that."""
    process, n = diffusion.VE(0.05, 10.0), 8192
    product = diffusion.product(ONE, TWO)
    precision = sum(1 / float(f.at(0.05).variance[0]) for f in (ONE, TWO))
    mean = 2.0 / float(TWO.at(0.05).variance[0]) / precision
    settings = {"particles": n, "seed": seed, "denoise": False, "progress": False}
    plain = diffusion.reverse(process, product, steps=200, **settings)
    mended = diffusion.reverse(
        process, product, steps=40, corrector=sk.MALA(), corrector_steps=10, **settings
    )
    error = 4.9 * np.sqrt(1 / precision / n)
    off, left = (abs(float(o["posterior"]["x"].mean()) - mean) for o in (plain, mended))
    spread = mended["posterior"]["x"].values.var() * precision
    assert left < error
    assert abs(spread - 1) < 4.9 * np.sqrt(2 / n)
    unmended = plain["posterior"]["x"].values.var() * precision
    assert off > 2 * error or abs(unmended - 1) > 0.1


def test_bad_input():
    with pytest.raises(sk.errors.TargetError, match="at least one"):
        diffusion.product()
    with pytest.raises(sk.errors.TargetError, match=r"sk\.product"):
        diffusion.product(ONE, ONE.at(0.0))
    with pytest.raises(sk.errors.SettingsError, match="one for each"):
        diffusion.combined([ONE], [1.0, 2.0])
    with pytest.raises(sk.errors.TargetError, match="cannot be called"):
        diffusion.guided(ONE, 3)
    with pytest.raises(sk.errors.SettingsError, match="finite"):
        diffusion.guided(ONE, lambda x, s: 0.0, np.inf)
