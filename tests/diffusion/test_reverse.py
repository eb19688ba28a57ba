"""The reverse SDE: exact recursions on Gaussians, weights of mixtures, correctors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import samplekit as sk
from samplekit import diffusion
from samplekit.core.pytree import pytree
from samplekit.diffusion import reverse_program
from samplekit.diffusion.reverse import tables
from samplekit.diffusion.scores import make_times
from samplekit.targets.paths import noise_path
from samplekit.testing import assert_mean

MEAN, SD = 1.3, 0.8
GAUSSIAN = sk.targets.noised_mixture([1.0], [[MEAN]], SD)
TOY = sk.targets.noised_mixture([0.2, 0.8], [[-5.0, -5.0], [5.0, 5.0]])
VE, VP = diffusion.VE(0.05, 20.0), diffusion.VP()
every_process = pytest.mark.parametrize("process", [VE, VP], ids=lambda p: type(p).__name__)
FIXED = ("euler", "exponential", "ancestral")
QUIET = {"progress": False, "cache": False}


def recursion(process, solver, steps):
    """Mean and variance of the law that the steps themselves make of the prior."""
    times = np.linspace(1, 0, steps + 1)
    mean, variance = 0.0, float(process.prior_scale(1.0)) ** 2
    for t, (r, w, c) in zip(times[:-1], tables(process, solver, times)[0], strict=True):
        a, s = marginal(process, t)
        width = a**2 * SD**2 + s**2  # the score is −(x − a m)/width
        mean = (r - w / width) * mean + w * a * MEAN / width
        variance = (r - w / width) ** 2 * variance + c**2
    return mean, variance


marginal = jax.jit(lambda process, t: process.marginal(t))


def draws(out):
    return out["posterior"]["x"].values[:, 0].astype(float)


def assert_moments(x, mean, variance, resolves):
    chains = x[:, 0].reshape(8, -1)
    both = np.stack([chains, (chains - mean) ** 2], axis=-1)
    assert_mean(both, [mean, variance], resolves=resolves, name=["x", "square"])


@pytest.mark.statistical
@every_process
@pytest.mark.parametrize("solver", FIXED)
def test_moments_are_those_of_the_recursion(process, solver, seed):
    """Sign, g² and noise of every step at once; 40 steps, so that the steps themselves show."""
    out = diffusion.reverse(
        process, GAUSSIAN, solver=solver, steps=40, particles=16_384, seed=seed, denoise=False,
        **QUIET,
    )  # fmt: skip
    assert_moments(draws(out), *recursion(process, solver, 40), resolves=[0.08, 0.1])


@every_process
@pytest.mark.parametrize("solver", FIXED)
def test_the_recursion_ends_at_the_data(process, solver):
    """Error of first order: it halves with the step, down to that of the prior."""
    truth = SD**2 + float(process.noise(0.0)) ** 2
    coarse, fine = (abs(recursion(process, solver, n)[1] / truth - 1) for n in (100, 200))
    assert fine < 0.06
    assert fine < 0.65 * coarse
    assert abs(recursion(process, solver, 200)[0] - MEAN) < 0.01


@pytest.mark.parametrize("factor", [-1.0, 0.5, 2**0.5])
def test_wrong_scores_fail(factor, seed):
    """A wrong sign, ½g² for g², a stray √2."""
    wrong = diffusion.combined([GAUSSIAN], [factor])
    out = diffusion.reverse(VP, wrong, steps=40, particles=4096, seed=seed, denoise=False, **QUIET)
    with pytest.raises(AssertionError):
        assert_moments(draws(out), *recursion(VP, "exponential", 40), resolves=[0.2, 0.2])


def test_wrong_noise_fails(seed):
    @pytree
    class Loud(diffusion.VP):
        def exponential(self, t, to, /):
            r, w, c = super().exponential(t, to)
            return r, w, np.sqrt(2) * c

    out = diffusion.reverse(
        Loud(), GAUSSIAN, steps=40, particles=4096, seed=seed, denoise=False, **QUIET
    )
    with pytest.raises(AssertionError):
        assert_moments(draws(out), *recursion(VP, "exponential", 40), resolves=[0.2, 0.2])


@pytest.mark.statistical
@pytest.mark.parametrize(
    "process",
    [
        pytest.param(diffusion.VE(0.05, 40.0), id="VE"),
        pytest.param(VP, id="VP", marks=pytest.mark.slow),
    ],
)
def test_weights_of_a_mixture(process, seed):
    """0.8, where Langevin finds 0.51 and annealed Langevin 0.78 (PEERS B2)."""
    scaled = sk.targets.noised_mixture([0.2, 0.8], [[-1.0, -1.0], [1.0, 1.0]], 0.2)
    family = TOY if isinstance(process, diffusion.VE) else scaled
    out = diffusion.reverse(process, family, steps=300, particles=8192, seed=seed, **QUIET)
    right = (draws(out).sum(axis=1) > 0).astype(float)
    assert_mean(right.reshape(8, -1), 0.8, resolves=0.05)
    assert out.attrs["nonfinite_particles"] == 0


@pytest.mark.statistical
def test_adaptive_steps(seed):
    """The moments of the data; and the same path whatever the steps, for the noise is the same."""
    settings = {"solver": "adaptive", "particles": 2048, "seed": seed, "denoise": False}
    rough, fine = (
        diffusion.reverse(VP, GAUSSIAN, tolerance=t, **settings, **QUIET) for t in (0.1, 0.03)
    )
    assert_moments(draws(fine), MEAN, SD**2, resolves=[0.2, 0.25])
    assert rough.attrs["steps"] < fine.attrs["steps"] < 400
    assert np.abs(draws(rough) - draws(fine)).mean() < 0.05 * SD


@pytest.mark.slow
@pytest.mark.statistical
def test_adaptive_steps_of_ve(seed):
    out = diffusion.reverse(
        VE, GAUSSIAN, solver="adaptive", particles=8192, seed=seed, denoise=False, keep=True,
        steps=4, **QUIET,
    )  # fmt: skip
    assert_moments(draws(out), MEAN, SD**2 + 0.05**2, resolves=[0.12, 0.12])
    assert out["path_posterior"]["x"].shape == (8192, 5, 1)
    np.testing.assert_allclose(out["path_posterior"]["x"][:, -1], out["posterior"]["x"][:, 0])


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("kernel", "bias"),
    [
        (sk.Langevin(0.3), 0.02),
        (sk.ScoreMALA(), 0.0),
        pytest.param(sk.MALA(), 0.0, marks=pytest.mark.slow),
    ],
    ids=lambda value: type(value).__name__,
)
def test_correctors_mend_long_steps(kernel, bias, seed):
    """Twelve steps of the predictor are far off; the corrector's law is that of the last time."""
    settings = {"steps": 12, "particles": 8192, "seed": seed, "denoise": False}
    truth = SD**2 + 0.4**2
    wide = diffusion.VE(0.4, 20.0)
    off = draws(diffusion.reverse(wide, GAUSSIAN, **settings, **QUIET)).var() / truth - 1
    out = diffusion.reverse(
        wide, GAUSSIAN, corrector=kernel, corrector_steps=15, **settings, **QUIET
    )
    left = draws(out).var() / truth - 1
    error = 4.9 * np.sqrt(2 / 8192)
    assert abs(off) > 0.15 + error
    assert abs(left) < bias + error
    assert out["path"].sizes["time"] == 12
    if kernel.step_size is None:
        rate = out["path"]["acceptance_rate"].values[-1]
        assert rate == pytest.approx(kernel.goal(1), abs=0.2)


