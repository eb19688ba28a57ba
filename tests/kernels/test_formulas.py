"""Identities of the kernels, in float64, against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import samplekit as sk
from samplekit.kernels.metric import (
    Dense,
    LowRank,
    dense_from_covariance,
    initial_metric,
    with_scale,
)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def _mala_log_ratio(kernel: sk.MALA, x: np.ndarray, v: np.ndarray, target) -> float:
    """Return log α of MALA by running `move` and reading its acceptance rate back."""
    state = kernel.init(jax.random.key(0), jnp.asarray(x), target)
    _, stats = kernel.move(((jnp.asarray(v), jnp.asarray(0.0)), None), state, target)
    return float(jnp.log(stats["acceptance_rate"]))


def test_mala_velocity_form_equals_the_ratio_of_proposal_densities() -> None:
    """log α = log p(y) + log q(x|y) − log p(x) − log q(y|x), q(·|x) = N(x + η²/2 s(x), η² I)."""
    target, eta = sk.targets.double_well(dim=3), 0.7
    rng = np.random.default_rng(1)

    def score(a: np.ndarray) -> np.ndarray:
        return np.asarray(target.score(jnp.asarray(a)))

    def log_q(to: np.ndarray, at: np.ndarray) -> float:
        return -np.sum((to - at - eta**2 / 2 * score(at)) ** 2) / (2 * eta**2)

    def log_p(a: np.ndarray) -> float:
        return float(target.log_density(jnp.asarray(a)))

    for _ in range(20):
        x, v = rng.normal(size=3), rng.normal(size=3)
        y = x + eta**2 / 2 * score(x) + eta * v
        expected = log_p(y) + log_q(x, y) - log_p(x) - log_q(y, x)
        assert _mala_log_ratio(sk.MALA(eta), x, v, target) == pytest.approx(
            min(0.0, expected), abs=1e-12
        )


def test_mala_is_one_leapfrog_of_hmc() -> None:
    target = sk.targets.banana()
    x, v = jnp.asarray([0.3, -0.4]), jnp.asarray([1.0, 0.5])
    rows = (v, jnp.asarray(-0.1))
    one = sk.MALA(0.4).move((rows, None), sk.MALA(0.4).init(None, x, target), target)
    hmc = sk.HMC(0.4, leapfrogs=1)
    two = hmc.move((rows, jnp.asarray(1.0)), hmc.init(None, x, target), target)
    np.testing.assert_allclose(one[0].position, two[0].position, rtol=1e-14)
    np.testing.assert_allclose(one[1]["acceptance_rate"], two[1]["acceptance_rate"], rtol=1e-13)


@pytest.mark.parametrize(
    ("rule", "nodes", "tolerance"),
    [("simpson", 2, 1e-12), ("gauss", 2, 1e-12), ("gauss", 3, 1e-12)],
)
def test_score_mala_is_mala_on_cubic_scores(rule: str, nodes: int, tolerance: float) -> None:
    """Simpson and two Gauss nodes integrate cubics exactly: the quartic target's score."""
    target = sk.targets.double_well(dim=2)
    rng = np.random.default_rng(0)
    for _ in range(20):
        x, v = jnp.asarray(rng.normal(size=2)), jnp.asarray(rng.normal(size=2))
        noise = ((v, jnp.asarray(0.0)), None)
        kernel = sk.ScoreMALA(0.5, rule=rule, nodes=nodes)
        _, ours = kernel.move(noise, kernel.init(None, x, target), target)
        mala = sk.MALA(0.5)
        _, exact = mala.move(noise, mala.init(None, x, target), target)
        assert float(ours["acceptance_rate"]) == pytest.approx(
            float(exact["acceptance_rate"]), abs=tolerance
        )


def test_preconditioning_is_a_change_of_coordinates() -> None:
    """A kernel with metric C on N(0, C) moves as one without on N(0, I), for the same noise."""
    covariance = np.array([[2.0, 1.2], [1.2, 1.0]])
    metric = dense_from_covariance(covariance, np.float64)
    a = np.asarray(jax.vmap(metric.apply, out_axes=1)(jnp.eye(2)))
    np.testing.assert_allclose(a @ a.T, covariance, rtol=1e-12)
    round_target, target = sk.targets.gaussian(2), sk.targets.gaussian([0.0, 0.0], covariance)
    z = jnp.asarray([0.4, -1.0])
    for kernel in (sk.MALA, sk.Barker, sk.RandomWalk, sk.NUTS, sk.ScoreMALA):
        plain, shaped = kernel(0.7, metric=None), kernel(0.7, metric=metric)
        key = jax.random.key(3)
        one = plain.step(key, plain.init(key, z, round_target), round_target)[0]
        two = shaped.step(key, shaped.init(key, jnp.asarray(a @ z), target), target)[0]
        np.testing.assert_allclose(two.position, a @ np.asarray(one.position), rtol=1e-10)


@pytest.mark.parametrize("setting", ["diagonal", "dense", "low_rank"])
def test_metric_maps_are_consistent(setting: str) -> None:
    """⟨A z, s⟩ = ⟨z, Aᵀ s⟩ and A⁻ᵀ Aᵀ = I, with and without mixing, small and large."""
    rng = np.random.default_rng(0)
    for dim in (5, 50):
        metric = initial_metric(setting, dim, np.float64)
        q = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
        mix = (np.geomspace(0.1, 10, dim), q) if isinstance(metric, Dense | LowRank) else None
        for with_mix in (None, mix):
            ready = with_scale(metric, rng.uniform(0.5, 2, dim), with_mix)
            z, s = jnp.asarray(rng.normal(size=dim)), jnp.asarray(rng.normal(size=dim))
            assert float(ready.apply(z) @ s) == pytest.approx(float(z @ ready.pull(s)), rel=1e-10)
            np.testing.assert_allclose(ready.push(ready.pull(s)), s, rtol=1e-9)


def test_nonfinite_proposals_are_rejected_and_counted() -> None:
    """A target that is NaN outside the unit box: no draw leaves it, the tries are counted."""
    target = sk.from_log_density(
        lambda x: jnp.where(jnp.all(jnp.abs(x) < 1), -jnp.sum(x**2), jnp.nan), dim=2
    )
    for kernel in (sk.RandomWalk(1.5), sk.MALA(1.2), sk.Barker(1.5), sk.HMC(1.0, leapfrogs=3)):
        state = kernel.init(jax.random.key(0), jnp.zeros(2), target)
        step = jax.jit(kernel.step)
        count = 0
        for i in range(30):
            state, stats = step(jax.random.key(i), state, target)
            count += int(stats["nonfinite"])
            assert bool(jnp.all(jnp.abs(state.position) < 1))
        assert count > 3, type(kernel).__name__
