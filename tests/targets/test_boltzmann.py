"""Boltzmann machines as targets: free energy, score, exact sums, agreement of all samplers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

import samplekit as sk
from samplekit.core.pytree import pytree
from samplekit.estimators import rbm_normalizer
from samplekit.estimators.rbm_normalizer import MachinePath
from samplekit.targets.boltzmann import (
    _TABLE,
    BernoulliBernoulli,
    GaussBernoulli,
    sum_of_halves,
)
from samplekit.testing import assert_mean, check_target

# Sums of a few thousand terms in double precision.
SAME = 1e-10


@pytest.fixture
def double():
    with jax.enable_x64():
        yield


def gauss(visible, hidden, *, seed=0, scale=1.0, unit=False, cls=GaussBernoulli):
    random = np.random.default_rng(seed)
    weights = scale * random.normal(size=(hidden, visible))
    log_variance = np.zeros(visible) if unit else random.normal(scale=0.4, size=visible)
    b, c = 0.5 * random.normal(size=hidden), random.normal(size=visible)
    real = jnp.result_type(float)
    return cls.of(*(jnp.asarray(part, real) for part in (weights, b, c, log_variance)))


def bernoulli(visible, hidden, *, seed=0, scale=1.0, cls=BernoulliBernoulli):
    random = np.random.default_rng(seed)
    parts = (
        scale * random.normal(size=(hidden, visible)),
        0.5 * random.normal(size=hidden),
        0.5 * random.normal(size=visible),
    )
    return cls.of(*(jnp.asarray(part, jnp.result_type(float)) for part in parts))


def states(units):
    return np.asarray(list(itertools.product([0.0, 1.0], repeat=units)))


def numbers(machine):
    """Return the parameters as NumPy arrays in double precision."""
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(machine)]


def gauss_energy(machine, v, h):
    """Return E(v, h) as FORMULAS.md has it, term by term."""
    weights, b, c, log_variance = numbers(machine)
    q = np.exp(-log_variance)
    return np.sum(q * (v - c) ** 2, axis=-1) / 2 - b @ h - (q * v) @ (h @ weights)


def bernoulli_energy(machine, v, h):
    weights, b, c = numbers(machine)
    return -c @ v - b @ h - h @ weights @ v


# Sums over hidden states --------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [1, 4, 7])
def test_the_log_density_is_the_sum_over_hidden_states(double, hidden):
    random = np.random.default_rng(1)
    for machine, energy, v in (
        (gauss(3, hidden), gauss_energy, random.normal(size=3)),
        (bernoulli(5, hidden), bernoulli_energy, random.integers(2, size=5).astype(float)),
    ):
        expected = logsumexp([-energy(machine, v, h) for h in states(hidden)])
        np.testing.assert_allclose(machine.log_density(jnp.asarray(v)), expected, rtol=SAME)


def test_the_score_is_the_gradient(double):
    machine, v = gauss(6, 4), jnp.asarray(np.random.default_rng(2).normal(size=6))
    np.testing.assert_allclose(machine.score(v), jax.grad(machine.log_density)(v), rtol=SAME)


@pytest.mark.parametrize(("visible", "unit"), [(1, True), (1, False), (2, True), (2, False)])
def test_log_z_is_an_integral(double, visible, unit):
    """The trapezoidal rule is exact to rounding for sums of Gaussians, 0.2 deviations apart."""
    machine = gauss(visible, 3, seed=3, unit=unit)
    _, _, c, log_variance = numbers(machine)
    step = 0.2 * np.exp(log_variance / 2)
    axes = [c[i] + step[i] * np.arange(-120, 121) for i in range(visible)]
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*axes)], axis=1)
    energies = [gauss_energy(machine, grid, h) for h in states(3)]
    expected = logsumexp(-np.stack(energies)) + np.log(step).sum()
    np.testing.assert_allclose(machine.log_normalizer(), expected, rtol=SAME)


@pytest.mark.parametrize("hidden", [1, 5, 10])
def test_log_z_and_moments_are_those_of_brute_force(double, hidden):
    """A mixture of 2ⁿ Gaussians, one a hidden state, written out."""
    machine = gauss(4, hidden, seed=hidden, scale=0.7)
    weights, b, c, log_variance = numbers(machine)
    variance, h = np.exp(log_variance), states(hidden)
    means = c + h @ weights
    # ∫ exp(−E(v, h)) dv: a Gaussian about c + Wᵀh.
    log_w = h @ b + (means**2 / variance).sum(axis=1) / 2 - (c**2 / variance).sum() / 2
    log_w += np.log(2 * np.pi * variance).sum() / 2
    np.testing.assert_allclose(machine.log_normalizer(), logsumexp(log_w), rtol=SAME)
    p = np.exp(log_w - logsumexp(log_w))
    mean, covariance = machine.moments()
    exact = p @ means
    spread = (means - exact).T @ ((means - exact) * p[:, None]) + np.diag(variance)
    np.testing.assert_allclose(mean, exact, rtol=SAME)
    np.testing.assert_allclose(covariance, spread, rtol=1e-9, atol=1e-9)


def test_more_states_than_fit_into_a_block_are_summed(double):
    """13 units are two blocks; a unit without weights doubles Z and changes nothing else."""
    machine = gauss(3, 12, scale=0.4)
    weights, b, c, log_variance = jax.tree.leaves(machine)
    more = GaussBernoulli.of(jnp.concatenate([weights, jnp.zeros((1, 3))]), jnp.append(b, 0.0), c,
                             log_variance)  # fmt: skip
    expected = machine.log_normalizer() + np.log(2)
    np.testing.assert_allclose(more.log_normalizer(), expected, rtol=SAME)
    np.testing.assert_allclose(more.moments()[1], machine.moments()[1], rtol=1e-9, atol=1e-9)


def test_a_table_of_halves_in_several_blocks_is_summed(double):
    """19 units are a table of 2⁹ columns and 2¹⁰ rows, of which a block holds 2⁹."""
    units = 19
    assert 2**units > _TABLE
    machine = gauss(3, units, scale=0.3)
    linear, quadratic = (np.asarray(a) for a in machine.hidden_law())
    h = (np.arange(2**units)[:, None] >> np.arange(units) & 1).astype(float)
    log_w = h @ linear + np.einsum("si,si->s", h @ quadratic, h) / 2
    np.testing.assert_allclose(sum_of_halves(linear, quadratic), logsumexp(log_w), rtol=SAME)


@pytest.mark.parametrize(("visible", "hidden"), [(6, 3), (3, 6), (7, 1)])
def test_binary_machines_are_those_of_brute_force(double, visible, hidden):
    machine, v = bernoulli(visible, hidden), states(visible)
    log_p = np.asarray(jax.vmap(machine.log_density)(jnp.asarray(v)))
    p = np.exp(log_p - logsumexp(log_p))
    np.testing.assert_allclose(machine.log_normalizer(), logsumexp(log_p), rtol=SAME)
    mean, covariance = machine.moments()
    np.testing.assert_allclose(mean, p @ v, rtol=SAME)
    expected = (v - p @ v).T @ ((v - p @ v) * p[:, None])
    np.testing.assert_allclose(covariance, expected, rtol=1e-9, atol=1e-12)
    # Pseudo-likelihood: p(v_i | others) from the table of all states.
    table = dict(zip(map(tuple, v), p, strict=True))
    for row in v[:: max(1, len(v) // 7)]:
        total = 0.0
        for i in range(visible):
            other = row.copy()
            other[i] = 1 - other[i]
            total += np.log(table[tuple(row)] / (table[tuple(row)] + table[tuple(other)]))
        np.testing.assert_allclose(
            machine.pseudo_log_likelihood(jnp.asarray(row)), total, rtol=SAME
        )


def test_at_zero_the_units_are_independent(double):
    for machine in (gauss(4, 3), bernoulli(5, 3)):
        base = machine.at(jnp.zeros(()))
        np.testing.assert_allclose(machine.base_log_normalizer(), base.log_normalizer(), rtol=SAME)
        _, covariance = base.moments()
        assert np.abs(covariance - np.diag(np.diag(covariance))).max() < 1e-12
        same = machine.at(jnp.ones(()))
        np.testing.assert_allclose(same.log_normalizer(), machine.log_normalizer(), rtol=SAME)


def test_machines_are_targets(key):
    check_target(gauss(5, 3), key)


# Sampling -----------------------------------------------------------------------------------------

KERNELS = {"Gibbs": sk.Gibbs(), "MALA": sk.MALA(), "HMC": sk.HMC(), "NUTS": sk.NUTS()}


def assert_moments(machine, kernel, seed, target=None, draws=2000):
    """Compare means and second moments of a run with those of the enumeration."""
    run = sk.sample(
        machine if target is None else target,
        kernel,
        draws=draws,
        warmup=500,
        chains=16,
        seed=seed,
        progress=False,
    )
    x = np.asarray(run["posterior"]["x"], np.float64)
    with jax.enable_x64():
        doubled = jax.tree.map(lambda leaf: jnp.asarray(leaf, np.float64), machine)
        mean, covariance = (np.asarray(m) for m in doubled.moments())
    away = x - mean
    first, second = np.triu_indices(len(mean))
    values = np.concatenate([away, away[..., first] * away[..., second]], axis=-1)
    expected = np.concatenate([np.zeros_like(mean), covariance[first, second]])
    # A fifth of a standard deviation of each statistic: some 2,800 independent draws.
    assert_mean(values, expected, resolves=0.2 * values.std(axis=(0, 1)))


# Gradients are one kernel's default run; the others' are `make test-slow`.
SLOW = {"MALA", "NUTS"}


@pytest.mark.statistical
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in KERNELS]
)
def test_every_kernel_agrees_with_the_exact_moments(name, seed):
    assert_moments(gauss(16, 10, seed=4, scale=0.35), KERNELS[name], seed)


@pytest.mark.statistical
def test_gibbs_agrees_with_the_exact_moments_of_a_binary_machine(seed):
    assert_moments(bernoulli(16, 10, seed=4, scale=0.5), sk.Gibbs(), seed)


@pytree
class NoRoot(GaussBernoulli):
    """Noise of the visible units multiplied by σ², not σ."""

    def gibbs(self, key, v, /):
        noise, wide = self.noise(key), jnp.exp(self.log_variance / 2)
        return self.sweep((noise[0], wide * noise[1]), v)


@pytree
class TooOften(BernoulliBernoulli):
    """Hidden units on more often than their chance."""

    def gibbs(self, key, v, /):
        noise = self.noise(key)
        return self.sweep((noise[0] ** 2, noise[1]), v)


@pytest.mark.statistical
def test_mutants_of_gibbs_fail(seed):
    wrong = gauss(16, 10, seed=4, scale=0.35, cls=NoRoot)
    with pytest.raises(AssertionError, match="wrong"):
        assert_moments(gauss(16, 10, seed=4, scale=0.35), sk.Gibbs(), seed, wrong, draws=500)
    wrong = bernoulli(16, 10, seed=4, scale=0.5, cls=TooOften)
    with pytest.raises(AssertionError, match="wrong"):
        assert_moments(bernoulli(16, 10, seed=4, scale=0.5), sk.Gibbs(), seed, wrong, draws=500)


# Annealed importance sampling ---------------------------------------------------------------------


def z_scores(machine, seeds, levels=300):
    exact = rbm_normalizer.exact(machine)
    found = [rbm_normalizer.annealed(machine, levels, 200, seed) for seed in range(seeds)]
    return np.asarray([(value - exact) / error for value, error in found]), found


def assert_honest(machine):
    """Demand errors as large as reported: at 20 seeds, all below 4, their deviation near 1."""
    z, found = z_scores(machine, 20)
    assert np.abs(z).max() < 4  # chance 1.3e-3 for 20 normal numbers
    # χ² with 19 degrees of freedom: within (0.40, 1.84) but for one in 10⁶ on each side.
    assert 0.4 < np.std(z, ddof=1) < 1.84
    assert max(error for _, error in found) < 0.1  # and the test could tell
    # The mean of 20: a bias of more than one reported error would show.
    assert abs(np.mean(z)) < 4.9 / np.sqrt(20)


@pytest.mark.statistical
@pytest.mark.parametrize("kind", ["real", "binary"])
def test_annealing_reports_its_error_honestly(kind):
    machine = gauss(16, 10, seed=4, scale=0.35) if kind == "real" else bernoulli(16, 10, scale=0.5)
    assert_honest(machine)


@pytree
class NoBase(MachinePath):
    """Forgets the hidden units at β = 0."""

    @property
    def log_normalizer(self):
        return super().log_normalizer - 10 * np.log(2)


@pytree
class Short(MachinePath):
    """Ends before the machine."""

    def at(self, level, /):
        return super().at(0.9 * level)


@pytest.mark.statistical
@pytest.mark.parametrize("wrong", [NoBase, Short])
def test_mutants_of_annealing_fail(monkeypatch, wrong):
    monkeypatch.setattr(rbm_normalizer, "MachinePath", wrong)
    with pytest.raises(AssertionError):
        assert_honest(gauss(16, 10, seed=4, scale=0.35))
