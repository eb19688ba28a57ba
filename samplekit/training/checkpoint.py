"""What is kept of a training on disk: one file, replaced as a whole."""

import json
import os
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from samplekit.core.errors import ResumeError, StoreError
from samplekit.training.plan import Plan

# Seconds between two writings: what a kill can cost.
_EVERY = 5.0


class Checkpoint:
    """Write and read the state of a training.

    Parameters
    ----------
    path
        The file.
    plan, seed, rows
        What the training must agree on to be continued; more epochs are allowed.

    Notes
    -----
    NumPy's archive of plain arrays, no pickle. It is written beside the file and then put in its
    place, so that a kill at any instant leaves the old or the new one.
    """

    def __init__(self, path: str | Path, plan: Plan, seed: int, rows: int) -> None:
        self._path = Path(path)
        self._facts = {
            "batch_size": plan.batch_size,
            "learning_rate": _word(plan.learning_rate),
            "schedule": plan.schedule,
            # A falling rate depends on where it ends.
            "epochs": 0 if plan.schedule == "constant" else plan.epochs,
            "optimizer": _word(plan.optimizer),
            "clip": plan.clip,
            "average": plan.average,
            "seed": seed,
            "rows of data": rows,
        }
        self._written = time.monotonic()

    def read(self, state: Any) -> tuple[Any, list[dict[str, float]]] | None:
        """Return the state and the history on disk; None if there is no file."""
        if not self._path.exists():
            return None
        try:
            with np.load(self._path, allow_pickle=False) as archive:
                about = json.loads(str(archive["about"]))
                leaves = [archive[f"leaf_{i}"] for i in range(about["leaves"])]
        except (OSError, ValueError, KeyError) as error:
            raise StoreError(
                f"The checkpoint {str(self._path)!r} cannot be read ({error}). "
                "Remove it, or give another path, to train anew."
            ) from error
        self._compare(about["facts"])
        old, structure = jax.tree.flatten(state)
        shapes = [list(np.shape(leaf)) for leaf in old]
        if shapes != [list(leaf.shape) for leaf in leaves]:
            raise ResumeError(
                f"The checkpoint {str(self._path)!r} belongs to another model: its arrays have "
                "other shapes. Give another path, or remove it, to train anew."
            )
        placed = [jax.numpy.asarray(new, leaf.dtype) for new, leaf in zip(leaves, old, strict=True)]
        return jax.tree.unflatten(structure, placed), about["rows"]

    def _compare(self, facts: dict[str, Any]) -> None:
        for name, value in self._facts.items():
            if facts[name] != value:
                raise ResumeError(
                    f"The checkpoint {str(self._path)!r} was written with {name} "
                    f"{facts[name]!r}, this training has {value!r}: they would not be one "
                    "training. Give another path, or remove it, to train anew."
                )

    def write(self, state: Any, rows: list[dict[str, float]], *, last: bool) -> None:
        """Write, unless that was done a moment ago and this is not the end."""
        if not last and time.monotonic() - self._written < _EVERY:
            return
        leaves = jax.tree.leaves(jax.device_get(state))
        about = {"facts": self._facts, "rows": rows, "leaves": len(leaves)}
        arrays = {f"leaf_{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with beside.open("wb") as file:
                np.savez(file, about=np.asarray(json.dumps(about)), **arrays)  # pyright: ignore[reportArgumentType]
            beside.replace(self._path)
        except OSError as error:
            raise StoreError(
                f"The checkpoint {str(self._path)!r} cannot be written ({error}). "
                "Free some space or give another path."
            ) from error
        finally:
            beside.unlink(missing_ok=True)
        self._written = time.monotonic()


def _word(value: Any) -> Any:
    """Name a function or transformation; JSON holds no code."""
    return value if isinstance(value, str | float | int) else type(value).__name__
