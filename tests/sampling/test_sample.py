"""What `sample` returns: shapes, labels, moments on any support, thinning, seeds, files."""

import json

import arviz as az
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr
from numpyro.distributions import constraints

import samplekit as sk
from samplekit.targets.space import make_space
from samplekit.testing import assert_mean

TARGET = sk.targets.gaussian(2, covariance=np.array([[1.0, 0.6], [0.6, 1.0]], np.float32))
FIXED = sk.MALA(0.8)


def sample(target=TARGET, kernel=FIXED, **options):
    settings = {"draws": 12, "warmup": 0, "chains": 2, "progress": False}
    return sk.sample(target, kernel, **settings | options)


def x_of(run):
    return run["posterior"]["x"].values


def assert_equal(a, b):
    for group in ("posterior", "sample_stats"):
        one, two = a[group].to_dataset(), b[group].to_dataset()
        assert set(one.data_vars) == set(two.data_vars)
        for name in one.data_vars:
            np.testing.assert_array_equal(one[name].values, two[name].values, err_msg=name)


@pytest.fixture(scope="module")
def nuts():
    """A run with all defaults but its kernel and length."""
    return sk.sample(TARGET, sk.NUTS(), draws=100, warmup=200, progress=False)


# Form -------------------------------------------------------------------------------------


def test_groups_sizes_and_names(nuts):
    assert set(nuts.children) == {"posterior", "sample_stats", "sampler"}
    assert x_of(nuts).shape == (4, 100, 2)
    assert x_of(nuts).dtype == np.float32
    assert nuts["posterior"]["x"].dims == ("chain", "draw", "x_dim")
    assert set(nuts["sample_stats"].data_vars) == {
        "lp",
        "acceptance_rate",
        "diverging",
        "energy",
        "n_steps",
        "tree_depth",
        "reached_max_treedepth",
        "nonfinite",
        "step_size",
    }
    for values in nuts["sample_stats"].data_vars.values():
        assert values.dims == ("chain", "draw")
    assert nuts["sample_stats"]["diverging"].dtype == bool
    assert nuts["sample_stats"]["reached_max_treedepth"].dtype == bool
    lp = jax.vmap(jax.vmap(TARGET.log_density))(x_of(nuts))
    np.testing.assert_allclose(nuts["sample_stats"]["lp"], lp, rtol=1e-5)


def test_attributes(nuts):
    for group in ("posterior", "sample_stats"):
        attrs = nuts[group].attrs
        assert attrs["inference_library"] == "samplekit"
        assert attrs["tuning_steps"] == 200
        assert attrs["sampling_time"] > 0
        assert {"created_at", "inference_library_version"} <= set(attrs)
    attrs = nuts["sampler"].attrs
    assert json.loads(attrs["kernel"])["name"] == "NUTS"
    assert (attrs["tick"], attrs["finished"], attrs["interrupted"]) == (300, 1, 0)
    assert json.loads(attrs["restarts"]) == []


def test_arviz_takes_it(nuts):
    summary = az.summary(nuts)
    assert list(summary.index) == ["x[0]", "x[1]"]
    assert np.isfinite(az.ess(nuts)["x"]).all()
    assert (az.rhat(nuts)["x"] < 1.1).all()


def test_labels():
    target = sk.from_energy(
        lambda v: jnp.sum(v**2) / 2,
        (2, 3),
        name="theta",
        dims=["team", "year"],
        coords={"team": ["red", "blue"]},
    )
    values = sample(target, draws=3)["posterior"]["theta"]
    assert values.dims == ("chain", "draw", "team", "year")
    assert list(values.coords["team"].values) == ["red", "blue"]
    assert list(values.coords["year"].values) == [0, 1, 2]
    assert values.sel(team="blue").shape == (2, 3, 3)
    plain = sk.from_energy(lambda v: jnp.sum(v**2) / 2, (2, 3))
    assert sample(plain, draws=3)["posterior"]["x"].dims[2:] == ("x_dim_0", "x_dim_1")


