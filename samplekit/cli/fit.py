"""`samplekit fit`: a named family fitted to the columns of a CSV file."""

import difflib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samplekit.cli import options as opt
from samplekit.cli.errors import explained
from samplekit.core.errors import SettingsError

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

commands = typer.Typer()


def _complete_family(incomplete: str) -> list[str]:
    return [name for name in _families() if name.startswith(incomplete)]


@commands.command("fit")
def _fit(
    *,
    data: Annotated[Path, typer.Argument(metavar="DATA.csv", help="A CSV file with a header.")],
    family: Annotated[
        str,
        typer.Option(
            "--family",
            "-f",
            metavar="NAME",
            help="One of sk.families, such as gamma, lognormal, gaussian, dirichlet.",
            autocompletion=_complete_family,
        ),
    ],
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="A,B",
            help="Columns of the file.",
            show_default="all that are numbers",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="An argument of the family, such as lower=0 or penalty=ebic; may be repeated.",
        ),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Fit a family to data in closed form, with standard errors.

    Example: samplekit fit data.csv --family gamma --columns height,weight

    A family of one variable is fitted to each column, any other to the rows.
    The fit minimises the Hyvärinen score: no normalising constant is needed.
    """
    with explained():
        from samplekit.cli.output import console, print_json

        estimator = _make(family, settings or [])
        frame = _read(data, columns)
        tables = _fit_all(estimator, frame)
        facts = {"data": str(data), "family": family, "rows": len(frame)}
        if as_json:
            fits = [
                {"columns": names, "parameters": table.reset_index().to_dict("records")}
                for names, table in tables
            ]
            print_json(facts | {"fits": fits})
        else:
            screen = console()
            screen.print(f"{family}, fitted to {len(frame):,} rows of {data}")
            for names, table in tables:
                _print(screen, names, table)


def _families() -> list[str]:
    from samplekit.estimators import families

    return [name for name in families.__all__ if name[0].islower()]


def _make(name: str, options: list[str]) -> Any:
    """Return the estimator of a family's name and arguments."""
    from samplekit.cli.kernels import read_setting
    from samplekit.estimators import families

    plain = name.lower().replace("-", "_")
    known = _families()
    if plain not in known:
        close = difflib.get_close_matches(plain, known, n=1)
        raise SettingsError(
            f"There is no family {name!r}.{f' Did you mean {close[0]}?' if close else ''} "
            f"There are: {', '.join(known)}."
        )
    make = getattr(families, plain)
    try:
        return make(**dict(map(read_setting, options)))
    except TypeError as error:  # an argument too many, or one too few
        own = [p for p in inspect.signature(make).parameters if p != "options"]
        takes = ", ".join(own) if own else "none of its own"
        raise SettingsError(
            f"The family {plain} cannot be made: {error}. It takes, as --set KEY=VALUE: {takes}; "
            "and ridge, standardize."
        ) from error


def _read(path: Path, columns: str | None) -> "pd.DataFrame":
    """Return the chosen columns as numbers."""
    import pandas as pd

    try:
        frame = pd.read_csv(path, skipinitialspace=True)
    except (ValueError, UnicodeDecodeError) as error:  # pandas' parser errors are ValueErrors
        raise SettingsError(f"{str(path)!r} cannot be read as CSV: {error}.") from error
    if columns is None:
        chosen = frame.select_dtypes("number")
        if not len(chosen.columns):
            raise SettingsError(f"{str(path)!r} has no column of numbers below a header.")
        return chosen
    names = [name.strip() for name in columns.split(",")]
    unknown = [name for name in names if name not in frame.columns]
    if unknown:
        raise SettingsError(
            f"{str(path)!r} has no column {unknown[0]!r}. It has: "
            f"{', '.join(map(str, frame.columns))}."
        )
    chosen: Any = frame[names]
    words = [name for name in names if not pd.api.types.is_numeric_dtype(chosen[name])]
    if words:
        numbers: Any = pd.to_numeric(chosen[words[0]], errors="coerce")
        at = int(numbers.isna().to_numpy().argmax())
        raise SettingsError(
            f"Column {words[0]!r} is not all numbers: {chosen[words[0]].iloc[at]!r} in row {at}. "
            "Choose other columns, or mend the file."
        )
    return chosen


def _fit_all(estimator: Any, frame: "pd.DataFrame") -> list[tuple[list[str], "pd.DataFrame"]]:
    """Return the summaries: of each column for a family of one variable, else of the rows."""
    names = list(map(str, frame.columns))
    groups = [[name] for name in names] if estimator.family.dim == 1 else [names]
    tables = []
    for group in groups:
        try:
            fitted = estimator.fit(frame[group].to_numpy(float))
            tables.append((group, _summary(fitted, names)))
        except ValueError as error:  # ours, and scikit-learn's of parameters and shapes
            where = f"column {group[0]!r}: " if len(group) == 1 else ""
            raise SettingsError(
                f"{where}{str(error).rstrip('.')}. (Rows are counted from 0, below the header.)"
            ) from error
    return tables


def _summary(fitted: Any, names: list[str]) -> "pd.DataFrame":
    """Return the parameters; of a sparse graph, which has no standard errors, its edges."""
    if "path_" not in vars(fitted):
        return fitted.summary()
    edges = fitted.edges_
    for column in ("first", "second"):
        edges[column] = [names[i] for i in edges[column]]
    return edges.set_index(["first", "second"])


def _print(screen: "Console", names: list[str], table: "pd.DataFrame") -> None:
    """Print one table, its columns named in words."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    words = {"standard_error": "standard error", "lower": "2.5 %", "upper": "97.5 %"}
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for label in table.index.names:
        shown.add_column(str(label), overflow="fold")
    for label in table.columns:
        title = str(label)
        shown.add_column(words.get(title, title.replace("_", " ")), justify="right", no_wrap=True)
    for labels, row in zip(table.index, table.to_numpy(), strict=True):
        shown.add_row(*(Text(str(part)) for part in labels), *(f"{value:.5g}" for value in row))
    screen.print()
    if len(names) == 1:
        screen.print(Text(names[0], style="bold"))
    screen.print(shown, soft_wrap=False, crop=False)
