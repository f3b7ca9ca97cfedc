"""The commands, one module each. Whatever takes long to import is imported by the command that needs it."""

from __future__ import annotations

from typing import Annotated

import typer

from energon_grain.cli.bench import bench
from energon_grain.cli.convert import convert
from energon_grain.cli.info import info
from energon_grain.cli.lint import lint
from energon_grain.cli.prepare import prepare
from energon_grain.cli.schema import schema
from energon_grain.cli.which import which

app = typer.Typer(
    name="energon-grain",
    help="Prepare, convert, inspect, check and measure datasets, and mixtures of them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(prepare)
app.command()(convert)
app.command()(info)
app.command()(lint)
app.command()(which)
app.command()(bench)
app.command()(schema)


def _show_version(asked: bool) -> None:
    if asked:
        from energon_grain._version import __version__

        typer.echo(f"energon-grain {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Prepare, convert, inspect, check and measure datasets, and mixtures of them."""
