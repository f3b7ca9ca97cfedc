# SPDX-License-Identifier: Apache-2.0
"""`energon-grain blame`: the samples, shards and datasets that explain the unusual losses of a run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from energon_grain.cli.checkpoint import read_saved
from energon_grain.cli.run import Run, of_a_run
from energon_grain.cli.terminal import Answer, DataPath
from energon_grain.errors import ConfigError
from energon_grain.gallery.suspects import suspects_preview
from energon_grain.history.losses import read_losses
from energon_grain.history.suspects import Blame
from energon_grain.stream.extensions import BLAME
from energon_grain.stream.stream import Stream


@of_a_run
def blame(
    state: Annotated[
        Path, typer.Argument(help="Saved state of all hosts, of the spike or later, in any form of `checkpoint info`.")
    ],
    path: DataPath,
    run: Run,
    losses: Annotated[
        Path,
        typer.Option(
            help="Losses by step: CSV, JSON lines, `trainer_state.json`, TensorBoard event files or their folder, or "
            "an export of W&B."
        ),
    ],
    column: Annotated[
        str | None, typer.Option(help="Column or tag of the losses. Default: loss, train/loss or a similar name.")
    ] = None,
    step_column: Annotated[
        str | None, typer.Option(help="Column of the steps. Default: step, _step or similar.")
    ] = None,
    step: Annotated[
        list[str] | None, typer.Option(help="Explain only this step, or FIRST:LAST. Repeatable. Default: all steps.")
    ] = None,
    lag: Annotated[
        int, typer.Option(help="Number of the first batch in the losses: 1 if a trainer counts from 1.")
    ] = 0,
    mean_of: Annotated[int, typer.Option(min=1, help="Number of steps that each loss is the mean of.")] = 1,
    most: Annotated[int, typer.Option(min=1, help="Number of samples, and of shards, to list.")] = 10,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples in the batch of one host. Default: a size that fits the state.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="Write the samples to this file: .json, .csv, or a dataset and a key per line."
        ),
    ] = None,
    all_samples: Annotated[
        bool,
        typer.Option("--all", help="With -o: write all listed samples, not only those that chance hardly explains."),
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a page that shows the samples, each beside its neighbour in the shard.")
    ] = None,
) -> Answer:
    """Rank samples, shards and datasets by how much of the unusual losses of a run they explain.

    Give the settings of the run. Each loss is compared with the run's own trend. "By chance" is how many samples (or
    shards) are expected to score as high if they had nothing to do with the loss; those below 0.05 have a *. The loss
    of one step alone cannot tell the samples of the step apart: later passes, or losses of single samples (a list in
    place of a loss), can. Losses of single datasets are used if columns are called like the loss and the dataset, as
    train/loss/web.

    Examples:
        energon-grain blame state.json captions --losses losses.csv -o bad.json
        energon-grain blame state.json captions --losses losses.csv --html bad.html
    """
    cursor = read_saved(state)
    _check_page(html)
    known = read_losses(losses, column=column, step_column=step_column)
    size = batch_size or cursor["history"][-1][4] // run.world_size or 1
    alone = dataclasses.replace(run, lanes=run.lanes or cursor["lanes"])
    with Stream.of(alone.dataset(path, batch_size=size)) as stream:
        stream.restore(cursor)
        found: Blame = stream.ask(BLAME, known, steps=_steps(step), lag=lag, mean_of=mean_of, most=most)
        lines = found.lines()
        if html is not None and found.samples:
            _save_page(stream, found, path, html)
            lines.append(f"Wrote {html}.")
    if output is not None:
        written = found.samples if all_samples else found.sure
        found.save_suspects(output, only_sure=not all_samples)
        lines.append(f"Wrote {len(written)} of {len(found.samples)} samples to {output}.")
    return Answer(document=found, lines=lines)


def _check_page(html: Path | None) -> None:
    if html is not None and not html.absolute().parent.is_dir():
        raise ConfigError(f"--html {html}: cannot be written: there is no folder {html.absolute().parent}")


def _save_page(stream: Stream, found: Blame, path: str, html: Path) -> None:
    try:
        title = path.rstrip("/").rpartition("/")[2] or path
        suspects_preview(stream.spec, found, title=title).save(html)
    except OSError as error:
        raise ConfigError(f"--html {html}: cannot be written: {error.strerror}") from error


def _steps(written: list[str] | None) -> list[int] | None:
    """The steps of `5` and `5:9`, both ends included; None: all."""
    found: list[int] = []
    for each in written or ():
        first, _, last = each.partition(":")
        try:
            begin, end = int(first), int(last or first)
            if not 0 <= begin <= end:
                raise ValueError
        except ValueError:
            raise ConfigError(f"--step {each}: expected a step, or FIRST:LAST") from None
        found += range(begin, end + 1)
    return found or None
