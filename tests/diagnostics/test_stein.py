"""The Stein discrepancy: its arithmetic, its p-values, what it sees and what it cannot."""

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints
from scipy.signal import lfilter
from scipy.stats import binom

import samplekit as sk
from samplekit.diagnostics.blocks import make_blocks
from samplekit.diagnostics.stein import _Kernel, _pair_sums, stein_discrepancy
from samplekit.sampling.convergence import rank_rhat


def autoregressive(rng, shape, rho):
    """Exact standard normal chains (chain, draw, dim) with autocorrelation ρ^k."""
    noise = rng.normal(size=shape) * np.sqrt(1 - rho**2)
    noise[:, 0] /= np.sqrt(1 - rho**2)
    return lfilter([1.0], [1.0, -rho], noise, axis=1)


def test_sums_are_those_of_the_definition():
    """u(x, y) = (s(x) + ∇ₓ)·(s(y) + ∇ᵧ) k(x, y), differentiated by JAX."""
    c2, beta = 1.7, -0.3
    x = np.random.default_rng(0).normal(size=(7, 3))

    def score(x):
        return -x - x**3

    with jax.enable_x64(True):

        def k(x, y):
            return (c2 + jnp.sum((x - y) ** 2)) ** beta

        def u(x, y):
            mixed = jnp.diag(jax.jacfwd(jax.grad(k, 0), 1)(x, y))
            slopes = score(x) * jax.grad(k, 1)(x, y) + score(y) * jax.grad(k, 0)(x, y)
            return score(x) * score(y) * k(x, y) + slopes + mixed

        pairs = jax.vmap(lambda a: jax.vmap(lambda b: u(a, b))(jnp.asarray(x)))(jnp.asarray(x))
        pairs = np.asarray(pairs)
    blocks = make_blocks(1, 7, 1.0, most=4)
    sums, parts = _pair_sums(x, score(x), _Kernel(c2, beta), blocks)
    expected = np.add.reduceat(pairs.sum(2), blocks.starts, axis=0)
    np.testing.assert_allclose(sums, np.add.reduceat(expected, blocks.starts, axis=1), atol=1e-11)
    own = np.einsum("iij->j", pairs)
    np.testing.assert_allclose(parts, pairs.sum((0, 1)) - own, atol=1e-11)


def test_tiles_do_not_change_the_sums(monkeypatch):
    z = np.random.default_rng(1).normal(size=(60, 2))
    blocks = make_blocks(2, 30, 1.0, most=13)
    whole = _pair_sums(z, -z, _Kernel(1.0, -0.5), blocks)
    monkeypatch.setattr("samplekit.diagnostics.stein._TILE", 11)
    for once, again in zip(whole, _pair_sums(z, -z, _Kernel(1.0, -0.5), blocks), strict=True):
        np.testing.assert_allclose(again, once, rtol=1e-9, atol=1e-10)


@pytest.mark.statistical
def test_flags_ula_where_rhat_is_blind_and_passes_mala(seed):
    target = sk.targets.gaussian(2)
    ula = sk.sample(target, sk.Langevin(1.2), seed=seed, progress=False)  # variance 1.56
    mala = sk.sample(target, sk.MALA(), seed=seed, progress=False)
    assert np.all(rank_rhat(ula["posterior"]["x"].values) < 1.005)
    biased, exact = stein_discrepancy(ula, target), stein_discrepancy(mala, target)
    assert biased.p_value < 1e-3 < 0.01 < exact.p_value
    assert biased.value > 2 * biased.null
    assert exact.value < 2 * exact.null
    assert biased.draws_used == 4000


def test_contributions_name_the_wrong_coordinate():
    x = np.random.default_rng(2).normal(size=(4, 250, 5))
    x[..., 3] *= 1.4
    result = stein_discrepancy(x, sk.targets.gaussian(5), bootstrap=99)
    assert max(result.contributions, key=result.contributions.get) == "x[3]"
    assert result.contributions["x[3]"] > 0.6 * sum(result.contributions.values())


def type_one_error(rng, shape, rho, replications):
    target = sk.targets.gaussian(shape[2])
    p = [
        stein_discrepancy(autoregressive(rng, shape, rho), target, bootstrap=199, seed=i).p_value
        for i in range(replications)
    ]
    return int(np.sum(np.asarray(p) <= 0.05))


