"""The commands, called in this process: what they print, write and end with."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

import samplekit as sk
from samplekit.cli import app

MODEL = """
import samplekit as sk
print("the model talks")
target = sk.targets.gaussian(2)
"""
FEW = ["-c", "2", "-n", "30", "-w", "30"]


def call(*arguments: Any) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose draws are independent and exact, as another library would save it."""
    draws = np.random.default_rng(1).normal(size=(4, 1000, 3))
    path = tmp_path_factory.mktemp("runs") / "healthy.nc"
    return save(path, draws)


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a chain that never moves, and draws that are not numbers."""
    draws = np.random.default_rng(2).normal(size=(4, 200, 20))
    draws[1], draws[2, 5, 3] = 0.5, np.nan
    return save(tmp_path_factory.mktemp("runs") / "sick.nc", draws)


def save(path: Path, draws: np.ndarray) -> Path:
    names = [f"<b>{i}" if i else "[bold]" for i in range(draws.shape[2])]
    data = xr.Dataset(
        {"theta": (("chain", "draw", "school"), draws)},
        coords={"chain": range(4), "draw": range(draws.shape[1]), "school": names},
        attrs={"inference_library": "elsewhere"},
    )
    xr.DataTree.from_dict({"posterior": data}).to_netcdf(path, engine="h5netcdf")
    return path


def test_sample_stores_and_judges(folder: Path) -> None:
    done = call("sample", "model.py", "--kernel", "NUTS", "--set", "target_accept=0.9", *FEW)
    assert done.exit_code == 0, done.output
    assert "x[0]" in done.stdout
    assert "Do not trust these draws yet" in done.stdout  # 60 draws are too few to tell
    assert done.stdout.endswith("Run stored in run.zarr\n")
    assert "the model talks" in done.stderr
    assert "the model talks" not in done.stdout
    assert "samplekit diagnose run.zarr --target model.py" in done.stderr
    assert "samplekit resume run.zarr model.py --draws 1000" in done.stderr
    run = xr.open_datatree(folder / "run.zarr", engine="zarr")
    assert dict(run["posterior"].sizes) == {"chain": 2, "draw": 30, "x_dim": 2}
    assert sk.kernel_of(folder / "run.zarr").target_accept == 0.9


def test_sample_never_overwrites(folder: Path) -> None:
    (folder / "run.zarr").mkdir()
    (folder / "run.zarr" / "thesis.tex").write_text("years")
    done = call("sample", "model.py", "--store", "run.zarr", *FEW)
    assert done.exit_code == 2
    assert "samplekit resume run.zarr model.py" in done.stderr
    assert call("sample", "model.py", "-q", *FEW).stdout == "run-2.zarr\n"
    assert call("sample", "model.py", "-q", *FEW).stdout == "run-3.zarr\n"
    assert (folder / "run.zarr" / "thesis.tex").read_text() == "years"
    (folder / "there.nc").write_text("mine")
    done = call("sample", "model.py", "--output", "there.nc", *FEW)
    assert (done.exit_code, (folder / "there.nc").read_text()) == (2, "mine")
    assert not (folder / "run-4.zarr").exists()


def test_sample_then_resume_equals_one_run(folder: Path) -> None:
    done = call("sample", "model.py", "-q", "--store", "[b]a.zarr", *FEW)
    assert done.exit_code == 0, done.output
    done = call("resume", "[b]a.zarr", "model.py", "-n", 20, "--json", "--output", "a.nc")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["run"], told["draws"], told["interrupted"]) == ("[b]a.zarr", 50, False)
    whole = sk.sample(
        sk.targets.gaussian(2), draws=50, warmup=30, chains=2, seed=0, progress=False
    )["posterior"]["x"].values
    netcdf = xr.open_datatree(folder / "a.nc", engine="h5netcdf")
    assert np.array_equal(netcdf["posterior"]["x"].values, whole)
    done = call("resume", "[b]a.zarr", "model.py")
    assert done.exit_code == 0
    assert "finished already" in done.stderr
    assert "Run stored in [b]a.zarr\n" in done.stdout  # a name, not markup
    assert call("resume", "[b]a.zarr", "zoo:banana", "-n", 5).exit_code == 2  # another target


def test_a_kernel_of_the_users_own(folder: Path) -> None:
    (folder / "own.py").write_text(
        "import jax, samplekit as sk\n"
        "target = sk.targets.gaussian(2)\n"
        "draw = lambda key: jax.random.normal(key, (2,))\n"
        "kernel = sk.Independence(draw, lambda x: -(x**2).sum() / 2)\n"
    )
    done = call("sample", "own.py", "--kernel", "own.py:kernel", *FEW)
    assert done.exit_code == 0, done.output
    hint = "samplekit resume run.zarr own.py --kernel own.py:kernel --draws 1000"
    assert hint in done.stderr
    done = call("resume", "run.zarr", "own.py", "--draws", 5, "-q")
    assert (done.exit_code, "holds functions" in done.stderr) == (2, True)
    assert call(*hint.split()[1:-1], 5, "-q").exit_code == 0


def test_sample_until(folder: Path) -> None:
    done = call(
        "sample",
        "model.py",
        "-w",
        200,
        "-n",
        5000,
        "--until-ess",
        100,
        "--until-rhat",
        1.1,
        "--json",
    )
    assert done.exit_code == 0, done.output
    assert 100 <= json.loads(done.stdout)["draws"] < 5000


def test_a_target_that_fails_leaves_no_run(folder: Path) -> None:
    (folder / "nan.py").write_text(
        "import samplekit as sk, jax.numpy as jnp\n"
        "target = sk.from_log_density(lambda x: jnp.log(-1 - x[0] ** 2), dim=1)\n"
    )
    done = call("sample", "nan.py", "--store", "n.zarr", *FEW)
    assert done.exit_code == 2
    assert "No start with finite log density" in done.stderr
    assert not (folder / "n.zarr").exists()


def test_interrupted_draws_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever asks for the end between rounds: the run says interrupted, the program 130."""
    from samplekit.sampling.loop import Loop

    whole = Loop._round
    monkeypatch.setattr(Loop, "_round", lambda self, pool: whole(self, pool) or self.tick >= 30)
    more = ["-c", "2", "-n", "5000", "-w", "30"]
    done = call("sample", "model.py", "--json", *more)
    assert done.exit_code == 130
    told = json.loads(done.stdout)
    assert told["interrupted"]
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    done = call("info", "run.zarr", "--json")
    facts = json.loads(done.stdout)
    assert (facts["state"], facts["draws_asked"]) == ("interrupted", 5000)
    done = call("resume", "run.zarr", "model.py", "--json")
    assert (done.exit_code, json.loads(done.stdout)["draws"]) == (0, 5000)


