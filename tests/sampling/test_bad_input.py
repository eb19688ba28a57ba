"""Every mistake gets its own clear error, before anything is compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import samplekit as sk
from samplekit.core.errors import (
    KernelError,
    SamplekitError,
    SettingsError,
    StoreError,
    TargetError,
)
from samplekit.sampling import engine

TARGET = sk.targets.gaussian(2)
SCORE = sk.from_score(lambda x: -x, 2)


@pytest.fixture(autouse=True)
def compiles_nothing(request, monkeypatch):
    """Make the sampler's program fail the test as soon as it is called."""

    def advance(*args):
        raise AssertionError("the sampler was compiled before the mistake was found")

    advance.lower = advance  # pyright: ignore
    if "may_compile" not in request.fixturenames:
        monkeypatch.setattr(engine, "advance", advance)
        monkeypatch.setattr(engine, "advance_alone", advance)


@pytest.fixture
def may_compile():
    """Let the sampler run: only it can see the mistake."""


def refused(error, match, target=TARGET, kernel=None, **options):
    with pytest.raises(error, match=match) as caught:
        sk.sample(target, kernel, **{"progress": False, "cache": False} | options)
    assert isinstance(caught.value, SamplekitError)
    assert len(str(caught.value)) < 600


# The target -------------------------------------------------------------------------------


def test_energy_that_is_no_scalar():
    with pytest.raises(TargetError, match=r"energy returns of shape \[2\].*one number.*\.sum\(\)"):
        sk.from_energy(lambda x: x**2, 2)
    with pytest.raises(TargetError, match=r"log density returns of shape"):
        sk.from_log_density(lambda x: x[:1], 2)
    with pytest.raises(TargetError, match=r"energy returns int32.*floating"):
        sk.from_energy(lambda x: jnp.sum(x > 0), 2)
    with pytest.raises(TargetError, match=r"score returns of shape.*shaped as the position"):
        sk.from_score(lambda x: jnp.sum(x), 2)
    with pytest.raises(TargetError, match=r"energy failed on a position of shape \[2\].*jax.numpy"):
        sk.from_energy(lambda x: np.linalg.norm(x), 2)


class Vector:
    def log_density(self, x):
        return -(x**2)


def test_energy_of_the_users_class_that_is_no_scalar():
    refused(
        TargetError,
        r"log density of Vector returns \[2\].*one number",
        Vector(),
        init=np.zeros((4, 2), np.float32),
    )


def test_positions_that_are_not_described():
    with pytest.raises(TargetError, match=r"exactly one of dim= .* and like="):
        sk.from_energy(lambda x: x.sum())
    with pytest.raises(TargetError, match=r"dim=0 is not a positive integer"):
        sk.from_energy(lambda x: x.sum(), 0)
    with pytest.raises(TargetError, match=r"support=.*structure"):
        sk.from_energy(lambda x: x["a"], like={"a": 1.0}, support={"b": constraints.positive})

    class Bare:
        def log_density(self, x):
            return -jnp.sum(x**2)

    refused(TargetError, "Bare does not say.*`space`.*init=", Bare())
    refused(TargetError, "init= has no chain axis", Bare(), init=np.float32(0))
    refused(TargetError, r"init= has shape \[3, 2\].*chains=4", Bare(), init=np.zeros((3, 2)))
    refused(TargetError, "init= has dtype int64", Bare(), init=np.zeros((4, 2), int))


def test_what_is_no_target():
    refused(KernelError, "function is not a target.*sk.from_energy", lambda x: x)
    refused(KernelError, "object is not a target", object())
    refused(KernelError, "Converged is not a target", sk.Converged())


def test_labels_that_do_not_fit():
    def energy(x):
        return jnp.sum(x**2)

    for dims, names in ((["a", "b"], r"\['a', 'b'\]"), ({"x": ()}, r"\[\]")):
        target = sk.from_energy(energy, 2, dims=dims)
        refused(TargetError, f"dims= names {names} for 'x'.*one name per axis", target)
    target = sk.from_energy(energy, 2, dims=["a"], coords={"a": [1, 2, 3]})
    refused(TargetError, "coords= gives 3 values for 'a', which has length 2", target)
    like = {"a": np.zeros(2), "b": np.zeros(3)}
    target = sk.from_energy(lambda x: x["a"].sum(), like=like, dims={"a": ["i"], "b": ["i"]})
    refused(TargetError, "'i' has length 2 in one variable and 3 in 'b'", target)


# NumPyro models -----------------------------------------------------------------------------


def test_models_that_no_kernel_can_sample():
    def discrete(y):
        k = numpyro.sample("k", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(k, 1.0), obs=y)

    with pytest.raises(TargetError, match=r"discrete latent.*'k'.*Sum it out.*logsumexp"):
        sk.from_numpyro(discrete, np.array([0.5], np.float32))

    def normal(y):
        numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal()), 1.0), obs=y)

    with pytest.raises(TargetError, match=r"'y' hold 1 missing values.*index.*Drop them"):
        sk.from_numpyro(normal, np.array([0.5, np.nan], np.float32))

    def known(y):
        numpyro.sample("y", dist.Normal(), obs=y)

    with pytest.raises(TargetError, match=r"no latent site"):
        sk.from_numpyro(known, np.array([0.5], np.float32))


