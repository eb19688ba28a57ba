"""Particles along paths: right weights and variances, log Z with an honest error."""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints

import samplekit as sk
from samplekit.kernels.cycle import Cycle
from samplekit.kernels.gibbs import Gibbs
from samplekit.sampling import anneal as anneal_module
from samplekit.sampling import anneal_program
from samplekit.sampling.anneal import anneal
from samplekit.targets.paths import langevin_step, noise_path, tempered_path

# The lecture's toy: at level σ every component has standard deviation σ, so level 1 is the data.
MEANS = [[-5.0, -5.0], [5.0, 5.0]]
TOY = sk.targets.noised_mixture([0.2, 0.8], MEANS, 1e-3)
ETA = 0.1**0.5  # of the toy: α = 0.1 = η²
Z = 4.9  # two-sided normal quantile of 1e-6


def box(key, n):
    return jax.random.uniform(key, (n, 2), minval=-8.0, maxval=8.0)


def right_mode(out) -> float:
    return float((out["posterior"]["x"].values.sum(-1) > 0).mean())


def toy(levels, **options):
    settings = {"particles": 4000, "denoise": False, "progress": False}
    return anneal(noise_path(TOY, levels, start=box), sk.Langevin(ETA), **settings | options)


@pytest.mark.statistical
def test_annealing_gets_the_weights_that_langevin_gets_wrong(seed):
    """PEERS B2: .508 and .782 for .8, at 20,000 points."""
    error = Z * np.sqrt(0.25 / 4000)
    plain = right_mode(toy([1.0], steps=1000, seed=seed))
    assert abs(plain - 0.508) < error
    annealed = toy(np.geomspace(20, 1, 10), seed=seed)
    assert abs(right_mode(annealed) - 0.782) < error
    assert 0.75 < right_mode(annealed) < 0.83
    np.testing.assert_allclose(
        annealed["path"]["step_size"], ETA * annealed["path"]["level"], rtol=1e-6
    )


def test_annealing_the_wrong_way_is_refused_and_would_fail(monkeypatch):
    """FORMULAS §3c: small to large noise ends far out; 4.30 and 21.02 for a true sd of 4.12."""
    rising = np.geomspace(1, 20, 10)
    with pytest.raises(sk.errors.TargetError, match="from large noise to small"):
        toy(rising)
    monkeypatch.setattr("samplekit.targets.paths.check_levels", lambda levels, kind: levels)
    monkeypatch.setattr(anneal_module, "check_levels", lambda levels, kind: levels)
    spread = {}
    for name, levels, eta in (("right", rising[::-1], ETA), ("wrong", rising, 20 * ETA)):
        path = noise_path(TOY, levels, start=box)
        out = anneal(path, sk.Langevin(eta), particles=1000, denoise=False, progress=False)
        spread[name] = float(out["posterior"]["x"].values.std(0).mean())
    assert 3.5 < spread["right"] < 5
    assert spread["wrong"] > 15


@pytest.mark.statistical
@pytest.mark.parametrize("denoise", [False, True])
def test_variance_is_that_of_the_linear_recursion(denoise, seed):
    """On N(0, v) Langevin is x' = (1 − η²/2v) x + η z: sign, factor and scaling, all at once."""
    levels, steps, eta, n = np.array([3.0, 1.5, 0.8]), 4, 0.5, 100_000
    family = sk.targets.noised_mixture([1.0], [[0.0]], 0.5)
    out = anneal(
        noise_path(family, levels), sk.Langevin(eta), steps=steps, particles=n, seed=seed,
        denoise=denoise, progress=False,
    )  # fmt: skip
    variance = levels[0] ** 2  # of the start
    for sigma in levels:
        step, v = eta * sigma / levels[-1], 0.5**2 + sigma**2
        for _ in range(steps):
            variance = (1 - step**2 / (2 * v)) ** 2 * variance + step**2
    if denoise:
        variance *= (0.5**2 / (0.5**2 + levels[-1] ** 2)) ** 2
    x = out["posterior"]["x"].values
    assert abs(x.var() - variance) < Z * variance * np.sqrt(2 / n)
    assert abs(x.mean()) < Z * np.sqrt(variance / n)


