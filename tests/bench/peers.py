"""Set up torch and torchebm in an environment of their own: `python -m tests.bench.peers`.

They stay out of .venv: torch wheels for the CPU exist for fewer versions of Python than samplekit
supports, and nothing of samplekit needs them.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.bench.harness import ROOT

FOLDER = ROOT / ".venv-peers"
PINS = ("torch==2.13.0", "torchebm==0.8.9", "numpy==2.3.5")
# Tried in turn; python3.11 first, for which a CPU wheel is often at hand.
PYTHONS = ("python3.11", "python3.12", "python3.13", sys.executable)
CHECK = (
    "import importlib.metadata as m, sys, torch, torchebm\n"
    f"pins = dict(p.split('==') for p in {PINS!r})\n"
    "sys.exit(any(m.version(n).split('+')[0] != v for n, v in pins.items()))"
)


def ready_python() -> str:
    """Return the interpreter that has the pinned peers, or an empty string."""
    python = FOLDER / "bin" / "python"
    if not python.exists():
        return ""
    check = subprocess.run((str(python), "-c", CHECK), capture_output=True, check=False)
    return str(python) if check.returncode == 0 else ""


def install() -> str:
    """Make the environment if need be; return its interpreter, or say why there is none."""
    found = ready_python()
    if found:
        return found
    problem = "no Python 3.11, 3.12 or 3.13 was found"
    for name in PYTHONS:
        base = shutil.which(name)
        if base is None:
            continue
        print(f"Setting up {FOLDER.name} with {base}.", flush=True)
        problem = _attempt(base)
        found = "" if problem else ready_python()
        if found:
            return found
    shutil.rmtree(FOLDER, ignore_errors=True)
    print(f"torch and torchebm are left out: {problem or 'they do not import'}.", flush=True)
    return ""


def _attempt(base: str) -> str:
    """Install with one Python; return the reason of a failure."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    pip = (str(FOLDER / "bin" / "python"), "-m", "pip", "install", "--quiet")
    for command in ((base, "-m", "venv", str(FOLDER)), (*pip, *PINS)):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [n for n in (done.stderr + done.stdout).splitlines() if "ERROR" in n]
            return lines[-1] if lines else f"{Path(command[0]).name} failed"
    (FOLDER / ".gitignore").write_text("*\n", encoding="utf-8")
    return ""


if __name__ == "__main__":
    sys.exit(not install())
