"""Runs of every kind are opened, and who made them is known."""

import warnings

import arviz as az
import numpy as np
import pytest
import xarray as xr

import samplekit as sk
from samplekit.core.errors import SettingsError, StoreError
from samplekit.diagnostics.diagnose import diagnose
from samplekit.diagnostics.evidence import gather, open_run
from tests.diagnostics.rates import ar1, nuts_stats, run_of

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _begin_anew(monkeypatch):
    """Give every test the same numbers, whichever tests ran before it in this process."""
    monkeypatch.setitem(globals(), "RNG", np.random.default_rng(0))


def tree(**stats):
    return run_of(ar1(np.random.default_rng(1), 2000), sample_stats=stats)


@pytest.mark.parametrize("form", ["tree", "dataset", "dict", "nc", "zarr", "path"])
def test_forms_give_the_same(form, tmp_path):
    x = ar1(np.random.default_rng(1), 2000)
    whole = run_of(x)
    if form == "nc":
        whole.to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    elif form in ("zarr", "path"):
        whole.to_zarr(tmp_path / "run.zarr", consolidated=False)
    run = {
        "tree": whole,
        "dataset": whole["posterior"].to_dataset(),
        "dict": {"x": x},
        "nc": str(tmp_path / "run.nc"),
        "zarr": str(tmp_path / "run.zarr"),
        "path": tmp_path / "run.zarr",
    }[form]
    found = diagnose(run)
    assert found.ok
    assert found.codes == ()
    assert list(found.table.index) == [f"x[{i}]" for i in range(5)]
    np.testing.assert_array_equal(found.table, diagnose(whole).table)


@pytest.mark.parametrize(
    ("run", "error", "words"),
    [
        (3, SettingsError, "is not a run"),
        ("nowhere.zarr", StoreError, "no run at"),
        ({"x": np.zeros(3)}, SettingsError, "shape"),
        ({"x": np.zeros((4, 3)), "y": np.zeros((2, 3))}, SettingsError, "different numbers"),
        ({"x": np.zeros((4, 0))}, SettingsError, "no draws"),
        ({}, SettingsError, "no draws"),
        (xr.DataTree(), SettingsError, "no group 'posterior'"),
        (xr.Dataset({"x": ("other", [1.0])}), SettingsError, "no draws"),
    ],
)
def test_refuses(run, error, words):
    with pytest.raises(error, match=words):
        gather(run)


