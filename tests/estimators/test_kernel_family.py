"""`KernelExponentialFamily`: against hand-written sums, against a KDE, and as an estimator."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KernelDensity
from sklearn.utils.estimator_checks import check_estimator

import samplekit as sk
from samplekit.core.errors import EstimatorError
from samplekit.estimators import kernel_family
from samplekit.estimators.hyvarinen import hyvarinen_score
from samplekit.estimators.kernel_family import KernelExponentialFamily
from samplekit.estimators.rows import Chunk

# Few centers and a short bandwidth: K and Γ + λK have condition numbers below 1e4, so that two ways
# to solve agree to 1e4 · 2⁻⁵³ ≈ 1e-12, with room for the sums.
SAME = 1e-10
GIVEN = {"bandwidth": 0.5, "ridge": 1e-3, "random_state": 0}


@pytest.fixture(scope="module")
def rows():
    random = np.random.default_rng(8)
    x = random.normal(size=300)
    return np.stack([3 * x, x**2 + random.normal(size=300)], axis=1)


def by_hand(rows, fitted, weights=None):
    """Return Γ, g and K, the derivatives of k written out, in units of the columns."""
    basis = fitted._basis
    z, c = rows / basis.unit, fitted.centers_ / basis.unit
    apart, width = z[:, None, :] - c[None, :, :], fitted.bandwidth_
    k = np.exp(-(apart**2).sum(-1) / (2 * width**2))[:, :, None]
    slopes, bends = -apart / width**2 * k, (apart**2 / width**4 - 1 / width**2) * k
    slope = -(rows - basis.mean) / basis.spread**2 * basis.unit
    weights = np.ones(len(rows)) if weights is None else weights
    gamma = np.einsum("n,nki,nli->kl", weights, slopes, slopes) / weights.sum()
    pull = (slopes * slope[:, None, :] + bends).sum(-1)
    gram = np.exp(-((c[:, None, :] - c[None, :, :]) ** 2).sum(-1) / (2 * width**2))
    return gamma, -weights @ pull / weights.sum(), gram


def penalty(fitted):
    return fitted.ridge_ * fitted.n_features_in_ / fitted.bandwidth_**2


@pytest.mark.parametrize("standardize", [True, False])
def test_theta_is_that_of_sums_written_by_hand(rows, standardize):
    fitted = KernelExponentialFamily(12, standardize=standardize, **GIVEN).fit(rows)
    gamma, g, gram = by_hand(rows, fitted)
    assert np.linalg.cond(gram) < 1e4
    expected = np.linalg.solve(gamma + penalty(fitted) * gram, g)
    np.testing.assert_allclose(fitted.theta_, expected, rtol=SAME, atol=SAME)
    assert fitted.selection_ is None


def test_held_out_score_is_that_of_refits(rows):
    """Fit without each fold by hand, and take the mean Hyvärinen score of the fold."""
    fitted = KernelExponentialFamily(12, standardize=False, **GIVEN).fit(rows)
    base = sk.from_log_density(fitted._basis.model.base_of, 2)
    ridges = np.array([1e-3, 1e-1])
    weights = np.random.default_rng(1).integers(1, 4, len(rows)).astype(float)
    total = np.zeros(2)
    for fold in np.array_split(np.arange(len(rows)), 5):
        rest = np.setdiff1d(np.arange(len(rows)), fold)
        gamma, g, gram = by_hand(rows[rest], fitted, weights[rest])
        alone = hyvarinen_score(base, rows[fold])
        for i, ridge in enumerate(ridges):
            theta = np.linalg.solve(gamma + ridge * 2 / fitted.bandwidth_**2 * gram, g)
            fitted.theta_ = theta
            total[i] += weights[fold] @ (alone - hyvarinen_score(fitted.target(), rows[fold]))
    got = kernel_family.held_out(fitted._basis, Chunk(rows, weights, 0), ridges)
    np.testing.assert_allclose(got, total / weights.sum(), rtol=1e-8)


def test_cross_validation_takes_the_best(rows):
    fitted = KernelExponentialFamily(20, random_state=0).fit(rows)
    seen = fitted.selection_
    assert seen["score"].shape == (5, 6)
    i, j = np.unravel_index(seen["score"].argmax(), seen["score"].shape)
    assert (fitted.bandwidth_, fitted.ridge_) == (seen["bandwidth"][i], seen["ridge"][j])
    assert seen["score"].max() > 0  # better than the base alone
    median = KernelExponentialFamily(20, bandwidth="median", random_state=0).fit(rows)
    assert median.bandwidth_ == seen["bandwidth"][3]
    assert median.selection_["score"].shape == (1, 6)
    np.testing.assert_array_equal(median.selection_["score"][0], seen["score"][3])


def test_scores_are_those_of_the_target(rows):
    fitted = KernelExponentialFamily(12, **GIVEN).fit(rows)
    target = fitted.target()
    with jax.enable_x64(True):
        values = jax.vmap(target.log_density)(jnp.asarray(rows))
    np.testing.assert_allclose(fitted.score_samples(rows), values, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(fitted.score(rows), -hyvarinen_score(target, rows).mean(), rtol=1e-9)


def test_far_out_it_is_the_base(rows):
    """So it has an integral, whatever the coefficients."""
    fitted = KernelExponentialFamily(12, **GIVEN).fit(rows)
    far = rows.mean(0) + np.array([[1e3, 0.0], [0.0, -1e3], [1e3, 1e3]])
    expected = -(((far - rows.mean(0)) / (2 * rows.std(0))) ** 2).sum(1) / 2
    np.testing.assert_allclose(fitted.score_samples(far), expected, rtol=1e-12)


def test_units_do_not_matter(rows):
    fitted = KernelExponentialFamily(20, random_state=0).fit(rows)
    scale, shift = np.array([2.0**10, 2.0**-10]), np.array([2.0**12, 1.0])
    other = KernelExponentialFamily(20, random_state=0).fit(rows * scale + shift)
    assert other.ridge_ == fitted.ridge_
    np.testing.assert_allclose(other.bandwidth_, fitted.bandwidth_, rtol=1e-9)
    one, two = fitted.score_samples(rows), other.score_samples(rows * scale + shift)
    # Shifted numbers lose some digits, of which an ill-conditioned solve leaves half.
    np.testing.assert_allclose(two, one, rtol=1e-4, atol=1e-4)


def test_weights_are_repetitions_and_order_does_not_matter(rows):
    repeats = np.random.default_rng(3).integers(0, 3, size=len(rows))
    weighted = KernelExponentialFamily(12, **GIVEN).fit(rows, sample_weight=repeats)
    repeated = KernelExponentialFamily(12, **GIVEN).fit(np.repeat(rows, repeats, axis=0)[::-1])
    np.testing.assert_array_equal(weighted.centers_, repeated.centers_)
    np.testing.assert_allclose(weighted.theta_, repeated.theta_, rtol=SAME, atol=SAME)


def test_more_rows_keep_the_centers(rows):
    fitted = KernelExponentialFamily(12, **GIVEN).fit(rows[:200])
    centers = fitted.centers_
    fitted.partial_fit(iter([rows[200:250], rows[250:]]))
    assert fitted.centers_ is centers
    gamma, g, gram = by_hand(rows, fitted, np.ones(len(rows)))
    expected = np.linalg.solve(gamma + penalty(fitted) * gram, g)
    np.testing.assert_allclose(fitted.theta_, expected, rtol=SAME, atol=SAME)


def test_errors_of_the_coefficients_are_the_sandwich(rows):
    fitted = KernelExponentialFamily(4, **GIVEN).fit(rows)
    gamma, _, gram = by_hand(rows, fitted)
    parts = [by_hand(row[None], fitted, np.ones(1)) for row in rows]
    psi = np.stack([one @ fitted.theta_ - g for one, g, _ in parts])
    bread = np.linalg.inv(gamma + penalty(fitted) * gram)
    expected = bread @ np.cov(psi.T, bias=True) @ bread / len(rows)
    np.testing.assert_allclose(fitted.covariance_, expected, rtol=1e-8, atol=1e-10)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.score_samples(rows), fitted.score_samples(rows))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: rows[:10], "n_centers=12, but X .n_samples=10. has 10 different rows"),
        (lambda rows: np.repeat(rows[:5], 60, axis=0), "n_samples=300. has 5 different rows"),
        (lambda rows: rows * np.array([1.0, 0.0]) + 0.1, "Column 1 of X is constant"),
        (lambda rows: np.where(rows == rows[7], np.nan, rows), "number 7. with NaN"),
        (lambda rows: iter([rows]), "call partial_fit"),
    ],
)
def test_refusals(rows, change, words):
    fresh = KernelExponentialFamily(12, **GIVEN)
    with pytest.raises(EstimatorError, match=words):
        fresh.fit(change(rows))
    assert not any(name.endswith("_") for name in vars(fresh))


@pytest.mark.parametrize(
    "bad", [{"n_centers": 0}, {"kernel": "linear"}, {"bandwidth": 0.0}, {"ridge": -1.0}]
)
def test_settings_are_checked(rows, bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        KernelExponentialFamily(**{"n_centers": 5, **bad}).fit(rows)


def test_draws_go_round_a_ring_far_from_the_origin(key):
    center = np.array([100.0, -50.0])
    data = center + np.asarray(sk.targets.ring().draw(key, 1000), float)
    fitted = KernelExponentialFamily(60, bandwidth=0.5, ridge=1e-4, random_state=0).fit(data)
    draws = fitted.sample(1000, random_state=1) - center
    assert draws.shape == (1000, 2)
    radius = np.linalg.norm(draws, axis=1)
    # Exact: 3.03 ± 0.30, never below 1.5. The fit may be off by a third of the width.
    assert abs(radius.mean() - 3.03) < 0.1
    assert abs(radius.std() - 0.3) < 0.1
    assert (radius < 1.5).mean() < 0.01
    quadrants = np.histogram(np.arctan2(draws[:, 1], draws[:, 0]), 4, (-np.pi, np.pi))[0]
    assert quadrants.min() > 100  # 250 expected


def kde_slopes(data, x):
    """Return ∇ log p̂ of scikit-learn's KDE, its bandwidth the best by held-out likelihood."""
    search = GridSearchCV(KernelDensity(), {"bandwidth": np.geomspace(0.1, 1.0, 10)}, cv=5).fit(
        data
    )
    width = search.best_params_["bandwidth"]
    assert 0.1 < width < 1.0
    apart = x[:, None, :] - data[None, :, :]
    share = -(apart**2).sum(-1) / (2 * width**2)
    share = np.exp(share - share.max(axis=1, keepdims=True))
    return -np.einsum("nm,nmi->ni", share / share.sum(axis=1, keepdims=True), apart) / width**2


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["banana", "ring"])
def test_beats_a_kde_in_fisher_divergence(name, key):
    """E‖∇ log p − ∇ log p̂‖², over three data sets of 1000 draws: less than half of the KDE's."""
    target = getattr(sk.targets, name)()
    ours, theirs = [], []
    for one in jax.random.split(key, 3):
        data, x = (np.asarray(target.draw(k, 2000), float) for k in jax.random.split(one))
        data = data[:1000]
        fitted = KernelExponentialFamily(100, random_state=0).fit(data)
        with jax.enable_x64(True):
            exact, slopes = (
                np.asarray(jax.vmap(t.score)(jnp.asarray(x))) for t in (target, fitted.target())
            )
        ours.append(((slopes - exact) ** 2).sum(1).mean())
        theirs.append(((kde_slopes(data, x) - exact) ** 2).sum(1).mean())
    assert np.mean(ours) < np.mean(theirs) / 2
    assert all(a < b for a, b in zip(ours, theirs, strict=True))


@pytest.mark.filterwarnings("ignore")  # the checks warn by themselves
def test_scikit_learn():
    results = check_estimator(KernelExponentialFamily(4), on_fail=None)
    assert len(results) > 40
    failed = [r["check_name"] for r in results if r["status"] not in ("passed", "skipped")]
    skipped = {r["check_name"] for r in results if r["status"] == "skipped"}
    assert failed == []
    assert skipped <= {"check_array_api_input"}  # needs SCIPY_ARRAY_API in the environment
