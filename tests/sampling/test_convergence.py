"""Convergence numbers equal ArviZ's where those are defined, and are NaN where not."""

import subprocess
import sys
import warnings
from functools import partial

import numpy as np
import pytest
from arviz_stats.base.array import BaseArray

from samplekit.sampling import convergence
from samplekit.sampling.convergence import ess_bulk, ess_tail, rank_rhat, summarize

ARVIZ = BaseArray()
ALL = (rank_rhat, ess_bulk, ess_tail)


def autoregressive(noise, rho):
    x = noise.copy()
    for t in range(1, x.shape[1]):
        x[:, t] += rho * x[:, t - 1]
    return x


KINDS = {
    "iid": lambda rng, shape: rng.normal(size=shape),
    "autoregressive": lambda rng, shape: autoregressive(rng.normal(size=shape), 0.9),
    "antithetic": lambda rng, shape: autoregressive(rng.normal(size=shape), -0.8),
    "random walk": lambda rng, shape: rng.normal(size=shape).cumsum(axis=1),
    "apart": lambda rng, shape: rng.normal(size=shape) + np.arange(shape[0])[:, None, None],
    "heavy": lambda rng, shape: rng.standard_cauchy(size=shape),
    "tied": lambda rng, shape: np.round(autoregressive(rng.normal(size=shape), 0.9)),
    "integer": lambda rng, shape: rng.poisson(2.0, size=shape),
    "boolean": lambda rng, shape: rng.random(shape) < np.linspace(0.05, 0.95, shape[2]),
}


