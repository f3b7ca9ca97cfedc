"""`energon-grain convert`: write a dataset anew in files of another kind."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from energon_grain.cli.sizes import counted, format_bytes

if TYPE_CHECKING:
    from energon_grain.conversion import ConversionProgress, ConversionReport


class Container(StrEnum):
    """Kinds of shards."""

    ARRAY_RECORD = "array-record"
    TAR = "tar"


class Compression(StrEnum):
    """What is done to each record."""

    NONE = "none"
    ZSTD = "zstd"


def convert(
    source: Annotated[str, typer.Argument(help="Folder or URL of a prepared dataset of tars or ArrayRecord files.")],
    target: Annotated[str, typer.Argument(help="New or empty folder of this machine.")],
    to: Annotated[Container | None, typer.Option(help="Kind of the new shards. Default: the other one.")] = None,
    compression: Annotated[Compression, typer.Option(help="Of each record of ArrayRecord files.")] = Compression.NONE,
    num_workers: Annotated[
        int | None, typer.Option(min=0, help="Processes at most; 0 for none. Default: one for each core.")
    ] = None,
    verify: Annotated[bool, typer.Option(help="Read every new shard back and compare all keys and bytes.")] = True,
    sqlite: Annotated[
        bool, typer.Option(help="Write index.sqlite for tars, which Energon's joins and auxiliary data need.")
    ] = True,
    progress: Annotated[bool, typer.Option(help="Show a progress bar, on terminals.")] = True,
) -> None:
    """Write a dataset anew, tars as ArrayRecord files or back, one shard for one shard, and prepare it.

    Keys, parts, splits and configuration stay, so the new dataset gives the same stream and goes on with saved states
    of the old one. After a kill, the same command goes on where it was.
    """
    from energon_grain.cli.progress_bar import progress_bar
    from energon_grain.conversion import convert_dataset

    with progress_bar("Converting", shown=progress) as bar:

        def show(now: ConversionProgress) -> None:
            detail = f"{now.shards_done:,}/{now.shards_total:,} shards, {now.samples:,} samples"
            label = {"convert": None, "index": "Indexing"}[now.stage]
            bar.advance_to(now.bytes_done, now.bytes_total, detail, label)

        report = convert_dataset(
            source,
            target,
            to=None if to is None else to.value,
            compression=compression.value,
            num_workers=num_workers,
            verify=verify,
            sqlite=sqlite,
            progress=show,
        )
    _print_report(report)


def _print_report(report: ConversionReport) -> None:
    kind = "ArrayRecord file" if report.container == "array-record" else "tar file"
    files = counted(len(report.shard_counts), kind)
    typer.echo(
        f"Converted {report.source} to {report.target}: {counted(report.samples, 'sample')} in {files}, "
        f"{format_bytes(report.target_bytes)} ({format_bytes(report.source_bytes)} before), in "
        f"{report.elapsed_s:.2f} s."
    )
    if report.shards_reused:
        typer.echo(
            f"  {counted(report.shards_reused, 'shard')} had been written by an earlier run that did not finish."
        )
    typer.echo("  every shard was read back and compared." if report.verified else "  nothing was read back.")
    for note in report.notes:
        typer.secho(f"  note: {note}", fg=typer.colors.YELLOW)
