"""What `energon-grain info` says of a dataset, an array or a JSONL file, without reading its samples."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, EmptyDatasetError, SplitError
from energon_grain.formats.array_record import RecordEncoding, read_records_file
from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.columnar_build import open_columnar
from energon_grain.formats.columnar_header import release_pages
from energon_grain.formats.columns import StoredColumn
from energon_grain.formats.data_folder import DataFolder, naming
from energon_grain.formats.dataset_config import DatasetConfig, read_dataset_config
from energon_grain.formats.nv_meta import INDEX_SQLITE, META_FOLDER, DatasetInfo, DatasetKind, read_info, read_uuid
from energon_grain.formats.splits import read_split_config, select_shards
from energon_grain.prepare.bare_tars import open_data
from energon_grain.prepare.samples import Columns
from energon_grain.sources.arrays import ArrayGroupSource
from energon_grain.sources.jsonl import JsonlSource
from energon_grain.sources.prepared import open_prepared
from energon_grain.sources.tables import TABLES, TableSource
from energon_grain.sources.token_files import TokenSource
from energon_grain.storage.location import join
from energon_grain.storage.object_bytes import read_beginning

_BLOCK_SAMPLES = 1 << 20
_POWERS = 65  # sizes are below 2^63
_COLUMN_BINS = 24
_LOG_FROM = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class PartSummary:
    """One part name: how many there are in the dataset, and their sizes in bytes, with a histogram of these."""

    count: int
    total_bytes: int
    smallest_bytes: int
    largest_bytes: int
    sizes: tuple[SizeBin, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnSummary:
    """One column: what is known of samples.

    Attributes:
        values: How many samples have a value.
        missing: How many have none.
        smallest: Of the values; None where there are none.
        largest: Likewise.
        mean: Likewise.
        bins: Values between `smallest` and `largest` in steps of equal width, or of equal ratio if `is_log`.
        is_log: Whether values differ by more than a factor of a hundred, all above 0.
        function: What made them, as `module:name`.
        version: Of that function.
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
    """One split part, whole shards that are excluded not counted; excluded samples are."""

    shards: int
    samples: int
    excluded_samples: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeBin:
    """Samples whose parts have at least `from_bytes` and less than `below_bytes` together."""

    from_bytes: int
    below_bytes: int
    samples: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetSummary:
    """What a dataset holds.

    Attributes:
        path: Its folder or URL.
        shards: Number of shards.
        samples: Number of samples.
        records: Encoding of the records of ArrayRecord files; None for tars.
        shard_bytes: Size of all shards, when they were indexed.
        payload_bytes: Bytes of all parts.
        energon_version: The release whose format the dataset follows, as `.info.json` has it.
        uuid: Identity that the last `prepare` gave it.
        content_id: Digest over all keys, and over names and sizes of all parts.
        has_sqlite: Whether `index.sqlite` is there.
        parts: By part name.
        splits: By split part; empty without a split file.
        kind: Of `dataset.yaml`: samples of a type, crude ones, a custom class, or none.
        sample_type: Class of the samples as the file names it, or why it is not known.
        field_map: Expression by field; empty where there is none.
        subflavors: Tags of every sample.
        sizes: Histogram of sample sizes, in powers of two, without empty bins at either end.
        columns: By name, those that have files: what is known of media, and what was measured.
        stale_columns: Names of columns of samples that are not here any more.
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
        SplitError: The split file that was asked for is damaged.
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
    """Describe columns that have files."""
    return {name: _summarize_column(columns, name, columns.stored[name]) for name in names}


def _summarize_column(columns: Columns, name: str, stored: StoredColumn) -> ColumnSummary:
    """Two passes, in memory that does not grow with the column."""

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
    """Whether values differ by more than a factor of a hundred, all above 0: they are shown by orders of magnitude."""
    return smallest > 0 and largest > _LOG_FROM * smallest


def edges_of_bins(smallest: float, largest: float, bins: int) -> npt.NDArray[np.float64]:
    """(bins + 1,) of bins of equal width, or of equal ratio where values span orders; one for one value."""
    if largest <= smallest:
        return np.array([smallest - 0.5, largest + 0.5])
    return (np.geomspace if spans_orders(smallest, largest) else np.linspace)(smallest, largest, bins + 1)


def count_in_bins(values: npt.NDArray[np.float64], edges: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """(bins,) how many values each bin has; they lie between the first edge and the last."""
    return np.bincount(np.searchsorted(edges[1:-1], values, side="right"), minlength=len(edges) - 1)


def _powers(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """(65,) how many sizes lie below each power of two and not below the one before."""
    return np.bincount(_exponents(sizes), minlength=_POWERS)


def _exponents(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    return np.frexp(sizes.astype(np.float64))[1]  # 0 -> 0, 1 -> 1, 2..3 -> 2, 4..7 -> 3


def _bins(powers: npt.NDArray[np.int64]) -> tuple[SizeBin, ...]:
    used = np.flatnonzero(powers).tolist()
    return tuple(
        SizeBin(from_bytes=(1 << power) >> 1, below_bytes=1 << power, samples=int(powers[power]))
        for power in range(min(used, default=0), max(used, default=-1) + 1)
    )


def _measure(index: ColumnarIndex) -> tuple[dict[str, PartSummary], npt.NDArray[np.int64]]:
    """Add up the parts of each name, and count the sizes of samples by `_powers`; memory does not grow with them."""
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
        powers += _powers(np.diff(running[start - start[0]]))  # so, since a sample may have no part at all
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
class ArrayForm:
    """What one array is.

    Attributes:
        type: Of its numbers.
        row_shape: Of a row.
        row_bytes: Size of a row.
        chunk_rows: Consecutive rows that are decompressed together.
    """

    type: str
    row_shape: tuple[int, ...]
    row_bytes: int
    chunk_rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSummary:
    """What Parquet, Arrow or MDS files hold, or an indexed dataset of Megatron.

    Attributes:
        path: The files, as they were named.
        files: How many.
        row_groups: Row groups, record batches or runs of samples in all of them; None: each sample is read by itself.
        group_word: What these are called.
        are_blocks: Whether a shuffle keeps to them.
        samples: Number of rows.
        size_bytes: Of all columns, uncompressed.
        content_id: Digest of names, sizes and heads of the files.
        columns: Arrow's type of each, by name.
        measured: Columns that were measured of the rows, and do not lie in the files.
        stale_columns: As of a dataset.
        row_group_bytes: Uncompressed, of a group in the mean, and of the largest.
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