def test_tweedie_moves_by_the_last_score():
    path = noise_path(TOY, [5.0, 2.0])
    settings = {"steps": 3, "particles": 50, "progress": False}
    noisy, clean = (anneal(path, denoise=d, **settings) for d in (False, True))
    x = jnp.asarray(noisy["posterior"]["x"].values[:, 0])
    expected = x + 2.0**2 * jax.vmap(TOY.at(2.0).score)(x)
    np.testing.assert_allclose(clean["posterior"]["x"].values[:, 0], expected, atol=2e-5)


@pytest.mark.parametrize(
    ("levels", "steps", "epsilon"),
    [
        ((50, 0.01, 232), 5, 6.18e-6),
        ((90, 0.01, 500), 5, 3.34e-6),
        ((190, 0.01, 1086), 3, 1.77e-6),
        ((348, 0.01, 2311), 3, 8.93e-7),
    ],
)
def test_step_by_the_rule_of_ncsnv2(levels, steps, epsilon):
    """PEERS B2: the rule's values for CIFAR-10, CelebA, bedroom and FFHQ, three digits."""
    eta = langevin_step(np.geomspace(*levels), steps)
    assert eta**2 / 2 == pytest.approx(epsilon, rel=3e-3)


@pytest.mark.statistical
@pytest.mark.parametrize(
    "kernel",
    [
        None,
        sk.HMC(leapfrogs=3),
        Cycle(sk.MALA(), sk.RandomWalk()),
        pytest.param(sk.MALA(0.8), marks=pytest.mark.slow),
        pytest.param(sk.ScoreMALA(), marks=pytest.mark.slow),
        pytest.param(sk.HMC(), marks=pytest.mark.slow),
        pytest.param(sk.RandomWalk(), marks=pytest.mark.slow),
    ],
    ids=repr,
)
def test_any_kernel_down_the_path(kernel, seed):
    """Each ends with the variance of the last level, and tunes itself on the way."""
    family = sk.targets.noised_mixture([1.0], [[1.0, -1.0]], 0.6)
    n = 4096
    out = anneal(
        noise_path(family, [4.0, 2.0, 1.0, 0.8]), kernel, steps=40, particles=n, seed=seed,
        denoise=False, progress=False,
    )  # fmt: skip
    x = out["posterior"]["x"].values
    bias = 0.08 if kernel is None else 0.0  # of Langevin, O(η²)
    assert abs(x.var(0).mean() - 1.0) < bias + Z * np.sqrt(2 / (2 * n))
    np.testing.assert_allclose(x.mean(0)[0], [1.0, -1.0], atol=Z / np.sqrt(n) + bias)
    if kernel is not None and getattr(kernel, "step_size", 0) is None:
        rate = out["path"]["acceptance_rate"].values[-1]
        assert rate == pytest.approx(kernel.goal(2), abs=0.07)


COVARIANCE = np.array([[1.0, 0.5, 0.0], [0.5, 2.0, 0.3], [0.0, 0.3, 0.5]])
PRECISION = np.linalg.inv(COVARIANCE).astype(np.float32)
CENTER = np.array([1.0, -1.0, 0.5], np.float32)
GAUSSIAN = sk.from_energy(lambda x: 0.5 * (x - CENTER) @ PRECISION @ (x - CENTER), 3)
LOG_Z = 1.5 * np.log(2 * np.pi) + 0.5 * np.linalg.slogdet(COVARIANCE)[1]


def assert_log_z_is_right(resample, particles, betas=12, **options):
    """Over 25 seeds: the mean of Z/Z_true is 1, and the errors are as large as they say."""
    path = tempered_path(GAUSSIAN, sk.targets.gaussian(3, 4.0), betas=betas)
    runs = [
        anneal(
            path, steps=2, particles=particles, seed=s, resample=resample, progress=False, **options
        )
        for s in range(25)
    ]
    log_z, said = (np.array([r.attrs[n] for r in runs]) for n in ("log_z", "log_z_error"))
    ratio = np.exp(log_z - LOG_Z)
    assert abs(ratio.mean() - 1) < Z * said.mean() / 5, "log Z is wrong"
    assert 0.5 < said.mean() / log_z.std(ddof=1) < 2, "the error is wrong"  # 25 seeds: ± 14 % each
    assert said.mean() < 0.12, "too weak to tell"
    return runs[0]