def test_zarr_without_consolidated_metadata_opens_without_a_warning(tmp_path):
    run_of(ar1(RNG, 2000)).to_zarr(tmp_path / "run.zarr", consolidated=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_run(tmp_path / "run.zarr")["posterior"].sizes["draw"] == 1000


def test_refuses_files_that_are_no_runs(tmp_path):
    (tmp_path / "run.nc").write_text("no netCDF")
    (tmp_path / "folder").mkdir()
    for name in ("run.nc", "folder"):
        with pytest.raises(StoreError, match="cannot be read"):
            open_run(tmp_path / name)


def test_labels_are_those_of_arviz():
    x = RNG.normal(size=(2, 50, 2, 2))
    run = az.from_dict({"posterior": {"x": x, "mu": x[..., 0, 0]}}, dims={"x": ["a", "b"]},
                       coords={"a": ["one", "two"]})  # fmt: skip
    assert list(gather(run).names) == list(az.summary(run).index)


def test_scalars_come_in_blocks_of_bounded_memory(monkeypatch):
    monkeypatch.setattr("samplekit.diagnostics.evidence._BLOCK_NUMBERS", 4 * 50 * 3)
    draws = {f"v{i}": RNG.normal(size=(4, 50, size)) for i, size in enumerate((2, 7, 1, 1, 4))}
    evidence = gather(draws)
    labels, blocks = zip(*evidence.scalars(), strict=True)
    assert max(len(b) for b in blocks) <= 3
    assert sum(labels, ()) == evidence.names
    whole = np.concatenate([v.reshape(4, 50, -1) for v in draws.values()], axis=2)
    np.testing.assert_array_equal(np.concatenate(blocks), whole.transpose(2, 0, 1))


def test_knows_our_kernels():
    target = sk.targets.gaussian(3)
    for kernel, known in {
        sk.NUTS(): ("NUTS", True, True, 0.8),
        sk.RandomWalk(): ("RandomWalk", True, False, 0.234),
        sk.MALA(target_accept=0.7): ("MALA", True, False, 0.7),
        sk.Langevin(0.2): ("Langevin", False, False, None),
    }.items():
        run = sk.sample(target, kernel, draws=30, warmup=30, progress=False)
        made = gather(run).sampler
        assert (made.name, made.adjusted, made.hamiltonian, made.target_accept) == known
        assert made.library == "samplekit"
        assert made.step_size is not None


def test_names_of_other_libraries():
    stats = nuts_stats(RNG)
    numpyro = tree(reached_max_tree_depth=stats["reached_max_treedepth"], energy=stats["energy"])
    assert "reached_max_treedepth" in gather(numpyro).stats
    assert gather(numpyro).sampler.hamiltonian
    stan = tree(
        divergent__=stats["diverging"],
        treedepth__=stats["tree_depth"],
        accept_stat__=stats["acceptance_rate"],
    )
    assert set(gather(stan).stats) == {"diverging", "tree_depth", "acceptance_rate"}
    assert gather(stan).sampler.name == "NUTS"
    emcee = run_of(ar1(RNG, 3000, (32, 500, 2)), attrs={"inference_library": "emcee"})
    assert gather(emcee).sampler.ensemble
    diagnosis = diagnose(emcee)
    assert "ensemble-walkers" in diagnosis.codes
    # 64 half chains of 47 effective draws each: R-hat near √(1 + 1/47) = 1.011, a warning or none.
    assert diagnosis.ok
    assert set(diagnosis.codes) <= {"ensemble-walkers", "rhat"}


def cmdstan(thin=1):
    """A run as az.from_cmdstanpy 1.3 gives it if CmdStan saved its warm-up, here of 100 draws.

    It renames lp__, accept_stat__, stepsize__, treedepth__, n_leapfrog__, divergent__ and energy__,
    and parts warm-up from draws in the posterior only: divergences of warm-up are among the rest.
    """
    rng = np.random.default_rng(3)
    stats = nuts_stats(rng, 4, 1100)
    del stats["reached_max_treedepth"], stats["nonfinite"]
    stats["lp"] = -stats["energy"]
    stats["diverging"][:, :100] = rng.random((4, 100)) < 0.2
    stats["diverging"][0, 1050] = True
    stats["step_size"][:, :100] = np.linspace(0.01, 2, 100)
    run = run_of(ar1(rng, 2000)[:, ::thin], sample_stats=stats,
                 attrs={"inference_library": "cmdstanpy"})  # fmt: skip
    run["posterior"].coords["draw"] = np.arange(0, 1000, thin)
    return run


def test_saved_warmup_of_cmdstan_is_not_judged():
    found = gather(cmdstan())
    assert {a.shape for a in found.stats.values()} == {(4, 1000)}
    assert {a.shape for a in found.warmup_stats.values()} == {(4, 100)}
    assert np.argwhere(found.stats["diverging"]).tolist() == [[0, 950]]
    assert (found.sampler.name, found.sampler.library) == ("NUTS", "cmdstanpy")
    verdict = diagnose(cmdstan())
    divergences = next(f for f in verdict.findings if f.code == "divergences")
    assert "1 of 4,000" in divergences.seen
    assert "adapt_delta=" in divergences.remedy
    assert verdict.ok
    # A posterior that was thinned alone is no reason to forget divergences of the draws.
    assert gather(cmdstan(thin=10)).stats["diverging"].shape == (4, 1100)


def test_emcee_run_by_arviz():
    """As az.from_emcee 1.3 gives a run of emcee 3.1.6: draws first, log density the only number."""
    x = ar1(np.random.default_rng(5), 5000, (32, 1000, 2))
    attrs = {"inference_library": "emcee", "sample_dims": ["draw", "chain"]}
    data = {name: (("draw", "chain"), x[..., i].T) for i, name in enumerate(("mu", "tau"))}
    lp = xr.Dataset({"lp": (("draw", "chain"), -0.5 * np.sum(x**2, axis=2).T)}, attrs=attrs)
    run = xr.DataTree.from_dict({"posterior": xr.Dataset(data, attrs=attrs), "sample_stats": lp})
    found = gather(run)
    assert (found.chains, found.draws) == (32, 1000)
    np.testing.assert_array_equal(found.variables["tau"], x[..., 1])
    assert found.stats["lp"].shape == (32, 1000)
    assert diagnose(run).codes == ("ensemble-walkers",)


def test_acceptance_of_other_libraries():
    """PyMC's Metropolis reports p(new)/p(old), of mean 1; nutpie has names of its own."""
    rng = np.random.default_rng(6)
    metropolis = tree(accept=rng.lognormal(-2, 2, (4, 1000)), accepted=rng.random((4, 1000)) < 0.3)
    assert diagnose(metropolis).codes == ()
    nutpie = tree(maxdepth_reached=np.ones((4, 1000), bool), logp=np.zeros((4, 1000)))
    assert set(gather(nutpie).stats) == {"reached_max_treedepth", "lp"}
    assert "tree-depth" in diagnose(nutpie).codes


def test_numpyro_run_by_arviz():
    import jax
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    def model():
        numpyro.sample("mu", dist.Normal(0, 1))

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        mcmc = MCMC(NUTS(model, max_tree_depth=1), num_warmup=300, num_samples=300, num_chains=4,
                    chain_method="vectorized", progress_bar=False)  # fmt: skip
        fields = ("num_steps", "accept_prob", "diverging", "energy", "adapt_state.step_size")
        mcmc.run(jax.random.key(0), extra_fields=fields)
        run = az.from_numpyro(mcmc)
    found = diagnose(run)
    assert found.sampler.library == "numpyro"
    assert found.sampler.name == "NUTS"
    # ArviZ looks for another name than its own converter writes, and never sees this.
    assert "tree-depth" in found.codes
    assert "max_tree_depth=" in next(f for f in found.findings if f.code == "tree-depth").remedy
