# SPDX-License-Identifier: Apache-2.0
"""`energon-grain rewind`: the state of a run at an earlier step."""

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
from energon_grain.errors import StateError
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
    replay: Annotated[
        bool, typer.Option("--replay", help="Make steps again, however many samples have to be read for that.")
    ] = False,
) -> Answer:
    """Write the state that a run had at an earlier step.

    Usually this is arithmetic. If samples were dropped, filtered, grouped or packed, the steps from the nearest earlier
    state on (in a folder with several checkpoints), or from the beginning on, are made again. Amendments after the step
    are forgotten.

    Examples:
        energon-grain rewind state.json --to 100 -o old.json
        energon-grain rewind state.json captions --to 100 -o old.json
    """
    states = sorted(saved_states(state).values(), key=lambda cursor: cursor["step"])
    found, how = _found(run, path, states, to, replay)
    atomic_write_bytes(output, json.dumps(found).encode())
    lines = [f"Wrote {output}: step {found['step']:,}, item {found['item']:,}, {how}."]
    return Answer(document={"output": str(output), "step": found["step"], "item": found["item"]}, lines=lines)


def _found(run: Run, path: str | None, states: list[Cursor], step: int, replay: bool) -> tuple[Cursor, str]:
    """The state at a step, and how it was found. `states`: all known ones, in the order of steps."""
    known = [cursor for cursor in states if cursor["step"] <= step]
    later = [cursor for cursor in states if cursor["step"] >= step]
    if known and known[-1]["step"] == step:
        return known[-1], "from the state of that step"
    if path is not None:
        return _with_data(run, path, known, later, step, replay)
    if not later:
        raise StateError(f"step {step} is behind the last state, of step {states[-1]['step']}: give a later state")
    return rewound_alone(later[0], step), "by arithmetic"


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
    changes = [
        change for cursor in later[:1] for change in _changes(cursor, begin or cursor) if since <= change <= step
    ]
    if changes:
        raise StateError(
            f"the batch size or the mixture changed at step {min(changes)}, so the steps to {step} cannot be made "
            f"again from step {since}: give the folder with all checkpoints, one of which is from after the change"
        )


def _changes(cursor: Cursor, begin: Cursor) -> list[int]:
    """Steps of a run at which its mixture changed, or its batch size to another one than at the beginning."""
    size = begin["history"][-1][4]
    amended = amendments_of(cursor).steps if "amendments" in cursor else []
    return [*(segment[0] for segment in cursor["history"] if segment[4] != size), *(step for step, *_ in amended)]