@pytest.mark.statistical
@pytest.mark.parametrize("rho", [0.0, 0.8])
def test_p_values_are_calibrated(rho, seed):
    """Rejections at 5 % lie below a bound that a fair test crosses once in 10⁵ times."""
    rejected = type_one_error(np.random.default_rng(seed), (4, 60, 1), rho, 100)
    assert rejected <= binom.ppf(1 - 1e-5, 100, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
def test_p_values_are_calibrated_on_both_sides(rho, seed):
    rejected = type_one_error(np.random.default_rng(seed), (4, 250, 2), rho, 400)
    low, high = binom.ppf([1e-3, 1 - 1e-4], 400, 0.05)
    assert low <= rejected <= high


@pytest.mark.statistical
def test_ignoring_correlation_would_fail_the_calibration(seed, monkeypatch):
    """Negative control: independent signs on correlated draws reject far too often."""
    monkeypatch.setattr("samplekit.diagnostics.stein.autocorrelation_time", lambda series: 1.0)
    rejected = type_one_error(np.random.default_rng(seed), (4, 400, 1), 0.9, 40)
    assert rejected > binom.ppf(1 - 1e-5, 40, 0.05)


@pytest.mark.statistical
@pytest.mark.slow
def test_mala_chains_are_not_rejected(seed):
    target = sk.targets.banana()
    runs = [sk.sample(target, sk.MALA(), seed=seed + i, progress=False) for i in range(40)]
    p = [stein_discrepancy(run, target, max_draws=2000).p_value for run in runs]
    assert np.sum(np.asarray(p) <= 0.05) <= binom.ppf(1 - 1e-4, 40, 0.05)


def test_cannot_see_the_weights_of_separated_modes():
    """As the docstring says; whoever makes it see them may delete this test and the sentence."""
    target = sk.targets.mixture([1, 1], [-10.0, 10.0])
    one_mode = np.random.default_rng(4).normal(10.0, 1.0, size=(1000, 1))
    assert stein_discrepancy(one_mode, target).p_value > 0.05
    assert "weights of well-separated modes" in (stein_discrepancy.__doc__ or "")


def test_constrained_draws_are_mapped_back():
    gamma = sk.from_log_density(
        lambda t: 2 * jnp.log(t) - t, like=1.0, support=constraints.positive, name="t"
    )
    t = np.random.default_rng(5).gamma(3.0, size=(4, 300)).astype(np.float32)
    shown = stein_discrepancy({"t": t}, gamma)
    np.testing.assert_allclose(
        shown.value, stein_discrepancy(np.log(t)[..., None], gamma).value, rtol=1e-4
    )
    assert shown.p_value > 0.01
    assert list(shown.contributions) == ["t"]
    assert stein_discrepancy({"t": 1.5 * t}, gamma).p_value < 0.01


def test_numpyro_models_and_thinning():
    import numpyro
    import numpyro.distributions as dist

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        sigma = numpyro.sample("sigma", dist.HalfNormal(5.0))
        numpyro.deterministic("twice", 2 * mu)
        with numpyro.plate("day", len(y)):
            numpyro.sample("y", dist.Normal(mu, sigma), obs=y)

    target = sk.from_numpyro(model, np.array([1.2, 0.4, 2.2, 1.9, -0.3]))
    run = sk.sample(target, draws=500, seed=3, progress=False)
    result = stein_discrepancy(run, target, max_draws=1000)
    assert set(result.contributions) == {"mu", "sigma"}
    assert result.draws_used == 1000
    assert result.p_value > 0.01
    run["posterior"]["sigma"] *= 1.3
    assert stein_discrepancy(run, target, max_draws=1000).p_value < 0.01


def test_memory_does_not_grow_with_the_square():
    x = np.random.default_rng(6).normal(size=(1, 6000, 3))
    target = sk.targets.gaussian(3)
    stein_discrepancy(x[:, :500], target, bootstrap=99)  # compiles
    tracemalloc.start()
    stein_discrepancy(x, target, bootstrap=99)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6000**2 * 8 / 8  # one full matrix is 288 MB


def test_refusals():
    target, x = sk.targets.gaussian(2), np.zeros((10, 2))
    refused = {
        "has no score": lambda: stein_discrepancy(x, object()),
        "has no score ": lambda: stein_discrepancy(
            x, sk.from_log_density(lambda k: jnp.sum(k.astype(float)), like=np.zeros(2, int))
        ),
        "2 coordinates": lambda: stein_discrepancy(np.zeros((10, 3)), target),
        "not of this target": lambda: stein_discrepancy({"y": np.zeros((4, 10))}, target),
        "1 of 10 draws are not finite": lambda: stein_discrepancy(
            np.where(np.arange(10)[:, None] == 3, np.nan, x), target
        ),
        "score is not finite at 10": lambda: stein_discrepancy(
            x, sk.from_score(lambda y: y / 0.0, dim=2)
        ),
        "exponent=0.5": lambda: stein_discrepancy(x, target, exponent=0.5),
        "bandwidth": lambda: stein_discrepancy(x, target, bandwidth="scott"),
        "bootstrap=0": lambda: stein_discrepancy(x, target, bootstrap=0),
        "max_draws=1": lambda: stein_discrepancy(x, target, max_draws=1),
    }
    for words, call in refused.items():
        with pytest.raises(sk.errors.SamplekitError, match=words.strip()):
            call()


def test_many_short_chains_and_targets_of_ones_own():
    class Own:
        def score(self, x):
            return -x

    x = np.random.default_rng(8).normal(size=(1000, 2, 2))
    assert stein_discrepancy(x, Own(), bootstrap=499).p_value > 0.01
    assert stein_discrepancy({"x": x}, Own(), bootstrap=499).p_value > 0.01
    assert stein_discrepancy(x + 0.3, Own(), bootstrap=499).p_value < 0.01
    assert stein_discrepancy(x, Own(), max_draws=500).draws_used == 500


def test_products_of_tiles_are_left_to_one_thread(monkeypatch):
    """Two threads on a busy machine took twelve seconds for what one does in half of one."""
    from threadpoolctl import threadpool_info

    from samplekit.diagnostics import stein

    threads, pair_sums = [], stein._pair_sums

    def spied(*args):
        threads.extend(p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas")
        return pair_sums(*args)

    monkeypatch.setattr(stein, "_pair_sums", spied)
    stein_discrepancy(np.random.default_rng(0).normal(size=(50, 2)), sk.targets.gaussian(2))
    assert set(threads) == {1}