def test_pytrees():
    """A pytree moves as its raveled vector does: the same draws, by name."""

    def energy(x):
        flat = jnp.concatenate([x["a"]["b"][None], x["c"].ravel()])
        return jnp.sum((flat - 1) ** 2) / 2

    like = {"a": {"b": 0.0}, "c": np.zeros((2, 1), np.float32)}
    run = sample(sk.from_energy(energy, like=like))
    flat = x_of(sample(sk.from_energy(lambda x: jnp.sum((x - 1) ** 2) / 2, 3)))
    posterior = run["posterior"]
    assert set(posterior.data_vars) == {"a.b", "c"}
    assert posterior["a.b"].shape == (2, 12)
    assert posterior["c"].shape == (2, 12, 2, 1)
    np.testing.assert_allclose(posterior["a.b"], flat[..., 0], rtol=1e-5)
    np.testing.assert_allclose(posterior["c"].values[..., 0], flat[..., 1:], rtol=1e-5)


# Supports -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def supported():
    """Gamma, beta, Dirichlet and ordered normals in one target, bare of any Jacobian."""

    def log_density(x):
        gamma = 2 * jnp.log(x["gamma"]) - 4 * x["gamma"]  # shape 3, rate 4
        u = (x["beta"] + 1) / 3  # beta(2, 3) stretched to (-1, 2)
        beta = jnp.log(u) + 2 * jnp.log1p(-u)
        dirichlet = jnp.sum(jnp.array([1.0, 2.0, 3.0]) * jnp.log(x["simplex"]))  # (2, 3, 4)
        ordered = -jnp.sum(x["ordered"] ** 2) / 2
        return gamma + beta + dirichlet + ordered + -(x["free"] ** 2) / 2

    target = sk.from_log_density(
        log_density,
        like={
            "gamma": 1.0,
            "beta": 0.5,
            "simplex": np.full(3, 1 / 3, np.float32),
            "ordered": np.array([-1.0, 1.0], np.float32),
            "free": 0.0,
        },
        support={
            "gamma": constraints.positive,
            "beta": constraints.interval(-1.0, 2.0),
            "simplex": constraints.simplex,
            "ordered": constraints.ordered_vector,
            "free": None,
        },
    )
    return target, sk.sample(target, draws=1200, warmup=400, chains=8, progress=False, seed=1)


@pytest.mark.statistical
def test_supports(supported):
    posterior = supported[1]["posterior"]
    values = {n: v.values for n, v in posterior.data_vars.items()}
    assert (values["gamma"] > 0).all()
    assert ((values["beta"] > -1) & (values["beta"] < 2)).all()
    np.testing.assert_allclose(values["simplex"].sum(-1), 1, rtol=1e-5)
    assert (np.diff(values["ordered"]) > 0).all()
    assert values["simplex"].shape == (8, 1200, 3)
    assert_mean(values["gamma"], 3 / 4, resolves=0.1)
    assert_mean((values["gamma"] - 0.75) ** 2, 3 / 16, resolves=0.06)
    assert_mean((values["beta"] + 1) / 3, 2 / 5, resolves=0.04)
    assert_mean((values["beta"] + 1) / 3 * values["free"], 0, resolves=0.1)
    assert_mean(((values["beta"] + 1) / 3 - 0.4) ** 2, 0.04, resolves=0.01)
    assert_mean(values["simplex"], np.array([2, 3, 4]) / 9, resolves=0.04)
    spread = 1 / np.sqrt(np.pi)  # mean of the larger of two standard normals
    assert_mean(values["ordered"], [-spread, spread], resolves=0.15)


def test_init_is_constrained(supported):
    target = supported[0]
    init = {
        "gamma": np.array([0.5, 3.0], np.float32),
        "beta": np.array([-0.9, 1.5], np.float32),
        "simplex": np.array([[0.1, 0.2, 0.7], [0.6, 0.3, 0.1]], np.float32),
        "ordered": np.array([[-3.0, 0.5], [1.0, 1.5]], np.float32),
        "free": np.array([4.0, -4.0], np.float32),
    }
    run = sample(target, sk.RandomWalk(1e-7), init=init, draws=1)
    for name, start in init.items():
        drawn = run["posterior"][name].values[:, 0]
        np.testing.assert_allclose(drawn, start, rtol=1e-4, atol=1e-5, err_msg=name)