def test_a_step_size_grows_with_the_noise():
    out = diffusion.reverse(
        VP, GAUSSIAN, steps=5, particles=8, corrector=sk.Langevin(0.02), t_min=0.01, **QUIET
    )
    times = np.linspace(1, 0.01, 6)
    sd = np.asarray(VP.marginal(times)[1])
    np.testing.assert_allclose(out["path"]["step_size"], 0.02 * sd[1:] / sd[-1], rtol=1e-5)
    np.testing.assert_allclose(out["path"]["time"], times[1:])
    np.testing.assert_allclose(out["path"]["noise"], VP.noise(times[1:]), rtol=1e-6)


def test_a_function_gives_what_the_family_gives(seed):
    def score(x, t):
        a, s = VP.marginal(t)
        return GAUSSIAN.at(s / a).score(x / a) / a

    settings = {"steps": 10, "particles": 16, "seed": seed}
    one = diffusion.reverse(VP, GAUSSIAN, **settings, **QUIET)
    two = diffusion.reverse(VP, score, dim=1, **settings, **QUIET)
    np.testing.assert_allclose(draws(one), draws(two), rtol=1e-4, atol=1e-4)


def test_seeds_starts_and_frames(seed):
    settings = {"steps": 6, "seed": seed, "denoise": False, **QUIET}
    many = diffusion.reverse(VE, TOY, particles=64, keep=True, **settings)
    few = diffusion.reverse(VE, TOY, particles=32, **settings)
    np.testing.assert_allclose(draws(many)[:32], draws(few), rtol=1e-4, atol=1e-4)
    other = diffusion.reverse(VE, TOY, particles=32, **{**settings, "seed": seed + 1})
    assert np.abs(draws(other) - draws(few)).max() > 0.1
    frames = many["path_posterior"]["x"].values
    assert frames.shape == (64, 7, 2)
    np.testing.assert_array_equal(frames[:, -1], draws(many).astype(np.float32))
    start = jnp.asarray(frames[:, 0])
    again = diffusion.reverse(VE, TOY, start=start, **settings)
    np.testing.assert_array_equal(draws(again), draws(many))
    assert start.shape == (64, 2)  # still there: the program works on a copy
    given = diffusion.reverse(
        VE, TOY, start=lambda key, n: jnp.zeros((n, 2)), particles=3, **settings
    )
    assert draws(given).shape == (3, 2)


def test_times_of_ones_own():
    given = np.geomspace(1.0, 1e-3, 8)
    problem, times = make_times(VP, GAUSSIAN, given, dim=None, t_min=None, t_max=None)
    np.testing.assert_array_equal(times, given)
    assert (problem.t_min, problem.t_max) == (given[-1], given[0])


