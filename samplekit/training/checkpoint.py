"""What is kept of a training on disk: one file, replaced as a whole."""

import contextlib
import json
import os
import re
import time
import zipfile
import zlib
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
    plan, facts
        What the training must agree on to be continued; more epochs are allowed.

    Notes
    -----
    NumPy's archive of plain arrays, no pickle. It is written beside the file and then put in its
    place, so that a kill at any instant leaves the old or the new one.
    """

    def __init__(self, path: str | Path, plan: Plan, facts: dict[str, Any]) -> None:
        self._path, self._epochs = Path(path), plan.epochs
        self._facts = {
            "batch_size": plan.batch_size,
            "learning_rate": _word(plan.learning_rate),
            "schedule": plan.schedule,
            # A falling rate depends on where it ends.
            "epochs": 0 if plan.schedule == "constant" else plan.epochs,
            "optimizer": _word(plan.optimizer),
            "clip": plan.clip,
            "average": plan.average,
            "patience": plan.patience is not None,
        } | facts
        self._written = time.monotonic()

    def read(self, state: Any) -> tuple[Any, list[dict[str, float]]] | None:
        """Return the state and the history on disk; None if there is no file."""
        if not self._path.exists():
            return None
        try:
            with self._path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                about = json.loads(str(archive["about"]))
                leaves = [archive[f"leaf_{i}"] for i in range(about["leaves"])]
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise StoreError(
                f"The checkpoint {str(self._path)!r} cannot be read ({error}). "
                "Remove it, or give another path, to train anew."
            ) from error
        self._compare(about)
        old, structure = jax.tree.flatten(state)
        if [_form(leaf) for leaf in old] != [_form(leaf) for leaf in leaves]:
            raise ResumeError(
                f"The checkpoint {str(self._path)!r} belongs to another model: its arrays have "
                "other shapes or another precision. Give another path, or remove it, to train anew."
            )
        placed = [jax.numpy.asarray(new, leaf.dtype) for new, leaf in zip(leaves, old, strict=True)]
        return jax.tree.unflatten(structure, placed), about["rows"]

    def _compare(self, about: dict[str, Any]) -> None:
        facts, done = about["facts"], len(about["rows"])
        for name, value in self._facts.items():
            if facts.get(name) != value:
                raise ResumeError(
                    f"The checkpoint {str(self._path)!r} was written with {name} "
                    f"{facts.get(name)!r}, this training has {value!r}: they would not be one "
                    "training. Give another path, or remove it, to train anew."
                )
        if done > self._epochs:
            raise ResumeError(
                f"The checkpoint {str(self._path)!r} is {done} epochs on, this training is to have "
                f"epochs={self._epochs}. Ask for more epochs, or give another path."
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
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            raise StoreError(
                f"The checkpoint {str(self._path)!r} cannot be written ({error}). "
                "Free some space or give another path."
            ) from error
        self._written = time.monotonic()


def describe(objective: Any, data: Any) -> dict[str, Any]:
    """Tell an objective and data from others: by the code and settings, and by a checksum.

    Parameters
    ----------
    objective
        A pytree; what is not an array in it counts.
    data
        A pytree of arrays.

    Examples
    --------
    >>> import numpy as np
    >>> describe(None, np.zeros(3)) == describe(None, np.ones(3))
    False
    """
    # Functions are told by their names: addresses differ from process to process.
    code = re.sub(r" at 0x[0-9a-f]+", "", str(jax.tree.structure(objective)))
    check = 0
    for leaf in jax.tree.leaves(data):
        check = zlib.crc32(np.ascontiguousarray(leaf).data, check)
    return {"objective": code, "data (their checksum)": check}


def _form(leaf: Any) -> tuple[tuple[int, ...], str]:
    return np.shape(leaf), str(leaf.dtype)


def _word(value: Any) -> Any:
    """Name a function or transformation; JSON holds no code."""
    return value if isinstance(value, str | float | int) else type(value).__name__
