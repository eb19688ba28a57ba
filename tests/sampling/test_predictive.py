"""Predictive groups of NumPyro models: exact log likelihoods, predictions, prior draws."""
# NumPyro says that a draw is an ArrayLike, which has no arithmetic.
# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportArgumentType=false

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats
import xarray as xr
from numpyro.contrib.control_flow import scan
from numpyro.distributions import constraints

import samplekit as sk
from samplekit.core.errors import TargetError
from samplekit.sampling import predictive as module

Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], np.float32)
SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], np.float32)
CHAINS, DRAWS = 2, 300


def schools(y, sigma):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.deterministic("effect", theta - mu)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def fake_run(target, rng, spread=0.3):
    """Any draws do: what predictive makes of them is exact."""
    shape = {s.name: (CHAINS, DRAWS, *s.shape) for s in target.sites if s.kind == "latent"}
    values = {n: np.exp(spread * rng.standard_normal(s)) for n, s in shape.items()}
    dims = {n: ("chain", "draw", *target.dims()[n]) for n in values}
    posterior = xr.Dataset(
        {n.replace("/", "."): (dims[n], v.astype(np.float32)) for n, v in values.items()},
        coords={"chain": np.arange(CHAINS), "draw": np.arange(DRAWS)},
    )
    return xr.DataTree.from_dict({"/": xr.Dataset(attrs={"note": "kept"}), "posterior": posterior})


@pytest.fixture
def rng(seed):
    return np.random.default_rng(seed)


@pytest.fixture
def target():
    return sk.from_numpyro(schools, Y, SIGMA)


def test_groups_and_labels(target, rng):
    labeled = target.labeled(coords={"school": list("ABCDEFGH")})
    run = fake_run(target, rng)
    out = sk.predictive(run, labeled, draws=50)
    assert set(run.children) == {"posterior"}
    assert set(out.children) == {"posterior", "observed_data", *module.GROUPS}
    assert out.attrs == {"note": "kept"}
    assert out["log_likelihood"]["y"].dims == ("chain", "draw", "school")
    assert out["posterior_predictive"]["y"].shape == (CHAINS, DRAWS, 8)
    assert out["prior"]["effect"].shape == out["prior_predictive"]["y"].shape == (1, 50, 8)
    assert list(out["prior"].data_vars) == ["mu", "tau", "theta", "effect"]
    assert out["observed_data"]["y"].dims == ("school",)
    for group in ("log_likelihood", "posterior_predictive", "prior_predictive", "observed_data"):
        assert list(out[group]["school"].values) == list("ABCDEFGH")


def test_log_likelihood_is_exact_and_loo_works(target, rng):
    run = fake_run(target, rng)
    out = sk.predictive(run, target, groups=["log_likelihood"])
    assert set(out.children) == {"posterior", "observed_data", "log_likelihood"}
    theta = run["posterior"]["theta"].values
    expected = scipy.stats.norm.logpdf(Y, theta, SIGMA)
    np.testing.assert_allclose(out["log_likelihood"]["y"], expected, rtol=1e-5)
    assert az.loo(out).n_data_points == 8


def test_chunks_change_nothing(target, rng, monkeypatch):
    run = fake_run(target, rng)
    whole = sk.predictive(run, target, draws=31)
    monkeypatch.setattr(module, "CHUNK_BYTES", 32 * 77)  # 77 draws of 8 floats, 600 = 7·77 + 61
    monkeypatch.setattr(module, "LOOP_BYTES", 0)
    parts = sk.predictive(run, target, draws=31)
    for group in module.GROUPS:
        xr.testing.assert_allclose(whole[group].to_dataset(), parts[group].to_dataset())


@pytest.mark.statistical
def test_predictions_have_the_right_law(target, rng):
    out = sk.predictive(fake_run(target, rng), target, draws=2000, seed=3)
    theta = out["posterior"]["theta"].values
    z = (out["posterior_predictive"]["y"].values - theta) / SIGMA
    assert scipy.stats.kstest(z.ravel(), "norm").pvalue > 1e-6
    prior, data = out["prior"], out["prior_predictive"]["y"].values
    assert scipy.stats.kstest(prior["mu"].values.ravel() / 5, "norm").pvalue > 1e-6
    z = (data - prior["theta"].values) / SIGMA
    assert scipy.stats.kstest(z.ravel(), "norm").pvalue > 1e-6
    # Observations of one draw are independent of each other, and of the given data.
    assert abs(np.corrcoef(z[0, :, 0], z[0, :, 1])[0, 1]) < 5 / np.sqrt(2000)


def test_seeds(target, rng):
    run = fake_run(target, rng)
    first, again, key, other = (
        sk.predictive(run, target, groups="posterior_predictive", seed=s)["posterior_predictive"]
        for s in (1, 1, jax.random.key(1), 2)
    )
    xr.testing.assert_identical(first.to_dataset(), again.to_dataset())
    xr.testing.assert_identical(first.to_dataset(), key.to_dataset())
    assert not np.array_equal(first["y"], other["y"])