def test_the_last_noise_is_removed(seed):
    process = diffusion.VE(0.5, 5.0)
    noisy, clean = (
        diffusion.reverse(process, TOY, steps=5, particles=8, seed=seed, denoise=d, **QUIET)
        for d in (False, True)
    )
    x = jnp.asarray(draws(noisy), jnp.float32)
    expected = x + 0.5**2 * jax.vmap(TOY.at(0.5).score)(x)
    np.testing.assert_allclose(draws(clean), expected, rtol=1e-4, atol=1e-4)


def test_levels_of_a_family_bound_the_times():
    """A network knows nothing of noise that it was not trained with."""
    path = noise_path(TOY, [10.0, 1.0, 0.2])
    settings = {"dim": None, "t_min": None, "t_max": None}
    times = make_times(VP, path, 3, **settings)[1]
    np.testing.assert_allclose(VP.noise(times[[0, -1]]), [10.0, 0.2], rtol=1e-4)
    inside = make_times(diffusion.VE(0.5, 5.0), path, 3, **settings)[1]
    np.testing.assert_allclose(inside, [1.0, 2 / 3, 1 / 3, 0.0])
    asked = make_times(VP, path, 1, **{**settings, "t_min": 0.0, "t_max": 1.0})[1]
    np.testing.assert_allclose(asked, [1.0, 0.0])


def test_structured_positions():
    """Images and pytrees keep their shapes."""

    def score(x, t):
        return -x

    out = diffusion.reverse(VP, score, dim=(3, 2), steps=4, particles=5, **QUIET)
    assert out["posterior"]["x"].shape == (5, 1, 3, 2)


def test_other_numbers_need_no_other_program():
    settings = {"steps": 7, "particles": 24, **QUIET}
    diffusion.reverse(VE, TOY, **settings)
    before = reverse_program.descend.jitted._cache_size()
    moved = sk.targets.noised_mixture([0.5, 0.5], [[-1.0, 0.0], [0.0, 1.0]])
    diffusion.reverse(diffusion.VE(0.1, 3.0), moved, solver="euler", seed=5, **settings)
    assert reverse_program.descend.jitted._cache_size() == before


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"solver": "heun"}, sk.errors.SettingsError, "exponential"),
        ({"steps": 0}, sk.errors.SettingsError, "positive integer"),
        ({"steps": [0.0, 0.5, 1.0]}, sk.errors.SettingsError, "fall"),
        ({"particles": 1.5}, sk.errors.SettingsError, "positive integer"),
        ({"t_min": 0.5, "t_max": 0.4}, sk.errors.SettingsError, "0 ≤ t ≤"),
        ({"solver": "adaptive", "corrector": sk.MALA()}, sk.errors.SettingsError, "corrector"),
        ({"solver": "adaptive", "tolerance": -1.0}, sk.errors.SettingsError, "tolerance"),
        ({"corrector": sk.MALA()}, sk.errors.SettingsError, "t_min"),
        ({"start": np.zeros((4, 3))}, sk.errors.TargetError, "shape"),
    ],
)
def test_bad_input(options, error, match):
    with pytest.raises(error, match=match):
        diffusion.reverse(VP, GAUSSIAN, **{"particles": 4, **options}, **QUIET)


def test_bad_scores():
    for score, match in (
        (GAUSSIAN.at(0.0), "one target"),
        (3, "neither"),
        (lambda x, t: -x, "dim="),
        (noise_path(TOY, [10.0, 9.9]), "t_min"),
    ):
        with pytest.raises(sk.errors.SamplekitError, match=match):
            diffusion.reverse(diffusion.VE(0.01, 1.0), score, particles=4, **QUIET)
    with pytest.raises(sk.errors.SettingsError, match="no process"):
        diffusion.reverse(0.1, GAUSSIAN, **QUIET)
    with pytest.raises(sk.errors.TargetError, match="shaped as x"):
        diffusion.reverse(VP, lambda x, t: x.sum(), dim=2, particles=4, **QUIET)
    with pytest.raises(sk.errors.TargetError, match="finite place"):
        diffusion.reverse(VP, lambda x, t: x * jnp.nan, dim=2, steps=2, particles=4, **QUIET)
    positive = sk.from_energy(lambda t: t, like=1.0, support=_positive())
    with pytest.raises(sk.errors.TargetError, match="unconstrained"):
        diffusion.reverse(VP, noise_path(_Same(positive), [2.0, 1.0]), particles=4, **QUIET)
    corrector = {"corrector": sk.MALA(), "t_min": 0.1}
    with pytest.raises(sk.errors.KernelError, match="ScoreMALA"):
        diffusion.reverse(VP, lambda x, t: -x, dim=2, particles=4, **corrector, **QUIET)


class _Same:
    """A family whose targets are all one."""

    def __init__(self, target):
        self.target, self.space = target, target.space

    def at(self, level):
        return self.target


def _positive():
    from numpyro.distributions import constraints

    return constraints.positive
