# SPDX-License-Identifier: Apache-2.0
"""The commands for runs that change: `checkpoint amend` changes a saved state, `checkpoint history` lists changes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from energon_grain.amendments.history import Amendments
from energon_grain.amendments.mixture import units
from energon_grain.atomic_files import atomic_write_bytes
from energon_grain.cli.checkpoint import amendments_of, read_saved
from energon_grain.cli.run import Run, of_a_run
from energon_grain.cli.terminal import Answer, significant
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stream import Stream
from energon_grain.words import counted, table

_State = Annotated[Path, typer.Argument(help="Saved state of all hosts, in any form that `checkpoint info` reads.")]


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetChange:
    """One dataset of an amended run.

    Attributes:
        name: Its key in the run.
        samples: Number of its samples; None: unknown.
        drawn: About how many samples of it were drawn until the change; None: items consist of several samples.
        passes: The same in passes over the dataset.
        share_before: Its share of the mixture before the change.
        share_after: Its share from the change on.
        never_seen: About how many samples are never drawn if it stays removed; None: unknown, or it is not removed.
    """

    name: str
    samples: int | None
    drawn: float | None
    passes: float | None
    share_before: float
    share_after: float
    never_seen: float | None


@of_a_run
def amend(
    state: _State,
    run: Run,
    to: Annotated[str, typer.Option(help="The changed metadataset, opened with the options of the run below.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="JSON file for the new state. Default: only print the change.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples in the batch of one host. Default: a size that fits the state.")
    ] = None,
    held: Annotated[
        Literal["deliver", "drop"], typer.Option(help="Samples of removed datasets that packs or groups hold.")
    ] = "deliver",
    note: Annotated[str, typer.Option(help="Reason for the change, shown by `checkpoint history`.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the change without writing the new state.")] = False,
) -> Answer:
    """Change the mixture of a saved run: weights, datasets that were added or removed.

    Every remaining dataset continues exactly where it is. The changed run restores the new state without further
    options. A change that cannot be made is an error that names the reason.

    Examples:
        energon-grain checkpoint amend state.json --to mix.yaml --dry-run
        energon-grain checkpoint amend state.json --to mix.yaml -o new.json
    """
    cursor = read_saved(state)
    known = 0 if "amendments" not in cursor else len(amendments_of(cursor).steps)
    size = batch_size or cursor["history"][-1][4] // run.world_size or 1
    with Stream.of(run.dataset(to, batch_size=size)) as stream:
        stream.restore(cursor, on_change="amend", note=note, held=held)
        amended, amendments = stream.cursor(with_manifest=True), stream.amendments
        if amendments is None or len(amendments.steps) == known:
            return Answer(document=[], lines=["Nothing changes: the state has the mixture of the configuration."])
        changes = _changes(amendments, stream.spec)
    step, item, _ = amendments.steps[-1]
    lines = [f"From step {step:,} (item {item:,}) on:", "", *_lines(changes)]
    if output is not None and not dry_run:
        atomic_write_bytes(output, json.dumps(amended).encode())
        lines.append(f"Wrote {output}.")
    return Answer(document=changes, lines=lines)


def history(state: _State) -> Answer:
    """List the changes of the mixture in a run: step, shares before and after, and the reason.

    Examples:
        energon-grain checkpoint history state.json
        energon-grain checkpoint history state.json --json
    """
    cursor = read_saved(state)
    log = amendments_of(cursor).log if "amendments" in cursor else []
    lines = [f"{counted(len(log), 'change')} of the mixture until step {cursor['step']:,}."]
    for each in log:
        note = f": {each.note}" if each.note else ""
        rows = [("", "before", "after")]
        rows += [
            (_short(name), f"{each.before.get(name, 0):.2%}", f"{share:.2%}") for name, share in each.after.items()
        ]
        lines += ["", f"Step {each.step:,} (item {each.item:,}){note}", *table(rows, "<>>")]
    return Answer(document=[asdict(each) for each in log], lines=lines)


def _changes(amendments: Amendments, spec: StreamSpec) -> list[DatasetChange]:
    """The effect of the last amendment on each dataset."""
    change = amendments.log[-1]
    drawn = {} if spec.program is not None else amendments.drawn(change.item)
    sizes = {"/".join(leaf.key): len(leaf.leaf.source) for leaf in spec.leaves}
    for unit in units(amendments.mixture):  # removed ones too
        sizes |= {name: row["samples"] for name, row in zip(unit.leaves, unit.rows or (), strict=False) if row}
    return [
        _change_of(name, sizes.get(name), drawn.get(name), change.before.get(name, 0.0), after)
        for name, after in change.after.items()
    ]


def _change_of(name: str, samples: int | None, drawn: float | None, before: float, after: float) -> DatasetChange:
    passes = never_seen = None
    if samples is not None and drawn is not None:
        passes = drawn / max(1, samples)
        never_seen = max(0.0, samples - drawn) if before > 0 and after == 0 else None
    return DatasetChange(
        name=name,
        samples=samples,
        drawn=drawn,
        passes=passes,
        share_before=before,
        share_after=after,
        never_seen=never_seen,
    )


def _lines(changes: list[DatasetChange]) -> list[str]:
    rows = [("dataset", "samples", "drawn", "passes", "before", "after", "left undrawn")]
    rows += [
        (
            _short(each.name),
            "?" if each.samples is None else f"{each.samples:,}",
            "?" if each.drawn is None else f"{each.drawn:,.0f}",
            "?" if each.passes is None else significant(each.passes),
            f"{each.share_before:.2%}",
            f"{each.share_after:.2%}",
            "" if each.never_seen is None else f"{each.never_seen:,.0f}",
        )
        for each in changes
    ]
    return table(rows, "<>>>>>>")


def _short(name: str) -> str:
    """A key without kind and number."""
    return name.partition("/")[2].rpartition("/")[0].rstrip("/") or name
