"""`ExponentialFamily`: data in every form, devices, errors, refusals, scikit-learn's contract."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import check_estimator

from samplekit.core.errors import EstimatorError
from samplekit.estimators import families, sources
from samplekit.estimators.conditional import ConditionalFamily
from samplekit.estimators.exponential_family import ExponentialFamily
from samplekit.estimators.moments import block_terms, psi
from samplekit.estimators.weights import distance
from tests.estimators.table import CASES

SAME = 1e-12


def waves(y):
    """Statistics that no structure helps with."""
    return jnp.concatenate([-(y**4), jnp.sin(y), jnp.cos(y[:1] * y[1:])])


def log_and_minus(y):
    return jnp.concatenate([jnp.log(y), -y])


def moments(y):
    return jnp.concatenate([y, -(y**2) / 2])


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(5).normal(size=(20_000, 2))


@pytest.fixture(scope="module")
def whole(rows):
    return ExponentialFamily(waves).fit(rows)


def cut(rows, size):
    return (rows[i : i + size] for i in range(0, len(rows), size))


@pytest.mark.parametrize("size", [1, 7, 4096, 20_000])
def test_chunks_of_an_iterator_do_not_matter(rows, whole, size):
    n = len(rows) if size > 1 else 500
    fitted = ExponentialFamily(waves).fit(cut(rows[:n], size))
    expected = whole.theta_ if n == len(rows) else ExponentialFamily(waves).fit(rows[:n]).theta_
    np.testing.assert_allclose(fitted.theta_, expected, rtol=SAME)


def test_internal_chunks_do_not_matter(rows, whole, monkeypatch):
    monkeypatch.setattr("samplekit.estimators.rows.CHUNK_NUMBERS", 2**13)
    small = ExponentialFamily(waves).fit(rows)
    np.testing.assert_allclose(small.theta_, whole.theta_, rtol=SAME)
    np.testing.assert_allclose(small.covariance_, whole.covariance_, rtol=1e-10)


def test_partial_fit_is_fit(rows, whole):
    fitted = ExponentialFamily(waves)
    for part in cut(rows, 3000):
        fitted.partial_fit(part)
    np.testing.assert_allclose(fitted.theta_, whole.theta_, rtol=SAME)
    assert fitted.n_samples_seen_ == len(rows)
    # 16,384 of 20,000 rows are left: the relative error of a variance is about √(κ/16384).
    np.testing.assert_allclose(fitted.standard_errors_, whole.standard_errors_, rtol=0.05)
    more = ExponentialFamily(waves).fit(rows[:15_000]).partial_fit(rows[15_000:])
    np.testing.assert_allclose(more.theta_, whole.theta_, rtol=SAME)
    np.testing.assert_allclose(more.standard_errors_, fitted.standard_errors_, rtol=1e-9)


def test_what_is_kept_of_a_stream_is_exact_when_it_is_short(rows):
    stream = ExponentialFamily(waves).fit(cut(rows[:5000], 100))
    array = ExponentialFamily(waves).fit(rows[:5000])
    np.testing.assert_allclose(stream.covariance_, array.covariance_, rtol=1e-10)


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["gamma-3", "beta-small", "pairwise-1-1"])
def test_errors_of_a_long_stream_are_those_of_all_rows(name, seed):
    """Off by ½√((κ − 1)/m) of m kept rows, κ the kurtosis of the influence; five of these."""
    family, params = CASES[name]
    rows = family.draw(seed, 100_000, **params)
    full = clone(family).fit(rows)
    stream = clone(family).fit(cut(rows, 7000))
    np.testing.assert_allclose(stream.theta_, full.theta_, rtol=1e-9)
    with jax.enable_x64(True):
        model = family._setup(rows.shape[1]).model
        each = np.asarray(psi(block_terms(model, jnp.asarray(rows)), jnp.asarray(full.theta_)))
    influence = full._full(full._fitted).bread @ each
    kurtosis = (influence**4).mean(axis=1) / (influence**2).mean(axis=1) ** 2
    expected = np.sqrt((kurtosis - 1) / sources.RESERVOIR) / 2
    assert np.all(expected < 0.06)  # the test can see something
    ratio = stream.standard_errors_ / full.standard_errors_
    assert np.all(np.abs(ratio - 1) < 5 * expected)
    assert np.any(ratio != 1)  # a subset it was


def test_reservoir_is_uniform_and_bounded(monkeypatch):
    monkeypatch.setattr(sources, "RESERVOIR", 1000)
    kept = sources.Reservoir()
    for start in range(0, 50_000, 1000):
        rows = np.arange(start, start + 1000.0)[:, None]
        kept.add(sources.Chunk(rows, np.ones(1000), start))
    assert kept.rows.shape == (1000, 1)
    assert kept.factor == 50
    # Mean of 1000 uniform numbers on [0, 50000): 25000 ± 456; five standard errors.
    assert abs(kept.rows.mean() - 25_000) < 5 * 50_000 / np.sqrt(12 * 1000)


def test_memory_map_and_data_frame(rows, whole, tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, rows)
    mapped = ExponentialFamily(waves).fit(np.load(path, mmap_mode="r"))
    np.testing.assert_array_equal(mapped.theta_, whole.theta_)
    frame = ExponentialFamily(waves).fit(pd.DataFrame(rows, columns=["a", "b"]))
    np.testing.assert_array_equal(frame.theta_, whole.theta_)
    assert list(frame.feature_names_in_) == ["a", "b"]


def test_float64_whatever_the_switch(rows, whole):
    assert not jax.config.jax_enable_x64
    with jax.enable_x64(True):
        np.testing.assert_array_equal(ExponentialFamily(waves).fit(rows).theta_, whole.theta_)


@pytest.mark.multidevice
def test_one_device_and_four(rows, whole):
    devices = jax.devices()
    assert len(devices) >= 4
    one = ExponentialFamily(waves).fit(rows, devices=devices[:1])
    four = ExponentialFamily(waves).fit(rows, devices=devices[:4])
    np.testing.assert_allclose(one.theta_, four.theta_, rtol=1e-10)
    np.testing.assert_allclose(four.theta_, whole.theta_, rtol=1e-10)


def test_weights_are_repetitions(rows):
    repeats = np.random.default_rng(3).integers(0, 4, size=2000)
    weighted = ExponentialFamily(waves).fit(rows[:2000], sample_weight=repeats)
    repeated = ExponentialFamily(waves).fit(np.repeat(rows[:2000], repeats, axis=0))
    np.testing.assert_allclose(weighted.theta_, repeated.theta_, rtol=1e-11)
    pairs = ((rows[i : min(i + 300, 2000)], repeats[i : i + 300]) for i in range(0, 2000, 300))
    streamed = ExponentialFamily(waves).fit(pairs)
    np.testing.assert_allclose(streamed.theta_, weighted.theta_, rtol=1e-11)
    gaussian = families.gaussian().fit(rows[:2000], sample_weight=repeats)
    again = families.gaussian().fit(np.repeat(rows[:2000], repeats, axis=0))
    np.testing.assert_allclose(gaussian.theta_, again.theta_, rtol=1e-10, atol=1e-12)


def test_pickle_has_errors_but_no_data(rows, whole):
    fitted = ExponentialFamily(waves).fit(rows)
    data = pickle.dumps(fitted)
    assert len(data) < rows.nbytes / 10
    again = pickle.loads(data)
    np.testing.assert_allclose(again.covariance_, whole.covariance_, rtol=1e-11)
    family = families.truncated_normal(-1.0, 2.0).fit(np.clip(rows[:, :1], -1, 2))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(family)).theta_, family.theta_)


def test_errors_option(rows):
    eager = ExponentialFamily(waves, errors="eager").fit(rows[:1000])
    assert eager._fitted.kept is None
    lazy = ExponentialFamily(waves).fit(rows[:1000])
    np.testing.assert_array_equal(eager.covariance_, lazy.covariance_)
    with pytest.raises(EstimatorError, match="errors='none'"):
        _ = ExponentialFamily(waves, errors="none").fit(rows[:1000]).covariance_


def test_summary_and_interval(rows):
    fitted = ExponentialFamily(lambda y: {"mean": y, "half": -(y**2).sum() / 2}).fit(rows)
    table = fitted.summary(0.9)
    assert list(table.index) == ["half", "mean[0]", "mean[1]"]  # JAX sorts a dict's keys
    np.testing.assert_allclose(table[["lower", "upper"]], fitted.confidence_interval(0.9))
    half = (table["upper"] - table["lower"]) / 2
    np.testing.assert_allclose(half, 1.6448536269514722 * table["standard_error"])


def test_score_is_higher_for_the_better_model(rows):
    """For N(0, I) and precision τ the mean Hyvärinen score is d(τ²/2 − τ): best at τ = 1."""
    best = ExponentialFamily(moments).fit(rows)
    expected = -((rows @ np.diag(best.theta_[2:]) - best.theta_[:2]) ** 2).sum(axis=1) / 2
    np.testing.assert_allclose(
        best.score(rows), (expected + best.theta_[2:].sum()).mean(), rtol=1e-10
    )
    worse = ExponentialFamily(moments, ridge=0.5).fit(rows)
    assert best.score(rows) > worse.score(rows)
    search = GridSearchCV(ExponentialFamily(moments), {"ridge": [0.5, 0.0]}, cv=2).fit(rows[:1000])
    assert search.best_params_ == {"ridge": 0.0}


def test_score_samples_is_the_log_density_up_to_a_constant(rows):
    fitted = ExponentialFamily(moments).fit(rows)
    expected = rows[:9] @ fitted.theta_[:2] - rows[:9] ** 2 @ fitted.theta_[2:] / 2
    np.testing.assert_allclose(fitted.score_samples(rows[:9]), expected, rtol=1e-12)


def test_failure_leaves_the_estimator_as_it_was(rows):
    fitted = ExponentialFamily(moments).fit(rows)
    before = dict(vars(fitted))
    bad = rows.copy()
    bad[[3, 17_000], 1] = np.nan
    for call in (fitted.fit, fitted.partial_fit):
        with pytest.raises(EstimatorError, match=r"2 rows \(number 3, 17000\) with NaN"):
            call(bad)
        assert vars(fitted) == before
    fresh = ExponentialFamily(moments)
    with pytest.raises(EstimatorError, match="NaN"):
        fresh.fit(bad)
    assert not any(name.endswith("_") for name in vars(fresh))


def test_gaussian_names_the_rows_with_nan(rows):
    bad = rows.copy()
    bad[[5, 19_999], 0] = np.inf
    with pytest.raises(EstimatorError, match=r"number 5(, 19999)?\)"):
        families.gaussian().fit(bad)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda rows: ExponentialFamily(log_and_minus, domain="positive").fit(rows),
            "Negative values",
        ),
        (lambda rows: ExponentialFamily(moments, domain=(-1, 1)).fit(rows), r"outside.*'interval'"),
        (lambda rows: ExponentialFamily(moments, domain="sphere").fit(rows), "unit sphere"),
        (lambda rows: ExponentialFamily(moments, domain="simplex").fit(rows), "simplex"),
        (lambda rows: ExponentialFamily(moments, domain="torus").fit(rows), "2π"),
        (lambda rows: ExponentialFamily(moments, domain="cube").fit(rows), "not known"),
        (lambda rows: ExponentialFamily(moments).fit(rows[:1]), "n_samples=1"),
        (
            lambda rows: ExponentialFamily(lambda y: jnp.append(y, y[0])).fit(rows),
            "theta.0., theta.2.",
        ),
        (lambda rows: ExponentialFamily(lambda y: y[:1] * 0 + 1.0).fit(rows), "do not vary"),
        (
            lambda rows: ExponentialFamily(lambda y: y[5:6] + jnp.ones(3)).fit(rows),
            "failed on a row",
        ),
        (lambda rows: ExponentialFamily(lambda y: jnp.sqrt(y)).fit(rows), "no finite derivatives"),
        (lambda rows: ExponentialFamily(moments, weight=1.0).fit(rows), "weight=1.0"),
        (lambda rows: ExponentialFamily("moments").fit(rows), "not a function"),
        (lambda rows: ExponentialFamily(moments).fit(iter([])), "no chunks"),
        (
            lambda rows: ExponentialFamily(moments).fit(rows, sample_weight=np.zeros(len(rows))),
            "zero",
        ),
        (lambda rows: families.gamma().fit(np.abs(rows)), "family gamma has rows of 1"),
    ],
)
def test_refusals(rows, make, words):
    with pytest.raises(EstimatorError, match=words):
        make(rows[:500])


def test_weights_that_would_fail_silently_are_refused(seed):
    """The known-bad settings of the formula sheet, and their good neighbours."""
    gamma = families.gamma()
    small = gamma.draw(seed, 5000, shape=1.5, rate=2.0)
    large = gamma.draw(seed, 5000, shape=3.0, rate=2.0)
    with pytest.raises(EstimatorError, match="does not vanish at the boundary"):
        families.gamma(weight=jnp.ones_like).fit(large)
    with pytest.raises(EstimatorError, match="standard errors would be wrong"):
        families.gamma(weight=distance()).fit(small)
    families.gamma(weight=distance()).fit(large)  # shape 3: valid with h = y
    families.gamma(weight=distance(power=2.0)).fit(small)
    insisted = families.gamma(weight="unweighted").fit(large)
    assert np.isfinite(insisted.theta_).all()
    truncated = families.truncated_normal().draw(seed, 5000, location=-0.5, scale=1.0)
    wrong = families.truncated_normal(weight="unweighted").fit(truncated)
    assert wrong.theta_[1] > 2  # the sheet's (2.38, 3.72) for (−.5, 1)


def test_a_zero_on_the_boundary_has_its_limit(seed):
    rows = np.append(families.gamma().draw(seed, 500, shape=3.0, rate=2.0), 0.0)[:, None]
    shape = families.gamma().fit(rows).params_["shape"]
    np.testing.assert_allclose(shape, rows.mean() ** 2 / rows.var(), rtol=1e-10)


def test_windham_weights_shrug_off_outliers(seed):
    """A robust fit by sample_weight: weights p^c, the truth recovered to a fraction of the bias."""
    random = np.random.default_rng(seed)
    rows = np.append(random.normal(size=2000), np.full(40, 9.0))[:, None]
    plain = families.gaussian().fit(rows)
    robust = families.gaussian()
    weights = np.ones(len(rows))
    for _ in range(30):
        robust.fit(rows, sample_weight=weights)
        weights = np.exp(0.5 * (robust.score_samples(rows) - robust.score_samples(rows).max()))
    # Windham's correction: weighting by p^c multiplies a Gaussian's precision by 1 + c.
    assert abs(robust.params_["mean"]) < abs(plain.params_["mean"]) / 2


ESTIMATORS = {
    "reals": ExponentialFamily(moments),
    "positive": ExponentialFamily(log_and_minus, domain="positive"),
    # 15 rows of 30 numbers have no maximum-likelihood fit, hence the ridge.
    "gaussian": families.gaussian(ridge=1e-3),
    "conditional": ConditionalFamily(families.gaussian(), ridge=1e-3),
}


@pytest.mark.filterwarnings("ignore")  # the checks warn by themselves
@pytest.mark.parametrize("name", ESTIMATORS)
def test_scikit_learn(name):
    """All of scikit-learn's checks; the names of functions would make unstable test names."""
    results = check_estimator(ESTIMATORS[name], on_fail=None)
    assert len(results) > 40
    failed = [r["check_name"] for r in results if r["status"] not in ("passed", "skipped")]
    skipped = {r["check_name"] for r in results if r["status"] == "skipped"}
    assert failed == []
    assert skipped <= {"check_array_api_input"}  # needs SCIPY_ARRAY_API in the environment


def test_clone_keeps_settings():
    family = families.pairwise(0.5, 0.5, 2, ridge=0.1)
    assert clone(family).get_params() == family.get_params()
