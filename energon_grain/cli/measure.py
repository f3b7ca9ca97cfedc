"""`energon-grain measure`: one more number of every sample, by a function or from a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from energon_grain.cli.info import column_rows
from energon_grain.cli.prepare import Progress, RayAddress, Runner, Workers, running
from energon_grain.cli.terminal import Answer, counted, note, own_modules, progress_bar, table
from energon_grain.errors import ConfigError

if TYPE_CHECKING:
    from energon_grain.prepare.measure import MeasureProgress


def measure(
    path: Annotated[
        str,
        typer.Argument(
            help="A dataset, a JSONL file, Parquet files or tars; or a metadataset with one join; also by URL."
        ),
    ],
    column: Annotated[
        list[str] | None,
        typer.Option(help="A column and its function, as tokens=my_module:count_tokens. Repeatable: one pass for all."),
    ] = None,
    attach: Annotated[
        list[str] | None,
        typer.Option(
            help="A column and its file, as tokens=tokens.npy, or score=scores.parquet (.csv, .jsonl); by the field "
            "`key`, else by row. Another field: score=scores.csv:aesthetic. Repeatable."
        ),
    ] = None,
    parts: Annotated[
        str | None, typer.Option(help="Parts that functions get, as txt,json. Default: all; fewer are read quicker.")
    ] = None,
    version: Annotated[
        int | None, typer.Option(help="Of the functions, kept with the columns. Default: their own, else 1.")
    ] = None,
    split_part: Annotated[str, typer.Option(help="Of a metadataset: the split that has the join.")] = "train",
    num_workers: Workers = None,
    runner: Runner = "processes",
    ray_address: RayAddress = None,
    progress: Progress = True,
) -> Answer:
    """Call a function on every sample, and keep the number that it returns as a column: to filter, mix and pack by.

    The function gets the parts of a sample as bytes, {"txt": b"…"}, and returns a number, or None where there is none.
    Its module is looked for in the current folder, too. After a kill, the same command goes on where it was.
    """
    from energon_grain.prepare.measure import measure_dataset

    columns, files = _pairs("--column", column), _pairs("--attach", attach)
    if not columns and not files:
        raise ConfigError("give --column NAME=module:function, or --attach NAME=FILE.")
    own_modules(columns.values())
    with running(runner, ray_address) as executor, progress_bar("Measuring", shown=progress) as bar:

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
        lines.append(f"  {counted(report.samples_reused, 'sample')} had been measured by a run that did not finish.")
    lines += [*table(*column_rows(report.columns)), *(f"  {note(each)}" for each in report.notes)]
    return Answer(document=report, lines=lines)


def _pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for each in given or ():
        name, equals, value = each.partition("=")
        if not (name and equals and value):
            example = "my_module:count_tokens" if option == "--column" else "tokens.npy"
            raise ConfigError(f"{option} {each}: write a name and what it is made of, as tokens={example}")
        if name in pairs:
            raise ConfigError(f"{option} {each}: the column {name!r} is given twice")
        pairs[name] = value
    return pairs
