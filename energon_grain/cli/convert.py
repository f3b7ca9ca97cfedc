# SPDX-License-Identifier: Apache-2.0
"""`energon-grain convert`: any data to a prepared dataset of shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from energon_grain.cli.running import Progress, shown_by
from energon_grain.cli.terminal import Answer, ProgressBar, note, with_samples
from energon_grain.conversion import convert_dataset
from energon_grain.errors import ConfigError
from energon_grain.prepare.containers import container_named
from energon_grain.storage.location import is_url, located
from energon_grain.words import counted, format_bytes

if TYPE_CHECKING:
    from energon_grain.conversion import ConversionReport

_MEDIA = "Loose media files"


def convert(
    source: Annotated[
        str,
        typer.Argument(
            help="Path or URL of a folder of media files, of a dataset, of JSONL (also .gz, .zst), Parquet, tars that "
            "are not prepared, or arrays."
        ),
    ],
    target: Annotated[
        str | None,
        typer.Argument(
            help="New or empty folder of this machine. Default for a folder of this machine: beside it, as SOURCE-tars."
        ),
    ] = None,
    to: Annotated[
        Literal["array-record", "tar", "tars"] | None,
        typer.Option(
            help="Kind of the new shards; tars means tar. Default: the other kind, or tars for data without shards."
        ),
    ] = None,
    compression: Annotated[
        Literal["none", "zstd"], typer.Option(help="Compression of each record of ArrayRecord files.")
    ] = "none",
    shard_samples: Annotated[
        int | None, typer.Option(min=1, help="Samples per new shard, for data without shards. Default: 5,000.")
    ] = None,
    shard_bytes: Annotated[
        int | None,
        typer.Option(
            min=1, help="Largest size of the files in a new shard. Default: 1 GiB (1073741824).", rich_help_panel=_MEDIA
        ),
    ] = None,
    class_folders: Annotated[
        bool | None,
        typer.Option(
            help="Folders are classes: write their indices as the part cls. Default: for an ImageFolder (images in at "
            "least two folders, and no other files).",
            rich_help_panel=_MEDIA,
        ),
    ] = None,
    split_ratio: Annotated[
        str | None,
        typer.Option(
            help="Ratio of train, val and test, as 8,1,1, or of named parts, as train=9,val=1, for data without "
            "splits: of the samples of loose media, else of the new shards. Default: all are train."
        ),
    ] = None,
    num_workers: Annotated[
        int | None, typer.Option(min=0, help="Most processes to use; 0: none. Default: one per core.")
    ] = None,
    verify: Annotated[bool, typer.Option(help="Read every new shard back and compare all keys and bytes.")] = True,
    sqlite: Annotated[
        bool, typer.Option(help="Write index.sqlite for tars, which Energon's joins and auxiliary data need.")
    ] = True,
    progress: Progress = True,
) -> Answer:
    """Convert data to a prepared dataset: loose media files, an ImageFolder, tables, tars, ArrayRecord files.

    Loose media files: files of one name, as cat.jpg, cat.txt and cat.json, are one sample. Class folders become the
    part cls, with the class names in .nv-meta/classes.json. Rows of metadata.jsonl or metadata.csv with a field
    file_name become the part json. Folders named train, val and test become split parts.

    A prepared dataset keeps keys, parts, splits and configuration: the new one yields the same stream and restores
    saved states of the old one. Other data (JSONL files, arrays, …) become a crude dataset.

    Nothing is overwritten. After an interruption, the same command continues.

    Examples:
        energon-grain convert photos --to tars
        energon-grain convert captions records --to array-record
    """
    kind = "tar" if to == "tars" else to
    with ProgressBar("Converting", shown=progress) as bar:
        report = convert_dataset(
            source,
            target or _beside(source, kind),
            to=kind,
            compression=compression,
            shard_samples=shard_samples,
            shard_bytes=shard_bytes,
            split_ratio=split_ratio,
            class_folders=class_folders,
            num_workers=num_workers,
            verify=verify,
            sqlite=sqlite,
            progress=shown_by(bar),
        )
    return Answer(document=with_samples(report), lines=_lines(report), is_report=True)


def _beside(source: str, to: str | None) -> str:
    """The default target: a folder beside a folder of this machine. Raises ConfigError."""
    location = located(source)
    if to is None or is_url(location) or location.rstrip("/") in ("", ".", ".."):
        raise ConfigError(
            "pass TARGET, the folder to write; only with --to and a local folder as SOURCE can it be omitted"
        )
    return f"{location.rstrip('/')}-{'tars' if to == 'tar' else 'records'}"


def _lines(report: ConversionReport) -> list[str]:
    kind = container_named(report.container).file
    lines = [
        f"Converted {report.source} to {report.target}: {counted(report.samples, 'sample')} in "
        f"{counted(len(report.shard_counts), kind)}, {format_bytes(report.target_bytes)} "
        f"({format_bytes(report.source_bytes)} before), in {report.elapsed_s:.2f} s."
    ]
    if report.shards_reused:
        lines.append(f"  {counted(report.shards_reused, 'shard')} had been written by an interrupted run.")
    read_back = "every shard was read back and compared." if report.verified else "nothing was read back."
    return [*lines, f"  {read_back}", *(f"  {note(each)}" for each in report.notes)]
