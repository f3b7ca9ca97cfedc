"""The commands, one module each. Whatever takes long to import is imported by the command that needs it."""

from __future__ import annotations

from typing import Annotated

import typer

from energon_grain.cli.bench import bench
from energon_grain.cli.cache import cache_check
from energon_grain.cli.checkpoint import checkpoint_info, which
from energon_grain.cli.info import info
from energon_grain.cli.lint import lint
from energon_grain.cli.prepare import convert, measure, prepare, prepare_media
from energon_grain.cli.preview import preview
from energon_grain.cli.terminal import Answer, answering


def schema() -> Answer:
    """Print the JSON Schema of metadataset files, for editors that complete and check YAML.

    Save it, and put `# yaml-language-server: $schema=FILE` at the top of a metadataset.
    """
    import json

    from energon_grain.metadataset.documents import json_schema

    found = json_schema()
    return Answer(document=found, lines=[json.dumps(found, indent=2)])


_MAKE, _LOOK = "Make datasets", "Look at datasets and mixtures"
app = typer.Typer(
    name="energon-grain",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command, panel in {
    **dict.fromkeys((prepare, prepare_media, measure, convert), _MAKE),
    **dict.fromkeys((info, preview, lint, which, bench), _LOOK),
}.items():
    app.command(rich_help_panel=panel)(answering(command))
app.command(rich_help_panel="Write metadatasets")(answering(schema))
checkpoint = typer.Typer(no_args_is_help=True, help="Look at saved states of loaders.")
checkpoint.command("info")(answering(checkpoint_info))


@checkpoint.callback()
def _checkpoint() -> None:
    """Look at saved states of loaders."""


app.add_typer(checkpoint, name="checkpoint", rich_help_panel=_LOOK)
cache = typer.Typer(no_args_is_help=True, help="Look after what is kept of object stores.")
cache.command("check")(answering(cache_check))


@cache.callback()
def _cache() -> None:
    """Look after what is kept of object stores."""


app.add_typer(cache, name="cache", rich_help_panel=_LOOK)


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
