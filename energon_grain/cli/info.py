# SPDX-License-Identifier: Apache-2.0
"""`energon-grain info`: the contents of a dataset or a metadataset, as text, JSON or a picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from energon_grain.cli.mixture import mixture_lines, summarize_mixture
from energon_grain.cli.plot import check_file, draw_mixture, draw_sizes, save
from energon_grain.cli.terminal import (
    Answer,
    DataPath,
    DatasetConfig,
    RatioOption,
    SplitConfig,
    TrustModule,
    own_modules,
)
from energon_grain.errors import ConfigError, SplitError
from energon_grain.formats.nv_meta import read_info
from energon_grain.forms import did_you_mean
from energon_grain.prepare.containers import container_of, open_data
from energon_grain.prepare.summary import (
    SplitSummary,
    column_lines,
    histogram_lines,
    sparkline,
    summarize_dataset,
    summarize_samples,
)
from energon_grain.samplers.split_ratio import SplitRatio
from energon_grain.sources.kinds import kind_at
from energon_grain.storage.location import METADATASET_ENDINGS, is_file_of, located
from energon_grain.words import counted, format_bytes, table

if TYPE_CHECKING:
    from energon_grain.prepare.summary import DatasetSummary

_PLOTS, _MIXTURES = "Plots", "Metadatasets"


def info(
    path: DataPath,
    split_config: SplitConfig = None,
    dataset_config: DatasetConfig = None,
    split_ratio: RatioOption = None,
    split: Annotated[
        str | None,
        typer.Option(
            "--split", "--split-part", help="Split to show. Default: train for a metadataset, all for a dataset."
        ),
    ] = None,
    trust_module: TrustModule = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw to this file (.svg, .png, .pdf): sizes of samples and parts for a dataset, shares and epochs "
            "over steps for a metadataset. Needs matplotlib (the extra viz).",
            rich_help_panel=_PLOTS,
        ),
    ] = None,
    batch_size: Annotated[
        int,
        typer.Option(
            min=1,
            help="For a metadataset: samples in a step of all hosts together. With 1, steps are positions.",
            rich_help_panel=_PLOTS,
        ),
    ] = 1,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="For a metadataset: steps to show. Default: three epochs, or a whole schedule.",
            rich_help_panel=_PLOTS,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="For a metadataset: seed of the run.", rich_help_panel=_PLOTS)] = 0,
    lanes: Annotated[
        int | None,
        typer.Option(
            min=1, help="For a metadataset: lanes of the run. Default: as in training.", rich_help_panel=_PLOTS
        ),
    ] = None,
) -> Answer:
    """Show the contents of a dataset or metadataset, without reading samples.

    A dataset: shards, samples, parts, splits, sample type and sizes. A metadataset: its tree, with size, weight or
    repetitions of each dataset, its share of the stream, and how often its samples are seen.

    Examples:
        energon-grain info captions
        energon-grain info mix.yaml --plot mix.svg
    """
    path = located(path)
    if plot is not None:
        check_file(plot)
    if is_file_of(path, METADATASET_ENDINGS):
        if split_config is not None or dataset_config is not None:
            raise ConfigError(
                f"{path} is a metadataset, which names --split-config and --dataset-config of its datasets"
            )
        mixture, spec = summarize_mixture(
            path,
            split=split or "train",
            seed=seed,
            lanes=lanes,
            split_ratio=split_ratio,
            trusted_modules=own_modules(trust_module),
        )
        answer = Answer(document=mixture, lines=mixture_lines(mixture))
        if plot is not None:
            save(draw_mixture(mixture, spec, batch_size=batch_size, steps=steps), plot)
    else:
        answer = _dataset(path, split_config, dataset_config, split, split_ratio)
        if plot is not None:
            save(draw_sizes(path, answer.document), plot)
    if plot is None:
        return answer
    return Answer(document=answer.document, lines=[*answer.lines, "", f"Wrote {plot}."])


def _dataset(
    path: str, split_config: str | None, dataset_config: str | None, split: str | None, split_ratio: str | None
) -> Answer:
    kind = kind_at(path)
    if kind.open is None:
        summary = summarize_dataset(path, split_config=split_config, dataset_config=dataset_config or "dataset.yaml")
        if split_ratio is not None:
            if kind.is_configured:
                raise ConfigError(
                    f"{path}: is prepared, so its split file defines the split parts; remove --split-ratio"
                )
            summary = replace(summary, splits=_splits(path, split_ratio))
        if split is not None:
            summary = replace(summary, splits={split: _split(path, split, summary)})
        return Answer(document=summary, lines=_lines(summary))
    for name, given in (
        ("--split-config", split_config),
        ("--dataset-config", dataset_config),
        ("--split", split),
        ("--split-ratio", split_ratio),
    ):
        if given is not None:
            raise ConfigError(f"{path}: {kind.described} has no splits and no configuration; leave out {name}")
    described = summarize_samples(kind.open(path, None)) if kind.summary is None else kind.summary(path)
    return Answer(document=described, lines=described.lines())


def _splits(path: str, ratio: str) -> dict[str, SplitSummary]:
    """The split parts that a ratio makes of shards without a split file."""
    counts, parts = read_info(open_data(path).local).shard_counts, SplitRatio(ratio)
    runs = {name: [end - begin for begin, end in parts.runs(name, counts)] for name in parts.bounds}
    return {
        name: SplitSummary(shards=sum(size > 0 for size in sizes), samples=sum(sizes), excluded_samples=0)
        for name, sizes in runs.items()
    }


def _split(path: str, name: str, summary: DatasetSummary) -> SplitSummary:
    if name not in summary.splits:
        known = ", ".join(summary.splits) or "it has none"
        raise SplitError(
            f"{path}: there is no split part {name!r}{did_you_mean(name, summary.splits) or f'; split parts: {known}'}"
        )
    return summary.splits[name]


def _lines(summary: DatasetSummary) -> list[str]:
    tags = ", ".join(f"{name}={value}" for name, value in summary.subflavors.items())
    files = f"{container_of(summary.records).file}s" + ("" if summary.records is None else f" ({summary.records})")
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
    lines += [*table([*_split_rows(summary)], "<>><"), "", "Parts", *table([*_part_rows(summary)], "<>><<"), ""]
    return [*lines, *column_lines(summary.columns, summary.stale_columns), *histogram_lines(summary.sizes)]


def _split_rows(summary: DatasetSummary) -> Iterator[tuple[str, ...]]:
    for name, split in summary.splits.items():
        share = split.samples / summary.samples if summary.samples else 0.0
        excluded = f", {split.excluded_samples:,} of them excluded" if split.excluded_samples else ""
        yield name, f"{split.samples:,} samples", f"{share:.1%}", f"in {counted(split.shards, 'shard')}{excluded}"


def _part_rows(summary: DatasetSummary) -> Iterator[tuple[str, ...]]:
    for name, part in summary.parts.items():
        mean = format_bytes(part.total_bytes / part.count)
        extent = f"{format_bytes(part.smallest_bytes)} to {format_bytes(part.largest_bytes)}"
        total = format_bytes(part.total_bytes)
        drawn = sparkline([size.samples for size in part.sizes])
        yield name, f"{part.count:,} files", total, f"mean {mean} ({extent})", drawn


def _sample_type(summary: DatasetSummary) -> str:
    if summary.kind == "none":
        return "of no type yet (no dataset.yaml)"
    if summary.kind == "crude":
        return "plain dicts, to be cooked by the program (crude)"
    return f"{summary.sample_type}" + (" (custom class)" if summary.kind == "custom" else "")