@pytest.mark.statistical
@pytest.mark.parametrize("resample", [False, True])
def test_log_z_of_a_gaussian(resample):
    run = assert_log_z_is_right(resample, 300)
    path = run["path"]
    assert path["log_z"].values[-1] == pytest.approx(run.attrs["log_z"])
    assert path["level"].values[-1] == 1
    log_weight = run["sample_stats"]["log_weight"].values
    if resample:
        assert not log_weight.any()  # unweighted
    else:
        w = np.exp(log_weight - log_weight.max())
        assert run.attrs["ess"] == pytest.approx(w.sum() ** 2 / (w**2).sum(), rel=1e-4)
        assert run.attrs["log_z"] == pytest.approx(
            np.log(w.mean()) + log_weight.max(), abs=1e-4
        )  # the base is normalized


@pytest.mark.statistical
def test_resampling_often_keeps_the_error_honest():
    run = assert_log_z_is_right(resample=True, particles=1000, betas=8, threshold=0.9)
    assert run["path"]["resampled"].values[-1] >= 2


@pytest.mark.statistical
@pytest.mark.parametrize("mutant", ["sign", pytest.param("late", marks=pytest.mark.slow)])
def test_wrong_weights_are_caught(mutant, monkeypatch):
    """The weight upside down, and the weight taken without the level before."""

    def wrong(cloud, target, before):
        new, old = (jax.vmap(t.log_density)(cloud.position) for t in (target, before))
        change = old - new if mutant == "sign" else new
        return dataclasses.replace(cloud, log_weight=cloud.log_weight + change)

    monkeypatch.setattr(anneal_program, "_weigh", wrong)
    # 301, 302 particles: a program of its own. Upside down, weights vary wildly: then their error
    # may be what is noticed.
    with pytest.raises(AssertionError, match=r"log Z is wrong|the error is wrong"):
        assert_log_z_is_right(resample=False, particles=301 + (mutant == "sign"))


@pytest.mark.statistical
def test_smc_leaves_the_posterior_unweighted(seed):
    n = 4000
    path = tempered_path(GAUSSIAN, sk.targets.gaussian(3, 4.0), betas=20)
    out = anneal(path, steps=10, particles=n, seed=seed, resample=True, progress=False)
    x = out["posterior"]["x"].values[:, 0]
    # Resampled particles share ancestors: half of them are counted as independent.
    error = Z * np.sqrt(np.diag(COVARIANCE) / (n / 2))
    assert (np.abs(x.mean(0) - CENTER) < error).all()
    np.testing.assert_allclose(x.var(0), np.diag(COVARIANCE), rtol=Z * np.sqrt(2 / (n / 2)))


@pytest.mark.statistical
def test_log_z_does_not_depend_on_coordinates(seed):
    """3 exp(−t) on t > 0, moved as log t: the integral is 3; the base is our standard one."""
    target = sk.from_log_density(
        lambda t: jnp.log(3.0) - t, like=1.0, support=constraints.positive, name="t"
    )
    out = anneal(tempered_path(target), steps=5, particles=2000, seed=seed, progress=False)
    assert out.attrs["log_z_error"] < 0.05
    assert abs(out.attrs["log_z"] - np.log(3)) < Z * out.attrs["log_z_error"] + 1e-4
    assert out["posterior"]["t"].values.min() > 0


