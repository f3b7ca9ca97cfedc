# SPDX-License-Identifier: Apache-2.0
"""`energon-grain rewind`: the state of a run at an earlier step, perhaps without some samples from there on."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from energon_grain.atomic_files import atomic_write_bytes
from energon_grain.cli.checkpoint import amendments_of, saved_states
from energon_grain.cli.run import Run, of_a_run
from energon_grain.cli.terminal import Answer
from energon_grain.errors import ConfigError, StateError
from energon_grain.history.rewind import remade, rewound, rewound_alone
from energon_grain.stream.stream import Stream

if TYPE_CHECKING:
    from energon_grain.stream.cursor import Cursor


@of_a_run
def rewind(
    state: Annotated[
        Path,
        typer.Argument(
            help="Saved state of all hosts, in any form of `checkpoint info`, or a folder with the run's checkpoints."
        ),
    ],
    run: Run,
    to: Annotated[int, typer.Option(min=0, help="The step: the new state is the one before it is delivered.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="JSON file for the new state.")],
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="[DATASET]",
            help="The dataset or metadataset. Not needed for an endless run without drops and packs.",
        ),
    ] = None,
    exclude: Annotated[
        Path | None, typer.Option(help="Leave out the samples of this file from the step on, as `blame -o` writes it.")
    ] = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="Make steps again, however many samples have to be read for that.")
    ] = False,
) -> Answer:
    """Write the state that a run had at an earlier step, and leave out samples from there on.

    Usually this is arithmetic. If samples were dropped, filtered, grouped or packed, the steps from the nearest earlier
    state on (in a folder with several checkpoints), or from the beginning on, are made again. Amendments after the step
    are forgotten. With --exclude, the new run differs from the old one in these samples only: the samples behind them
    move up.

    Examples:
        energon-grain rewind state.json --to 100 -o earlier.json
        energon-grain rewind state.json captions --to 100 --exclude suspects.json -o earlier.json
    """
    states = sorted(saved_states(state).values(), key=lambda cursor: cursor["step"])
    if exclude is not None and path is None:
        raise ConfigError("--exclude needs the dataset, to find the samples: give it, and the settings of the run")
    known = [cursor for cursor in states if cursor["step"] <= to]
    later = [cursor for cursor in states if cursor["step"] >= to]
    if not later and path is None:
        raise StateError(f"step {to} is behind the last state, of step {states[-1]['step']}: give a later state")
    how = "by arithmetic"
    if known and known[-1]["step"] == to:
        found, how = known[-1], "from the state of that step"
    elif path is None:
        found = rewound_alone(later[0], to)
    else:
        found, how = _with_data(run, path, known, later, to, replay)
    if exclude is not None and path is not None:
        found = _without(run, path, found, exclude)
    atomic_write_bytes(output, json.dumps(found).encode())
    lines = [f"Wrote {output}: step {found['step']:,}, item {found['item']:,}, {how}."]
    return Answer(document={"output": str(output), "step": found["step"], "item": found["item"]}, lines=lines)


def _opened(run: Run, path: str, like: Cursor) -> Stream:
    """A stream of the run on one host, with the global batches of a state."""
    last = run.last_batch or ("pad" if run.world_size > 1 else None)
    alone = dataclasses.replace(run, world_size=1, lanes=run.lanes or like["lanes"], last_batch=last)
    return Stream.of(alone.dataset(path, batch_size=like["history"][-1][4]), num_workers=0)


def _with_data(
    run: Run, path: str, known: list[Cursor], later: list[Cursor], step: int, replay: bool
) -> tuple[Cursor, str]:
    """The state at a step, from the states before and after it, and how it was found."""
    for cursor in later[:1]:
        with _opened(run, path, cursor) as stream:
            stream.restore(cursor)
            found = rewound(stream, cursor, step)
            if found is not None:
                stream.restore(found)
                return stream.cursor(with_manifest=True), "by arithmetic"
    begin: Any = known[-1] if known else None
    with _opened(run, path, begin or later[0]) as stream:
        if begin is not None:
            stream.restore(begin)
        _check_beginning(begin, later, step)
        found = remade(stream, step, asked=replay)
        return found, f"by making the steps from {begin['step'] if begin else 0:,} on again"


def _check_beginning(begin: Cursor | None, later: list[Cursor], step: int) -> None:
    """Refuse a replay over a change of the batch size, or of the mixture, that only a later state knows."""
    since = 0 if begin is None else begin["step"]
    for cursor in later[:1]:
        size = (begin or cursor)["history"][-1][4]
        changes = [segment[0] for segment in cursor["history"] if since < segment[0] <= step and segment[4] != size]
        if "amendments" in cursor:
            changes += [begin for begin, *_ in amendments_of(cursor).steps if since <= begin <= step]
        if changes:
            raise StateError(
                f"the batch size or the mixture changed at step {min(changes)}, so the steps to {step} cannot be made "
                f"again from step {since}: give the folder with all checkpoints, one of which is from after the change"
            )


def _without(run: Run, path: str, cursor: Cursor, exclude: Path) -> Cursor:
    """A state from which on samples are left out."""
    with _opened(run, path, cursor) as stream:
        stream.restore(cursor)
        stream.amend(exclude=exclude, note=f"rewind --exclude {exclude.name}")
        return stream.cursor(with_manifest=True)
