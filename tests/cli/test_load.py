"""From what a user types to a target and a kernel, or to a sentence that helps."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import samplekit as sk
from samplekit.cli.errors import own_line
from samplekit.cli.kernels import kernel_names, make_kernel
from samplekit.cli.load import load_object, load_target, read_data
from samplekit.core.errors import KernelError, SamplekitError, SettingsError, TargetError

TARGETS = """
import samplekit as sk

target = sk.targets.gaussian(3)
second = sk.targets.gaussian(2)
number = 3
kernel = sk.Langevin(0.2)

def energy(x):
    return (x**2).sum()

def factory(dim=2):
    return sk.from_energy(energy, dim)

class Box:
    inner = sk.targets.gaussian(4)

    def __init__(self):
        self.space = Box.inner.space

    def log_density(self, x):
        return Box.inner.log_density(x)

def nothing():
    return number
"""
MODELS = """
import numpyro
import numpyro.distributions as dist
from numpyro.handlers import reparam
from numpyro.infer.reparam import LocScaleReparam

import samplekit as sk

def model(y, sd=1.0):
    with numpyro.plate("day", len(y)):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu, sd), obs=y)

def prior():
    numpyro.sample("mu", dist.Normal(0.0, 1.0))

def made(y):
    return sk.tempered(sk.from_numpyro(model, y), 0.5)

@reparam(config={"mu": LocScaleReparam(0.0)})
def decorated(y):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    mu = numpyro.sample("mu", dist.Normal(0.0, scale))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

def broken(y):
    numpyro.sample("mu", dist.Normal(0.0, 1.0))
    raise RuntimeError("on purpose")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "targets.py").write_text(TARGETS)
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "data.json").write_text('{"y": [1.0, 2.0, 3.0]}')
    return tmp_path


@pytest.mark.parametrize(
    ("reference", "size"),
    [
        ("targets.py:second", 2),
        ("targets.py", 3),  # `target` is the obvious one
        ("./targets.py:factory", 2),
        ("targets.py:Box", 4),
        ("targets.py:Box.inner", 4),
        ("zoo:banana", 2),
        ("samplekit.targets:ring", 2),
    ],
)
def test_references(folder: Path, reference: str, size: int) -> None:
    assert load_target(reference).space.size == size


def test_a_module_of_the_present_folder(folder: Path) -> None:
    package = folder / "ours_for_this_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "deep.py").write_text("import samplekit as sk\nbent = sk.targets.banana()\n")
    assert load_target("ours_for_this_test.deep:bent").space.size == 2
    assert load_target("ours_for_this_test.deep").space.size == 2  # the only target


@pytest.mark.parametrize(
    ("name", "sites"),
    [
        ("models.py", ["mu"]),  # `model` is the obvious one
        ("models.py:model", ["mu"]),
        ("models.py:made", ["mu"]),
        ("models.py:decorated", ["mu_decentered", "scale"]),
    ],
)
def test_models_get_their_data(folder: Path, name: str, sites: list[str]) -> None:
    target = load_target(name, folder / "data.json")
    assert sorted(leaf.name for leaf in target.space.leaves) == sites
    # The tempered target is not the model's: the function was called, not traced.
    assert (type(target).__name__ == "NumpyroTarget") == (not name.endswith("made"))


def test_a_model_without_arguments(folder: Path) -> None:
    assert load_target("models.py:prior").space.size == 1


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("nofile.py:target", "'nofile.py' does not exist"),
        (".", "neither a file nor the name of a module"),
        ("", "neither a file nor the name of a module"),
        ("./nofolder", "does not exist"),
        ("no.such.module:x", "no file and no module 'no.such.module'"),
        ("targets.py:targetx", "no 'targetx'. Did you mean 'target'?"),
        ("targets.py:number", "is of type int, not a target"),
        ("targets.py:nothing", "returned int, no target, and is no NumPyro model"),
        ("targets.py:energy", r"energy\(x\) needs x.*sk.from_energy"),
        ("models.py:model", r"model\(y, sd=1.0\) needs y.*--data"),
        ("zoo:banan", "Did you mean 'banana'"),
        ("zoo:mixture", "needs weights, means"),
    ],
)
def test_a_wrong_reference_is_explained(folder: Path, reference: str, says: str) -> None:
    with pytest.raises(TargetError, match=says):
        load_target(reference)


def test_no_obvious_target(folder: Path) -> None:
    (folder / "two.py").write_text(TARGETS.replace("target =", "first ="))
    with pytest.raises(TargetError, match=r"as in two.py:first. It has: first, second\."):
        load_target("two.py")
    (folder / "empty.py").write_text("")
    with pytest.raises(TargetError, match="nothing that could be one"):
        load_target("empty.py")


