"""Distances to exact draws: their values against SciPy, their p-values against chance."""

import numpy as np
import pytest
import scipy.stats

import samplekit as sk
from samplekit.diagnostics.distances import energy_distance, sliced_wasserstein
from tests.diagnostics.test_stein import autoregressive


def test_values_are_scipys_in_one_dimension():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 1)), rng.gamma(2.0, size=(170, 1))
    ours = energy_distance(x, y, bootstrap=9).value
    # A difference of squares of about 10, rounded in float64.
    np.testing.assert_allclose(ours, scipy.stats.energy_distance(x[:, 0], y[:, 0]), rtol=1e-6)
    ours = sliced_wasserstein(x, y, permutations=9).value
    np.testing.assert_allclose(ours, scipy.stats.wasserstein_distance(x[:, 0], y[:, 0]), rtol=1e-9)


def test_energy_distance_in_two_dimensions_by_definition():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(40, 2)) + 1e4, rng.normal(size=(50, 2)) + 1e4

    def mean(a, b):
        return np.linalg.norm(a[:, None] - b[None], axis=2).mean()

    expected = np.sqrt(2 * mean(x, y) - mean(x, x) - mean(y, y))
    np.testing.assert_allclose(energy_distance(x, y, bootstrap=9).value, expected, rtol=1e-6)


def test_sliced_wasserstein_of_a_shift():
    """A shift by v moves each projection by θ·v, and E|θ·v| = 2‖v‖/π in two dimensions."""
    x = np.random.default_rng(2).normal(size=(500, 2))
    found = sliced_wasserstein(x, x + np.array([3.0, 4.0]), projections=2000, permutations=9).value
    # |cos| has the standard deviation √(1/2 − 4/π²) = 0.31: 4 standard errors of 2000 directions.
    assert abs(found - 10 / np.pi) < 4 * 5 * 0.31 / np.sqrt(2000)


@pytest.mark.statistical
@pytest.mark.parametrize("measure", [energy_distance, sliced_wasserstein])
@pytest.mark.parametrize("rho", [0.0, 0.8])
def test_p_values_are_calibrated(measure, rho, seed):
    rng = np.random.default_rng(seed)
    often = {"bootstrap" if measure is energy_distance else "permutations": 99}
    p = [
        measure(
            autoregressive(rng, (4, 60, 2), rho), rng.normal(size=(100, 2)), seed=i, **often
        ).p_value
        for i in range(50)
    ]
    assert np.sum(np.asarray(p) <= 0.05) <= scipy.stats.binom.ppf(1 - 1e-5, 50, 0.05)


@pytest.mark.parametrize("measure", [energy_distance, sliced_wasserstein])
def test_a_wrong_run_is_seen(measure, key):
    target = sk.targets.banana()
    exact = np.asarray(target.draw(key, 1000))
    run = {"x": np.asarray(target.draw(key, 3000))[1000:].reshape(4, 500, 2) * 1.3}
    result = measure(run, exact)
    assert result.p_value < 0.01
    assert result.value > 1.5 * result.null
    assert result.draws_used == (2000, 1000)


def test_refusals():
    x = np.zeros((10, 2))
    for words, call in {
        "coordinates": lambda: energy_distance(x, np.zeros((10, 3))),
        "not finite": lambda: energy_distance(x, np.full((10, 2), np.nan)),
        "are not": lambda: sliced_wasserstein(x, np.zeros(10)),
    }.items():
        with pytest.raises(sk.errors.SamplekitError, match=words):
            call()
