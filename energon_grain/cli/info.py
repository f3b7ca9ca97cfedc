"""`energon-grain info`: what a dataset or a metadataset holds, as text, as JSON and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from energon_grain.cli.terminal import (
    Answer,
    DataPath,
    DatasetConfig,
    SplitConfig,
    binary_bytes,
    format_bytes,
    own_modules,
    table,
)
from energon_grain.errors import ConfigError
from energon_grain.formats.data_folder import kind_at
from energon_grain.formats.nv_meta import READ_AS_IT_IS, DatasetKind
from energon_grain.media.headers import HEADER_FUNCTION
from energon_grain.prepare.summary import (
    ArraySummary,
    ColumnSummary,
    DatasetSummary,
    SizeBin,
    TableSummary,
    summarize_arrays,
    summarize_dataset,
    summarize_jsonl,
    summarize_tables,
)
from energon_grain.storage.location import METADATASET_ENDINGS, is_file_of, located
from energon_grain.words import counted

_BAR_WIDTH = 40
_BARS = " ▁▂▃▄▅▆▇█"
_PLOTS, _MIXTURES = "Plots", "Metadatasets"


def info(
    path: DataPath,
    split_config: SplitConfig = None,
    dataset_config: DatasetConfig = None,
    split: Annotated[
        str | None,
        typer.Option("--split", "--split-part", help="The split to show. Default: train.", rich_help_panel=_MIXTURES),
    ] = None,
    trust_module: Annotated[
        list[str] | None,
        typer.Option(help="Module whose sample types may be imported. Repeatable.", rich_help_panel=_MIXTURES),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw to this file (.svg, .png, .pdf): of a dataset the sizes of its samples and parts; of a "
            "metadataset its shares and epochs over steps. Needs matplotlib (the extra viz).",
            rich_help_panel=_PLOTS,
        ),
    ] = None,
    batch_size: Annotated[
        int,
        typer.Option(
            min=1,
            help="Of a metadataset: samples in a step of all hosts together. Default: steps are positions.",
            rich_help_panel=_PLOTS,
        ),
    ] = 1,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Of a metadataset: steps to show. Default: three epochs, or all of a schedule.",
            rich_help_panel=_PLOTS,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of a metadataset: seed of the run.", rich_help_panel=_PLOTS)] = 0,
    lanes: Annotated[
        int | None,
        typer.Option(min=1, help="Of a metadataset: lanes of the run, if they were given.", rich_help_panel=_PLOTS),
    ] = None,
) -> Answer:
    """Show what a dataset or a metadataset holds, without reading samples.

    Of a dataset: shards, samples, parts, splits, sample type and sizes. Of a metadataset: its tree, with each dataset's
    size, its weight or repetitions, the share of the stream that it gets, and how often its samples are seen.
    """
    path = located(path)
    if plot is not None:
        from energon_grain.cli.plot import check_file

        check_file(plot)
    if is_file_of(path, METADATASET_ENDINGS):
        if split_config is not None or dataset_config is not None:
            raise ConfigError(f"{path} is a metadataset, which names its datasets' --split-config and --dataset-config")
        from energon_grain.cli.mixture import mixture_lines, summarize_mixture

        mixture, spec = summarize_mixture(
            path, split=split or "train", seed=seed, lanes=lanes, trusted_modules=own_modules(trust_module)
        )
        answer = Answer(document=mixture, lines=mixture_lines(mixture))
        if plot is not None:
            from energon_grain.cli.plot import draw_mixture, save

            save(draw_mixture(mixture, spec, batch_size=batch_size, steps=steps), plot)
    else:
        if split is not None:
            raise ConfigError(f"{path} is no metadataset (.yaml): --split is for those; a dataset's are all shown")
        answer = _dataset(path, split_config, dataset_config)
        if plot is not None:
            from energon_grain.cli.plot import draw_sizes, save

            save(draw_sizes(path, answer.document), plot)
    if plot is None:
        return answer
    return Answer(document=answer.document, lines=[*answer.lines, "", f"Wrote {plot}."])


def _dataset(path: str, split_config: str | None, dataset_config: str | None) -> Answer:
    lines = is_file_of(path, ".jsonl")
    found_kind = DatasetKind.JSONL if lines else kind_at(path)
    if found_kind in READ_AS_IT_IS - {DatasetKind.BARE_TARS}:
        if split_config is not None or dataset_config is not None:
            raise ConfigError(f"{path}: {found_kind.described} has neither --split-config nor --dataset-config")
    else:
        summary = summarize_dataset(path, split_config=split_config, dataset_config=dataset_config or "dataset.yaml")
        return Answer(document=summary, lines=_lines(summary))
    if found_kind.is_table or found_kind is DatasetKind.TOKENS:
        tables = summarize_tables(path, found_kind)
        return Answer(document=tables, lines=_lines_of_tables(tables))
    if not lines:
        arrays = summarize_arrays(path)
        return Answer(document=arrays, lines=_lines_of_arrays(arrays))
    found = summarize_jsonl(path)
    samples = f"  {counted(found.samples, 'sample')}, {format_bytes(found.size_bytes)}"
    kind = "  samples are plain dicts, to be cooked by the program (crude); their one part is json"
    shown = [found.path, samples, kind, "", *_columns(found.columns, found.stale_columns), *_histogram(found.sizes)]
    return Answer(document=found, lines=shown)


def _lines(summary: DatasetSummary) -> list[str]:
    tags = ", ".join(f"{name}={value}" for name, value in summary.subflavors.items())
    files = "tar files" if summary.records is None else f"ArrayRecord files ({summary.records})"
    lines = [
        f"{summary.path}",
        f"  {counted(summary.samples, 'sample')} in {counted(summary.shards, 'shard')}, "
        f"{format_bytes(summary.shard_bytes)} of {files} "
        f"({format_bytes(summary.payload_bytes)} of payload)",
        f"  format: energon {summary.energon_version or 'unknown'}, uuid {summary.uuid or 'none'}, "
        f"{'with' if summary.has_sqlite else 'no'} index.sqlite",
        f"  samples are {_sample_type(summary)}" + (f", tagged {tags}" if tags else ""),
        *(f"    {field}: {expression}" for field, expression in summary.field_map.items()),
        "",
        "Splits" if summary.splits else "No splits.",
    ]
    rows: list[tuple[str, ...]] = []
    for name, split in summary.splits.items():
        share = split.samples / summary.samples if summary.samples else 0.0
        excluded = f", {split.excluded_samples:,} of them excluded" if split.excluded_samples else ""
        rows.append(
            (name, f"{split.samples:,} samples", f"{share:.1%}", f"in {counted(split.shards, 'shard')}{excluded}")
        )
    lines += [*table(rows, "<>><"), "", "Parts"]
    rows = []
    for name, part in summary.parts.items():
        mean = format_bytes(part.total_bytes / part.count)
        extent = f"{format_bytes(part.smallest_bytes)} to {format_bytes(part.largest_bytes)}"
        total = format_bytes(part.total_bytes)
        drawn = sparkline([size.samples for size in part.sizes])
        rows.append((name, f"{part.count:,} files", total, f"mean {mean} ({extent})", drawn))
    lines += [*table(rows, "<>><<"), ""]
    return [*lines, *_columns(summary.columns, summary.stale_columns), *_histogram(summary.sizes)]


def _columns(columns: Mapping[str, ColumnSummary], stale: Sequence[str]) -> list[str]:
    lines = ["Columns", *table(*column_rows(columns)), ""] if columns else []
    if stale:
        lines += [f"Columns of samples that are not here any more: {', '.join(stale)}.", ""]
    return lines


def column_rows(columns: Mapping[str, ColumnSummary]) -> tuple[list[tuple[str, ...]], str]:
    """A row for each column, and how they are aligned, for `table`."""
    return [_column(*item, HEADER_FUNCTION) for item in columns.items()], "<>><<<"


def _column(name: str, column: ColumnSummary, of_media: str) -> tuple[str, ...]:
    missing = f"{column.missing:,} missing" if column.missing else ""
    version = f" (version {column.version})" if column.version != 1 else ""
    made_by = "" if column.function == of_media else f"{column.function}{version}"
    if column.mean is None:
        return name, "no values", missing, "", "", made_by
    extent = f"mean {column.mean:,.6g} ({column.smallest:,.6g} to {column.largest:,.6g})"
    scale = " log" if column.is_log else ""
    return name, f"{column.values:,} values", missing, extent, sparkline(column.bins) + scale, made_by


def sparkline(counts: Sequence[int]) -> str:
    """A histogram in one line: the height of each bar is in proportion, and one that is not empty shows.

    >>> sparkline([0, 1, 4, 8])
    ' ▁▄█'
    """
    most = max(counts, default=0)
    return "".join(_BARS[-(-count * 8 // most) if most else 0] for count in counts)


def _lines_of_tables(summary: TableSummary) -> list[str]:
    measured = _columns(summary.measured, summary.stale_columns)
    groups: list[str] = []
    if summary.row_groups is not None:
        mean, largest = map(format_bytes, summary.row_group_bytes)
        groups = [f"  {counted(summary.row_groups, summary.group_word)} of {mean} in the mean, {largest} at most; "]
        groups[0] += "a shuffle is in as many at a time as it has lanes (48)" if summary.are_blocks else "any is near"
    return [
        summary.path,
        f"  {counted(summary.samples, 'sample')} in {counted(summary.files, 'file')}, "
        f"{format_bytes(summary.size_bytes)} of columns, not compressed",
        *groups,
        "  samples are plain dicts, to be cooked by the program (crude); their parts are columns",
        "",
        "Parts",
        *table([*summary.columns.items()], "<<"),
        *([""] if measured else []),
        *measured[:-1],
    ]


def _lines_of_arrays(summary: ArraySummary) -> list[str]:
    rows = [
        (name, f"{array.type}{list(array.row_shape)}", format_bytes(array.row_bytes), f"in chunks of {chunk:,} rows")
        for name, array in summary.arrays.items()
        for chunk in [array.chunk_rows]
    ]
    return [
        summary.path,
        f"  {counted(summary.samples, 'sample')}, {format_bytes(summary.size_bytes)} of rows, not compressed",
        "  samples are plain dicts, to be cooked by the program (crude); their parts are rows of arrays",
        "",
        "Parts",
        *table(rows, "<<><"),
    ]


def _histogram(sizes: Sequence[SizeBin]) -> list[str]:
    most = max((size.samples for size in sizes), default=0)
    rows: list[tuple[str, ...]] = []
    for size in sizes:
        bar = "█" * max(round(size.samples / most * _BAR_WIDTH), int(size.samples > 0))
        rows.append((f"{binary_bytes(size.from_bytes)} to {binary_bytes(size.below_bytes)}", f"{size.samples:,}", bar))
    return ["Sample sizes", *table(rows, "<><")]


def _sample_type(summary: DatasetSummary) -> str:
    if summary.kind == "none":
        return "of no type yet (no dataset.yaml)"
    if summary.kind == "crude":
        return "plain dicts, to be cooked by the program (crude)"
    return f"{summary.sample_type}" + (" (custom class)" if summary.kind == "custom" else "")
