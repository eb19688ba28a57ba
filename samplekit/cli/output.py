"""What is printed: results on stdout, everything else on stderr."""

import contextlib
import json
import math
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.table import Table

    from samplekit.diagnostics.findings import Diagnosis, Finding

# A longer table is cut to its worst rows; the report and --json have them all.
MOST_ROWS = 12
_COLORS = {"problem": "red", "warning": "yellow", "note": "cyan"}
_COLUMNS = {
    "mean": "mean",
    "sd": "sd",
    "q5": "5 %",
    "q95": "95 %",
    "mcse_mean": "MCSE",
    "ess_bulk": "ESS\nbulk",
    "ess_tail": "ESS\ntail",
    "r_hat": "R-hat",
}


def console(*, stderr: bool = False) -> "Console":
    """Return where to print; names such as theta[b] are never taken for markup."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)


@contextlib.contextmanager
def stdout_kept(*, native: bool = False) -> Iterator[None]:
    """Keep stdout for the result: what a model prints meanwhile goes to stderr.

    `native` is for what libraries print by themselves, past Python: the network of JAX's processes.
    """
    with contextlib.redirect_stdout(sys.stderr):
        if not native:
            yield
            return
        kept = os.dup(1)
        os.dup2(2, 1)
        try:
            yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)


def note(text: str) -> None:
    """Say something that is not the result."""
    typer.echo(f"samplekit: {text}", err=True)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object; what JSON has no word for (NaN, infinity) is null."""
    typer.echo(json.dumps(_plain(value), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def command(*words: Any) -> str:
    """Return a command as it can be pasted into a shell."""
    return shlex.join(["samplekit", *map(str, words)])


def human_bytes(count: float) -> str:
    """Return a size that a person reads.

    Examples
    --------
    >>> human_bytes(812), human_bytes(3_400_000)
    ('812 B', '3.4 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def size_on_disk(path: Path) -> int:
    """Return the bytes that a file, or a folder with all that is in it, really takes."""
    files = path.rglob("*") if path.is_dir() else [path]
    # Chunk files of a growing run are sparse: their length says nothing.
    return sum(f.stat().st_blocks * 512 for f in files if f.is_file())


# A diagnosis ----------------------------------------------------------------------------------


def print_diagnosis(screen: "Console", diagnosis: "Diagnosis") -> None:
    """Print the verdict, what was found and what to do, and the table."""
    from rich.text import Text

    print_verdict(screen, diagnosis)
    screen.print(diagnosis.subject)
    for finding in diagnosis.findings:
        color = _COLORS[finding.severity]
        screen.print()
        screen.print(Text.assemble((finding.severity, f"bold {color}"), "  ", finding.code))
        for text in _sentences(finding):
            screen.print(text, soft_wrap=False)
    screen.print()
    print_table(screen, diagnosis)


def _sentences(finding: "Finding") -> Iterable[Any]:
    from rich.padding import Padding
    from rich.text import Text

    remedy = Text.assemble(("→ ", "bold"), finding.remedy)
    for text in (Text(finding.seen), Text(finding.why, style="dim"), remedy):
        yield Padding(text, (0, 0, 0, 2), expand=False)


def print_verdict(screen: "Console", diagnosis: "Diagnosis") -> None:
    """Print the verdict in one line, with the codes of what was found."""
    from rich.text import Text

    codes = ", ".join(dict.fromkeys(f.code for f in diagnosis.findings))
    line = Text(diagnosis.verdict.removesuffix("."), "bold green" if diagnosis.ok else "bold red")
    screen.print(line.append(f" ({codes})." if codes else "."))


def print_table(screen: "Console", diagnosis: "Diagnosis") -> None:
    """Print the scalars; of very many, those with the fewest effective draws."""
    table = diagnosis.table
    shown = table if len(table) <= MOST_ROWS else diagnosis.worst(MOST_ROWS)
    screen.print(_rich_table(shown), soft_wrap=False, crop=False)
    if len(shown) < len(table):
        screen.print(
            f"The {len(shown)} of {len(table):,} scalars with the fewest effective draws; all are "
            "in the report and with --json."
        )


def _rich_table(rows: "pd.DataFrame") -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("", overflow="fold")
    for title in _COLUMNS.values():
        table.add_column(title, justify="right", no_wrap=True)
    for label, row in rows.to_dict("index").items():
        table.add_row(Text(str(label)), *(_cell(name, float(row[name])) for name in _COLUMNS))
    return table


def _cell(name: str, value: float) -> Any:
    from rich.text import Text

    if name == "r_hat":
        # Comparisons with NaN are false: undefined is red.
        color = "green" if value < 1.01 else "yellow" if value < 1.05 else "red"
        return Text(f"{value:.3f}" if value < 100 else f"{value:.2g}", style=color)
    if name.startswith("ess"):
        return Text(f"{value:,.0f}", style="" if value >= 400 else "yellow")
    return Text(f"{value:.3g}")