def test_ctrl_c_before_the_first_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from samplekit.sampling.loop import Loop

    def begin(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "begin", begin)
    done = call("sample", "model.py", *FEW)
    assert (done.exit_code, done.stdout) == (130, "")
    assert done.stderr.endswith("samplekit: interrupted\n")
    assert not (folder / "run.zarr").exists()


def test_diagnose_is_a_gate(healthy: Path, sick: Path) -> None:
    good, bad = call("diagnose", healthy), call("diagnose", sick)
    assert (good.exit_code, bad.exit_code) == (0, 1)
    assert "No problem found" in good.stdout
    assert "Do not trust" in bad.stdout
    assert "nonfinite-draws" in bad.stdout
    assert "theta[[bold]]" in good.stdout  # a name, not markup
    assert "12 of 20 scalars" in bad.stdout
    for run, code in ((healthy, 0), (sick, 1)):
        done = call("diagnose", run, "-q")
        assert (done.exit_code, done.output) == (code, "")


def test_diagnose_json_has_no_nan(sick: Path) -> None:
    done = call("diagnose", sick, "--json")
    assert done.exit_code == 1

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    told = json.loads(done.stdout, parse_constant=refuse)
    assert told["ok"] is False
    assert told["table"]["theta[<b>3]"]["mean"] is None
    assert len(told["table"]) == 20
    assert {"code", "severity", "seen", "why", "remedy"} <= set(told["findings"][0])


def test_diagnose_checks_an_unadjusted_kernel_against_its_target(folder: Path) -> None:
    how = ["--kernel", "langevin", "--set", "step_size=1.3", "-w", 100]
    done = call("sample", "model.py", "-q", "--store", "ula.zarr", *how)
    assert done.exit_code == 0, done.output
    blind, seeing = (
        call("diagnose", "ula.zarr", *more, "--json") for more in ([], ["--target", "model.py"])
    )
    codes = [{f["code"] for f in json.loads(d.stdout)["findings"]} for d in (blind, seeing)]
    assert "bias-unchecked" in codes[0]
    assert "unadjusted-bias" in codes[1]
    assert seeing.exit_code == 1


