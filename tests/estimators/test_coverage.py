"""Do 95 % intervals cover 95 %? Replicated fits in one compiled program per family."""

import jax
import numpy as np
import pytest
from scipy import stats

from samplekit.estimators.setup import make_model
from samplekit.estimators.weights import distance
from tests.estimators.coverage import (
    EXPERIMENTS,
    LEAST,
    MOST,
    REPLICATES,
    ROWS,
    coverage,
    replicate,
)


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["gamma-1.5", "half-line"])
def test_coverage_quick(name, seed):
    covered = np.array(list(coverage(EXPERIMENTS[name](400, 1000, seed)).values()))
    # Of 400 intervals that cover with 93 to 97 %, with false alarm 1e-6.
    low, high = stats.binom.ppf(1e-6, 400, 0.93), stats.binom.isf(1e-6, 400, 0.97)
    assert np.all((covered * 400 >= low) & (covered * 400 <= high))


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_coverage(name, seed):
    found = coverage(EXPERIMENTS[name](REPLICATES, ROWS, seed))
    assert {k: v for k, v in found.items() if not LEAST < v < MOST} == {}


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
