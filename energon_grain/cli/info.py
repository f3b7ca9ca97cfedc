"""`info`: what a dataset or a metadataset holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from energon_grain.cli.own_modules import own_modules
from energon_grain.cli.print_json import print_json
from energon_grain.cli.sizes import counted, format_bytes
from energon_grain.errors import ConfigError
from energon_grain.formats.file_ending import METADATASET_ENDINGS, is_file_of
from energon_grain.storage.location import located

if TYPE_CHECKING:
    from energon_grain.cli.mixture_summary import MixtureSummary
    from energon_grain.prepare.summary import ArraySummary, DatasetSummary, JsonlSummary, SizeBin

_BAR_WIDTH = 40


def info(
    path: Annotated[
        str, typer.Argument(help="Folder or URL of a dataset or array, a JSONL file, or a metadataset (.yaml).")
    ],
    split_config: Annotated[str | None, typer.Option(help="Name of the split file in .nv-meta.")] = None,
    dataset_config: Annotated[
        str | None, typer.Option(help="Name of the dataset's YAML file in .nv-meta. Default: dataset.yaml.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Of a metadataset: the split. Default: train.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Of a metadataset: draw its composition over steps to this .svg or .png file.")
    ] = None,
    batch_size: Annotated[
        int,
        typer.Option(min=1, help="For --plot: samples in a step of all hosts together. Default: steps are positions."),
    ] = 1,
    steps: Annotated[
        int | None, typer.Option(min=1, help="For --plot: steps to show. Default: an epoch, or all of a schedule.")
    ] = None,
    seed: Annotated[int, typer.Option(help="For --plot: seed of the run.")] = 0,
    lanes: Annotated[int | None, typer.Option(min=1, help="For --plot: lanes of the run, if they were given.")] = None,
    trust_module: Annotated[
        list[str] | None, typer.Option(help="Of a metadataset: module whose sample types may be imported. Repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a dataset or a metadataset holds, without reading tars.

    Of a dataset: shards, samples, parts, splits, sample type and sizes. Of a metadataset: its tree, with each dataset's
    size, its weight or repetitions, the share of the stream that it gets, and how often its samples are seen.
    """
    path = located(path)
    if is_file_of(path, METADATASET_ENDINGS):
        if split_config is not None or dataset_config is not None:
            raise ConfigError(f"{path} is a metadataset, which names its datasets' --split-config and --dataset-config")
        summary, lines = _mixture(
            path, split or "train", seed, lanes, own_modules(trust_module), plot, batch_size, steps
        )
    else:
        if split is not None or plot is not None:
            raise ConfigError(f"{path} is no metadataset (.yaml): --split and --plot are for those")
        summary, lines = _dataset(path, split_config, dataset_config)
    if as_json:
        print_json(summary)
    else:
        for line in lines:
            typer.echo(line)


def _dataset(
    path: str, split_config: str | None, dataset_config: str | None
) -> tuple[DatasetSummary | JsonlSummary | ArraySummary, list[str]]:
    if is_file_of(path, ".jsonl"):
        from energon_grain.prepare.summary import summarize_jsonl

        if split_config is not None or dataset_config is not None:
            raise ConfigError(f"{path}: a JSONL file has neither --split-config nor --dataset-config")
        found = summarize_jsonl(path)
        samples = f"  {counted(found.samples, 'sample')}, {format_bytes(found.size_bytes)}"
        kind = "  samples are plain dicts, to be cooked by the program (crude); their one part is json"
        return found, [found.path, samples, kind, "", *_histogram(found.sizes)]
    from energon_grain.formats.data_folder import kind_at
    from energon_grain.formats.nv_meta import DatasetKind

    if kind_at(path) is DatasetKind.ARRAY:
        from energon_grain.prepare.summary import summarize_arrays

        if split_config is not None or dataset_config is not None:
            raise ConfigError(f"{path}: an array has neither --split-config nor --dataset-config")
        arrays = summarize_arrays(path)
        return arrays, _lines_of_arrays(arrays)
    from energon_grain.prepare.summary import summarize_dataset

    summary = summarize_dataset(path, split_config=split_config, dataset_config=dataset_config or "dataset.yaml")
    return summary, _lines(summary)


def _mixture(
    path: str,
    split: str,
    seed: int,
    lanes: int | None,
    trusted_modules: Sequence[str],
    plot: Path | None,
    batch_size: int,
    steps: int | None,
) -> tuple[MixtureSummary, list[str]]:
    from energon_grain.cli.mixture import mixture_lines
    from energon_grain.cli.mixture_summary import summarize_mixture

    if plot is not None:
        from energon_grain.cli.mixture import check_ending

        check_ending(plot)
    summary, spec = summarize_mixture(path, split=split, seed=seed, lanes=lanes, trusted_modules=trusted_modules)
    lines = mixture_lines(summary)
    if plot is not None:
        from energon_grain.cli.mixture import write_plot

        write_plot(plot, summary, spec, batch_size=batch_size, steps=steps)
        lines += ["", f"Wrote {plot}."]
    return summary, lines


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
    for name, split in summary.splits.items():
        share = split.samples / summary.samples if summary.samples else 0.0
        excluded = f", {split.excluded_samples:,} of them excluded" if split.excluded_samples else ""
        lines.append(
            f"  {name:16} {split.samples:>14,} samples {share:7.1%}  in {counted(split.shards, 'shard')}{excluded}"
        )
    lines += ["", "Parts"]
    for name, part in summary.parts.items():
        mean = format_bytes(part.total_bytes / part.count)
        extent = f"{format_bytes(part.smallest_bytes)} to {format_bytes(part.largest_bytes)}"
        lines.append(
            f"  {name:16} {part.count:>14,} files   {format_bytes(part.total_bytes):>8}  mean {mean} ({extent})"
        )
    return [*lines, "", *_histogram(summary.sizes)]


def _lines_of_arrays(summary: ArraySummary) -> list[str]:
    lines = [
        summary.path,
        f"  {counted(summary.samples, 'sample')}, {format_bytes(summary.size_bytes)} of rows, not compressed",
        "  samples are plain dicts, to be cooked by the program (crude); their parts are rows of arrays",
        "",
        "Parts",
    ]
    for name, array in summary.arrays.items():
        form = f"{array.type}{list(array.row_shape)}"
        lines.append(
            f"  {name:16} {form:20} {format_bytes(array.row_bytes):>8}  in chunks of {array.chunk_rows:,} rows"
        )
    return lines


def _histogram(sizes: Sequence[SizeBin]) -> list[str]:
    lines = ["Sample sizes"]
    most = max((size.samples for size in sizes), default=0)
    for size in sizes:
        extent = f"{_power(size.from_bytes)} to {_power(size.below_bytes)}"
        bar = "█" * max(round(size.samples / most * _BAR_WIDTH), int(size.samples > 0))
        lines.append(f"  {extent:20} {size.samples:>10,}  {bar}".rstrip())
    return lines


def _sample_type(summary: DatasetSummary) -> str:
    if summary.kind == "none":
        return "of no type yet (no dataset.yaml)"
    if summary.kind == "crude":
        return "plain dicts, to be cooked by the program (crude)"
    return f"{summary.sample_type}" + (" (custom class)" if summary.kind == "custom" else "")


def _power(size_bytes: int) -> str:
    """Write a power of two in binary units: 1024 is `1 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size_bytes < 1024 or unit == "TiB":
            return f"{size_bytes} {unit}"
        size_bytes //= 1024
    raise AssertionError