@pytest.mark.statistical
@pytest.mark.parametrize("resample", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_base_wider_than_the_support(resample, seed):
    """Uniform on a square of area 4 within a Gaussian: weights of zero are no NaN."""
    target = sk.from_log_density(lambda x: jnp.where(jnp.all(jnp.abs(x) < 1), 0.0, -jnp.inf), dim=2)
    out = anneal(
        tempered_path(target, sk.targets.gaussian(2), betas=10), sk.RandomWalk(), steps=5,
        particles=4000, seed=seed, resample=resample, progress=False,
    )  # fmt: skip
    assert abs(out.attrs["log_z"] - np.log(4)) < Z * out.attrs["log_z_error"]
    assert out.attrs["log_z_error"] < 0.05


# --- a Boltzmann machine, whose path is not a geometric bridge -----------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Machine:
    """The Gauss–Bernoulli machine of FORMULAS §1, β times W and B."""

    weights: jax.Array
    visible: jax.Array
    hidden: jax.Array

    def log_density(self, v):
        a = self.weights @ v + self.hidden
        return -0.5 * v @ v + self.visible @ v + jnp.sum(jax.nn.softplus(a))

    def gibbs(self, key, v):
        key_h, key_v = jax.random.split(key)
        p = jax.nn.sigmoid(self.weights @ v + self.hidden)
        h = jax.random.bernoulli(key_h, p).astype(v.dtype)
        return self.visible + self.weights.T @ h + jax.random.normal(key_v, v.shape, v.dtype)


class MachinePath:
    """AIS of FORMULAS §8: a plain class, neither a pytree nor on a space."""

    kind, levels = "temperature", np.linspace(0, 1, 60)

    def __init__(self, machine):
        self.machine = machine

    def at(self, beta):
        m = self.machine
        return Machine(beta * m.weights, m.visible, beta * m.hidden)

    def start(self, key, n):
        m = self.machine.visible
        return m[None, :] + jax.random.normal(key, (n, m.size))

    @property
    def log_normalizer(self):
        m = self.machine
        return (
            m.visible.size / 2 * np.log(2 * np.pi)
            + 0.5 * float(m.visible @ m.visible)
            + m.hidden.size * np.log(2)
        )


@pytest.mark.statistical
@pytest.mark.parametrize(
    "kernel", [pytest.param(sk.MALA(), marks=pytest.mark.slow), None, Gibbs()], ids=repr
)
def test_log_z_of_a_boltzmann_machine(kernel, seed):
    rng = np.random.default_rng(3)
    w, c, b = 0.6 * rng.normal(size=(5, 8)), rng.normal(size=8), rng.normal(size=5)
    machine = Machine(*(jnp.asarray(a, jnp.float32) for a in (w, c, b)))
    states = np.array(list(itertools.product([0, 1], repeat=5)))
    exact = 4 * np.log(2 * np.pi) + np.logaddexp.reduce(
        states @ b + 0.5 * ((states @ w + c) ** 2).sum(1)
    )
    out = anneal(MachinePath(machine), kernel, steps=3, particles=1000, seed=seed, progress=False)
    assert out.attrs["log_z_error"] < 0.08
    assert abs(out.attrs["log_z"] - exact) < Z * out.attrs["log_z_error"]
    assert out.attrs["nonfinite_particles"] == 0


# --- what comes out ------------------------------------------------------------------------------


def test_the_result_and_its_frames():
    path = noise_path(TOY, [4.0, 2.0, 1.0])
    settings = {"steps": 5, "particles": 30, "progress": False, "seed": 3}
    out = anneal(path, keep=True, denoise=False, **settings)
    assert out["posterior"]["x"].dims == ("chain", "draw", "x_dim")
    frames = out["path_posterior"]["x"].values
    assert frames.shape == (30, 4, 2)
    np.testing.assert_array_equal(frames[:, -1], out["posterior"]["x"].values[:, 0])
    assert 2 < frames[:, 0].std() < 6  # N(0, σ₁²)
    again = anneal(path, **settings, denoise=False)
    assert "path_posterior" not in again.children
    np.testing.assert_array_equal(again["posterior"]["x"], out["posterior"]["x"])
    other = anneal(path, denoise=False, **settings | {"seed": 4})
    assert not np.array_equal(other["posterior"]["x"], out["posterior"]["x"])
    np.testing.assert_array_equal(out["path"]["level"], [4, 2, 1])
    assert out["posterior"].attrs["inference_library"] == "samplekit"


def test_positions_of_several_arrays():
    like = {"a": jnp.zeros(2), "b": jnp.zeros(())}
    target = sk.from_energy(lambda p: (p["a"] ** 2).sum() + p["b"] ** 2, like=like)
    out = anneal(tempered_path(target, betas=5), steps=2, particles=20, progress=False)
    assert out["posterior"]["a"].shape == (20, 1, 2)
    assert out["posterior"]["b"].shape == (20, 1)


def test_double_precision():
    """The dtype follows JAX's switch; in float64 a flat bridge has log Z to 1e-12."""
    with jax.enable_x64(True):
        target = sk.from_energy(lambda x: (x**2).sum() / 2, 2)
        out = anneal(
            tempered_path(target, betas=4), steps=2, particles=10, resample=True, progress=False
        )
        assert out["posterior"]["x"].dtype == np.float64
        assert out.attrs["log_z"] == pytest.approx(np.log(2 * np.pi), rel=1e-12)
        out = anneal(noise_path(TOY, [2.0, 1.0]), steps=2, particles=10, progress=False)
        assert out["posterior"]["x"].dtype == np.float64


@pytest.mark.multidevice
@pytest.mark.parametrize("resample", [pytest.param(False, marks=pytest.mark.slow), True])
def test_particles_over_devices(resample):
    path = tempered_path(GAUSSIAN, sk.targets.gaussian(3, 4.0), betas=5)
    runs = [
        anneal(path, sk.MALA(0.5), steps=3, particles=32, resample=resample, progress=False,
               devices=jax.devices()[:n])
        for n in (1, 4)
    ]  # fmt: skip
    one, four = (r["posterior"]["x"].values for r in runs)
    np.testing.assert_allclose(four, one, rtol=1e-4, atol=1e-4)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Counted:
    """A family and its targets in one class; counts how often JAX traces its score."""

    scale: jax.Array
    level: Any = None
    calls = 0

    def at(self, sigma):
        return Counted(self.scale, sigma)

    def score(self, x):
        Counted.calls += 1
        return -x / (self.scale**2 + self.level**2)


def test_a_second_call_compiles_nothing():
    for scale in (1.0, 2.0):
        path = noise_path(Counted(jnp.asarray(scale)), [3.0, 1.0], start=box)
        anneal(path, steps=3, particles=10, progress=False)
        assert 0 < Counted.calls <= 8
    Counted.calls = 0
    anneal(path, sk.Langevin(0.2), steps=4, particles=10, seed=1, progress=False)
    assert Counted.calls == 0


def test_lost_particles_are_counted_and_refused_when_all_are():
    def start(key, n, lost):
        x = box(key, n)
        return x.at[:lost].set(jnp.nan)

    for lost in (0, 7):
        path = noise_path(TOY, [2.0, 1.0], start=lambda key, n, lost=lost: start(key, n, lost))
        out = anneal(path, steps=2, particles=20, progress=False)
        assert out.attrs["nonfinite_particles"] == lost
        assert (out["path"]["nonfinite"].values == 2 * lost).all()
    with pytest.raises(sk.errors.TargetError, match="None of the 20 particles"):
        anneal(
            noise_path(TOY, [2.0, 1.0], start=lambda key, n: start(key, n, n)),
            steps=2, particles=20, progress=False,
        )  # fmt: skip


NORMAL = sk.targets.gaussian(2)
ONLY_SCORE = sk.from_score(lambda x: -x, 2)


class ScoreFamily:
    def at(self, sigma):
        return sk.from_score(lambda x: -x / (1 + sigma**2), 2)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: anneal(NORMAL), "is not a path"),
        (lambda: anneal(TOY), r"sk\.noise_path\(family, levels\)"),
        (lambda: noise_path(NORMAL, [1.0]), "no family"),
        (lambda: noise_path(TOY, [3.0, 5.0, 1.0]), "not in order"),
        (lambda: noise_path(TOY, [1.0, 3.0]), "levels rise"),
        (lambda: noise_path(TOY, [1.0, 0.0]), "not positive"),
        (lambda: noise_path(TOY, []), "finite numbers"),
        (lambda: noise_path(TOY, "high"), "cannot be read"),
        (lambda: tempered_path(NORMAL, betas=[1.0, 0.0]), "rises from its base"),
        (lambda: tempered_path(NORMAL, betas=[0.0, 0.9]), "end with 1"),
        (lambda: tempered_path(NORMAL, betas=1), "no path"),
        (lambda: tempered_path(ONLY_SCORE), "only a score"),
        (lambda: tempered_path(NORMAL, GAUSSIAN), r"no draw\(key, n\)"),
        (lambda: anneal(noise_path(TOY, [1.0]), steps=0), "steps=0"),
        (lambda: anneal(noise_path(TOY, [1.0]), particles=1), "at least 2"),
        (lambda: anneal(noise_path(TOY, [1.0]), resample=True), "needs weights"),
        (lambda: anneal(noise_path(TOY, [1.0]), threshold=2.0), "threshold=2.0"),
        (lambda: anneal(noise_path(TOY, [1.0], start=lambda key, n: box(key, 3))), "start"),
        (lambda: anneal(noise_path(ScoreFamily(), [1.0]), sk.MALA()), "needs a log density"),
        (lambda: anneal(noise_path(TOY, [1.0]), sk.MALA), "is a class"),
        (lambda: anneal(noise_path(TOY, [1.0]), devices="cpu"), "not a list of devices"),
    ],
)
def test_what_cannot_work_is_refused(attempt, message):
    with pytest.raises(sk.errors.SamplekitError, match=message):
        attempt()
