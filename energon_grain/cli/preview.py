# SPDX-License-Identifier: Apache-2.0
"""`energon-grain preview`: samples in the terminal, or as a page."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from energon_grain.cli.checkpoint import read_saved
from energon_grain.cli.run import Run, of_a_run
from energon_grain.cli.terminal import Answer, DataPath
from energon_grain.errors import ConfigError
from energon_grain.gallery.cards import gather
from energon_grain.gallery.preview import MEDIA_BYTES, Preview

if TYPE_CHECKING:
    from energon_grain.gallery.cards import Card, Contents

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
            help=f"Samples to show, divided evenly among the datasets, at least one each. Default: {_IN_TERMINAL}, and "
            f"{_IN_PAGE} in a page.",
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="Show the samples of this global batch, as the model saw them.")
    ] = None,
    beside: Annotated[
        int | None, typer.Option(min=0, help="With --step: show this global batch beside it, to compare both.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="With --step: samples in the batch of one host.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="With --step: saved state of all hosts to begin at, as for `which`.")
    ] = None,
    encoded: Annotated[
        bool,
        typer.Option("--encoded", help="With --step: compute the batch, and show the output of hooks for each sample."),
    ] = False,
    media_bytes: Annotated[
        int,
        typer.Option(
            min=0, help="Largest file in a page; a larger file is shown as a reduced picture, an outline or frames."
        ),
    ] = MEDIA_BYTES,
) -> Answer:
    """Show samples: images, audio, videos, texts and values, as stored and as decoded.

    Shows samples evenly spread over the datasets, or with --step the samples of a global batch. A step needs the
    settings of the run, as for `which`. Samples are counted by dataset and, if there is a class part (cls, or the part
    of a field label), by class. A part that does not decode is shown with the reason.

    Examples:
        energon-grain preview captions --html page.html
        energon-grain preview captions --step 12 --beside 11 --batch-size 4
    """
    _check(html=html, step=step, batch_size=batch_size, of_a_step=(beside, state, encoded or None))
    gathered = partial(
        gather,
        run.dataset(path, batch_size=batch_size),
        title=_title(path),
        samples=samples or (_IN_TERMINAL if html is None else _IN_PAGE),
        state=None if state is None else read_saved(state),
        most_bytes=0 if html is None else media_bytes,
        columns=html is not None,
        encoded=encoded,
    )
    contents, other = gathered(step=step), None if beside is None else gathered(step=beside)
    shown = Preview(contents, other)
    document = {"path": path, **_summary_of(contents)}
    if other is not None:
        document["beside"] = _summary_of(other)
    if html is None:
        colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        text = shown.text(width=shutil.get_terminal_size().columns, colours=colours)
        return Answer(document={**document, "html": None}, lines=[text])
    _save(shown, html)
    lines = [f"Wrote {html}: {shown.subtitle}."]
    return Answer(document={**document, "html": str(html)}, lines=lines, is_report=True)


def _title(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2] or path


def _save(shown: Preview, html: Path) -> None:
    try:
        shown.save(html)
    except OSError as error:
        raise ConfigError(f"--html {html}: cannot be written: {error.strerror}") from error


def _check(*, html: Path | None, step: int | None, batch_size: int | None, of_a_step: Iterable[object]) -> None:
    if step is None and any(option is not None for option in (batch_size, *of_a_step)):
        raise ConfigError("--batch-size, --beside, --state and --encoded are for a step: add --step")
    if step is not None and batch_size is None:
        raise ConfigError("--step needs the batch size: add --batch-size")
    if html is not None and not html.absolute().parent.is_dir():
        raise ConfigError(f"--html {html}: cannot be written: there is no folder {html.absolute().parent}")


def _summary_of(contents: Contents) -> dict[str, Any]:
    return {
        "samples": [_summary(card, contents) for card in contents.cards],
        "datasets": [asdict(dataset) for dataset in contents.datasets],
        "classes": None if contents.classes is None else asdict(contents.classes),
    }


def _summary(card: Card, contents: Contents) -> dict[str, Any]:
    return {
        "dataset": contents.datasets[card.dataset].label,
        "shard": card.shard,
        "key": card.key,
        "place": card.place,
        "fields": [field.summary() for field in card.fields],
    }
