"""`energon-grain which`: which samples made, or will make, the global batch of a step."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from energon_grain.cli.run import Run, of_a_run
from energon_grain.cli.terminal import Answer, table

if TYPE_CHECKING:
    from energon_grain.stream.which import SampleRecord

_PLAIN_ENDINGS = (".tar", ".jsonl")
"""Of files whose bytes are those of their samples."""


@of_a_run
def which(
    path: Annotated[
        str, typer.Argument(help="Folder or URL of a dataset or array, a JSONL file, or a metadataset (.yaml).")
    ],
    run: Run,
    step: Annotated[int, typer.Option(min=0, help="The step: 0 is the first batch.")],
    batch_size: Annotated[int, typer.Option(min=1, help="Samples in the batch of one host.")],
    state: Annotated[
        Path | None,
        typer.Option(help="A saved state of the run, of all hosts, as `checkpoint info` reads it, to begin at."),
    ] = None,
) -> Answer:
    """List shard, key and byte range of the samples of a global batch.

    Bytes of ArrayRecord files and arrays are counted as if records or rows lay one behind the other, uncompressed.

    Give the settings of the run. Mostly this is arithmetic. Where a task encoder packs, groups, filters or generates,
    the steps before this one are made again, from the beginning or from a saved state. Samples that a run dropped
    without such a task encoder are known from a state only.
    """
    from energon_grain.cli.checkpoint import read_saved
    from energon_grain.stream.stream import Stream

    saved = None if state is None else read_saved(state)
    with Stream.of(run.dataset(path, batch_size=batch_size)) as stream:
        if saved is not None:
            stream.restore(saved)
        records = stream.which(step)
    document = [{**asdict(record), "read": True} for record in records] if records.read else records
    lines = _lines(records)
    if records.read:
        lines.append("Known by reading the samples before, and making the steps again.")
    return Answer(document=document, lines=lines)


def _lines(records: list[SampleRecord]) -> list[str]:
    """A table; it names the datasets where they are several, shortened by what they have in common."""
    in_files = all(record.shard.endswith(_PLAIN_ENDINGS) for record in records)
    datasets = sorted({record.dataset for record in records})
    several = len(datasets) > 1
    common = os.path.commonprefix(datasets).rpartition("/")[0] if several else "".join(datasets)  # noqa: RUF071
    rows = [("item", "host", "epoch", "bytes" if in_files else "bytes, uncompressed", "sample")]
    for record in records:
        place = f"{record.dataset[len(common) :].lstrip('/')}/{record.shard}/{record.key}".lstrip("/")
        extent = f"{record.start}-{record.stop}"
        rows.append((f"{record.item}", f"{record.host}", f"{record.epoch}", extent, place))
    return [*([f"Below {common}/"] if several else []), *table(rows, ">>><<")]
