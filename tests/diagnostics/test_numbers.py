"""Our numbers are ArviZ's."""

import functools

import arviz as az
import numpy as np
import pytest

from samplekit.diagnostics.efficiency import efficiency
from samplekit.diagnostics.evidence import gather
from samplekit.diagnostics.numbers import ebfmi, measure
from tests.diagnostics.rates import TARGETS, ar1


@functools.cache
def every_run():
    return list(runs())


def runs():
    rng = np.random.default_rng(3)
    for name in ("centered_eight", "non_centered_eight"):
        yield az.load_arviz_data(name)
    for name in ("gaussian", "cauchy", "poisson counts"):
        yield az.from_dict({"posterior": {"x": TARGETS[name](ar1(rng, 700, (4, 501, 3)))}})
    yield az.from_dict({"posterior": {"x": ar1(rng, 300, (2, 150, 2))}})
    negative = rng.normal(size=(3, 400, 2))  # antithetic: more effective draws than draws
    negative[:, 1:] -= 0.6 * negative[:, :-1]
    yield az.from_dict({"posterior": {"x": negative}})


@pytest.mark.parametrize("k", range(7))
def test_table_equals_arviz(k):
    run = every_run()[k]
    ours = measure(gather(run)).table
    theirs = az.summary(run, round_to="none").astype(float)
    assert list(ours.index) == list(theirs.index)
    for column in ("mean", "sd", "mcse_mean", "mcse_sd", "ess_bulk", "r_hat"):
        np.testing.assert_allclose(ours[column], theirs[column], rtol=1e-10, err_msg=column)
    tail = az.summary(run, kind="stats", round_to="none", ci_prob=0.9, ci_kind="eti").astype(float)
    np.testing.assert_allclose(ours["q5"], tail["eti90_lb"], rtol=1e-10)
    np.testing.assert_allclose(ours["q95"], tail["eti90_ub"], rtol=1e-10)
    ess = az.ess(run, method="tail", prob=(0.05, 0.95)).to_dataset()
    values = np.concatenate([np.ravel(v.values) for v in ess.data_vars.values()])
    np.testing.assert_allclose(ours["ess_tail"], values, rtol=1e-10)


def test_ebfmi_equals_arviz():
    for name in ("centered_eight", "non_centered_eight"):
        run = az.load_arviz_data(name)
        theirs = az.bfmi(run)["energy"].values
        np.testing.assert_allclose(ebfmi(run["sample_stats"]["energy"].values), theirs, rtol=1e-10)


def test_undefined_numbers_are_nan():
    x = np.random.default_rng(0).normal(size=(4, 100, 4))
    x[..., 0] = 1.0
    x[2, 5, 1] = np.nan
    x[1, 7, 2] = np.inf
    table = measure(gather({"x": x})).table
    for column in ("mcse_mean", "ess_bulk", "ess_tail", "r_hat"):
        assert np.isnan(table[column].to_numpy()[:3]).all(), column
        assert np.isfinite(table[column].to_numpy()[3])
    assert table["mean"].iloc[0] == 1
    assert np.isnan(table["mean"].iloc[1])


def test_rounding_makes_no_scalar_move():
    x = np.random.default_rng(0).normal(size=(4, 100, 2))
    x[..., 0] = 1 + np.finfo(float).eps * np.sign(x[..., 0])
    assert measure(gather({"x": x})).fixed.tolist() == [True, False]
    small = (1e-9 * x).astype(np.float32)  # a small scale is no constant
    assert measure(gather({"x": small})).fixed.tolist() == [True, False]


def test_noise_of_half_chains_is_calibrated():
    """Halves.variance is the variance of the means: their ratio follows F, mean ν/(ν−2)."""
    x = ar1(np.random.default_rng(1), 800, (4, 1000, 400))
    halves = measure(gather({"x": x})).halves
    ratio = (halves.means.var(axis=2, ddof=1) / halves.variance).mean(axis=1)
    # 400 ratios of relative variance 2/7 (ranks tie half chains together but a little): the mean
    # is known to √(0.29/400) = 2.7 %; short chains bias v by up to 2M/ESS = 2 %.
    assert np.all(np.abs(ratio - 1) < 5 * 0.027 + 0.02)
    assert np.all(np.abs(halves.ess.mean(axis=1)[0] / 800 - 1) < 0.1)


def test_efficiency():
    run = az.load_arviz_data("non_centered_eight")
    found = efficiency(run)
    table = measure(gather(run)).table
    assert found["ess_min"] == table[["ess_bulk", "ess_tail"]].to_numpy().min()
    assert found["evaluations"] == run["sample_stats"]["n_steps"].sum()
    assert found["seconds"] == run["posterior"].attrs["sampling_time"]
    np.testing.assert_allclose(
        found["seconds_to_next_100"], 100 * found["seconds"] / found["ess_min"]
    )
    unknown = efficiency({"x": np.random.default_rng(0).normal(size=(4, 100))})
    assert unknown["seconds"] is None
    assert unknown["ess_per_evaluation"] is None
    assert (unknown["ess_min"] or 0) > 100
