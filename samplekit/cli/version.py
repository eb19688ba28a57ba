"""`samplekit version`."""

import typer

commands = typer.Typer()


@commands.command("version")
def print_version() -> None:
    """Print the version."""
    from importlib.metadata import version

    typer.echo(f"samplekit {version('samplekit')}")