def test_score_with_support():
    """Langevin on a positive score feels the Jacobian: it agrees with the density's own."""
    density = sk.from_log_density(
        lambda x: 2 * jnp.log(x) - x, like=1.0, support=constraints.positive
    )
    score = sk.from_score(lambda x: 2 / x - 1, like=1.0, support=constraints.positive)
    a, b = (sample(t, sk.Langevin(0.3)) for t in (density, score))
    np.testing.assert_allclose(a["posterior"]["x"], b["posterior"]["x"], rtol=1e-4)


# Counts and choices -------------------------------------------------------------------------


def test_thinned_draws_are_every_kth():
    kernel = sk.NUTS(1.5, max_treedepth=5)
    full = sample(kernel=kernel, draws=12, keep_warmup=True)
    thin = sample(kernel=kernel, draws=4, thin=3)
    np.testing.assert_array_equal(x_of(thin), x_of(full)[:, 2::3])
    every, kept = full["sample_stats"], thin["sample_stats"]

    def steps(name):
        return every[name].values.reshape(2, 4, 3)

    for name in ("lp", "energy", "tree_depth", "step_size"):
        np.testing.assert_array_equal(kept[name], steps(name)[..., -1], err_msg=name)
    for name in ("n_steps", "nonfinite"):
        np.testing.assert_array_equal(kept[name], steps(name).sum(-1), err_msg=name)
    for name in ("diverging", "reached_max_treedepth"):
        np.testing.assert_array_equal(kept[name], steps(name).any(-1), err_msg=name)
    rate = steps("acceptance_rate").mean(-1)
    np.testing.assert_allclose(kept["acceptance_rate"], rate, rtol=1e-6)


def test_thinned_divergences_are_any():
    """Steps far too long diverge now and then: one among the steps of a draw marks it."""
    kernel = sk.HMC(60.0, leapfrogs=2)
    init = np.full((2, 2), 0.5, np.float32)
    every = sample(kernel=kernel, draws=12, init=init)["sample_stats"]["diverging"].values
    kept = sample(kernel=kernel, draws=4, thin=3, init=init)["sample_stats"]["diverging"].values
    assert every.any()
    np.testing.assert_array_equal(kept, every.reshape(2, 4, 3).any(-1))


def test_warmup_is_not_thinned():
    full = sample(kernel=sk.MALA(), warmup=40, draws=6)
    thin = sample(kernel=sk.MALA(), warmup=40, draws=2, thin=3)
    np.testing.assert_array_equal(x_of(thin), x_of(full)[:, 2::3])


def test_chosen_statistics():
    run = sample(stats=["step_size", "lp"])
    assert set(run["sample_stats"].data_vars) == {"lp", "step_size"}
    none = sample(stats=[])
    assert "sample_stats" not in none.children
    np.testing.assert_array_equal(x_of(none), x_of(run))


def test_keep_warmup():
    run = sample(kernel=sk.MALA(), warmup=30, keep_warmup=True)
    assert run["warmup_posterior"].sizes["draw"] == run["warmup_sample_stats"].sizes["draw"] == 30
    step = run["warmup_sample_stats"]["step_size"].values
    assert np.unique(step[0]).size > 10
    assert not np.array_equal(step[0], step[1])
    assert np.unique(run["sample_stats"]["step_size"].values[0]).size == 1
    again = sample(kernel=sk.MALA(), warmup=30)
    assert "warmup_posterior" not in again.children
    assert_equal(run, again)


def test_fixed_warmup_is_only_burn_in():
    long, short = sample(draws=12), sample(warmup=5, draws=7)
    np.testing.assert_array_equal(x_of(short), x_of(long)[:, 5:])


# The stop rule ------------------------------------------------------------------------------


def test_until():
    rule = sk.Converged(rhat=1.05, ess=200)
    options = {"until": rule, "draws": 3000, "warmup": 100, "chains": 4}
    run = sk.sample(TARGET, progress=False, **options)
    drawn = run["posterior"].sizes["draw"]
    assert 100 <= drawn < 1000
    assert rule.met({"x": x_of(run)})
    again = sk.sample(TARGET, progress=False, **options)
    assert again["posterior"].sizes["draw"] == drawn
    assert_equal(run, again)


