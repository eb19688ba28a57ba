"""Each script of examples/ runs, alone, as a reader would run it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("[!_]*.py"))
MAX_LINES, MAX_BYTES = 90, 150_000
# Even with --quick: a U-Net takes a minute to compile, processes one after the other as long.
LONG = ("36_digits", "40_many_processes")
MARKED = [pytest.param(s, marks=[pytest.mark.slow] * (s.stem in LONG), id=s.stem) for s in SCRIPTS]


@pytest.mark.example
@pytest.mark.parametrize("script", MARKED)
def test_runs(script: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(script), "--quick", "--output", str(tmp_path / "figures")]
    # No four devices as in the tests: a reader has what the machine has.
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    figures = list((tmp_path / "figures").glob("*.png"))
    assert figures
    assert {f.stem[:2] for f in figures} == {script.stem[:2]}
    assert [p.name for p in tmp_path.iterdir()] == ["figures"]


@pytest.mark.slow
def test_generated_digits_are_as_near_as_promised(tmp_path: Path) -> None:
    """Within 1.25 times the distance of training to held-out digits; a Gaussian fit has 1.3."""
    script = ROOT / "examples" / "36_digits.py"
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, str(script), "--output", str(tmp_path)],
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r"^(.*?) +distance to held-out digits (\S+) ×", done.stdout, re.M))
    ratios = {name: float(ratio) for name, ratio in found.items()}
    print(ratios)
    assert ratios["annealed Langevin"] <= 1.25
    assert ratios["reverse SDE"] <= 1.25
    assert ratios["a Gaussian fit"] > 1.25  # else the distance would show nothing


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_is_short_and_says_what_it_shows(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    assert len(text.splitlines()) < MAX_LINES
    assert text.startswith('"""')


def test_committed_figures_are_small_and_made_by_a_script() -> None:
    figures = list((ROOT / "examples" / "figures").iterdir())
    saved = {
        name
        for script in SCRIPTS
        for name in re.findall(r'save\(figure, args, "(\w+)"\)', script.read_text(encoding="utf-8"))
    }
    assert {f.stem for f in figures} == saved
    assert [f.name for f in figures if f.stat().st_size > MAX_BYTES] == []


def test_pages_link_to_files_that_exist() -> None:
    for page in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
        local = [link for link in links if link and "://" not in link]
        assert [link for link in local if not (ROOT / link).exists()] == []