def test_a_single_event_is_split_but_declared_events_are_kept(rng):
    def model(y):
        mu = numpyro.sample("mu", dist.Normal())
        numpyro.sample("all", dist.Normal(mu, 1.0).expand([3, 2]).to_event(2), obs=y)
        with numpyro.plate("patient", 3):
            numpyro.sample("visits", dist.Normal(mu, 1.0).expand([2]).to_event(1), obs=y)
        numpyro.sample("joint", dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)), obs=y[0])

    target = sk.from_numpyro(model, np.ones((3, 2), np.float32))
    found = sk.predictive(fake_run(target, rng), target, groups=["log_likelihood"])
    dims = {n: v.dims[2:] for n, v in found["log_likelihood"].data_vars.items()}
    assert dims == {"all": ("all_dim_0", "all_dim_1"), "visits": ("patient",), "joint": ()}
    np.testing.assert_allclose(
        found["log_likelihood"]["all"].sum("all_dim_1"),
        found["log_likelihood"]["visits"],
        rtol=1e-5,
    )


def test_improper_priors_are_skipped_unless_asked_for(rng):
    def model(y):
        mu = numpyro.sample("mu", dist.ImproperUniform(constraints.real, (), ()))
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    target = sk.from_numpyro(model, Y)
    out = sk.predictive(fake_run(target, rng), target)
    assert set(out.children) == {
        "posterior",
        "observed_data",
        "log_likelihood",
        "posterior_predictive",
    }
    assert "prior: a prior is improper" in out.attrs["predictive_skipped"]
    with pytest.raises(TargetError, match=r"no group 'prior_predictive': a prior is improper"):
        sk.predictive(out, target, groups=["prior_predictive"])


def test_a_model_with_factors_alone_has_only_a_prior(rng):
    def model(y):
        mu = numpyro.sample("mu", dist.Normal())
        numpyro.factor("likelihood", dist.Normal(mu, 1.0).log_prob(y).sum())

    target = sk.from_numpyro(model, Y)
    out = sk.predictive(fake_run(target, rng), target, draws=5)
    assert set(out.children) == {"posterior", "prior"}
    assert "log_likelihood: no site is observed" in out.attrs["predictive_skipped"]


def test_scan_and_params_and_computed_data(rng):
    def model(y):
        scale = numpyro.param("scale", lambda key: jax.random.uniform(key) + 1.0)
        rate = numpyro.sample("rate", dist.Normal())

        def step(x, now):
            x = numpyro.sample("x", dist.Normal(rate * x, 1.0))
            numpyro.sample("y", dist.Normal(x, scale), obs=now)
            return x, None

        scan(step, 0.0, jnp.asarray(y))

    target = sk.from_numpyro(model, list(map(float, Y)))
    run = fake_run(target, rng)
    out = sk.predictive(run, target, draws=20)
    scale = target.call.memo["fixed"]["scale"]
    expected = scipy.stats.norm.logpdf(Y, run["posterior"]["x"].values, scale)
    np.testing.assert_allclose(out["log_likelihood"]["y"], expected, rtol=1e-4)
    z = (out["posterior_predictive"]["y"].values - run["posterior"]["x"].values) / scale
    assert scipy.stats.kstest(z.ravel(), "norm").pvalue > 1e-6
    assert out["prior"]["x"].shape == out["prior_predictive"]["y"].shape == (1, 20, 8)


def test_discrete_observations_and_scopes(rng):
    def model(y):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0).expand([3]))
        numpyro.sample("y", dist.Poisson(rate), obs=y)

    target = sk.from_numpyro(numpyro.handlers.scope(model, prefix="a"), np.array([1, 0, 3]))
    out = sk.predictive(fake_run(target, rng), target, groups=["posterior_predictive"])
    assert out["posterior_predictive"]["a.y"].dtype.kind == "i"
    assert out["posterior_predictive"]["a.y"].dims == ("chain", "draw", "a.y_dim_0")


def test_numpyro_agrees(target, rng):
    values = {n: v.values for n, v in fake_run(target, rng)["posterior"].data_vars.items()}
    run = az.from_dict({"posterior": values})  # its own names of the dimensions
    out = sk.predictive(run, target, groups=["log_likelihood"])
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        theirs = numpyro.infer.log_likelihood(schools, values, Y, SIGMA, batch_ndims=2)
    np.testing.assert_allclose(out["log_likelihood"]["y"], theirs["y"], rtol=1e-5)


def test_refusals(target, rng):
    run = fake_run(target, rng)
    with pytest.raises(TargetError, match="only a NumPyro model"):
        sk.predictive(run, sk.from_energy(lambda x: (x**2).sum(), dim=2))
    with pytest.raises(TargetError, match=r"asks for 'posterior'.*Choose from log_likelihood"):
        sk.predictive(run, target, groups=["posterior"])
    with pytest.raises(TargetError, match="no group 'posterior'"):
        sk.predictive(xr.DataTree(), target)
    with pytest.raises(TargetError, match="lacks theta, or has other shapes"):
        sk.predictive(run, sk.from_numpyro(schools, Y[:3], SIGMA[:3]))
    with pytest.raises(TargetError, match="draws=0"):
        sk.predictive(run, target, draws=0)