# Starts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("init", "match"),
    [
        (np.zeros((4, 3)), r"init= has shape \[4, 3\] for 'x'.*\[4, 2\]"),
        (np.zeros((3, 2)), r"init= has shape \[3, 2\].*chains=4.*one start per chain"),
        (np.zeros(2), r"init= has shape \[2\].*chains=4"),
        (np.float32(0), r"init= has shape \[\]"),
        ({"x": np.zeros((4, 2))}, "init= is structured as .*'x'.*same pytree"),
        ([0.0, 1.0], "init= is structured as"),
        (np.zeros((4, 2), int), r"init= has dtype int64.*floating.*\.astype\(float\)"),
        (np.zeros((4, 2), bool), "init= has dtype bool"),
        (np.zeros((4, 2), complex), "init= has dtype complex128"),
        (np.full((4, 2), "a"), "init= has dtype <U1"),
    ],
)
def test_starts_of_another_form(init, match):
    refused(TargetError, match, init=init)


def test_starts_where_the_target_is_not_finite():
    init = np.ones((4, 2), np.float32)
    init[2, 1] = np.nan
    refused(TargetError, r"init= for chain 2 is not finite.*nan", init=init)
    init[2] = -1.0
    log = sk.from_log_density(lambda x: jnp.sum(jnp.log(x) - x), 2)
    refused(
        TargetError, r"log density is nan at the start of chain 2, x = \[-1. -1.\]", log, init=init
    )
    init[2] = 0.0
    refused(
        TargetError, r"log density is -inf at the start of chain 2, x = \[0. 0.\]", log, init=init
    )
    score = sk.from_score(lambda x: 1 / x - 1, 2)
    refused(TargetError, r"score is inf at the start of chain 2", score, init=init)


def test_starts_outside_the_support():
    target = sk.from_log_density(lambda x: -x, like=1.0, support=constraints.positive)
    init = np.array([1.0, 1.0, -2.0, 1.0], np.float32)
    refused(TargetError, "init= for chain 2 .*outside the support, at -2", target, init=init)


@pytest.mark.usefixtures("may_compile")
def test_starts_with_a_score_that_is_not_finite():
    root = sk.from_log_density(lambda x: -jnp.sum(jnp.sqrt(jnp.abs(x))), 2)
    init = np.ones((2, 2), np.float32)
    init[1] = 0.0
    match = r"start of chain 1 cannot be used: .*score \[-inf -inf\] at x = \[0. 0.\].*init="
    refused(TargetError, match, root, sk.MALA(), init=init, chains=2)


@pytest.mark.usefixtures("may_compile")
@pytest.mark.parametrize("kernel", [sk.MALA(), sk.RandomWalk()])
def test_no_finite_start_anywhere(kernel):
    nowhere = sk.from_energy(lambda x: jnp.sum(x) * jnp.nan, 2)
    match = r"No start .* chain 0 in 100 tries.*log density nan.* at x = \[.*\].*init="
    refused(TargetError, match, nowhere, kernel)


@pytest.mark.usefixtures("may_compile")
def test_no_finite_score_anywhere():
    nowhere = sk.from_score(lambda x: x / 0.0 * 0.0, 2)
    refused(TargetError, r"No start .* chain 0 .*score \[nan nan\] at x = ", nowhere)


# Numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["chains", "draws", "thin"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True, "4", None])
def test_counts_that_are_no_positive_integers(name, value):
    refused(SettingsError, f"{name}={value!r} is not a positive integer", **{name: value})


@pytest.mark.parametrize("value", [-1, 2.5, True, "4"])
def test_warmup_that_is_no_count(value):
    refused(SettingsError, f"warmup={value!r} is not zero or a positive integer", warmup=value)


@pytest.mark.parametrize("seed", [1.5, "seed", None, True, np.zeros(3, np.uint32), 2**80])
def test_seeds_that_are_none(seed):
    refused(SettingsError, "seed=.* neither an integer nor a JAX key", seed=seed)


def test_many_keys():
    refused(SettingsError, "seed= is 4 keys. Give one", seed=jax.random.split(jax.random.key(0), 4))


def test_too_many_steps():
    refused(SettingsError, "steps", draws=2**20, thin=2**13)


def test_unknown_statistics():
    refused(SettingsError, "asks for 'lpp'.*Choose from: .*lp", stats=["lp", "lpp"])
    refused(SettingsError, "asks for 'tree_depth'", kernel=sk.MALA(), stats=["tree_depth"])
    refused(SettingsError, "asks for 'speed'", stats="speed")


def test_stop_rules():
    refused(SettingsError, "until= compares chains, but chains=1", until=sk.Converged(), chains=1)
    refused(SettingsError, "until=1.01 is not a stop rule.*sk.Converged", until=1.01)


