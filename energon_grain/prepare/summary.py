# SPDX-License-Identifier: Apache-2.0
"""The content of `energon-grain info`: describes data without reading samples."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, EmptyDatasetError, SplitError
from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.columns import StoredColumn
from energon_grain.formats.data_folder import DataFolder, naming
from energon_grain.formats.dataset_config import DatasetConfig, read_dataset_config
from energon_grain.formats.nv_meta import INDEX_SQLITE, META_FOLDER, DatasetInfo, read_info, read_uuid
from energon_grain.formats.records import RecordEncoding, read_records_file
from energon_grain.formats.splits import read_split_config, select_shards
from energon_grain.media.headers import HEADER_FUNCTION
from energon_grain.prepare.columnar_build import open_columnar
from energon_grain.prepare.containers import open_data, open_prepared
from energon_grain.prepare.samples import Columns
from energon_grain.sources.kinds import Opened
from energon_grain.sources.source import Source
from energon_grain.storage.location import join
from energon_grain.storage.memory_maps import release_pages
from energon_grain.storage.remote import read_beginning
from energon_grain.words import binary_bytes, counted, format_bytes, table

_BLOCK_SAMPLES = 1 << 20
_POWERS = 65  # sizes are below 2^63
_COLUMN_BINS = 24
_LOG_FROM = 100
_BAR_WIDTH = 40
_BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, kw_only=True, slots=True)
class PartSummary:
    """One part name: its count in the dataset, and its sizes in bytes, with a histogram."""

    count: int
    total_bytes: int
    smallest_bytes: int
    largest_bytes: int
    sizes: tuple[SizeBin, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnSummary:
    """One column.

    Attributes:
        values: Number of samples with a value.
        missing: Number of samples without one.
        smallest: Smallest value; None without values.
        largest: Largest value; None without values.
        mean: Mean value; None without values.
        bins: Histogram between `smallest` and `largest`, in steps of equal width, or of equal ratio if `is_log`.
        is_log: Whether all values are above 0 and differ by more than a factor of 100.
        function: The function that computed them, as `module:name`.
        version: Version of that function.
    """

    values: int
    missing: int
    smallest: float | None
    largest: float | None
    mean: float | None
    bins: tuple[int, ...]
    is_log: bool
    function: str
    version: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitSummary:
    """One split part, without excluded shards; `samples` includes excluded samples."""

    shards: int
    samples: int
    excluded_samples: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeBin:
    """Samples whose parts have at least `from_bytes` and less than `below_bytes` in total."""

    from_bytes: int
    below_bytes: int
    samples: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetSummary:
    """Summary of a dataset.

    Attributes:
        path: Its folder or URL.
        shards: Number of shards.
        samples: Number of samples.
        records: Encoding of the records of ArrayRecord files; None for tars.
        shard_bytes: Size of all shards at the time of indexing.
        payload_bytes: Bytes of all parts.
        energon_version: The Energon release whose format the dataset follows, from `.info.json`.
        uuid: Identity from the last `prepare`.
        content_id: Digest over all keys, and over names and sizes of all parts.
        has_sqlite: Whether `index.sqlite` exists.
        parts: By part name.
        splits: By split part; empty without a split file.
        kind: From `dataset.yaml`: samples of a type, crude ones, a custom class, or none.
        sample_type: Class of the samples as named in the file, or the reason why it is unknown.
        field_map: Expression by field; empty without a field map.
        subflavors: Tags of every sample.
        sizes: Histogram of sample sizes, in powers of two, without empty bins at either end.
        columns: By name, the stored columns: media metadata and measured columns.
        stale_columns: Names of columns whose samples have changed.
    """

    path: str
    shards: int
    samples: int
    records: RecordEncoding | None
    shard_bytes: int
    payload_bytes: int
    energon_version: str | None
    uuid: str | None
    content_id: str
    has_sqlite: bool
    parts: dict[str, PartSummary]
    splits: dict[str, SplitSummary]
    kind: Literal["standard", "crude", "custom", "none"]
    sample_type: str | None
    field_map: dict[str, str]
    subflavors: dict[str, object]
    sizes: tuple[SizeBin, ...]
    columns: dict[str, ColumnSummary]
    stale_columns: tuple[str, ...]


def summarize_dataset(
    root: str | os.PathLike[str], *, split_config: str | None = None, dataset_config: str = "dataset.yaml"
) -> DatasetSummary:
    """Describe the dataset at `root`, a path or URL. Builds its columnar index if it has none.

    Raises:
        DatasetNotFoundError: There is no prepared dataset.
        IndexFileError: An index is damaged.
        SplitError: The requested split file is damaged.
        ReadError: An object store cannot be reached.
    """
    folder = open_data(root)
    with naming(folder):
        return _summarize(folder, split_config, dataset_config)


def _summarize(folder: DataFolder, split_config: str | None, dataset_config: str) -> DatasetSummary:
    root = folder.local
    info = read_info(root)
    index = open_columnar(folder)
    index.check()
    required = split_config is not None
    config: DatasetConfig | None = None
    kind: Literal["standard", "crude", "custom", "none"] = "none"
    sample_type: str | None = None
    if (root / META_FOLDER / dataset_config).exists():
        try:
            config = read_dataset_config(root, dataset_config)
        except ConfigError as error:
            kind, sample_type = "custom", f"unknown: {error}"
    if config is not None:
        kind, named = config.kind, config.sample_type or (config.class_ref if config.kind == "custom" else None)
        sample_type = None if named is None else f"{named.module}.{named.name}"
        split_config = split_config or config.split_config
    parts, powers = _measure(index)
    columns = Columns(open_prepared(folder, info=info))
    return DatasetSummary(
        path=folder.location,
        shards=len(index.shards),
        samples=len(index),
        records=read_records_file(root),
        shard_bytes=int(index.shard_bytes.sum()),
        payload_bytes=sum(part.total_bytes for part in parts.values()),
        energon_version=info.energon_version,
        uuid=read_uuid(root),
        content_id=index.content_id,
        has_sqlite=bool(read_beginning(join(folder.location, f"{META_FOLDER}/{INDEX_SQLITE}"), 1)),
        parts=parts,
        splits=_splits(root, split_config, info, required=required),
        kind=kind,
        sample_type=sample_type,
        field_map={} if config is None else dict(config.field_map or {}),
        subflavors={} if config is None else dict(config.subflavors),
        sizes=_bins(powers),
        columns=summarize_columns(columns, columns.stored),
        stale_columns=columns.stale,
    )


def summarize_columns(columns: Columns, names: Iterable[str]) -> dict[str, ColumnSummary]:
    """Describe stored columns."""
    return {name: _summarize_column(columns, name, columns.stored[name]) for name in names}


def _summarize_column(columns: Columns, name: str, stored: StoredColumn) -> ColumnSummary:
    """Uses two passes and constant memory."""

    def blocks() -> Iterator[npt.NDArray[np.float64]]:
        for block in columns.blocks(name):
            block = block.astype(np.float64)
            yield block[np.isfinite(block)]

    values, total, smallest, largest = 0, 0.0, np.inf, -np.inf
    for block in blocks():
        if len(block):
            values, total = values + len(block), total + float(block.sum())
            smallest, largest = min(smallest, float(block.min())), max(largest, float(block.max()))
    bins = np.array([values] if values else [], np.int64)
    if smallest < largest:
        edges = edges_of_bins(smallest, largest, _COLUMN_BINS)
        bins = np.sum([count_in_bins(block, edges) for block in blocks()], axis=0)
    return ColumnSummary(
        values=values,
        missing=columns.samples - values,
        smallest=smallest if values else None,
        largest=largest if values else None,
        mean=total / values if values else None,
        bins=tuple(bins.tolist()),
        is_log=spans_orders(smallest, largest),
        function=stored.function,
        version=stored.version,
    )


def spans_orders(smallest: float, largest: float) -> bool:
    """Whether values are above 0 and differ by more than a factor of 100: they are shown on a logarithmic scale."""
    return smallest > 0 and largest > _LOG_FROM * smallest


def edges_of_bins(smallest: float, largest: float, bins: int) -> npt.NDArray[np.float64]:
    """(bins + 1,) edges of equal width, or of equal ratio if `spans_orders`; a single bin for a single value."""
    if largest <= smallest:
        return np.array([smallest - 0.5, largest + 0.5])
    return (np.geomspace if spans_orders(smallest, largest) else np.linspace)(smallest, largest, bins + 1)


def count_in_bins(values: npt.NDArray[np.float64], edges: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """(bins,) the number of values per bin; values are between the first and the last edge."""
    return np.bincount(np.searchsorted(edges[1:-1], values, side="right"), minlength=len(edges) - 1)


def _powers(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """(65,) the number of sizes in each bin, from one power of two up to the next."""
    return np.bincount(_exponents(sizes), minlength=_POWERS)


def _exponents(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    return np.frexp(sizes.astype(np.float64))[1]  # 0 -> 0, 1 -> 1, 2..3 -> 2, 4..7 -> 3


def _bins(powers: npt.NDArray[np.int64]) -> tuple[SizeBin, ...]:
    used = np.flatnonzero(powers).tolist()
    return tuple(
        SizeBin(from_bytes=(1 << power) >> 1, below_bytes=1 << power, samples=int(powers[power]))
        for power in range(min(used, default=0), max(used, default=-1) + 1)
    )


def sizes_of_samples(source: Source) -> tuple[tuple[SizeBin, ...], int]:
    """A histogram of the sizes of samples, and their sum."""
    powers, total_bytes = np.zeros(_POWERS, np.int64), 0
    for begin in range(0, len(source), _BLOCK_SAMPLES):
        sizes = source.sizes(np.arange(begin, min(begin + _BLOCK_SAMPLES, len(source))))
        powers, total_bytes = powers + _powers(sizes), total_bytes + int(sizes.sum())
    return _bins(powers), total_bytes


def _measure(index: ColumnarIndex) -> tuple[dict[str, PartSummary], npt.NDArray[np.int64]]:
    """Summarize the parts of each name, and count the sizes of samples as `_powers`; in constant memory."""
    kinds = len(index.part_names)
    counts, totals, largest = (np.zeros(kinds, np.int64) for _ in range(3))
    of_kinds = np.zeros(kinds * _POWERS, np.int64)
    smallest = np.full(kinds, np.iinfo(np.int64).max)
    powers = np.zeros(_POWERS, np.int64)
    for begin in range(0, len(index), _BLOCK_SAMPLES):
        start = np.asarray(index.part_start[begin : begin + _BLOCK_SAMPLES + 1])
        name = np.asarray(index.part_name[start[0] : start[-1]])
        size = np.asarray(index.part_size[start[0] : start[-1]])
        counts += np.bincount(name, minlength=kinds)
        of_kinds += np.bincount(name.astype(np.int64) * _POWERS + _exponents(size), minlength=kinds * _POWERS)
        np.add.at(totals, name, size)
        np.minimum.at(smallest, name, size)
        np.maximum.at(largest, name, size)
        running = np.concatenate([[0], np.cumsum(size, dtype=np.int64)])
        powers += _powers(np.diff(running[start - start[0]]))  # not `np.add.reduceat`: a sample may have no parts
        for column in (index.part_start, index.part_name, index.part_size):
            release_pages(column)
    parts = {
        part: PartSummary(
            count=int(counts[place]),
            total_bytes=int(totals[place]),
            smallest_bytes=int(smallest[place]),
            largest_bytes=int(largest[place]),
            sizes=_bins(of_kinds[place * _POWERS : (place + 1) * _POWERS]),
        )
        for place, part in enumerate(index.part_names)
    }
    return parts, powers


def _splits(root: Path, name: str | None, info: DatasetInfo, *, required: bool) -> dict[str, SplitSummary]:
    try:
        config = read_split_config(root, name, shards=info.shard_counts)
    except SplitError:
        if required:
            raise
        return {}
    splits: dict[str, SplitSummary] = {}
    for part in config.split_parts:
        try:
            chosen = select_shards(config, part, info)
        except EmptyDatasetError:
            splits[part] = SplitSummary(shards=0, samples=0, excluded_samples=0)
            continue
        splits[part] = SplitSummary(
            shards=len(chosen.shards),
            samples=sum(info.shard_counts[shard] for shard in chosen.shards),
            excluded_samples=len(chosen.excluded_samples),
        )
    return splits


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplesSummary:
    """Summary of data of a kind without its own summary.

    Attributes:
        path: The data, as named by the caller.
        files: Number of files.
        samples: Number of samples.
        size_bytes: Size of all samples.
        content_id: Digest of the samples.
        parts: Names of parts.
        sizes: Histogram of the sizes of samples, in powers of two.
        columns: As in `DatasetSummary`.
        stale_columns: As in `DatasetSummary`.
    """

    path: str
    files: int
    samples: int
    size_bytes: int
    content_id: str
    parts: tuple[str, ...]
    sizes: tuple[SizeBin, ...]
    columns: dict[str, ColumnSummary]
    stale_columns: tuple[str, ...]

    def lines(self) -> list[str]:
        """The text for users."""
        samples = f"  {counted(self.samples, 'sample')} in {counted(self.files, 'file')}"
        kind = "  samples are plain dicts (crude), for a cooker in your program; their parts are "
        return [
            self.path,
            f"{samples}, {format_bytes(self.size_bytes)}",
            f"{kind}{', '.join(self.parts)}",
            "",
            *column_lines(self.columns, self.stale_columns),
            *histogram_lines(self.sizes),
        ]


def summarize_samples(found: Opened) -> SamplesSummary:
    """Describe data that are read directly, with the attributes of every source."""
    source = found.source
    sizes, size_bytes = sizes_of_samples(source)
    columns = Columns(source)
    return SamplesSummary(
        path=source.path,
        files=len(found.rows.shard_counts),
        samples=len(source),
        size_bytes=size_bytes,
        content_id=source.content_id,
        parts=found.part_names,
        sizes=sizes,
        columns=summarize_columns(columns, columns.stored),
        stale_columns=columns.stale,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSummary:
    """Summary of files that are read directly, row by row or in groups of rows.

    Attributes:
        path: The files, as named by the caller.
        files: Number of files.
        row_groups: Number of row groups, record batches or runs of samples in all files; None if each sample is read
            individually.
        group_word: Name of these groups.
        are_blocks: Whether a shuffle keeps them together.
        samples: Number of rows.
        size_bytes: Uncompressed size of all columns.
        content_id: Digest of names, sizes and heads of the files.
        columns: Arrow type of each column, by name.
        measured: Columns measured from the rows, which are not in the files.
        stale_columns: As in `DatasetSummary`.
        row_group_bytes: Uncompressed size of a group: mean, and largest.
    """

    path: str
    files: int
    row_groups: int | None
    group_word: str
    are_blocks: bool
    samples: int
    size_bytes: int
    content_id: str
    columns: dict[str, str]
    measured: dict[str, ColumnSummary]
    stale_columns: tuple[str, ...]
    row_group_bytes: tuple[int, int]

    def lines(self) -> list[str]:
        """The text for users."""
        measured = column_lines(self.measured, self.stale_columns)
        groups: list[str] = []
        if self.row_groups is not None:
            mean, largest = map(format_bytes, self.row_group_bytes)
            groups = [f"  {counted(self.row_groups, self.group_word)}, {mean} on average, {largest} at most; "]
            groups[0] += "a shuffle reads one per lane (48) at a time" if self.are_blocks else "all are cheap to read"
        return [
            self.path,
            f"  {counted(self.samples, 'sample')} in {counted(self.files, 'file')}, "
            f"{format_bytes(self.size_bytes)} of columns, uncompressed",
            *groups,
            "  samples are plain dicts (crude), for a cooker in your program; their parts are columns",
            "",
            "Parts",
            *table([*self.columns.items()], "<<"),
            *([""] if measured else []),
            *measured[:-1],
        ]


def column_lines(columns: Mapping[str, ColumnSummary], stale: Sequence[str]) -> list[str]:
    """The text for users about columns."""
    lines = ["Columns", *table(*column_rows(columns)), ""] if columns else []
    if stale:
        lines += [f"Outdated columns, whose samples have changed: {', '.join(stale)}. Measure them again.", ""]
    return lines


def column_rows(columns: Mapping[str, ColumnSummary]) -> tuple[list[tuple[str, ...]], str]:
    """A row for each column, and the alignment, for `table`."""
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
    """A histogram in one line. The height of each bar is proportional; non-empty bars are always visible.

    >>> sparkline([0, 1, 4, 8])
    ' ▁▄█'
    """
    most = max(counts, default=0)
    return "".join(_BARS[-(-count * 8 // most) if most else 0] for count in counts)


def histogram_lines(sizes: Sequence[SizeBin]) -> list[str]:
    """The text for users about the sizes of samples."""
    most = max((size.samples for size in sizes), default=0)
    rows: list[tuple[str, ...]] = []
    for size in sizes:
        bar = "█" * max(round(size.samples / most * _BAR_WIDTH), int(size.samples > 0))
        rows.append((f"{binary_bytes(size.from_bytes)} to {binary_bytes(size.below_bytes)}", f"{size.samples:,}", bar))
    return ["Sample sizes", *table(rows, "<><")]