def test_a_script_that_exits_is_explained(folder: Path) -> None:
    (folder / "exits.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(TargetError, match=r"called exit\(3\)"):
        load_target("exits.py")


def test_the_line_of_the_users_own_code(folder: Path) -> None:
    """The deepest line of the user's files, not of the libraries it calls or was called by."""
    (folder / "helper.py").write_text("import json\ndef read():\n    json.loads('{')\n")
    (folder / "calls.py").write_text("import helper\n\nhelper.read()\n")
    (folder / "syntax.py").write_text("import os\ndef f(x:\n    return 1\n")
    for file, at, line in [("calls.py", "helper.py", 3), ("syntax.py", "syntax.py", 2)]:
        with pytest.raises((ValueError, SyntaxError)) as caught:
            load_target(file)
        found = own_line(caught.value)
        assert found is not None
        assert (Path(found.filename).name, found.lineno) == (at, line)
    # The cause of a TargetError: the model's own line.
    with pytest.raises(TargetError, match="on purpose") as caught:
        load_target("models.py:broken", folder / "data.json")
    found = own_line(caught.value)
    assert found is not None
    assert (found.name, found.line) == ("broken", 'raise RuntimeError("on purpose")')
    # Nothing of the user's: none.
    with pytest.raises(SamplekitError) as caught:
        load_target("zoo:mixture")
    assert own_line(caught.value.with_traceback(None)) is None


def test_data(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    values = {"y": [1, 2], "x": [[0.5], [1.5]], "n": 3, "names": ["a", "b"], "d": {"z": [True]}}
    path.write_text(json.dumps(values))
    data = read_data(path)
    assert data["y"].dtype.kind == "i"
    assert data["x"].shape == (2, 1)
    assert (data["n"], data["names"]) == (3, ["a", "b"])
    assert data["d"]["z"].dtype == bool
    np.savez(tmp_path / "data.npz", y=np.arange(3))
    assert read_data(tmp_path / "data.npz")["y"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[1]", "Give an object"),
        ('{"y": [1, null]}', r"y in .*\(null"),
        ('{"y": [[1], [1, 2]]}', "different lengths"),
        ('{"y": [1, "a"]}', "something else than numbers"),
    ],
)
def test_wrong_data_are_explained(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "data.json").write_text(text)
    with pytest.raises(SettingsError, match=says):
        read_data(tmp_path / "data.json")
    (tmp_path / "data.npz").write_text(text)
    with pytest.raises(SettingsError, match=r"numpy\.savez"):
        read_data(tmp_path / "data.npz")
    with pytest.raises(SettingsError, match="no data file"):
        read_data(tmp_path / "none.json")


def test_data_for_what_takes_none(folder: Path) -> None:
    with pytest.raises(SettingsError, match="takes no --data"):
        load_target("targets.py:target", folder / "data.json")
    (folder / "more.json").write_text('{"y": [1.0], "z": 1}')
    with pytest.raises(SettingsError, match="hold z, which model"):
        load_target("models.py", folder / "more.json")


# Kernels --------------------------------------------------------------------------------------


def test_kernels_by_name_and_settings() -> None:
    target = sk.targets.gaussian(2)
    assert make_kernel(None, [], target) is None
    assert isinstance(make_kernel("nuts", [], target), sk.NUTS)
    assert isinstance(make_kernel("Random-Walk", [], target), sk.RandomWalk)
    made = make_kernel("MCLMC", ["adjusted=true", "step_size=.5", "metric=dense"], target)
    assert (made.adjusted, made.step_size, made.metric) == (True, 0.5, "dense")
    assert make_kernel("mala", ["metric=[1, 4]"], target).metric.tolist() == [1.0, 4.0]
    assert make_kernel(None, ["target_accept=0.9"], target).target_accept == 0.9
    assert make_kernel("hmc", ["step_size=none"], target).step_size is None


def test_kernel_of_the_users_own(folder: Path) -> None:
    assert make_kernel("targets.py:kernel", [], None).step_size == 0.2
    assert load_object("targets.py:kernel") is make_kernel("targets.py:kernel", [], None)
    with pytest.raises(KernelError, match="Set it in the file"):
        make_kernel("targets.py:kernel", ["step_size=0.1"], None)


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("nutz", [], "Did you mean nuts"),
        ("langevin", [], "needs step_size: add --set step_size=0.1"),
        ("independence", [], r"holds a function \(draw\).*--kernel model.py:kernel"),
        ("tempering", [], r"holds kernels \(kernel\).*--kernel model.py:kernel"),
        ("mala", ["stepsize=1"], "Did you mean step_size"),
        ("hmc", ["learning=1"], "It has: step_size, leapfrogs, target_accept, metric"),
        ("mala", ["step_size=-1"], "positive"),
        ("mala", ["step_size"], "not KEY=VALUE"),
        ("mala", ["=1"], "not KEY=VALUE"),
        ("nuts", ["target_accept=high"], "cannot be made"),
    ],
)
def test_a_wrong_kernel_is_explained(name: str, settings: list[str], says: str) -> None:
    with pytest.raises((KernelError, SettingsError), match=says):
        make_kernel(name, settings, sk.targets.gaussian(2))


def test_an_unknown_kernel_lists_those_that_fit() -> None:
    score = sk.from_score(lambda x: -x, dim=1)
    with pytest.raises(KernelError, match=r"fit this target: langevin, scoremala\."):
        make_kernel("none-such", [], score)
    assert "NUTS" in kernel_names()
    assert all(hasattr(getattr(sk, name), "step") for name in kernel_names())