def test_until_is_never_met_by_what_is_undefined():
    """Frozen chains have no R-hat: the rule asks for all draws."""
    frozen = sample(kernel=sk.RandomWalk(1e-30), draws=300, until=sk.Converged(rhat=9.0, ess=1.0))
    assert np.ptp(x_of(frozen), axis=1).max() == 0
    assert frozen["posterior"].sizes["draw"] == 300


# Seeds and chains ---------------------------------------------------------------------------


def test_seeds():
    run = sample(seed=7)
    assert_equal(run, sample(seed=7))
    assert_equal(run, sample(seed=np.int64(7)))
    assert_equal(run, sample(seed=jax.random.key(7)))
    assert_equal(run, sample(seed=jax.random.PRNGKey(7)))
    assert not np.isin(x_of(sample(seed=8)), x_of(run)).any()
    assert not np.isin(x_of(sample(seed=-7)), x_of(run)).any()
    other = sample(seed=jax.random.key(7, impl="rbg"))
    assert not np.isin(x_of(other), x_of(run)).any()


def test_chains_differ(nuts):
    assert np.unique(x_of(nuts)[:, 0], axis=0).shape[0] == 4


@pytest.mark.parametrize(
    "kernel", [sk.NUTS(), sk.MALA(), sk.MetropolisHastings(lambda k, x: -x, "symmetric")]
)
def test_more_chains_never_change_the_first(kernel):
    """Tuned or not, chain by chain, to the bit."""
    few, more = (sample(kernel=kernel, warmup=100, chains=n) for n in (2, 3))
    assert more["sampler"].attrs["layout"] == "chain by chain"
    for group in ("posterior", "sample_stats"):
        for name, values in few[group].data_vars.items():
            np.testing.assert_array_equal(values, more[group][name][:2], err_msg=name)


def test_a_batch_begins_with_the_same_chains():
    few, many = (sample(chains=n) for n in (4, 64))
    assert many["sampler"].attrs["layout"] == "batch"
    np.testing.assert_allclose(x_of(many)[:4], x_of(few), rtol=1e-4, atol=1e-5)


# Types and targets --------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [sk.NUTS(), sk.RandomWalk(0.5)])
def test_float64(kernel):
    with jax.enable_x64(True):
        target = sk.from_energy(lambda x: jnp.sum(x**2) / 2, 2)
        run = sample(target, kernel, warmup=30)
        assert x_of(run).dtype == np.float64
        assert run["sample_stats"]["lp"].dtype == np.float64
        np.testing.assert_allclose(
            run["sample_stats"]["lp"], -(x_of(run) ** 2).sum(-1) / 2, rtol=1e-13
        )


def test_dtype_follows_the_starts():
    with jax.enable_x64(True):
        target = sk.from_energy(lambda x: jnp.sum(x**2) / 2, 2)
        run = sample(target, init=np.zeros((2, 2), np.float32))
    assert x_of(run).dtype == np.float32


class Bowl:
    """A class as users write it: nothing of JAX or samplekit in it."""

    def __init__(self, width):
        self.width = width

    def log_density(self, x):
        return -jnp.sum((x["a"] / self.width) ** 2) / 2 - jnp.abs(x["b"])


class Module(eqx.Module):
    width: jax.Array

    def score(self, x):
        return -x / self.width**2


class Known(eqx.Module):
    width: jax.Array

    def log_density(self, x):
        return -jnp.sum((x / self.width) ** 2) / 2


def test_targets_of_the_users_own():
    init = {"a": np.zeros((2, 3), np.float32), "b": np.ones(2, np.float32)}
    run = sample(Bowl(3.0), init=init)
    assert run["posterior"]["a"].shape == (2, 12, 3)
    assert run["posterior"]["b"].shape == (2, 12)
    flat = np.zeros((2, 2), np.float32)
    width = jnp.asarray(2.0)
    assert x_of(sample(Module(width), sk.Langevin(0.3), init=flat)).shape == (2, 12, 2)
    a = x_of(sample(Known(width), init=flat))
    b = x_of(sample(sk.from_log_density(Known(width).log_density, 2), init=flat))
    np.testing.assert_array_equal(a, b)


