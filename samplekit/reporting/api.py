"""`report`: the door."""

import os
import secrets
from pathlib import Path
from typing import Any

from samplekit.core.errors import SettingsError, StoreError


def report(run: Any, path: str | os.PathLike[str] = "report.html", target: Any = None) -> Path:
    """Write one self-contained page on a run: verdict, findings, table, plots, how to go on.

    Parameters
    ----------
    run
        A run of `sample`, any ArviZ DataTree, a Dataset, a dict of arrays (chain, draw, ...), or
        the path of a stored run.
    path
        Where to write the page; a page that is there already is replaced.
    target
        The target, if it is at hand: diagnosed more sharply, and drawn in one and two dimensions.

    Returns
    -------
    The path of the page.

    Notes
    -----
    The page needs no network and no program but a browser. All numbers come from
    `samplekit.diagnose`.

    Examples
    --------
    >>> import samplekit as sk
    >>> run = sk.sample(sk.targets.gaussian(2), draws=200, progress=False)
    >>> sk.report(run, "report.html").name
    'report.html'
    """
    from samplekit.diagnostics.diagnose import diagnose
    from samplekit.diagnostics.evidence import gather, open_run
    from samplekit.reporting.made import source_of
    from samplekit.reporting.page import page

    path = _writable(path)
    tree = open_run(run)
    evidence = gather(tree)
    text = page(evidence, diagnose(tree, target), target=target, source=source_of(run, tree))
    _write(path, text)
    return path


def _writable(path: Any) -> Path:
    """Refuse, before the work, a path that no page can be written to."""
    if not isinstance(path, str | os.PathLike):
        raise SettingsError(
            f"path={path!r} is not a path. Give the name of the page, such as 'report.html'."
        )
    path = Path(path)
    if os.path.isdir(path):  # Path.is_dir raises for a name that is too long
        raise SettingsError(
            f"path={str(path)!r} is a folder. Give the name of the page in it, such as "
            f"{str(path / 'report.html')!r}."
        )
    if not os.path.isdir(path.parent):
        raise StoreError(
            f"The page cannot be written: there is no folder {str(path.parent)!r}. Make it first, "
            "or give another path."
        )
    return path


def _write(path: Path, text: str) -> None:
    """Write beside the page and move into place, so that no reader sees half a page."""
    beside = path.with_name(f".report-{secrets.token_hex(6)}.tmp")
    try:
        try:
            with beside.open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(
            f"The page cannot be written to {str(path)!r} ({error}). Give a path that you may "
            "write to, on a disk with room."
        ) from error
