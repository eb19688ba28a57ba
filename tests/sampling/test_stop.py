"""The stop rule is met by good draws only."""

import dataclasses

import numpy as np
import pytest

from samplekit.sampling import convergence
from samplekit.sampling.stop import Converged


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def test_good_draws_meet_it():
    assert Converged().met({"x": normal(4, 500, 3), "y": normal(4, 500, seed=1)})


@pytest.mark.parametrize(
    "bad",
    [
        normal(4, 500).cumsum(axis=1),  # slow
        normal(4, 500) + np.arange(4)[:, None],  # apart
        normal(4, 500) * np.array([1, 1, 1, 5])[:, None],  # different widths
        np.repeat(np.arange(4.0)[:, None], 500, axis=1),  # frozen
        np.where(np.arange(500) == 3, np.nan, normal(4, 500)),
        np.full((4, 500), np.inf),
    ],
)
def test_one_bad_scalar_is_enough(bad, monkeypatch):
    good = normal(4, 500, 100, seed=2)
    good[..., 57] = bad
    assert not Converged(rhat=1.02).met({"x": good})
    monkeypatch.setattr(convergence, "_BLOCK_DRAWS", 1)
    assert not Converged(rhat=1.02).met({"x": good[..., 50:60]})


@pytest.mark.parametrize(("seed", "smaller"), [(7, "ess_bulk"), (1, "ess_tail")])
def test_each_number_counts(seed, smaller):
    draws = {"x": normal(4, 500, seed=seed)}
    worst = convergence.summarize(draws)
    least = getattr(worst, smaller)
    assert least == min(worst.ess_bulk, worst.ess_tail)
    assert Converged(ess=least).met(draws)
    assert not Converged(ess=least * 1.001).met(draws)
    assert not Converged(rhat=worst.rhat).met(draws)


def test_constants_are_left_out():
    matrix = normal(4, 500, 2, 2)
    matrix[..., 0, 0] = matrix[..., 1, 1] = 1
    assert Converged().met({"x": matrix, "one": np.ones((4, 500))})


@pytest.mark.parametrize(
    "draws",
    [
        {},
        {"x": np.ones((4, 500))},
        {"x": np.zeros((4, 500, 0))},
        {"x": normal(1, 5000)},
        {"x": normal(4, 0)},
        {"x": normal(4, 3)},
        {"x": normal(4, 50)},
    ],
)
def test_nothing_to_judge_is_never_met(draws):
    assert not Converged().met(draws)


@pytest.mark.parametrize("value", [1, 0.5, -2, float("nan")])
def test_nonsense_rhat_is_refused(value):
    with pytest.raises(ValueError, match="Use a value above 1"):
        Converged(rhat=value)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_nonsense_ess_is_refused(value):
    with pytest.raises(ValueError, match="Use a positive number"):
        Converged(ess=value)


def test_it_is_a_value():
    assert Converged() == Converged(rhat=1.01, ess=400)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Converged().rhat = 2.0  # pyright: ignore[reportAttributeAccessIssue]