class Placed:
    """A class as users write it, that says what its positions look like."""

    space = make_space(2)

    def log_density(self, x):
        return -jnp.sum(x**2) / 2


def test_a_class_of_the_users_own_with_a_space():
    same = sk.from_log_density(Placed().log_density, 2)
    np.testing.assert_array_equal(x_of(sample(Placed())), x_of(sample(same)))


def test_default_kernels():
    assert type(sk.kernel_of(sk.sample(TARGET, draws=5, warmup=20, progress=False))) is sk.HMC
    run = sample(sk.from_score(lambda x: -x, 2), None)
    assert type(sk.kernel_of(run)) is sk.ScoreMALA


def test_numpyro_model_in_one_run(tmp_path):
    y = np.array([1.0, 2.0, 0.5], np.float32)

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        numpyro.deterministic("ratio", mu / tau)
        with numpyro.plate("unit", 3):
            numpyro.sample("y", dist.Normal(mu, tau), obs=y)

    target = sk.from_numpyro(model, y).labeled(coords={"unit": ["a", "b", "c"]})
    run = sample(target, sk.HMC(0.2, leapfrogs=2), store=tmp_path / "run.zarr")
    stored = az.from_zarr(tmp_path / "run.zarr")
    for tree in (run, stored):
        assert list(tree["observed_data"].coords["unit"].values) == ["a", "b", "c"]
    stored.close()
    posterior = run["posterior"]
    assert set(posterior.data_vars) == {"mu", "tau", "ratio"}
    assert (posterior["tau"] > 0).all()
    np.testing.assert_allclose(posterior["ratio"], posterior["mu"] / posterior["tau"], rtol=1e-5)
    assert run["observed_data"]["y"].dims == ("unit",)
    np.testing.assert_array_equal(run["observed_data"]["y"], y)
    init = {"mu": np.array([3.0, -3.0], np.float32), "tau": np.array([0.1, 9.0], np.float32)}
    still = sample(target, sk.HMC(1e-7, leapfrogs=2), init=init, draws=1)
    np.testing.assert_allclose(still["posterior"]["tau"].values[:, 0], init["tau"], rtol=1e-4)


# Files --------------------------------------------------------------------------------------


def same_tree(a, b):
    assert set(a.children) == set(b.children)
    for name in a.children:
        xr.testing.assert_identical(a[name].to_dataset(), b[name].to_dataset())


# xarray's own choice, of which Zarr warns.
@pytest.mark.filterwarnings("ignore:Consolidated metadata:zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize("kernel", [sk.NUTS(), sk.MALA(0.8)])
def test_files(kernel, tmp_path):
    run = sample(kernel=kernel, warmup=30)
    longer = sk.resume(run, TARGET, draws=5, progress=False)
    run.to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    run.to_zarr(tmp_path / "run.zarr")
    az_nc, az_zarr = az.from_netcdf(tmp_path / "run.nc"), az.from_zarr(tmp_path / "run.zarr")
    for loaded in (az_nc, az_zarr):
        same_tree(loaded, run)
        assert_equal(sk.resume(loaded, TARGET, draws=5, progress=False), longer)
        loaded.close()
    stored = sample(kernel=kernel, warmup=30, store=tmp_path / "stored.zarr")
    assert_equal(stored, run)
    loaded = az.from_zarr(tmp_path / "stored.zarr")
    assert_equal(loaded, run)
    assert_equal(sk.resume(loaded, TARGET, draws=5, progress=False), longer)
    loaded.close()


def test_names_that_files_refuse(tmp_path):
    target = sk.from_energy(
        lambda x: jnp.sum(x["a/b"] ** 2) / 2, like={"a/b": np.zeros(2, np.float32)}
    )
    run = sample(target, store=tmp_path / "run.zarr")
    assert set(run["posterior"].data_vars) == {"a.b"}
    assert_equal(az.from_zarr(tmp_path / "run.zarr"), run)
    longer = sk.resume(tmp_path / "run.zarr", target, draws=3, progress=False)
    np.testing.assert_array_equal(longer["posterior"]["a.b"][:, :12], run["posterior"]["a.b"])
