"""`energon-grain convert`: write data anew as a dataset of tars or ArrayRecord files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from energon_grain.cli.terminal import Answer, counted, format_bytes, note, progress_bar, with_samples

if TYPE_CHECKING:
    from energon_grain.conversion import ConversionProgress, ConversionReport


def convert(
    source: Annotated[
        str,
        typer.Argument(help="Path or URL of a dataset, of JSONL (also .gz, .zst), Parquet, bare tars, or arrays."),
    ],
    target: Annotated[str, typer.Argument(help="New or empty folder of this machine.")],
    to: Annotated[
        Literal["array-record", "tar"] | None,
        typer.Option(help="Kind of the new shards. Default: the other one; tars, where there are no shards."),
    ] = None,
    compression: Annotated[Literal["none", "zstd"], typer.Option(help="Of each record of ArrayRecord files.")] = "none",
    shard_samples: Annotated[
        int | None, typer.Option(min=1, help="Samples of a new shard, where there are no shards. Default: 5,000.")
    ] = None,
    num_workers: Annotated[
        int | None, typer.Option(min=0, help="Processes at most; 0 for none. Default: one for each core.")
    ] = None,
    verify: Annotated[bool, typer.Option(help="Read every new shard back and compare all keys and bytes.")] = True,
    sqlite: Annotated[
        bool, typer.Option(help="Write index.sqlite for tars, which Energon's joins and auxiliary data need.")
    ] = True,
    progress: Annotated[bool, typer.Option(help="Show a progress bar, on terminals.")] = True,
) -> Answer:
    """Write a dataset anew, tars as ArrayRecord files or back, one shard for one shard, and prepare it.

    Keys, parts, splits and configuration stay, so the new dataset gives the same stream and goes on with saved states
    of the old one. Data in no shards (JSONL files, arrays, …) becomes a crude dataset, all of it train. After a kill,
    the same command goes on where it was.
    """
    from energon_grain.conversion import convert_dataset

    with progress_bar("Converting", shown=progress) as bar:

        def show(now: ConversionProgress) -> None:
            of = f"/{now.shards_total:,}" if now.shards_total else ""
            detail = f"{now.shards_done:,}{of} shards, {now.samples:,} samples"
            label = {"convert": None, "index": "Indexing"}[now.stage]
            bar.advance_to(now.bytes_done, now.bytes_total, detail, label)

        report = convert_dataset(
            source,
            target,
            to=to,
            compression=compression,
            shard_samples=shard_samples,
            num_workers=num_workers,
            verify=verify,
            sqlite=sqlite,
            progress=show,
        )
    return Answer(document=with_samples(report), lines=_lines(report))


def _lines(report: ConversionReport) -> list[str]:
    kind = "ArrayRecord file" if report.container == "array-record" else "tar file"
    lines = [
        f"Converted {report.source} to {report.target}: {counted(report.samples, 'sample')} in "
        f"{counted(len(report.shard_counts), kind)}, {format_bytes(report.target_bytes)} "
        f"({format_bytes(report.source_bytes)} before), in {report.elapsed_s:.2f} s."
    ]
    if report.shards_reused:
        lines.append(
            f"  {counted(report.shards_reused, 'shard')} had been written by an earlier run that did not finish."
        )
    read_back = "every shard was read back and compared." if report.verified else "nothing was read back."
    return [*lines, f"  {read_back}", *(f"  {note(each)}" for each in report.notes)]
