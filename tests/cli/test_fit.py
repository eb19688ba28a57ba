"""`samplekit fit`: tables, JSON, and one clear line on bad input."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from samplekit.cli import app
from samplekit.estimators import families


def call(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["fit", *map(str, arguments)])


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    random = np.random.default_rng(3)
    size = random.gamma(3.0, 0.5, 400)
    other = 0.5 * size + random.normal(0, 0.1, 400)
    return pd.DataFrame({"size": size, "other [b]": other, "name": "n/m", "noise": other**2})


@pytest.fixture(scope="module")
def path(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("data") / "data.csv"
    frame.to_csv(place, index=False)
    return place


def test_table(path: Path, frame: pd.DataFrame) -> None:
    done = call(path, "--family", "gamma", "--columns", "size")
    assert done.exit_code == 0, done.output
    params = families.gamma().fit(frame[["size"]].to_numpy()).params_
    assert f"{params['shape']:.5g}" in done.stdout
    assert f"{params['rate']:.5g}" in done.stdout
    for word in ("400 rows", "natural", "usual", "standard error", "2.5 %", "97.5 %", "shape - 1"):
        assert word in done.stdout


def test_json_has_every_number(path: Path, frame: pd.DataFrame) -> None:
    done = call(path, "-f", "gamma", "--columns", "size", "--json")
    (fit,) = json.loads(done.stdout)["fits"]
    expected = families.gamma().fit(frame[["size"]].to_numpy()).summary().reset_index()
    assert fit["columns"] == ["size"]
    found = pd.DataFrame(fit["parameters"])
    pd.testing.assert_frame_equal(found, expected, rtol=1e-12)


def test_one_variable_is_fitted_to_each_column_and_several_to_the_rows(path: Path) -> None:
    each = json.loads(call(path, "-f", "gamma", "--columns", "size, noise", "--json").stdout)
    assert [fit["columns"] for fit in each["fits"]] == [["size"], ["noise"]]
    rows = json.loads(call(path, "-f", "gaussian", "--json").stdout)  # words are left out
    assert [fit["columns"] for fit in rows["fits"]] == [["size", "other [b]", "noise"]]


def test_arguments_of_the_family(path: Path) -> None:
    done = call(path, "-f", "truncated-normal", "--columns", "size", "--set", "upper=20")
    assert done.exit_code == 0, done.output
    assert "location" in done.stdout
    graph = call(path, "-f", "gaussian_graphical_model", "--set", "penalty=ebic")
    assert graph.exit_code == 0, graph.output
    assert "other [b]" in graph.stdout
    assert "partial correlation" in graph.stdout
    sparse = call(path, "-f", "truncated_gaussian", "--columns", "size,noise", "--set", "penalty=0")
    assert "standard error" in sparse.stdout
    options = ("--set", "penalty=ebic", "--json")
    sparse = call(path, "-f", "truncated_gaussian", "--columns", "size,noise", *options)
    (edge,) = json.loads(sparse.stdout)["fits"][0]["parameters"]
    assert (edge["first"], edge["second"]) == ("size", "noise")


BAD = {
    "missing": (["nowhere.csv", "-f", "gamma"], "nowhere.csv"),
    "family": (["good.csv", "-f", "gama"], "Did you mean gamma? There are: beta, bingham"),
    "column": (["good.csv", "-f", "gamma", "--columns", "c"], "no column 'c'. It has: a, b, w"),
    "words": (["good.csv", "-f", "gamma", "--columns", "w"], "'x' in row 1"),
    "negative": (
        ["good.csv", "-f", "gamma", "--columns", "b"],
        "column 'b': X has at least 1 row (number 2)",
    ),
    "gap": (["gap.csv", "-f", "gamma"], "column 'a': X has at least 1 row (number 1) with NaN"),
    "no numbers": (["words.csv", "-f", "gamma"], "no column of numbers"),
    "empty": (["empty.csv", "-f", "gamma"], "cannot be read as CSV"),
    "no CSV": (["binary.csv", "-f", "gamma"], "cannot be read as CSV"),
    "option": (["good.csv", "-f", "gamma", "--set", "power=2"], "none of its own"),
    "needed": (["good.csv", "-f", "generalized_gaussian"], "as --set KEY=VALUE: power"),
    "value": (["good.csv", "-f", "gaussian", "--set", "ridge=-1"], "ridge"),
    "dimension": (["good.csv", "-f", "quartic", "--columns", "a"], "rows of 2 numbers"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.csv").write_text("a,b,w\n1,2,3\n2,1,x\n0.5,-1,3\n4,3,2\n3,2,1\n")
    Path("gap.csv").write_text("a,b\n1,2\n,1\n3,1\n")
    Path("words.csv").write_text("a,b\nx,y\n")
    Path("empty.csv").write_text("")
    Path("binary.csv").write_bytes(bytes([0xFF, 0xFE, 0x00, 0x81]) * 10)
    arguments, words = BAD[case]
    done = call(*arguments)
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
