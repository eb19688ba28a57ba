"""Nested R-hat."""

import arviz as az
import numpy as np
import pytest

from samplekit.core.errors import SettingsError
from samplekit.diagnostics.nested import nested_rhat


@pytest.mark.parametrize("shape", [(8, 4), (8, 5), (16, 40), (6, 101)])
@pytest.mark.parametrize("groups", [2, "own"])
def test_equals_arviz(shape, groups):
    rng = np.random.default_rng(2)
    x = rng.standard_cauchy(size=shape) + rng.normal(size=(shape[0], 1))
    ids = np.arange(shape[0]) if groups == "own" else np.arange(shape[0]) % groups
    theirs = az.rhat_nested(x, superchain_ids=ids, chain_axis=0, draw_axis=1)
    ours = nested_rhat({"x": x}, ids).to_numpy()
    np.testing.assert_allclose(ours[0], theirs, rtol=1e-10)
    if groups == "own":
        np.testing.assert_array_equal(nested_rhat({"x": x}).to_numpy(), ours)


@pytest.mark.parametrize("draws", [1, 2, 3])
def test_few_draws_by_hand(draws):
    """The larger of two values of the formula, written down once more with loops."""
    from scipy import stats

    rng = np.random.default_rng(draws)
    x = rng.normal(size=(12, draws)) + np.repeat([0.0, 0.5, 1.0], 4)[:, None]
    ids = np.repeat([0, 1, 2], 4)

    def formula(values):
        ranks = stats.rankdata(values).reshape(values.shape)
        z = stats.norm.ppf((ranks - 3 / 8) / (values.size + 1 / 4))
        within = []
        for k in range(3):
            chains = z[ids == k]
            inner = np.mean([c.var(ddof=1) for c in chains]) if draws > 1 else 0.0
            within.append(chains.mean(axis=1).var(ddof=1) + inner)
        between = np.var([z[ids == k].mean() for k in range(3)], ddof=1)
        return np.sqrt(1 + between / np.mean(within))

    wanted = max(formula(x), formula(np.abs(x - np.median(x))))
    np.testing.assert_allclose(nested_rhat({"x": x}, ids)["x"], wanted, rtol=1e-10)


def test_one_draw_tells_mixed_from_unmixed():
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(8), 128)
    starts = 3 * rng.normal(size=8)[ids][:, None]
    fresh = rng.normal(size=(1024, 1))
    # At convergence R² − 1 is about 1/M = 1/128 with 7 degrees of freedom: 4 times that at most.
    assert nested_rhat({"x": fresh}, ids).to_numpy() < np.sqrt(1 + 4 / 128)
    assert nested_rhat({"x": starts + fresh}, ids).to_numpy() > 1.5


def test_undefined_is_nan():
    x = np.random.default_rng(0).normal(size=(8, 10, 3))
    x[..., 0] = 2.0
    x[3, 4, 1] = np.nan
    found = nested_rhat({"x": x}, np.arange(8) % 2)
    assert np.isnan(found.to_numpy()).tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("draws", "ids", "words"),
    [(10, [0, 1], "one number a chain"), (10, [0, 0, 0, 1], "equally many"), (1, None, "one draw")],
)
def test_refuses(draws, ids, words):
    with pytest.raises(SettingsError, match=words):
        nested_rhat({"x": np.random.default_rng(0).normal(size=(4, draws))}, ids)
