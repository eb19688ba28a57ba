"""Do 95 % intervals cover 95 %? Replicated fits in one compiled program per family."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from samplekit.estimators.domains import as_domain
from samplekit.estimators.moments import estimate
from samplekit.estimators.setup import make_model
from samplekit.estimators.weights import distance
from tests.estimators.table import CASES


@functools.partial(jax.jit, static_argnames=("usual", "dim"))
def replicate(model, data, usual, dim):
    """Return estimates and standard errors, natural then usual parameters, of every data set."""

    def one(rows):
        theta, covariance = estimate(model, rows)

        def flat(t):
            return jnp.concatenate([t, *(jnp.ravel(v) for v in usual(t, dim).values())])

        slopes = jax.jacfwd(flat)(theta)
        return flat(theta), jnp.sqrt(jnp.einsum("ai,ij,aj->a", slopes, covariance, slopes))

    return jax.lax.map(one, data, batch_size=4)


def coverage(name, replicates, n, seed):
    family, params = CASES[name]
    rows = family.draw(seed, replicates * n, **params)
    rows = as_domain(family.family.domain).check(rows, 0)
    dim = rows.shape[1]
    theta = family.natural(**params)
    with jax.enable_x64(True):
        usual = family.family.usual(jnp.asarray(theta), dim)
        truth = np.concatenate([theta, *(np.ravel(v) for v in usual.values())])
        model = family._setup(dim).model
        data = rows.reshape(replicates, n, dim)
        found, errors = (np.asarray(a) for a in replicate(model, data, family.family.usual, dim))
    free = errors.mean(axis=0) > 1e-9  # a partial correlation with itself is 1
    inside = np.abs(found - truth) <= stats.norm.ppf(0.975) * errors
    return inside[:, free].mean(axis=0)


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["gamma-1.5", "half-line"])
def test_coverage_quick(name, seed):
    covered = coverage(name, 400, 1000, seed)
    # Of 400 intervals that cover with 93 to 97 %, with false alarm 1e-6.
    low, high = stats.binom.ppf(1e-6, 400, 0.93), stats.binom.isf(1e-6, 400, 0.97)
    assert np.all((covered * 400 >= low) & (covered * 400 <= high))


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("name", CASES)
def test_coverage(name, seed):
    covered = coverage(name, 2000, 5000, seed)
    assert np.all((covered > 0.93) & (covered < 0.97)), covered


@pytest.mark.statistical
@pytest.mark.parametrize(("power", "expected"), [(1.0, np.pi), (2.0, 7.0)])
def test_variance_of_the_half_line_normal(power, expected, seed):
    """Published: n·Var(μ̂) at μ = 0, σ² = 1 known is π for h = x and 7 for h = x²."""
    replicates, n = 10_000, 1000  # a variance to √(2/10⁴) = 1.4 %
    data = np.abs(np.random.default_rng(seed).normal(size=(replicates, n, 1)))
    model = make_model(
        lambda y: y, lambda y: -(y**2).sum() / 2, domain="positive", weight=distance(power=power)
    )
    with jax.enable_x64(True):
        found, errors = map(np.asarray, replicate(model, data, lambda t, d: {}, 1))
    assert n * np.var(found) == pytest.approx(expected, rel=0.05)
    assert n * np.mean(errors**2) == pytest.approx(expected, rel=0.05)
