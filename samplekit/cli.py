# SPDX-License-Identifier: Apache-2.0
"""The command line: `samplekit demo`, `samplekit version`.

Commands import what they need when they are called, so that `samplekit --help` answers at once.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="samplekit",
    help="Sample energies, log densities, scores and NumPyro models.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# What a shell reports for a program that Ctrl-C ended.
INTERRUPTED = 130


def _print_version(*, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"samplekit {version('samplekit')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    _print_version(wanted=version)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("demo")
def _demo(
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the figures and the stored runs.")
    ] = Path("samplekit-demo"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Take few draws: a look, not a result.")
    ] = False,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="The same seed gives the same draws.")
    ] = 0,
) -> None:
    """Sample four targets, print a table, write figures and stored runs."""
    with _explained():
        from samplekit.demo import run_demo

        if not run_demo(output, quick=quick, seed=seed):
            raise typer.Exit(INTERRUPTED)


@app.command("version")
def _version() -> None:
    """Print the version."""
    _print_version(wanted=True)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Say in one line what the user can mend; a traceback is left for what is our fault."""
    from samplekit.core.errors import SamplekitError

    try:
        yield
    except BrokenPipeError:
        raise  # the reader has gone (`| head`): typer ends quietly
    except (SamplekitError, OSError) as error:
        typer.echo(f"samplekit: {error}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        typer.echo("samplekit: interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from error


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    sys.exit(main())
