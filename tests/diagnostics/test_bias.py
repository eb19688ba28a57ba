"""Findings on bias: unadjusted kernels, scores that are no gradients, draws of another target."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import samplekit as sk
from samplekit.diagnostics.bias import _moments, check_bias
from samplekit.diagnostics.evidence import gather
from tests.diagnostics.test_stein import autoregressive


def evidence(run, **sampler):
    found = gather(run)
    return dataclasses.replace(found, sampler=dataclasses.replace(found.sampler, **sampler))


def unadjusted(draws, **sampler):
    return evidence({"x": draws}, name="Langevin", adjusted=False, **sampler)


def codes(found, target=None):
    return [finding.code for finding in check_bias(found, target)]


def ula(rng, dim, off, draws=1000):
    """ULA on a standard Gaussian in its stationary law: variance 1/(1 − η²/4) = 1 + off."""
    rho = 1 - 2 * (1 - 1 / (1 + off))
    return autoregressive(rng, (4, draws, dim), rho) * np.sqrt(1 + off)


def test_unadjusted_without_a_target_is_a_note():
    (finding,) = check_bias(unadjusted(np.zeros((4, 10, 1))), None)
    assert (finding.code, finding.severity) == ("bias-unchecked", "note")
    assert "sk.diagnose(run, target)" in finding.remedy
    assert codes(evidence({"x": np.zeros((4, 10, 1))}, name="NUTS", adjusted=True)) == []
    assert codes(evidence({"x": np.zeros((4, 10, 1))}, name="ScoreMALA", adjusted=False)) == []


@pytest.mark.statistical
def test_langevin_with_a_large_step_and_mala(seed):
    target = sk.targets.gaussian(2)
    run = sk.sample(target, sk.Langevin(0.9), seed=seed, progress=False)  # variance 1.254
    (finding,) = check_bias(gather(run), target)
    assert (finding.code, finding.severity) == ("unadjusted-bias", "problem")
    assert "step_size=0.45" in finding.remedy
    assert "sk.MALA()" in finding.remedy
    assert set(finding.variables) == {"x[0]", "x[1]"}
    exact = sk.sample(target, sk.MALA(), seed=seed, progress=False)
    assert codes(gather(exact), target) == []
    small = sk.sample(target, sk.Langevin(0.3), seed=seed, thin=5, progress=False)  # variance 1.023
    assert codes(gather(small), target) == []


@pytest.mark.statistical
def test_moments_of_slow_exact_chains_are_not_accused(seed):
    """Draws that stay near the center by chance have small x² and claim a small error of it."""
    rng = np.random.default_rng(seed)
    wrong = 0
    for _ in range(150):
        x = autoregressive(rng, (4, 500, 2), 0.8)  # 220 effective draws
        found = _moments(x, -x)
        wrong += found.wrong.any() or found.average_wrong
    assert wrong <= 1


@pytest.mark.statistical
@pytest.mark.parametrize("dim", [1, 10])
def test_a_variance_twenty_percent_off_is_not_missed(dim, seed):
    rng = np.random.default_rng(seed)
    found = [codes(unadjusted(ula(rng, dim, 0.2)), sk.targets.gaussian(dim)) for _ in range(4)]
    assert sum(f == ["unadjusted-bias"] for f in found) >= 3


def test_the_size_of_the_bias_is_told():
    draws = np.random.default_rng(0).normal(size=(4, 2000, 2)) * [1.0, np.sqrt(1.3)] + [0.0, 0.4]
    (finding,) = check_bias(unadjusted(draws), sk.targets.gaussian(2))
    assert finding.variables == ("x[1]",)
    assert "mean by +0.4" in finding.seen
    assert "+3" in finding.seen  # 30 % within Monte Carlo error: 29.5 % to 39.4 %


def test_bias_spread_over_many_coordinates():
    """6 % of variance in each of 50 is too little to be sure of any, and enough for all."""
    draws = np.random.default_rng(1).normal(size=(4, 500, 50)) * np.sqrt(1.06)
    (finding,) = check_bias(unadjusted(draws), sk.targets.gaussian(50))
    assert "on average over 50 coordinates" in finding.seen
    assert finding.variables == ()


ZOO = {
    "gaussian": sk.targets.gaussian(5),
    "mixture": sk.targets.bimodal(),
    "banana": sk.targets.banana(),
    "student_t": sk.targets.student_t(2, 2.0),
    "funnel": sk.targets.funnel(),
    "ring": sk.targets.ring(),
}


@pytest.mark.statistical
@pytest.mark.parametrize("name", ZOO)
def test_exact_draws_are_not_accused(name, key):
    """Three runs each, both as draws of an exact and of an unadjusted kernel."""
    target = ZOO[name]
    for each in jax.random.split(key, 3):
        draws = np.asarray(target.draw(each, 1000)).reshape(4, 250, -1)
        assert codes(unadjusted(draws), target) == []
        assert codes(evidence({"x": draws}, adjusted=True), target) == []


def test_draws_of_another_target_are_recognised():
    draws = np.random.default_rng(2).normal(size=(4, 500, 2)) + np.array([0.0, 0.5])
    (finding,) = check_bias(evidence({"x": draws}), sk.targets.gaussian(2))
    assert (finding.code, finding.severity) == ("wrong-target", "problem")
    assert finding.variables[0] == "x[1]"


def test_a_score_that_turns_is_no_gradient():
    draws = np.random.default_rng(3).normal(size=(4, 500, 2))
    for c, expected in ((0.3, ["not-a-gradient"]), (0.02, []), (0.0, [])):
        turn = np.array([[-1.0, -c], [c, -1.0]], dtype=np.float32)
        target = sk.from_score(lambda x, turn=turn: jnp.asarray(turn) @ x, dim=2)
        found = evidence({"x": draws}, name="ScoreMALA", adjusted=False)
        assert codes(found, target) == expected


def test_what_other_checks_find_is_left_to_them():
    target = sk.targets.gaussian(2)
    good = np.random.default_rng(4).normal(size=(4, 500, 2))
    holes = np.where(np.arange(500)[:, None] == 7, np.nan, good)
    frozen = np.where(np.arange(4)[:, None, None] == 1, 3.0, good)
    assert codes(unadjusted(holes), target) == []
    assert codes(unadjusted(frozen), target) == []
    assert codes(unadjusted(2 * good[:, :10]), target) == []  # too few to tell
    discrete = sk.from_log_density(lambda k: jnp.sum(k.astype(float)), like=np.zeros(2, int))
    assert codes(evidence({"x": good}), discrete) == []
    assert codes(unadjusted(good), discrete) == ["bias-unchecked"]
    edge = sk.from_score(lambda x: x / 0.0, dim=2)
    assert codes(unadjusted(good), edge) == ["bias-unchecked"]