def summarize_tables(path: str | os.PathLike[str], kind: DatasetKind) -> TableSummary:
    """Describe files whose samples have parts without names in the files, of one kind of `TABLES`, or of tokens.

    Raises EnergonGrainError as `TableFiles` or `TokenSource` does.
    """
    if kind is DatasetKind.TOKENS:
        tokens = TokenSource(path)
        return TableSummary(
            path=tokens.path,
            files=1,
            row_groups=None,
            group_word="",
            are_blocks=False,
            samples=len(tokens),
            size_bytes=tokens.size_bytes,
            content_id=tokens.content_id,
            columns={"tokens": f"list of {tokens.type}"},
            measured={},
            stale_columns=(),
            row_group_bytes=(0, 0),
        )
    files = TABLES[kind](path)
    sizes = files.groups.extents[:, :, 2].sum(axis=1)
    types: dict[str, str] = {}
    for number in range(len(files.names)):
        if len(types) < len(files.columns):
            types |= {column.name: str(column.type) for column in files.schema(number) if column.name not in types}
    measured = Columns(TableSource(files))
    return TableSummary(
        path=files.location,
        files=len(files.names),
        row_groups=len(sizes),
        group_word=files.group_word,
        are_blocks=not files.is_mapped,
        samples=len(files),
        size_bytes=int(sizes.sum()),
        content_id=files.content_id,
        columns={name: types[name] for name in files.columns},
        measured=summarize_columns(measured, measured.stored),
        stale_columns=measured.stale,
        row_group_bytes=(int(sizes.mean()), int(sizes.max())),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ArraySummary:
    """What a group of arrays holds; an array is a group of one.

    Attributes:
        path: The folder.
        samples: Number of rows.
        size_bytes: Size of all rows, not compressed.
        content_id: Digest of what the arrays hold; see `ArraySource.content_id`.
        arrays: By name.
    """

    path: str
    samples: int
    size_bytes: int
    content_id: str
    arrays: dict[str, ArrayForm]


def summarize_arrays(path: str | os.PathLike[str]) -> ArraySummary:
    """Describe an array or group.

    Raises EnergonGrainError as `ArrayGroupSource` does, and FormatError if TensorStore cannot read an array.
    """
    source = ArrayGroupSource(path)
    arrays = {
        name: ArrayForm(
            type=array.dtype.name, row_shape=array.row_shape, row_bytes=array.row_bytes, chunk_rows=array.chunk_rows
        )
        for name, array in source.arrays.items()
    }
    return ArraySummary(
        path=source.path,
        samples=len(source),
        size_bytes=len(source) * sum(array.row_bytes for array in arrays.values()),
        content_id=source.content_id,
        arrays=arrays,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonlSummary:
    """What a JSONL file holds.

    Attributes:
        path: The file.
        samples: Number of samples.
        size_bytes: Size of the file.
        content_id: Digest of where its samples lie.
        sizes: Histogram of the sizes of samples, line ends and blank lines counted, in powers of two.
        columns: As of a dataset.
        stale_columns: As of a dataset.
    """

    path: str
    samples: int
    size_bytes: int
    content_id: str
    sizes: tuple[SizeBin, ...]
    columns: dict[str, ColumnSummary]
    stale_columns: tuple[str, ...]


def summarize_jsonl(path: str | os.PathLike[str]) -> JsonlSummary:
    """Describe a JSONL file from its index, which is made if there is none. Raises as `JsonlSource` does."""
    source = JsonlSource(path)
    powers, total_bytes = np.zeros(_POWERS, np.int64), 0
    for begin in range(0, len(source), _BLOCK_SAMPLES):
        sizes = source.sizes(np.arange(begin, min(begin + _BLOCK_SAMPLES, len(source))))
        powers, total_bytes = powers + _powers(sizes), total_bytes + int(sizes.sum())
    columns = Columns(source)
    return JsonlSummary(
        path=str(path),
        samples=len(source),
        size_bytes=total_bytes,
        content_id=source.content_id,
        sizes=_bins(powers),
        columns=summarize_columns(columns, columns.stored),
        stale_columns=columns.stale,
    )