def test_report(healthy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("report", healthy)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Report written to report.html (")
    assert "<html" in Path("report.html").read_text(encoding="utf-8")
    assert call("report", healthy, "-q", "-o", "b.html").stdout == "b.html\n"
    told = json.loads(call("report", healthy, "--json", "-o", "c.html").stdout)
    assert told["bytes"] == Path("c.html").stat().st_size
    assert call("report", healthy, "-o", "no/folder/r.html").exit_code == 2


def test_info_of_other_libraries(healthy: Path) -> None:
    done = call("info", healthy)
    assert done.exit_code == 0, done.output
    assert "elsewhere" in done.stdout
    assert "4 chains × 1,000" in done.stdout
    assert "resume" not in done.stdout  # nobody can go on with it
    facts = json.loads(call("info", healthy, "--json").stdout)
    assert facts["variables"] == {"theta": [3]}


def test_info_of_our_own(folder: Path) -> None:
    call(
        "sample",
        "zoo:banana",
        "-q",
        "--kernel",
        "mala",
        "--set",
        "step_size=0.3",
        "--thin",
        3,
        *FEW,
    )
    text = call("info", "run.zarr").stdout
    for word in ("MALA(", "0.3 given", "2 chains × 30", "one every 3 steps", "finished", "float32"):
        assert word in text, word
    facts = json.loads(call("info", "run.zarr", "--json").stdout)
    assert (facts["kernel"], facts["dimension"], facts["state"]) == ("MALA", 2, "finished")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["diagnose", "nowhere.zarr"], "no run at 'nowhere.zarr'"),
        (["report", "nowhere.zarr"], "no run at 'nowhere.zarr'"),
        (["info", "nowhere.zarr"], "no run at 'nowhere.zarr'"),
        (["resume", "nowhere.zarr", "zoo:banana"], "nowhere.zarr"),
        (["diagnose", "model.py"], "cannot be read"),
        (["info", "."], "."),
        (["diagnose", "nowhere.zarr", "--data", "d.json"], "name the model with --target"),
        (["sample", "zoo:banana", "--chains", "0"], "--chains"),
        (["sample", "zoo:banana", "--until-rhat", "0.5"], "no bound to reach"),
        (["sample", "zoo:banana", "--until-ess", "10", "--chains", "1"], "compares chains"),
        (["sample", "zoo:banana", "--kernel", "x"], "no kernel 'x'"),
        (["sample", "zoo:banana", "--seed", "99999999999999999999"], "seed"),
        (["sample", "zoo:banana", "--output", "x.csv"], "netCDF"),
        (["sample", "zoo:banana", "--output", "no/x.nc"], "no folder"),
        (["sample"], "MODEL"),
    ],
)
def test_bad_input_ends_with_two(folder: Path, words: list[str], says: str) -> None:
    done = call(*words)
    assert done.exit_code == 2, done.output
    assert says in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert [p.name for p in folder.glob("*.zarr")] == []


def test_a_model_that_raises_while_sampled(folder: Path) -> None:
    """An error of the user's own code names its line; --traceback shows the whole way."""
    (folder / "raises.py").write_text(
        "import jax, samplekit as sk\n"
        "@jax.tree_util.register_static\n"
        "class Target:\n"
        "    space = sk.targets.gaussian(2).space\n"
        "    def log_density(self, x):\n"
        "        return {}['key']\n"
        "target = Target()\n"
    )
    done = call("sample", "raises.py", *FEW)
    assert done.exit_code == 2
    assert done.stderr == (
        "samplekit: raises.py:6, in log_density: KeyError: 'key'\n    return {}['key']\n"
    )
    done = call("--traceback", "sample", "raises.py", *FEW)
    assert done.exit_code == 2
    assert "Traceback (most recent call last)" in done.stderr


def test_our_own_faults_keep_their_traceback(
    healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import samplekit.cli.info

    monkeypatch.setattr(samplekit.cli.info, "describe", json.loads)
    done = call("info", healthy)
    assert done.exit_code == 70
    assert "Traceback" in done.stderr
