# SPDX-License-Identifier: Apache-2.0
"""The commands: what `--help` says of each, and which module holds it. That is loaded when the command is called."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from energon_grain._version import __version__
from energon_grain.cli.terminal import answering

_MAKE, _LOOK, _WRITE = "Make datasets", "Look at datasets and mixtures", "Write metadatasets"


@dataclass(frozen=True, slots=True)
class Listed:
    """A command, before it is loaded.

    Attributes:
        function: Where it is, below `energon_grain.cli`, as `module.function`.
        summary: The first paragraph of its help.
        panel: Of the list of commands.
    """

    function: str
    summary: str
    panel: str | None = None


COMMANDS = {
    "energon-grain": {
        "prepare": Listed(
            "prepare.prepare",
            "Index and split the tar files below PATH, so that they are a dataset. "
            "Of a metadataset file, index its joins.",
            _MAKE,
        ),
        "prepare-media": Listed(
            "prepare.prepare_media",
            "Gather sizes, durations and rates of images, videos and sounds from their headers; nothing is decoded.",
            _MAKE,
        ),
        "measure": Listed(
            "prepare.measure",
            "Call a function on every sample, and keep the number that it returns as a column: "
            "to filter, mix and pack by.",
            _MAKE,
        ),
        "convert": Listed(
            "prepare.convert",
            "Convert a dataset, tars to ArrayRecord files or back, shard by shard, and prepare the result.",
            _MAKE,
        ),
        "info": Listed("info.info", "Show what a dataset or a metadataset holds, without reading samples.", _LOOK),
        "preview": Listed(
            "preview.preview", "Show samples: pictures, sounds, videos, texts and values, as they lie on disk.", _LOOK
        ),
        "lint": Listed(
            "lint.lint",
            "Open a dataset as a loader does, compare its indices with its tars, and decode every sample.",
            _LOOK,
        ),
        "which": Listed("checkpoint.which", "List shard, key and byte range of the samples of a global batch.", _LOOK),
        "bench": Listed(
            "bench.bench",
            "Measure loading on your own data: storage, the work on samples, and the pipeline with workers.",
            _LOOK,
        ),
        "schema": Listed(
            "schema.schema",
            "Print the JSON Schema of metadataset files, for editors that complete and check YAML.",
            _WRITE,
        ),
    },
    "checkpoint": {
        "info": Listed(
            "checkpoint.checkpoint_info",
            "Say what a saved state says: where the run stands, what it had of each dataset, "
            "and what it needs to go on.",
        )
    },
    "cache": {
        "check": Listed(
            "cache.cache_check",
            "Check the pages of object stores that are kept on this machine, and remove those that are wrong.",
        )
    },
}
"""By group and name."""


class Later(TyperCommand):
    """A command of which only what the list shows is known until it is called."""

    def __init__(self, name: str, listed: Listed) -> None:
        super().__init__(name, help=listed.summary, rich_help_panel=listed.panel)
        self._function = listed.function

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """That of the command itself, which is the one that runs then."""
        module, _, function = self._function.partition(".")
        loaded = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
        loaded.command(self.name)(answering(getattr(import_module(f"energon_grain.cli.{module}"), function)))
        return typer.main.get_command(loaded).make_context(info_name, args, parent, **extra)


class _Group(TyperGroup):
    """A group with the commands that are listed for it, before those that it was given."""

    def __init__(self, *, name: str | None = None, commands: Any = None, **rest: Any) -> None:
        listed = {each: Later(each, about) for each, about in COMMANDS[name or "energon-grain"].items()}
        super().__init__(name=name, commands={**listed, **(commands or {})}, **rest)


app = typer.Typer(
    name="energon-grain",
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
checkpoint = typer.Typer(cls=_Group, no_args_is_help=True)
cache = typer.Typer(cls=_Group, no_args_is_help=True)


@checkpoint.callback()
def _checkpoint() -> None:
    """Look at saved states of loaders."""


@cache.callback()
def _cache() -> None:
    """Look after what is kept of object stores."""


app.add_typer(checkpoint, name="checkpoint", rich_help_panel=_LOOK)
app.add_typer(cache, name="cache", rich_help_panel=_LOOK)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"energon-grain {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Prepare, convert, inspect, check and measure datasets, and mixtures of them."""
