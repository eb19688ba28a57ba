"""The checks pass what is right and fail what is wrong, or what they cannot judge."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.core import Tracer

import samplekit as sk
from samplekit.core.pytree import pytree, static
from samplekit.testing import assert_mean, check_kernel, check_target

# Averages ----------------------------------------------------------------------------------------


@pytest.fixture
def draws(seed):
    return np.random.default_rng(seed).normal(size=(8, 2000))


def test_right_mean_passes(draws):
    assert_mean(draws, 0.0, resolves=0.1)
    assert_mean(draws.astype(np.float32), 0.0, resolves=0.1)
    many = np.stack([draws, 5 + 3 * draws], axis=-1)
    assert_mean(many, [0.0, 5.0], resolves=[0.1, 0.3])


def test_wrong_mean_fails_with_its_numbers(draws):
    with pytest.raises(
        AssertionError, match=r"of height is wrong: .* expected 0\.1.*4\.89 allowed"
    ):
        assert_mean(draws, 0.1, resolves=0.1, name="height")
    with pytest.raises(AssertionError, match=r"of second is wrong"):
        assert_mean(
            np.stack([draws, draws], -1), [0.0, 1.0], resolves=0.2, name=["first", "second"]
        )
    with pytest.raises(AssertionError, match=r"of pair\[1\] is wrong.*over 2 scalars"):
        assert_mean(np.stack([draws, draws], -1), [0.0, 1.0], resolves=0.2, name="pair")


def test_weak_test_fails(draws):
    """It must not pass because it is blind."""
    with pytest.raises(AssertionError, match=r"too uncertain.*resolves 0\.01; take .* times"):
        assert_mean(draws, 0.0, resolves=0.01)
    with pytest.raises(AssertionError, match="too uncertain"):
        assert_mean(draws[:, :100], 0.0, resolves=0.1)
    with pytest.raises(AssertionError, match="too uncertain"):
        assert_mean(draws, 0.0, resolves=0.0)


def test_autocorrelation_counts(draws):
    """A slow chain knows less than its length says."""
    slow = np.empty_like(draws)
    slow[:, 0] = draws[:, 0]
    for t in range(1, draws.shape[1]):
        slow[:, t] = 0.95 * slow[:, t - 1] + np.sqrt(1 - 0.95**2) * draws[:, t]
    with pytest.raises(AssertionError, match="too uncertain"):
        assert_mean(slow, 0.0, resolves=0.1)
    assert_mean(slow, 0.0, resolves=1.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_undefined_is_failure(draws, bad):
    with pytest.raises(AssertionError, match="undefined"):
        assert_mean(draws, bad, resolves=1.0)
    draws[3, 5] = bad
    with pytest.raises(AssertionError, match="undefined"):
        assert_mean(draws, 0.0, resolves=1.0)


def test_frozen_draws_fail():
    with pytest.raises(AssertionError, match="never vary"):
        assert_mean(np.ones((8, 100)), 1.0, resolves=1.0)


def test_few_chains_are_refused(draws):
    with pytest.raises(sk.errors.SettingsError, match=r"at least 8 chains"):
        assert_mean(draws[:4], 0.0, resolves=1.0)
    with pytest.raises(sk.errors.SettingsError, match=r"Reshape"):
        assert_mean(draws.ravel(), 0.0, resolves=1.0)


def test_false_alarms_are_as_rare_as_promised(seed):
    """At a false alarm rate of 2 %, 1000 right samplers fail about 20 times."""
    rng = np.random.default_rng(seed)
    failures = 0
    for _ in range(1000):
        try:
            assert_mean(rng.normal(size=(8, 50)), 0.0, resolves=9.0, false_fail=0.02)
        except AssertionError:
            failures += 1
    assert 5 <= failures <= 50


# Targets -----------------------------------------------------------------------------------------


@pytree
class Line:
    """A Gaussian whose parts can be spoilt."""

    mean: Any = dataclasses.field(default_factory=lambda: np.ones(2))
    spoilt: str = static(default="")
    space: Any = static(default=sk.targets.gaussian(2).space)

    variance = np.ones(2)

    def log_density(self, x):
        value = -0.5 * jnp.sum((x - jnp.asarray(self.mean, x.dtype)) ** 2)
        if self.spoilt == "vector":
            return -0.5 * x**2
        if self.spoilt == "nan":
            return value * jnp.nan
        if self.spoilt == "eager" and not isinstance(x, Tracer):
            return value + 1.0
        return value

    def score(self, x):
        s = jnp.asarray(self.mean, x.dtype) - x
        if self.spoilt == "shape":
            return jnp.sum(s)
        return {"sign": -s, "half": 0.5 * s, "offset": s + 0.1}.get(self.spoilt, s)

    def draw(self, key, n):
        z = jax.random.normal(key, (n, 2))
        return {"draws": 1.3 * z, "shift": z + 0.2}.get(self.spoilt, z) + 1.0


def test_right_targets_pass(key):
    check_target(Line(), key)
    check_target(sk.from_energy(lambda x: (x**2).sum() / 2, dim=3), key)
    check_target(sk.from_score(lambda x: -x, dim=3), key)
    like = {"a": jnp.zeros(()), "b": jnp.ones(2)}
    check_target(
        sk.from_log_density(lambda x: -(x["a"] ** 2) - jnp.sum(x["b"] ** 4), like=like), key, like
    )


@pytest.mark.parametrize(
    ("spoilt", "says"),
    [
        ("vector", "log_density returns"),
        ("nan", "not finite"),
        ("eager", "compiled and not"),
        ("shape", "The score has"),
        ("sign", "gradient of the log density"),
        ("half", "gradient of the log density"),
        ("offset", "gradient of the log density"),
        ("draws", "is wrong"),
        ("shift", "is wrong"),
    ],
)
def test_wrong_targets_fail(spoilt, says, key):
    with pytest.raises(AssertionError, match=says):
        check_target(Line(spoilt=spoilt), key)


def test_finite_differences_see_a_wrong_derivative_rule(key):
    """Autodiff and score agree on a wrong rule; only the values themselves can tell."""

    @jax.custom_jvp
    def square(x):
        return jnp.sum(x**2)

    square.defjvp(lambda primals, tangents: (square(*primals), jnp.sum(primals[0] * tangents[0])))
    with pytest.raises(AssertionError, match="finite differences"):
        check_target(sk.from_energy(square, dim=2), key)


def test_what_is_no_pytree_fails(key):
    class Plain:
        space = sk.targets.gaussian(2).space

        def log_density(self, x):
            return -jnp.sum(x**2)

    with pytest.raises(AssertionError, match="is no pytree"):
        check_target(Plain(), key)
    with pytest.raises(AssertionError, match="neither log_density nor score"):
        check_target(sk.targets.noised_mixture([1], [0.0]), key)
    with pytest.raises(AssertionError, match="no arrays"):
        check_target(dataclasses.replace(sk.targets.gaussian(2), mean="zero"), key)


def test_a_position_is_asked_for(key):
    @pytree
    class Bare:
        width: float = 1.0

        def log_density(self, x):
            return -jnp.sum((x / self.width) ** 2)

    with pytest.raises(sk.errors.SettingsError, match="give a position x"):
        check_target(Bare(), key)
    check_target(Bare(), key, jnp.ones(3))


# Kernels -----------------------------------------------------------------------------------------


@pytree
class State:
    position: Array
    log_density: Array
    score: Array


@pytree
class TinyMALA:
    """MALA in twenty lines, correct unless a mutation is named."""

    step_size: float
    mutation: str = static(default="")

    def init(self, key, x, target):
        return State(x, *jax.value_and_grad(target.log_density)(x))

    def step(self, key, state, target):
        move_key, accept_key = jax.random.split(key)
        eta = self.step_size
        sign = -1.0 if self.mutation == "drift sign" else 1.0
        noise = eta / 2**0.5 if self.mutation == "√2 missing" else eta

        def center(s):
            return s.position + sign * eta**2 / 2 * s.score

        def log_q(y, s):
            return -jnp.sum((y - center(s)) ** 2) / (2 * eta**2)

        z = jax.random.normal(move_key, state.position.shape, state.position.dtype)
        new = self.init(key, center(state) + noise * z, target)
        correction = log_q(state.position, new) - log_q(new.position, state)
        if self.mutation == "Hastings sign":
            correction = -correction
        log_alpha = jnp.minimum(0.0, new.log_density - state.log_density + correction)
        if self.mutation == "acceptance dropped":
            log_alpha = jnp.zeros_like(log_alpha)
        if self.mutation == "acceptance inverted":
            log_alpha = jnp.minimum(0.0, -(new.log_density - state.log_density))
        take = jnp.log(jax.random.uniform(accept_key, dtype=z.dtype)) < log_alpha
        after = jax.tree.map(lambda a, b: jnp.where(take, a, b), new, state)
        return self.spoil(after, state, key), {"acceptance_rate": jnp.exp(log_alpha)}

    def spoil(self, after, state, key):
        if self.mutation == "frozen":
            return state
        if self.mutation == "half moves":
            return dataclasses.replace(after, position=(after.position + state.position) / 2)
        return after


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("name", "step_size"),
    [("double_well", 0.3), ("double_well", 0.6), ("banana", 0.6), ("bimodal", 0.6)],
)
def test_right_kernel_passes(name, step_size, key):
    check_kernel(TinyMALA(step_size), getattr(sk.targets, name)(), key)


MUTATIONS = [
    "√2 missing",
    "Hastings sign",
    "acceptance dropped",
    "acceptance inverted",
    "half moves",
]


@pytest.mark.statistical
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_mutants_fail(mutation, key):
    """Far from η = 1, where wrong factors of η hide, and not on a Gaussian alone."""
    with pytest.raises(AssertionError, match=r"is wrong|is undefined"):
        check_kernel(
            TinyMALA(0.6, mutation), sk.targets.double_well(), key, chains=65_536, resolves=0.06
        )


@pytest.mark.statistical
def test_correction_forgives_a_wrong_drift(key):
    """Downhill proposals with their own density are slow, not wrong: no false alarm."""
    check_kernel(TinyMALA(0.6, "drift sign"), sk.targets.double_well(), key)


def test_frozen_kernel_fails(key):
    with pytest.raises(AssertionError, match="never moved"):
        check_kernel(TinyMALA(0.3, "frozen"), sk.targets.gaussian(2), key)


def test_too_few_chains_to_tell_fail(key):
    with pytest.raises(AssertionError, match="too uncertain"):
        check_kernel(TinyMALA(0.6), sk.targets.double_well(), key, chains=256)


@pytree
class Odd(TinyMALA):
    """Breaks the contract in ways that are not statistical."""

    def step(self, key, state, target) -> Any:
        after, stats = super().step(key, state, target)
        if self.mutation == "dtype":
            after = dataclasses.replace(after, log_density=jnp.int32(0))
        if self.mutation == "structure":
            return (after,), stats
        if self.mutation == "stats":
            return after, list(stats.values())
        if self.mutation == "names":
            stats = {**stats, "mood": jnp.ones(())}
        if self.mutation == "finite":
            after = dataclasses.replace(after, position=after.position * jnp.nan)
        if self.mutation == "clock":
            calls.append(1)
            after = dataclasses.replace(after, position=after.position + len(calls))
        return after, stats


calls: list[int] = []


@pytest.mark.parametrize(
    ("mutation", "says"),
    [
        ("dtype", "state after a step has"),
        ("structure", "state after a step has"),
        ("stats", "dict of arrays"),
        ("finite", "not finite"),
        ("clock", "compiled and not"),
    ],
)
def test_broken_contracts_fail(mutation, says, key):
    with pytest.raises(AssertionError, match=says):
        check_kernel(Odd(0.3, mutation), sk.targets.gaussian(2), key)


def test_unknown_statistic_is_only_a_warning(key):
    with pytest.warns(UserWarning, match="reports mood"):
        check_kernel(Odd(0.3, "names"), sk.targets.gaussian(2), key)


def test_biased_kernel_need_not_be_invariant(key):
    """What does not claim to be exact, or is told not to, is checked for all the rest."""
    check_kernel(
        TinyMALA(0.6, "acceptance dropped"), sk.targets.double_well(), key, invariant=False
    )


def test_kernel_on_a_target_without_draws(key):
    check_kernel(TinyMALA(0.3), sk.from_energy(lambda x: (x**2).sum(), dim=2), key)
