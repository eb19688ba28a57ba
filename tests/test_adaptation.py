"""Warm-up finds the step size it aims for and the metric that makes a target round."""

import numpy as np
import pytest

import samplekit as sk
from samplekit.adaptation import fisher_metric, windows
from samplekit.kernels.metric import Dense


def _condition(covariance: np.ndarray, scale: np.ndarray, mix) -> float:
    """Return the condition number of the target in the metric's coordinates."""
    root = np.diag(scale)
    if mix is not None:
        values, vectors = mix
        root = root @ (np.eye(len(scale)) + (vectors * (np.sqrt(values) - 1)) @ vectors.T)
    inner = np.linalg.inv(root) @ covariance @ np.linalg.inv(root).T
    eigenvalues = np.linalg.eigvalsh(inner)
    return eigenvalues[-1] / eigenvalues[0]


def _gaussian(dim: int, condition: float, draws: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    q = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    covariance = (q * np.geomspace(1, condition, dim)) @ q.T
    x = rng.multivariate_normal(np.zeros(dim), covariance, draws)
    return covariance, x, -x @ np.linalg.inv(covariance)


def test_fisher_metric_is_exact_for_a_gaussian_with_few_draws() -> None:
    """Draws and scores of a Gaussian determine it as soon as there are more than dimensions."""
    covariance, x, scores = _gaussian(20, 1e4, 60)
    scale, mix = fisher_metric(x, scores, len(x))
    assert mix is not None
    assert _condition(covariance, scale, mix) < 1.05  # the small ridge is all that is left
    draws_only = fisher_metric(x, None, len(x))
    assert _condition(covariance, *draws_only) > 5  # 60 draws alone say far less


def test_fewer_draws_than_dimensions_help_and_do_no_harm() -> None:
    covariance, x, scores = _gaussian(50, 1e4, 40)
    before = _condition(covariance, *fisher_metric(x, scores, len(x), mixing=False))
    after = _condition(covariance, *fisher_metric(x, scores, len(x)))
    assert after < before / 2


def test_round_targets_stay_diagonal() -> None:
    """A diagonal is enough for independent coordinates, whatever their scales."""
    rng = np.random.default_rng(0)
    sd = np.array([1.0, 100.0, 0.01])
    x = rng.normal(size=(500, 3)) * sd
    scale, mix = fisher_metric(x, -x / sd**2, len(x))
    assert mix is None
    np.testing.assert_allclose(scale, sd, rtol=1e-6)


def test_windows_end_where_warm_up_ends() -> None:
    assert windows(1000, sk.NUTS()) == [50, 150, 400, 900, 1000]
    assert windows(1000, sk.NUTS(0.1)) == [1000]
    assert windows(5, sk.NUTS()) == [5]


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("kernel", "goal", "slack"),
    [
        (sk.RandomWalk(), 0.234, 0.06),
        (sk.MALA(), 0.574, 0.1),
        (sk.Barker(), 0.57, 0.1),
        (sk.HMC(leapfrogs=5), 0.8, 0.15),
        (sk.NUTS(), 0.8, 0.12),
        (sk.NUTS(target_accept=0.95), 0.95, 0.05),
        (sk.ScoreMALA(), 0.8, 0.1),
        (sk.MCLMC(adjusted=True), 0.9, 0.1),
    ],
    ids=lambda v: type(v).__name__ if hasattr(v, "step") else str(v),
)
def test_step_sizes_reach_their_acceptance(kernel, goal: float, slack: float) -> None:
    """Slack: dual averaging ends on a finite average, and errs to the side of small steps."""
    target = sk.targets.ill_conditioned(10, 100.0)
    run = sk.sample(target, kernel, draws=500, warmup=1000, progress=False)
    rates = run["sample_stats"]["acceptance_rate"].mean("draw")
    assert abs(float(rates.mean()) - goal) < slack


def test_random_walk_in_one_dimension_aims_higher() -> None:
    run = sk.sample(sk.targets.gaussian(1), sk.RandomWalk(), draws=500, progress=False)
    assert abs(float(run["sample_stats"]["acceptance_rate"].mean()) - 0.44) < 0.08


def test_auto_metric_goes_dense_where_it_pays() -> None:
    """Condition 1e4, rotated: the learned metric leaves almost nothing of it."""
    target = sk.targets.ill_conditioned(40, 1e4)
    run = sk.sample(target, draws=200, progress=False)
    metric = sk.kernel_of(run).metric
    assert isinstance(metric, Dense)
    assert bool(metric.active)
    assert float(run["sample_stats"]["n_steps"].mean()) < 16  # a diagonal metric needs hundreds
    forced = sk.sample(target, sk.NUTS(metric="diagonal"), draws=50, progress=False)
    assert float(forced["sample_stats"]["n_steps"].mean()) > 60


def test_given_settings_are_the_users() -> None:
    target = sk.targets.gaussian(3)
    run = sk.sample(target, sk.MALA(0.3), draws=50, warmup=100, progress=False)
    np.testing.assert_array_equal(run["sample_stats"]["step_size"], np.float32(0.3))
    covariance = np.diag([1.0, 4.0, 9.0])
    kernel = sk.kernel_of(
        sk.sample(target, sk.MALA(metric=covariance), draws=50, warmup=100, progress=False)
    )
    np.testing.assert_allclose(kernel.metric.scale, [1, 2, 3], rtol=1e-6)
