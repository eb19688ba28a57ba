"""The demo's folder: an earlier demo's files are replaced, nobody else's are touched."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from samplekit.core.errors import StoreError

# Written first: it says that the folder is ours, and which of its entries.
MARKER = "samplekit-demo.json"


def claim_folder(folder: Path, names: Sequence[str]) -> None:
    """Make the folder ready; remove what an earlier demo wrote there, and nothing else."""
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{str(folder)!r} is a file. Choose another folder with --output.")
    present = [name for name in names if _there(folder / name)]
    marker = folder / MARKER
    try:
        ours = set(json.loads(marker.read_text(encoding="utf-8"))["wrote"])
    except FileNotFoundError:
        ours = set()
    except (ValueError, LookupError, TypeError) as error:
        raise StoreError(
            f"{str(marker)!r} is not the list that samplekit demo writes. Choose another folder "
            "with --output."
        ) from error
    foreign = [n for n in present if n not in ours or not _looks_ours(folder / n)]
    if foreign:
        raise StoreError(
            f"{str(folder)!r} holds {', '.join(foreign)}, not written by an earlier demo. Choose "
            "another folder with --output, or move them away."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        marker.write_text(json.dumps({"wrote": [*names]}) + "\n", encoding="utf-8")
    except OSError as error:
        why = error.strerror or error
        raise StoreError(
            f"cannot write into {str(folder)!r}: {why}. Choose another folder with --output."
        ) from error
    for name in present:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _looks_ours(path: Path) -> bool:
    """Tell a page, a figure or a stored run of samplekit from something else of that name."""
    if path.is_symlink():
        return False
    if not path.is_dir():
        return path.suffix in {".png", ".html"}
    try:
        root = json.loads((path / "zarr.json").read_text(encoding="utf-8"))
        return root["attributes"]["inference_library"] == "samplekit"
    except (OSError, ValueError, LookupError, TypeError):
        return not any(path.iterdir())
