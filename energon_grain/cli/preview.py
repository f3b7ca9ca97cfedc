# SPDX-License-Identifier: Apache-2.0
"""`energon-grain preview`: samples in the terminal, or as a page."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from energon_grain.cli.checkpoint import read_saved
from energon_grain.cli.run import Run, of_a_run
from energon_grain.cli.terminal import Answer, DataPath
from energon_grain.errors import ConfigError
from energon_grain.gallery.cards import gather
from energon_grain.gallery.preview import Preview

if TYPE_CHECKING:
    from energon_grain.gallery.cards import Card, Contents
    from energon_grain.gallery.preview import Preview

_IN_TERMINAL, _IN_PAGE = 6, 48


@of_a_run
def preview(
    path: DataPath,
    run: Run,
    html: Annotated[
        Path | None, typer.Option(help="Write one self-contained page to this file, to open in a browser.")
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Samples to show, dealt evenly to the datasets, at least one each. Default: {_IN_TERMINAL}, and "
            f"{_IN_PAGE} in a page.",
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="Show the samples of this global batch: what the model saw then.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="With --step: samples in the batch of one host.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="With --step: a saved state of the run, of all hosts: a place to begin at.")
    ] = None,
    encoded: Annotated[
        bool,
        typer.Option(
            "--encoded",
            help="With --step: make the step, and show beside each sample what hooks made of it for the batch.",
        ),
    ] = False,
    media_bytes: Annotated[
        int, typer.Option(min=0, help="Larger files are not in the page: small pictures, outlines and frames are.")
    ] = 4_000_000,
) -> Answer:
    """Show samples: pictures, sounds, videos, texts and values, as they lie on disk.

    Evenly spread ones, or with --step those of a global batch. For a step give the settings of the run, as for `which`.
    A part that does not decode is shown as such.
    """
    _check(html=html, step=step, batch_size=batch_size, of_a_step=state is not None or encoded)

    contents = gather(
        run.dataset(path, batch_size=batch_size),
        title=_title(path),
        samples=samples or (_IN_TERMINAL if html is None else _IN_PAGE),
        step=step,
        state=None if state is None else read_saved(state),
        most_bytes=0 if html is None else media_bytes,
        columns=html is not None,
        encoded=encoded,
    )
    shown = Preview(contents)
    document = {
        "path": path,
        "samples": _summaries(contents),
        "datasets": [asdict(dataset) for dataset in contents.datasets],
        "html": None if html is None else str(html),
    }
    if html is None:
        colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        return Answer(document=document, lines=[shown.text(width=shutil.get_terminal_size().columns, colours=colours)])
    _save(shown, html)
    return Answer(document=document, lines=[f"Wrote {html}: {contents.subtitle}."])


def _title(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2] or path


def _save(shown: Preview, html: Path) -> None:
    try:
        shown.save(html)
    except OSError as error:
        raise ConfigError(f"--html {html}: cannot be written: {error.strerror}") from error


def _check(*, html: Path | None, step: int | None, batch_size: int | None, of_a_step: bool) -> None:
    if step is None and (batch_size is not None or of_a_step):
        raise ConfigError("--batch-size, --state and --encoded are of a step: add --step")
    if step is not None and batch_size is None:
        raise ConfigError("--step: steps are of a batch size: add --batch-size")
    if html is not None and not html.absolute().parent.is_dir():
        raise ConfigError(f"--html {html}: cannot be written: there is no folder {html.absolute().parent}")


def _summaries(contents: Contents) -> list[dict[str, Any]]:
    return [_summary(card, contents) for card in contents.cards]


def _summary(card: Card, contents: Contents) -> dict[str, Any]:
    return {
        "dataset": contents.datasets[card.dataset].label,
        "shard": card.shard,
        "key": card.key,
        "place": card.place,
        "fields": [field.summary() for field in card.fields],
    }