def test_store_that_exists(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    refused(StoreError, "something is there already", store=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("devices", [[], "cpu", [0]])
def test_devices_that_are_none(devices):
    refused(SettingsError, "devices=.*jax.devices", devices=devices)


# Kernels ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kernel",
    [
        sk.NUTS(),
        sk.HMC(),
        sk.MALA(),
        sk.Barker(),
        sk.RandomWalk(),
        sk.MCLMC(),
        sk.MetropolisHastings(lambda key, x: x, "symmetric"),
        sk.Independence(lambda key: jnp.zeros(2), lambda y: -jnp.sum(y**2)),
    ],
)
def test_score_only_targets(kernel):
    name = type(kernel).__name__
    fits = r"only a score.*sk.Langevin\(step_size\), sk.ScoreMALA\(\)"
    refused(KernelError, f"{name} needs a log density.*{fits}", SCORE, kernel)


def test_what_is_no_kernel():
    refused(KernelError, r"kernel=NUTS is a class; write sk.NUTS\(\)", kernel=sk.NUTS)
    refused(KernelError, "kernel='NUTS' has no init and step", kernel="NUTS")


def test_proposals_without_density():
    with pytest.raises(KernelError, match=r"MetropolisHastings has no log_proposal.*symmetric"):
        sk.MetropolisHastings(lambda key, x: x)
    with pytest.raises(KernelError, match=r"Independence has no log_proposal.*biased"):
        sk.Independence(lambda key: jnp.zeros(2))
    with pytest.raises(KernelError, match=r"needs a function"):
        sk.Independence(3, lambda y: 0.0)  # pyright: ignore[reportArgumentType]


STEPPED = [sk.NUTS, sk.HMC, sk.MALA, sk.Barker, sk.RandomWalk, sk.MCLMC, sk.ScoreMALA, sk.Langevin]


@pytest.mark.parametrize("cls", STEPPED)
@pytest.mark.parametrize("step", [-0.1, 0, 0.0, np.nan, np.inf])
def test_step_sizes_that_are_not_positive(cls, step):
    with pytest.raises(KernelError, match=rf"{cls.__name__}\(step_size=.* positive, finite"):
        cls(step_size=step)


@pytest.mark.parametrize("cls", STEPPED)
@pytest.mark.parametrize("step", ["small", np.array([0.1, 0.2]), True])
def test_step_sizes_that_are_no_number(cls, step):
    refused(KernelError, rf"{cls.__name__}\(step_size=.*one number", kernel=cls(step_size=step))


def test_langevin_needs_its_step():
    with pytest.raises(TypeError):
        sk.Langevin()  # pyright: ignore[reportCallIssue]
    refused(KernelError, "Langevin.*step_size", kernel=sk.Langevin(None))


@pytest.mark.parametrize("cls", [c for c in STEPPED if c is not sk.Langevin])
@pytest.mark.parametrize("rate", [0, 1, -0.5, 1.5, np.nan])
def test_acceptance_rates(cls, rate):
    with pytest.raises(KernelError, match=rf"{cls.__name__}\(target_accept=.* between 0 and 1"):
        cls(target_accept=rate)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: sk.HMC(leapfrogs=0), r"HMC\(leapfrogs=0\) needs a positive integer"),
        (lambda: sk.HMC(leapfrogs=2.5), r"HMC\(leapfrogs=2.5\)"),  # pyright: ignore
        (lambda: sk.NUTS(max_treedepth=0), r"NUTS\(max_treedepth=0\) needs an integer above 0"),
        (lambda: sk.NUTS(max_treedepth=2.5), r"max_treedepth=2.5"),  # pyright: ignore
        (lambda: sk.MCLMC(length=-1.0), r"MCLMC\(length=-1.0\)"),
        (lambda: sk.ScoreMALA(rule="trapezoid"), r"rule='trapezoid'.*simpson"),
        (lambda: sk.ScoreMALA(rule="gauss", nodes=1), "at least 2"),
    ],
)
def test_other_settings(make, match):
    with pytest.raises(KernelError, match=match):
        make()


@pytest.mark.parametrize("cls", STEPPED)
@pytest.mark.parametrize(
    ("metric", "match"),
    [
        ("round", "metric='round' is not known.*'diagonal'"),
        (np.ones(3), r"metric= has shape \[3\] but the target has 2"),
        (np.eye(3), r"metric= has shape \[3, 3\]"),
        (np.array([1.0, -1.0]), "metric= holds variances.*positive"),
        (np.array([1.0, np.nan]), "metric= holds variances.*finite"),
        (np.array([[1.0, 2.0], [2.0, 1.0]]), "metric= is not positive definite"),
        (np.array([[-1.0, 0.0], [0.0, 1.0]]), "metric= is not positive definite"),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), "metric= is not "),
        (np.array([[1.0, 0.5], [0.0, 1.0]]), "metric= is not symmetric"),
    ],
)
def test_metrics(cls, metric, match):
    refused(KernelError, match, kernel=cls(step_size=0.1, metric=metric))


def test_mclmc_in_one_dimension():
    refused(KernelError, "at least two dimensions.*sk.NUTS", sk.targets.gaussian(1), sk.MCLMC())
