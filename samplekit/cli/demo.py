"""`samplekit demo`: a tour that needs nothing."""

from pathlib import Path
from typing import Annotated

import typer

from samplekit.cli import options as opt
from samplekit.cli.errors import INTERRUPTED, explained

commands = typer.Typer()


@commands.command("demo")
def _demo(
    *,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Folder for the report, the figures and the runs."),
    ] = Path("samplekit-demo"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Take few draws: a look, not a result.", **opt.FLAG)
    ] = False,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="The same seed gives the same draws.")
    ] = 0,
) -> None:
    """Sample four targets, print a table, write a report, figures and runs."""
    with explained():
        from samplekit.demo import run_demo

        if not run_demo(output, quick=quick, seed=seed):
            raise typer.Exit(INTERRUPTED)
