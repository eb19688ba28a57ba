"""The work around a loop as a statistic of ScoreMALA: its value and its price."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import samplekit as sk
from samplekit.core.errors import SettingsError

RULES = [("simpson", 2), ("gauss", 2), ("gauss", 3)]
TURN = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])


def _works(target, kernel: sk.ScoreMALA, count: int = 20) -> tuple[np.ndarray, ...]:
    """Return starts, velocities and works of single steps of a kernel, in double precision."""
    rng = np.random.default_rng(0)
    dim = target.space.size
    x, v = rng.normal(size=(count, dim)), rng.normal(size=(count, dim))

    def one(x: jax.Array, v: jax.Array) -> jax.Array:
        noise = ((v, jnp.zeros(())), None)
        return kernel.move(noise, kernel.init(jax.random.key(0), x, target), target)[1][
            "closed_loop_work"
        ]

    return x, v, np.asarray(jax.vmap(one)(jnp.asarray(x), jnp.asarray(v)))


@pytest.mark.parametrize(("rule", "nodes"), RULES)
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_a_gradient_of_degree_three_does_no_work(rule: str, nodes: int, dim: int) -> None:
    """Simpson and two Gauss nodes integrate cubics exactly, so that only rounding is left.

    Edges do work of size 1 to 100: 1e-12 is some 100 roundings of that.
    """
    with jax.enable_x64(True):
        target = sk.targets.double_well(dim=dim)
        kernel = sk.ScoreMALA(0.5, rule=rule, nodes=nodes)
        assert np.abs(_works(target, kernel)[2]).max() < 1e-12


@pytest.mark.parametrize(("rule", "nodes"), RULES)
def test_a_rotation_does_the_work_of_the_formula(rule: str, nodes: int) -> None:
    """For s = −x + 0.3 Jx: ηw·0.3JΔ exactly, the rules being exact for linear scores."""
    eta = 0.4
    with jax.enable_x64(True):
        matrix = jnp.asarray(0.3 * TURN - np.eye(3))
        target = sk.from_score(lambda x: matrix @ x, dim=3)
        x, v, works = _works(target, sk.ScoreMALA(eta, rule=rule, nodes=nodes))
        step = eta * (v + eta / 2 * x @ np.asarray(matrix).T)
        turned = np.concatenate([v[:, 1:], -v[:, :1]], axis=1)
        expected = np.einsum("ni,ij,nj->n", eta * turned, 0.3 * TURN, step)
        np.testing.assert_allclose(works, expected, rtol=1e-12, atol=1e-14)
        assert np.sqrt(np.mean(works**2)) > 0.02  # η² times 0.3 is 0.05


def test_the_metric_shapes_the_loop() -> None:
    """A metric is a change of coordinates: the work of x = Az is that of s_z = Aᵀ s(Az) in z."""
    with jax.enable_x64(True):
        scales = np.array([0.2, 1.0, 3.0])
        matrix = jnp.asarray(0.3 * TURN - np.eye(3))
        wide = jnp.asarray(matrix * scales[:, None] ** -1 * scales[None] ** -1)
        kernel = sk.ScoreMALA(0.4, metric=scales**2).prepare(3, np.float64)
        noise = ((jnp.asarray([0.3, -1.0, 0.7]), jnp.zeros(())), None)
        z = jnp.asarray([0.5, 0.1, -0.4])
        found = []
        for target, k, x in (
            (sk.from_score(lambda x: wide @ x, dim=3), kernel, z * jnp.asarray(scales)),
            (sk.from_score(lambda x: matrix @ x, dim=3), sk.ScoreMALA(0.4), z),
        ):
            _, stats = k.move(noise, k.init(jax.random.key(0), x, target), target)
            found.append(float(stats["closed_loop_work"]))
        assert found[0] == pytest.approx(found[1], rel=1e-12)


def test_of_a_gradient_only_the_error_of_the_rule_is_left() -> None:
    """Simpson's error on an edge of length h is of order h⁵: half the step leaves 1/32 of it."""
    with jax.enable_x64(True):
        target = sk.from_score(lambda x: -jnp.tanh(jnp.sum(x)) - jnp.sin(x), dim=2)
        sizes = [
            np.sqrt(np.mean(_works(target, sk.ScoreMALA(eta), 200)[2] ** 2)) for eta in (0.1, 0.05)
        ]
        assert 2**4.5 < sizes[0] / sizes[1] < 2**5.5


class Counted:
    """A score that counts how often it is computed on the host."""

    def __init__(self) -> None:
        self.calls = 0

    def on_host(self, x: np.ndarray) -> np.ndarray:
        self.calls += 1
        return np.asarray(-x)

    def __call__(self, x: jax.Array) -> jax.Array:
        # Pure: XLA may drop a call whose result nobody uses, and that is the question here.
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(self.on_host, shape, x, vmap_method="sequential")


@pytest.mark.parametrize(
    ("stats", "scores"),
    [(None, 2), (["acceptance_rate"], 2), (["acceptance_rate", "closed_loop_work"], 5)],
)
def test_it_costs_scores_only_where_it_is_asked_for(stats, scores: int) -> None:
    counted, draws = Counted(), 60
    run = sk.sample(
        sk.from_score(counted, dim=2),
        sk.ScoreMALA(0.5),
        draws=draws,
        warmup=0,
        chains=1,
        stats=stats,
        progress=False,
    )
    assert ("closed_loop_work" in run["sample_stats"]) == (scores == 5)
    # The start takes a few more.
    assert scores * draws <= counted.calls < scores * draws + draws / 2


def test_a_run_records_it_and_stays_the_same_run() -> None:
    matrix = jnp.asarray(0.3 * TURN[:2, :2] - np.eye(2), jnp.float32)
    target = sk.from_score(lambda x: matrix @ x, dim=2)
    settings = {"draws": 500, "warmup": 0, "chains": 2, "seed": 3, "progress": False}
    plain = sk.sample(target, sk.ScoreMALA(0.8), **settings)
    asked = sk.sample(target, sk.ScoreMALA(0.8), stats=["closed_loop_work"], **settings)
    np.testing.assert_array_equal(plain["posterior"]["x"], asked["posterior"]["x"])
    # w is v turned by a right angle: the work is −0.3η²|v|² + 0.15η³ w·Js(x), the second of mean
    # zero. Steps are independent in v, |v|² has mean 2 and standard deviation 2, and w·Js one of
    # (1 + 0.3²)^½ √2: five standard errors of the mean over η² are 0.1.
    work = asked["sample_stats"]["closed_loop_work"].values / 0.8**2
    assert np.mean(work) == pytest.approx(-0.6, abs=5 * np.sqrt(0.6**2 + 0.18**2) / np.sqrt(1000))


def test_a_kernel_without_it_says_what_there_is() -> None:
    target = sk.targets.gaussian(2)
    with pytest.raises(SettingsError, match=r"closed_loop_work.*Choose from: "):
        sk.sample(target, sk.MALA(), stats=["closed_loop_work"], progress=False)
    with pytest.raises(SettingsError, match=r"Choose from: .*closed_loop_work"):
        sk.sample(target, sk.ScoreMALA(), stats=["loop"], progress=False)
