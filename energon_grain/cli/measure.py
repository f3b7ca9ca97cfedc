# SPDX-License-Identifier: Apache-2.0
"""`energon-grain measure`: numbers of samples, as columns to filter, mix and pack by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from energon_grain.cli.receipts import store_digests
from energon_grain.cli.running import Progress, RayAddress, Runner, Workers, running
from energon_grain.cli.terminal import Answer, ProgressBar, note, own_modules
from energon_grain.errors import ConfigError
from energon_grain.metadataset.samples import measure_dataset
from energon_grain.prepare.summary import column_rows
from energon_grain.words import counted, table

if TYPE_CHECKING:
    from energon_grain.prepare.measure import MeasureProgress


def measure(
    path: Annotated[
        str,
        typer.Argument(
            help="Path or URL of a dataset, a JSONL file, Parquet files or tars, or a metadataset with one join."
        ),
    ],
    column: Annotated[
        list[str] | None,
        typer.Option(help="A column and its function, as tokens=my_module:count_tokens. Repeatable: one pass for all."),
    ] = None,
    attach: Annotated[
        list[str] | None,
        typer.Option(
            help="A column and its file, as tokens=tokens.npy or score=scores.parquet (.csv, .jsonl); matched by the "
            "field `key` if there is one, else by row. For another field: score=scores.csv:aesthetic. Repeatable."
        ),
    ] = None,
    parts: Annotated[
        str | None,
        typer.Option(help="Parts that the functions get, as txt,json. Default: all. Fewer parts are read faster."),
    ] = None,
    digest: Annotated[
        bool, typer.Option("--digest", help="Store digests of all files, for receipts; every byte is read.")
    ] = False,
    version: Annotated[
        int | None,
        typer.Option(help="Version of the functions, stored with the columns. Default: the function's own, else 1."),
    ] = None,
    split_part: Annotated[str, typer.Option(help="For a metadataset: the split that has the join.")] = "train",
    num_workers: Workers = None,
    runner: Runner = "processes",
    ray_address: RayAddress = None,
    progress: Progress = True,
) -> Answer:
    """Call a function on every sample and store the number it returns as a column, to filter, mix and pack by.

    The function gets the parts of a sample as bytes, {"txt": b"…"}, and returns a number, or None for no value. Its
    module is also searched in the current folder. After an interruption, the same command continues.

    With --digest, store digests of the files instead, which receipts need; of a metadataset, those of all its datasets.

    Examples:
        energon-grain measure captions --column tokens=my_module:count_tokens
        energon-grain measure captions --attach score=scores.csv
        energon-grain measure captions --digest
    """
    columns, files = _pairs("--column", column), _pairs("--attach", attach)
    if digest:
        if columns or files:
            raise ConfigError("--digest is a command of its own: remove --column and --attach")
        return store_digests(path, progress=progress)
    if not columns and not files:
        raise ConfigError("pass --column NAME=module:function, --attach NAME=FILE, or --digest.")
    own_modules(columns.values())
    with running(runner, ray_address) as executor, ProgressBar("Measuring", shown=progress) as bar:

        def show(now: MeasureProgress) -> None:
            speed = f", {now.done / bar.elapsed_s:,.0f}/s" if now.done else ""
            bar.advance_to(now.done, now.total, f"{now.done:,}/{now.total:,} samples{speed}")

        report = measure_dataset(
            path,
            columns,
            attach=files,
            parts=None if parts is None else [part.strip() for part in parts.split(",")],
            version=version,
            split_part=split_part,
            num_workers=num_workers,
            executor=executor,
            progress=show,
        )
    lines = [f"Measured {counted(report.samples, 'sample')} of {report.path} in {report.elapsed_s:.2f} s."]
    if report.samples_reused:
        lines.append(f"  {counted(report.samples_reused, 'sample')} had been measured by an interrupted run.")
    lines += [*table(*column_rows(report.columns)), *(f"  {note(each)}" for each in report.notes)]
    return Answer(document=report, lines=lines, is_report=True)


def _pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for each in given or ():
        name, equals, value = each.partition("=")
        if not (name and equals and value):
            example = "my_module:count_tokens" if option == "--column" else "tokens.npy"
            raise ConfigError(f"{option} {each}: write a name and its source, as tokens={example}")
        if name in pairs:
            raise ConfigError(f"{option} {each}: the column {name!r} is given twice")
        pairs[name] = value
    return pairs
