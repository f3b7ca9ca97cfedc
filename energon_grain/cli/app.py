# SPDX-License-Identifier: Apache-2.0
"""The list of commands, with the summary of each. A command's module is imported when the command is called."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from energon_grain._version import __version__
from energon_grain.cli.help import HelpfulCommand, help_text
from energon_grain.cli.terminal import answering

PROGRAM = "energon-grain"
_MAKE, _LOOK, _WRITE = "Make datasets", "Look at datasets and mixtures", "Write metadatasets"


@dataclass(frozen=True, slots=True)
class Listed:
    """A command that is not imported yet.

    Attributes:
        function: Its function below `energon_grain.cli`, as `module.function`.
        summary: The first paragraph of its help.
        panel: The heading that it is listed under.
    """

    function: str
    summary: str
    panel: str | None = None


COMMANDS = {
    PROGRAM: {
        "prepare": Listed("prepare.prepare", "Prepare a folder of tar files as a dataset: index, split, type.", _MAKE),
        "prepare-media": Listed(
            "prepare.prepare_media",
            "Collect sizes, durations and rates of images, videos and audio from their headers, without decoding.",
            _MAKE,
        ),
        "measure": Listed(
            "measure.measure",
            "Call a function on every sample and store the number it returns as a column, to filter, mix and pack by.",
            _MAKE,
        ),
        "convert": Listed(
            "convert.convert",
            "Convert data to a prepared dataset: loose media files, an ImageFolder, tables, tars, ArrayRecord files.",
            _MAKE,
        ),
        "info": Listed("info.info", "Show the contents of a dataset or metadataset, without reading samples.", _LOOK),
        "preview": Listed(
            "preview.preview", "Show samples: images, audio, videos, texts and values, as stored and as decoded.", _LOOK
        ),
        "lint": Listed(
            "lint.lint", "Check a dataset: open it, compare its indices with its tars, decode every sample.", _LOOK
        ),
        "which": Listed("checkpoint.which", "List shard, key and byte range of the samples of a global batch.", _LOOK),
        "when": Listed(
            "uses.when",
            "List every use of samples by a run until a saved state, and the next one: step, host, place, pass.",
            _LOOK,
        ),
        "seen": Listed(
            "uses.seen",
            "Count how often a run used each sample of each dataset until a saved state, without reading data.",
            _LOOK,
        ),
        "receipt": Listed(
            "receipts.receipt",
            "Write what a run read until a saved state: digests of its data and settings, in less than 1 KB.",
            _LOOK,
        ),
        "verify": Listed(
            "receipts.verify", "Check data and configuration against a receipt, and name the files that differ.", _LOOK
        ),
        "blame": Listed(
            "blame.blame",
            "Rank samples, shards and datasets by how much of the unusual losses of a run they explain.",
            _LOOK,
        ),
        "rewind": Listed(
            "rewind.rewind",
            "Write the state that a run had at an earlier step.",
            _LOOK,
        ),
        "bench": Listed(
            "bench.bench",
            "Measure loading on your own data: storage, the work per sample, and the pipeline with workers.",
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
            "Show the contents of a saved state: progress, samples drawn from each dataset, and what it restores on.",
        ),
        "amend": Listed(
            "amend.amend", "Change the mixture of a saved run: weights, datasets that were added or removed."
        ),
        "history": Listed(
            "amend.history",
            "List the changes of the mixture in a run: step, shares before and after, and the reason.",
        ),
    },
    "cache": {
        "check": Listed(
            "cache.cache_check", "Check the local cache of object stores, and remove the pages that are wrong."
        )
    },
}
"""By group and name."""
EXAMPLES = {
    PROGRAM: ("energon-grain prepare tars --split-ratio 8,1,1", "energon-grain preview captions --html page.html"),
    "checkpoint": (
        "energon-grain checkpoint info state.json",
        "energon-grain checkpoint info state.json --dataset captions",
    ),
    "cache": ("energon-grain cache check", "energon-grain cache check cache --json"),
}
"""Command lines in the help of each group."""


class Later(TyperCommand):
    """A command that is imported when it is called. Until then, only its name and summary are known."""

    def __init__(self, name: str, listed: Listed) -> None:
        super().__init__(name, help=listed.summary, rich_help_panel=listed.panel)
        self._function = listed.function

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Import the command, and return its context."""
        module, _, function = self._function.partition(".")
        answer = answering(getattr(import_module(f"energon_grain.cli.{module}"), function))
        loaded = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
        loaded.command(self.name, cls=HelpfulCommand)(answer)
        command: Any = typer.main.get_command(loaded)
        command.examples = vars(answer)["examples"]
        return command.make_context(info_name, args, parent, **extra)


class _Group(TyperGroup):
    """A group of commands that are imported when they are called."""

    def __init__(self, *, name: str | None = None, commands: Any = None, **rest: Any) -> None:
        self.examples = EXAMPLES[name or PROGRAM]
        listed = {each: Later(each, about) for each, about in COMMANDS[name or PROGRAM].items()}
        super().__init__(name=name, commands={**listed, **(commands or {})}, **rest)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help_text(self, ctx))


_HELP = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    name=PROGRAM,
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings=_HELP,
)
checkpoint = typer.Typer(cls=_Group, no_args_is_help=True)
cache = typer.Typer(cls=_Group, no_args_is_help=True)


@checkpoint.callback()
def _checkpoint() -> None:
    """Show and change saved states of loaders."""


@cache.callback()
def _cache() -> None:
    """Manage the local cache of object stores."""


app.add_typer(checkpoint, name="checkpoint", rich_help_panel=_LOOK)
app.add_typer(cache, name="cache", rich_help_panel=_LOOK)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Prepare, convert, inspect, check and measure datasets, and mixtures of them."""
