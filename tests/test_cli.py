"""The program and its demo: what it prints, what it writes, how it refuses."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from samplekit.cli import app
from samplekit.core.errors import StoreError
from samplekit.demo.folder import MARKER, claim_folder

ROOT = Path(__file__).resolve().parents[1]
RUNS = ("two-modes", "banana-mala", "banana-nuts", "network", "eight-schools")
FIGURES = ("two-modes", "banana", "network", "eight-schools")


def samplekit(*arguments: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Call the program as a shell would, its output piped."""
    clean = {k: v for k, v in os.environ.items() if k not in {"XLA_FLAGS", "FORCE_COLOR"}}
    return subprocess.run(
        [sys.executable, "-m", "samplekit.cli", *arguments],
        cwd=folder,
        env=clean | {"PYTHONPATH": str(ROOT)} | more,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("demo")
    done = samplekit("demo", "--quick", "--output", "out", folder=folder)
    assert done.returncode == 0, done.stderr
    return folder / "out", done.stdout


def test_demo_prints_one_table(demo: tuple[Path, str]) -> None:
    _, text = demo
    assert len(re.findall("R-hat", text.split("Written to")[0])) == 2  # the head and the caption
    for target, kernel in [
        ("two modes", "RandomWalk"),
        ("banana", "MALA"),
        ("banana", "NUTS"),
        ("neural network", "NUTS"),
        ("eight schools", "NUTS"),
    ]:
        # target, kernel, draws, R-hat, bulk and tail ESS, seconds to compile and to sample
        row = rf"{target} +{kernel} +[\d,]+ +\d\.\d+ +[\d,]+ +[\d,]+ +\d+\.\d\d +\d+\.\d\d"
        assert re.search(row, text), text


def test_demo_output_is_plain_in_a_pipe(demo: tuple[Path, str]) -> None:
    _, text = demo
    assert "\x1b" not in text
    table = text.split("samplekit demo")[1].split("Written to")[0]
    assert max(len(line.rstrip()) for line in table.splitlines()) <= 80
    assert "…" not in text


def test_demo_writes_figures_and_runs_that_open(demo: tuple[Path, str]) -> None:
    import arviz as az

    folder, text = demo
    assert "Written to out" in text
    for name in FIGURES:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    for name in RUNS:
        run = az.from_zarr(folder / f"{name}.zarr")
        assert run["posterior"].sizes["chain"] == 4
        assert run["sampler"].attrs["finished"]
    schools = az.from_zarr(folder / "eight-schools.zarr")["posterior"]
    assert schools["theta"].dims == ("chain", "draw", "school")
    expected = {MARKER, "report.html"}
    expected |= {*(f"{n}.png" for n in FIGURES), *(f"{n}.zarr" for n in RUNS)}
    assert {p.name for p in folder.iterdir()} == expected


def test_demo_ends_with_the_report(demo: tuple[Path, str]) -> None:
    folder, text = demo
    assert text.rstrip().endswith(str(Path("out", "report.html")))
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Lawrenceville" in page  # eight schools


def test_demo_says_which_runs_to_trust(demo: tuple[Path, str]) -> None:
    _, text = demo
    assert re.search(r"Nothing speaks against \d of 5 runs", text)
    # 400 draws of four chains cannot be enough for the curved ones.
    assert "Do not trust banana by NUTS: " in text
    assert "samplekit diagnose out/banana-nuts.zarr" in text


def test_a_second_demo_replaces_only_its_own(demo: tuple[Path, str]) -> None:
    folder, _ = demo
    mine = folder / "notes.txt"
    mine.write_text("mine")
    claim(folder)
    assert mine.read_text() == "mine"
    assert {p.name for p in folder.iterdir()} == {"notes.txt", MARKER}


def claim(folder: Path, stores: Sequence[str] = RUNS) -> None:
    stored = [f"{n}.zarr" for n in stores]
    claim_folder(folder, [*stored, *(f"{n}.png" for n in FIGURES), "report.html"])


def test_demo_never_touches_what_it_did_not_write(tmp_path: Path) -> None:
    (tmp_path / "network.png").write_text("a holiday")
    with pytest.raises(StoreError, match=r"network\.png, not written by an earlier demo"):
        claim(tmp_path)
    assert (tmp_path / "network.png").read_text() == "a holiday"
    assert not (tmp_path / MARKER).exists()


def test_demo_trusts_no_name_alone(tmp_path: Path) -> None:
    """A folder or a link that took the place of a run stays, whatever the marker says."""
    claim(tmp_path)
    precious = tmp_path / "elsewhere"
    precious.mkdir()
    (tmp_path / "network.zarr").symlink_to(precious)
    with pytest.raises(StoreError, match=r"network\.zarr"):
        claim(tmp_path)
    (tmp_path / "network.zarr").unlink()
    (tmp_path / "network.zarr").mkdir()
    (tmp_path / "network.zarr" / "thesis.tex").write_text("years")
    with pytest.raises(StoreError, match=r"network\.zarr"):
        claim(tmp_path)
    assert (tmp_path / "network.zarr" / "thesis.tex").read_text() == "years"


@pytest.mark.parametrize("text", ["", "[]", '{"wrote": 3}', json.dumps({"other": []})])
def test_a_strange_marker_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / MARKER).write_text(text)
    with pytest.raises(StoreError, match="not the list"):
        claim(tmp_path)


def test_mistakes_end_with_a_sentence_and_a_code(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = samplekit("demo", "--output", "file", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "samplekit: 'file' is a file. Choose another folder with --output.\n"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--help"], 0, "demo"),
        ([], 0, "demo"),
        (["demo", "--help"], 0, "--quick"),
        (["version"], 0, "samplekit "),
        (["--version"], 0, "samplekit "),
        (["dmeo"], 2, "No such command"),
        (["demo", "--seed", "many"], 2, "--seed"),
        (["demo", "--fast"], 2, "No such option"),
    ],
)
def test_exit_codes(arguments: list[str], code: int, says: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code
    assert says in result.output
    assert "Traceback" not in result.output


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; from samplekit.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'jax', 'numpy', 'matplotlib', 'arviz', 'numpyro'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout


def test_an_interrupted_demo_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import samplekit.demo

    def interrupted(*_: object, **__: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(samplekit.demo, "run_demo", interrupted)
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 130
    assert "interrupted" in result.output
    monkeypatch.setattr(samplekit.demo, "run_demo", lambda *_, **__: False)
    assert CliRunner().invoke(app, ["demo"]).exit_code == 130


def test_demo_prints_without_unicode(tmp_path: Path) -> None:
    done = samplekit("demo", "--quick", folder=tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert "Written to samplekit-demo" in done.stdout