def arviz(x):
    rhat, ess = (partial(f, x, chain_axis=0, draw_axis=1) for f in (ARVIZ.rhat, ARVIZ.ess))
    with warnings.catch_warnings():
        # Zero variances: ArviZ divides by them and so do we.
        warnings.simplefilter("ignore", RuntimeWarning)
        return (
            rhat(method="rank"),
            ess(method="bulk"),
            ess(method="tail", prob=(0.05, 0.95)),
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("draws", [4, 5, 6, 7, 8, 9, 60, 101, 250])
def test_equals_arviz(kind, draws):
    rng = np.random.default_rng(draws)
    for chains in (2, 3, 4, 5):
        x = KINDS[kind](rng, (chains, draws, 4))
        half = draws // 2
        split = np.concatenate((x[:, :half], x[:, -half:]), axis=1).astype(float)
        varies = split.min(axis=(0, 1)) < split.max(axis=(0, 1))
        for function, expected in zip(ALL, arviz(x.astype(float)), strict=True):
            wanted = np.where(varies, expected, np.nan)
            np.testing.assert_allclose(function(x), wanted, rtol=1e-8, err_msg=function.__name__)


def test_one_chain_has_effective_draws_but_no_rhat():
    x = np.random.default_rng(0).normal(size=(1, 101, 3))
    _, bulk, tail = arviz(x)
    assert np.isnan(rank_rhat(x)).all()
    np.testing.assert_allclose(ess_bulk(x), bulk, rtol=1e-8)
    np.testing.assert_allclose(ess_tail(x), tail, rtol=1e-8)


@pytest.mark.parametrize("event", [(), (1,), (3, 2), (0,)])
def test_event_shape_is_kept_and_scalars_are_independent(event, monkeypatch):
    x = np.random.default_rng(0).normal(size=(3, 40, *event))
    whole = [function(x) for function in ALL]
    monkeypatch.setattr(convergence, "_BLOCK_DRAWS", 1)
    for function, value in zip(ALL, whole, strict=True):
        assert value.shape == event
        np.testing.assert_array_equal(function(x), value)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_draw_makes_its_scalar_undefined_and_no_other(bad):
    x = np.random.default_rng(0).normal(size=(4, 100, 3))
    clean = [function(x) for function in ALL]
    x[1, 50, 1] = bad
    for function, value in zip(ALL, clean, strict=True):
        np.testing.assert_array_equal(np.isnan(function(x)), [False, True, False])
        np.testing.assert_array_equal(function(x)[[0, 2]], value[[0, 2]])


@pytest.mark.parametrize("shape", [(4, 3, 2), (4, 0, 2), (0, 10, 2)])
def test_too_few_draws_are_undefined(shape):
    for function in ALL:
        assert np.isnan(function(np.arange(np.prod(shape)).reshape(shape))).all()


def test_constants_are_undefined():
    middle = np.zeros((2, 9, 1))
    middle[:, 4] = 1  # the draw that splitting leaves out
    for function in ALL:
        assert np.isnan(function(np.full((4, 100, 2), 3.0))).all()
        assert np.isnan(function(middle)).all()


def test_frozen_chains_are_not_fine():
    x = np.repeat(np.arange(4.0)[:, None], 100, axis=1)
    assert rank_rhat(x) > 1e3
    assert ess_bulk(x) < 10
    assert ess_tail(x) < 10


def test_scale_differences_are_seen_in_the_folded_tail():
    x = np.random.default_rng(0).normal(size=(4, 500)) * np.array([1, 1, 1, 4])[:, None]
    assert rank_rhat(x) > 1.05


def test_float32_is_computed_in_float64():
    x = (1e4 + np.random.default_rng(0).normal(size=(4, 201, 3))).astype(np.float32)
    for function in ALL:
        value = function(x)
        assert value.dtype == np.float64
        np.testing.assert_array_equal(value, function(x.astype(np.float64)))


def test_a_vector_is_refused():
    with pytest.raises(ValueError, match=r"\(chain, draw, \*event\)"):
        rank_rhat(np.zeros(10))


def test_summary_is_the_worst_scalar():
    rng = np.random.default_rng(0)
    draws = {"a": rng.normal(size=(4, 100, 3)), "b": rng.normal(size=(4, 100)).cumsum(axis=1)}
    found = summarize(draws)
    assert found.rhat == max(rank_rhat(x).max() for x in draws.values())
    assert found.ess_bulk == min(ess_bulk(x).min() for x in draws.values())
    assert found.ess_tail == min(ess_tail(x).min() for x in draws.values())


def test_summary_leaves_constants_out_but_not_undefined_values():
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(4, 100, 2, 2))
    matrix[..., 0, 0] = matrix[..., 1, 1] = 1
    off_diagonal = summarize({"x": matrix[..., [0, 1], [1, 0]]})
    assert summarize({"x": matrix, "one": np.ones((4, 100))}) == off_diagonal
    assert np.isnan(summarize({"one": np.ones((4, 100))})).all()
    assert np.isnan(summarize({})).all()
    for bad in (np.nan, np.inf):
        assert np.isnan(summarize({"x": matrix, "bad": np.full((4, 100), bad)})).all()


def test_summary_looks_at_every_variable_and_no_more_than_the_limit(monkeypatch):
    rng = np.random.default_rng(0)
    draws = {"long": rng.normal(size=(2, 20, 1000)), "walk": rng.normal(size=(2, 20)).cumsum(1)}
    assert summarize(draws, limit=10).rhat >= rank_rhat(draws["walk"])
    assert convergence._shares([1000, 1, 3], 10) == [6, 1, 3]
    assert convergence._shares([5] * 4, 2) == [1, 0, 0, 1]
    assert convergence._shares([], 5) == []
    seen = []
    measure = convergence._measure
    monkeypatch.setattr(
        convergence, "_measure", lambda rows, **kw: seen.append(len(rows)) or measure(rows, **kw)
    )
    summarize(draws, limit=10)
    assert sum(seen) == 10


def test_neither_scipy_nor_arviz_is_imported():
    code = (
        "import sys, numpy as np\n"
        "from samplekit.sampling.convergence import summarize\n"
        "before = set(sys.modules)\n"
        "summarize({'x': np.arange(40.0).reshape(2, 20)})\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "assert not new & {'scipy', 'arviz', 'arviz_stats', 'xarray'}, new\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
