"""Set up the peers in environments of their own: `python -m tests.bench.peers`.

They stay out of .venv: torch wheels for the CPU exist for fewer versions of Python than samplekit
supports, and nothing of samplekit needs nutpie or emcee.
"""

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

from tests.bench.harness import ROOT


@dataclasses.dataclass(frozen=True)
class Environment:
    """An environment that is made once, and again when its pins change."""

    folder: Path
    pins: tuple[str, ...]
    modules: tuple[str, ...]  # what must import
    pythons: tuple[str, ...]  # tried in turn
    constraints: bool = False  # whether the versions of .venv hold for all the rest

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.folder / "bin" / "python"

    def ready(self) -> str:
        """Return the interpreter if it has the pinned packages, or an empty string."""
        if not self.python.exists():
            return ""
        code = (
            f"import importlib.metadata as m, sys, {', '.join(self.modules)}\n"
            f"pins = dict(p.split('==') for p in {self.pins!r})\n"
            "sys.exit(any(m.version(n).split('+')[0] != v for n, v in pins.items()))"
        )
        check = subprocess.run((str(self.python), "-c", code), capture_output=True, check=False)
        return str(self.python) if check.returncode == 0 else ""

    def install(self) -> str:
        """Make the environment if need be; return its interpreter, or say why there is none."""
        found = self.ready()
        if found:
            return found
        problem = f"none of {', '.join(self.pythons)} was found"
        for name in self.pythons:
            base = shutil.which(name)
            if base is None:
                continue
            print(f"Setting up {self.folder.name} with {base}.", flush=True)
            problem = self._attempt(base)
            found = "" if problem else self.ready()
            if found:
                return found
        shutil.rmtree(self.folder, ignore_errors=True)
        why = problem or "they do not import"
        print(f"{', '.join(self.modules)} are left out: {why}.", flush=True)
        return ""

    def _attempt(self, base: str) -> str:
        """Install with one Python; return the reason of a failure."""
        shutil.rmtree(self.folder, ignore_errors=True)
        pip = (str(self.python), "-m", "pip", "install", "--quiet")
        if self.constraints:
            pip = (*pip, "-c", str(ROOT / "constraints.txt"))
        for command in ((base, "-m", "venv", str(self.folder)), (*pip, *self.pins)):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                lines = [n for n in (done.stderr + done.stdout).splitlines() if "ERROR" in n]
                return lines[-1] if lines else f"{Path(command[0]).name} failed"
        (self.folder / ".gitignore").write_text("*\n", encoding="utf-8")
        return ""


def _pinned(*names: str) -> tuple[str, ...]:
    """Return the versions of .venv, so that both sides run the same JAX."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if line.split("==")[0] in names)


TORCH = Environment(
    ROOT / ".venv-peers",
    pins=("torch==2.13.0", "torchebm==0.8.9", "numpy==2.3.5"),
    modules=("torch", "torchebm"),
    # python3.11 first, for which a CPU wheel is often at hand.
    pythons=("python3.11", "python3.12", "python3.13", sys.executable),
)
SAMPLERS = Environment(
    ROOT / ".venv-samplers",
    pins=("nutpie==0.16.11", "emcee==3.1.6", *_pinned("jax", "arviz-stats")),
    modules=("nutpie", "emcee", "jax", "arviz_stats"),
    pythons=(sys.executable,),
    constraints=True,
)


if __name__ == "__main__":
    sys.exit(not (TORCH.install() and SAMPLERS.install()))
