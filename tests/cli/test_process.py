"""The program as a shell sees it: streams, exit codes, signals, completion."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = [sys.executable, "-m", "samplekit.cli"]


def environment(**more: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if k not in {"XLA_FLAGS", "FORCE_COLOR"}}
    return clean | {"PYTHONPATH": str(ROOT)} | more


def samplekit(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *words],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_results_on_stdout_the_rest_on_stderr(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import numpyro, numpyro.distributions as dist\n"
        "def model(y):\n"
        "    print('talks')\n"
        "    mu = numpyro.sample('mu', dist.Normal(0.0, 10.0))\n"
        "    with numpyro.plate('day', len(y)):\n"
        "        numpyro.sample('y', dist.Normal(mu, 1.0), obs=y)\n"
    )
    (tmp_path / "data.json").write_text('{"y": [1.0, 2.0, 3.0]}')
    words = ["model.py:model", "--data", "data.json", "--store", "run.zarr", "--json"]
    done = samplekit(tmp_path, "sample", *words)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["ok"]
    # The posterior is normal with mean 6/3.01; 5 MCSE are one failure in a million.
    row = told["table"]["mu"]
    assert abs(row["mean"] - 6 / 3.01) < 5 * row["mcse_mean"]
    assert "talks" in done.stderr
    assert samplekit(tmp_path, "diagnose", "run.zarr", "-q").returncode == 0
    plain = samplekit(tmp_path, "diagnose", "run.zarr", PYTHONIOENCODING="ascii")
    assert plain.stdout.isascii()
    assert "\x1b" not in plain.stdout
    assert max(map(len, plain.stdout.splitlines())) <= 80


def test_a_mistake_is_one_sentence_with_a_line(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import samplekit as sk\n\ntarget = sk.from_energy(3, 2\n")
    done = samplekit(tmp_path, "sample", "model.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "samplekit: model.py:3: SyntaxError: '(' was never closed\n"
        "    target = sk.from_energy(3, 2\n"
    )


def test_ctrl_c_keeps_the_draws(tmp_path: Path) -> None:
    """The shell's own signal; what was drawn is on disk and goes on."""
    words = ["sample", "zoo:gaussian", "-w", "50", "-n", "100000000", "--kernel", "mala", "--json"]
    process = subprocess.Popen(
        [*PROGRAM, *words],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not drawn(tmp_path / "run.zarr") and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    told = json.loads(out)
    assert told["interrupted"]
    assert told["draws"] > 0
    facts = json.loads(samplekit(tmp_path, "info", "run.zarr", "--json").stdout)
    assert (facts["state"], facts["draws"]) == ("interrupted", told["draws"])


def drawn(run: Path) -> bool:
    """Tell whether a run has draws, from the metadata that a commit replaces."""
    try:
        nodes = json.loads((run / "zarr.json").read_text())["consolidated_metadata"]["metadata"]
        return nodes["posterior/draw"]["shape"][0] > 0
    except (OSError, LookupError):
        return False


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(tmp_path: Path, shell: str) -> None:
    quiet = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = samplekit(tmp_path, "--show-completion", shell, **quiet)
    assert done.returncode == 0, done.stderr
    assert "_SAMPLEKIT_COMPLETE" in done.stdout


def test_completion_of_kernel_names(tmp_path: Path) -> None:
    done = samplekit(
        tmp_path,
        _SAMPLEKIT_COMPLETE="complete_bash",
        COMP_WORDS="samplekit sample model.py --kernel m",
        COMP_CWORD="4",
    )
    assert done.stdout.split() == ["mala", "mclmc", "metropolishastings"]


def test_commands_load_nothing_heavy_before_they_run(tmp_path: Path) -> None:
    code = (
        "import sys, samplekit.cli.app, samplekit.cli.load, samplekit.cli.kernels\n"
        "import samplekit.cli.output\n"
        "heavy = {'jax', 'numpy', 'matplotlib', 'arviz', 'numpyro', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
