"""`noise_levels`: the rules of NCSNv2 where they hold, the fallback where not, and the reasons."""

import numpy as np
import pytest
from scipy.spatial.distance import pdist

import samplekit as sk
from samplekit.core.errors import EstimatorError
from samplekit.estimators.noise_levels import langevin_size
from samplekit.targets.paths import langevin_step


def normal(dim, count=300):
    return np.random.default_rng(dim).normal(size=(count, dim))


@pytest.mark.parametrize("dim", [1, 2, 5, 64])
def test_the_first_level_is_the_largest_distance(dim):
    data = normal(dim)
    np.testing.assert_allclose(sk.noise_levels(data).levels[0], pdist(data).max(), rtol=1e-10)


def test_many_rows_are_sampled_and_the_text_says_so():
    data = normal(2, 5000)
    chosen = sk.noise_levels(data)
    assert 0.8 * pdist(data[:3000]).max() < chosen.levels[0] <= pdist(data).max()
    assert "2,000 compared" in str(chosen)


# FORMULAS §9: the solutions of the equation, to the digits given there.
@pytest.mark.parametrize(("dim", "ratio"), [(5, "19.5"), (8, "4.0"), (16, "2.13"), (64, "1.361")])
def test_the_ratio_is_that_of_ncsn_v2(dim, ratio):
    from samplekit.estimators.noise_levels import _ratio

    digits = len(ratio.partition(".")[2])
    assert f"{_ratio(dim):.{digits}f}" == ratio


@pytest.mark.parametrize("dim", [1, 2, 3, 4])
def test_up_to_four_dimensions_there_is_no_ratio_and_the_text_says_so(dim):
    chosen = sk.noise_levels(normal(dim))
    assert "no solution" in str(chosen)
    # The number of levels is whole, so that the ratio is 1.5 or a little less.
    assert 1.35 < chosen.ratio <= 1.5 + 1e-9
    np.testing.assert_allclose(chosen.step_size, np.sqrt(0.4) * chosen.levels[-1])


def test_a_ratio_that_leaves_too_few_levels_is_not_taken_and_the_text_says_so():
    chosen = sk.noise_levels(normal(8))
    assert "would take 4" in str(chosen)
    assert chosen.ratio <= 1.5 + 1e-9


def test_in_many_dimensions_ratio_and_step_follow_the_rules():
    chosen = sk.noise_levels(normal(64), steps=5)
    assert 1.3 < chosen.ratio <= 1.361
    ratios = chosen.levels[:-1] / chosen.levels[1:]
    np.testing.assert_allclose(ratios, chosen.ratio, rtol=1e-10)
    assert chosen.step_size == langevin_step(chosen.levels, 5)
    # FORMULAS §9: no other step brings the variance after the level closer to that of the level.
    e = chosen.step_size**2 / 2 / chosen.levels[-1] ** 2
    off = [abs(variance(c * e, chosen.ratio, 5) - 1) for c in (0.9, 1.0, 1.1)]
    assert off[1] == min(off)


def variance(e, ratio, steps):
    rest = 2 * e / (1 - (1 - e) ** 2)
    return (1 - e) ** (2 * steps) * (ratio**2 - rest) + rest


def test_levels_of_ones_own_get_the_step_of_their_dimension():
    levels = np.geomspace(10, 0.1, 12)
    assert langevin_size(levels, 2, 100) == pytest.approx(np.sqrt(0.4) * 0.1)
    assert langevin_size(levels, 64, 100) == langevin_step(levels, 100)


def test_numbers_given_are_taken():
    chosen = sk.noise_levels(normal(2), n_levels=7, sigma_min=0.5)
    assert len(chosen.levels) == 7
    np.testing.assert_allclose(chosen.levels[-1], 0.5)
    assert "7 levels: given" in str(chosen)
    for wrong in (0.0, -1.0, 1e3):
        with pytest.raises(EstimatorError, match="sigma_min"):
            sk.noise_levels(normal(2), sigma_min=wrong)


def test_too_little_noise_is_said():
    assert not sk.noise_levels(normal(2)).findings
    (said,) = sk.noise_levels(normal(2), sigma_min=1e-5).findings
    assert "by heart" in said


def test_a_thin_manifold_is_said_and_one_point_refused():
    t = np.random.default_rng(0).normal(size=300)
    assert "thin manifold" in str(sk.noise_levels(np.stack([t, -t], axis=1)))
    assert "thin manifold" not in str(sk.noise_levels(normal(2)))
    with pytest.raises(EstimatorError, match="same point"):
        sk.noise_levels(np.ones((10, 3)))


@pytest.mark.parametrize("bad", [np.full((5, 2), np.nan), np.ones((1, 2)), np.ones(5)])
def test_what_are_no_data_are_refused(bad):
    with pytest.raises(ValueError, match=r"NaN|minimum|2D"):
        sk.noise_levels(bad)
