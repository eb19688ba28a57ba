"""The program: its own options, and the groups of commands that it is made of."""

import io
import sys
from typing import Annotated

import typer

from samplekit.cli import demo, fit, inspect, launch, sample, version
from samplekit.cli.errors import show_tracebacks
from samplekit.cli.options import FLAG
from samplekit.cli.version import print_version

app = typer.Typer(
    name="samplekit",
    help="Sample energies, log densities, scores and NumPyro models, and know whether to trust it.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# A new group of commands is one file with a Typer called `commands`, and its name here.
for group in (sample, launch, inspect, fit, demo, version):
    app.add_typer(group.commands)


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    *,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", **FLAG)
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show the whole way to an error.", **FLAG)
    ] = False,
) -> None:
    if show_version:
        print_version()
        raise typer.Exit
    show_tracebacks(wanted=traceback)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without × must not end a run
    app(prog_name="samplekit")
