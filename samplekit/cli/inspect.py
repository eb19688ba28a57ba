"""`samplekit diagnose`, `samplekit report`, `samplekit info`: look at a stored run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from samplekit.cli import options as opt
from samplekit.cli.errors import NOT_TRUSTED, explained
from samplekit.core.errors import SettingsError

commands = typer.Typer()


@commands.command("diagnose")
def _diagnose(
    *,
    run: opt.Run,
    target: opt.Target = None,
    data: opt.Data = None,
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
) -> None:
    """Judge a run: exit code 0 when trusted, 1 when not, 2 on bad input.

    Example: samplekit diagnose run.zarr --target model.py:target

    Each finding says what was seen, why it matters and what to do. Runs of
    NumPyro, PyMC, CmdStan and emcee that ArviZ has saved are welcome.
    With --quiet the exit code is all.
    """
    with explained():
        from samplekit.cli.output import console, print_diagnosis, print_json, stdout_kept
        from samplekit.diagnostics.diagnose import diagnose

        with stdout_kept():
            diagnosis = diagnose(run, _target(target, data))
        if as_json:
            print_json({"run": str(run), **diagnosis.to_dict()})
        elif not quiet:
            print_diagnosis(console(), diagnosis)
        if not diagnosis.ok:
            raise typer.Exit(NOT_TRUSTED)


@commands.command("report")
def _report(
    *,
    run: opt.Run,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.html", help="The page to write.")
    ] = Path("report.html"),
    target: opt.Target = None,
    data: opt.Data = None,
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
) -> None:
    """Write a run's report: one page with verdict, remedies, table and plots.

    Example: samplekit report run.zarr -o report.html
    """
    with explained():
        from samplekit.cli.output import human_bytes, print_json, stdout_kept
        from samplekit.reporting.api import report

        with stdout_kept():
            page = report(run, output, target=_target(target, data))
        if as_json:
            print_json({"run": str(run), "report": str(page), "bytes": page.stat().st_size})
        elif quiet:
            typer.echo(page)
        else:
            typer.echo(f"Report written to {page} ({human_bytes(page.stat().st_size)})")


@commands.command("info")
def _info(*, run: opt.Run, as_json: opt.Json = False) -> None:
    """Say what a run is: kernel, tuned values, sizes, times, and how to go on."""
    with explained():
        from samplekit.cli.info import describe, print_info
        from samplekit.cli.output import console, print_json

        facts = describe(run)
        if as_json:
            print_json(facts)
        else:
            print_info(console(), facts)


def _target(reference: str | None, data: Path | None) -> Any:
    """Load what was sampled, if the user named it."""
    if reference is None:
        if data is not None:
            raise SettingsError("--data are a model's arguments: name the model with --target.")
        return None
    from samplekit.cli.load import load_target

    return load_target(reference, data)
