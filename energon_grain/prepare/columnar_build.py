# SPDX-License-Identifier: Apache-2.0
"""Write the columnar index: from scans of shards (`prepare`), or from the tars when a dataset is first opened."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from energon_grain.atomic_files import (
    atomic_write_bytes,
    exclusive_in,
    is_writable,
    locked_at,
    remove_temporaries,
    sync_folder,
    writing_in,
)
from energon_grain.errors import IndexFileError, StaleIndexError
from energon_grain.formats.columnar import ColumnarIndex, load_columnar
from energon_grain.formats.columnar_header import (
    COLUMN_TYPES,
    CONTENT_COLUMNS,
    HEADER_NAME,
    HEADER_VERSION,
    Column,
    ColumnarHeader,
    ColumnWriter,
    columnar_folder,
    encode_header,
    index_cache_folder,
    info_stamp,
    read_column,
    read_header,
    repair_advice,
)
from energon_grain.formats.data_folder import DataFolder, naming, open_folder
from energon_grain.formats.key_order import DuplicateKeys, external_key_order
from energon_grain.formats.nv_meta import DatasetInfo, read_info
from energon_grain.formats.records import RecordEncoding, read_records_file
from energon_grain.formats.scan import ShardScan
from energon_grain.prepare.containers import container_of
from energon_grain.storage.cores import map_in_order, usable_cores

_ABANDONED_AFTER_S = 24 * 3600
_SCANNING_THREADS = 8
_COMPLETE = "complete"
_COMPARED_AT_ONCE = 1 << 20


def write_columnar(
    target: Path,
    shards: Sequence[str],
    scans: Iterable[ShardScan],
    *,
    unique_keys: bool = False,
    info_stamp: tuple[int, int] | None = None,
    old: ColumnarIndex | None = None,
) -> ColumnarHeader:
    """Write a columnar index into the folder `target` and make it the current one; readers see the old or the new one.

    Memory use is limited to one scan plus `SORT_MEMORY_BYTES` for sorting the keys. An error leaves nothing behind.

    Args:
        target: The index folder, `.nv-meta/columnar` of a dataset.
        shards: Names of the shards, in the order of `.info.json`.
        scans: The scan of each shard, in the same order; consumed one by one.
        unique_keys: Refuse two samples with the same key, as Energon does since 7.3.
        old: The dataset's previous index. If the new shards start with the old ones and hold the same samples, the new
            index records the old one as an earlier state.

    Raises:
        DuplicateKeyError: Two samples have the same key.
        ValueError: The number of scans differs from the number of shards.
    """
    folder = target / f"g{secrets.token_hex(8)}"
    folder.mkdir(parents=True)
    try:
        header = msgspec.structs.replace(_write_columns(folder, shards, scans, unique_keys), info_stamp=info_stamp)
        if old is not None and (earlier := _earlier_states(folder, header, old)):
            header = msgspec.structs.replace(header, version=HEADER_VERSION, earlier=earlier)
        sync_folder(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    atomic_write_bytes(target / HEADER_NAME, encode_header(header))
    remove_old_generations(target, header.generation)
    return header


def _earlier_states(folder: Path, header: ColumnarHeader, old: ColumnarIndex) -> list[tuple[int, str]]:
    """The earlier states to record in the new index: those of the old index, and the old index itself if it grew.

    Empty if the samples in the old shards have changed, which is checked column by column.
    """
    counts = [samples for _, _, samples in header.shards]
    if counts[: len(old.shards)] != np.diff(old.shard_first).tolist():
        return []
    if tuple(header.part_names[: len(old.part_names)]) != old.part_names:
        return []
    for name in CONTENT_COLUMNS:
        column, before = header.columns[name], getattr(old, name)
        path = folder / f"{name}.npy"
        now = read_column(path, COLUMN_TYPES[name], column.rows, block_sums=column.block_sums)[: len(before)]
        for at in range(0, len(before), _COMPARED_AT_ONCE):
            piece = slice(at, at + _COMPARED_AT_ONCE)
            if not np.array_equal(before[piece], now[piece]):
                return []
    grown = [] if header.content_id == old.content_id else [(len(old.shards), old.content_id)]
    return [*old.earlier, *grown]


def remove_old_generations(target: Path, current: str | None) -> None:
    """Remove all generations except `current` and those that another process is writing.

    Without file locks, a generation counts as being written if it has no `complete` mark and is less than a day old.
    """
    with exclusive_in(target) as is_exclusive:
        for folder in target.glob("g*"):
            with contextlib.suppress(OSError):
                abandoned = is_exclusive or time.time() - folder.stat().st_mtime > _ABANDONED_AFTER_S
                if folder.name != current and (abandoned or (folder / _COMPLETE).exists()):
                    shutil.rmtree(folder, ignore_errors=True)
        if is_exclusive:
            remove_temporaries(target, f".{HEADER_NAME}.*.tmp")


def open_columnar(
    path: str | os.PathLike[str] | DataFolder, *, info: DatasetInfo | None = None, cache_dir: Path | None = None
) -> ColumnarIndex:
    """Open the columnar index of the prepared dataset at `path`; build it first if it is missing.

    An index whose shards or sample counts differ from `.info.json` (for example after Energon prepared the dataset
    again) counts as missing. The index is built from the tars and checked against their `.tar.idx` files. It is stored
    in the dataset if that is writable, else in `cache_dir`; for a dataset in an object store, in its mirror. If the
    index exists, no tar is read. Raises DatasetNotFoundError, IndexFileError, StaleIndexError and ReadError.
    """
    folder = open_folder(path)
    with naming(folder):
        return _opened(folder, info or read_info(folder.local), cache_dir)


def _opened(folder: DataFolder, info: DatasetInfo, cache_dir: Path | None) -> ColumnarIndex:
    root = folder.local
    for _ in range(3):
        for place in _places(root, cache_dir):
            header = read_header(place, root)
            if header is None or not header.fits(info):
                continue
            if header.info_stamp is not None and header.info_stamp != info_stamp(root):
                continue
            own = place == columnar_folder(root) and folder.bare is None
            advice = repair_advice(folder.location) if own else f"remove {place}; the next use builds the index again"
            try:
                return load_columnar(folder, place, header, advice)
            except FileNotFoundError:
                if read_header(place, root) == header:  # otherwise it was replaced while we opened it
                    raise IndexFileError(
                        f"{place / header.generation}: columns listed in {HEADER_NAME} are missing; {advice}"
                    ) from None
        build_columnar(folder, info, cache_dir=cache_dir)
    raise IndexFileError(f"{root}: the columnar index kept changing while it was opened; {repair_advice(root)}")


def _places(root: Path, cache_dir: Path | None) -> Iterator[Path]:
    yield columnar_folder(root)
    yield index_cache_folder(root, cache_dir)  # resolves symbolic links, so only when needed


def build_columnar(dataset: DataFolder, info: DatasetInfo, *, cache_dir: Path | None = None) -> None:
    """Build the columnar index of a prepared dataset from its tars, checked against `info` and the `.tar.idx` files.

    The index goes into the dataset, or below `cache_dir` if the dataset is read-only. If two processes build at once,
    the second waits and then uses the finished index. Raises StaleIndexError and TarError.
    """
    root = dataset.local
    target, stamp = columnar_folder(root), None
    if not is_writable(target):
        target, stamp = index_cache_folder(root, cache_dir), info_stamp(root)
        target.mkdir(parents=True, exist_ok=True)
    with locked_at(target / ".lock"):
        header = read_header(target, root)
        if header is not None and header.fits(info) and header.info_stamp == stamp:
            return
        remove_old_generations(target, header and header.generation)
        with writing_in(target):
            write_columnar(target, list(info.shard_counts), _scan_all(dataset, info), info_stamp=stamp)


def _write_columns(
    folder: Path, shards: Sequence[str], scans: Iterable[ShardScan], unique_keys: bool
) -> ColumnarHeader:
    described: list[tuple[str, int, int]] = []
    part_names: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        writers = {name: ColumnWriter(folder / f"{name}.npy", dtype) for name, dtype in COLUMN_TYPES.items()}
        for writer in writers.values():
            stack.callback(writer.close)
        parts = key_bytes = 0
        for shard, scan in zip(shards, scans, strict=True):
            described.append((shard, scan.size_bytes, len(scan)))
            numbers = [part_names.setdefault(name, len(part_names)) for name in scan.part_names]
            writers["sample_start"].append(scan.sample_start)
            writers["part_start"].append(scan.part_start[:-1] + parts)
            writers["part_name"].append(np.array(numbers, dtype=np.int32)[scan.part_name])
            writers["part_offset"].append(scan.part_offset)
            writers["part_size"].append(scan.part_size)
            writers["key_start"].append(scan.key_start[:-1] + key_bytes)
            writers["key_bytes"].append(scan.key_bytes)
            parts += len(scan.part_offset)
            key_bytes += len(scan.key_bytes)
        writers["part_start"].append(np.array([parts]))
        writers["key_start"].append(np.array([key_bytes]))
        for name, writer in writers.items():
            if name != "key_order":
                writer.close()
        _write_key_order(folder, writers, described, unique_keys)
    (folder / _COMPLETE).touch()
    has_sums = any(writer.block_sums for writer in writers.values())
    return ColumnarHeader(
        version=3 if has_sums else 2,  # the oldest version that can read this index
        generation=folder.name,
        shards=described,
        part_names=list(part_names),
        columns={name: Column(each.rows, each.checksum, each.block_sums) for name, each in writers.items()},
    )


def _write_key_order(
    folder: Path, writers: Mapping[str, ColumnWriter], shards: Sequence[tuple[str, int, int]], unique_keys: bool
) -> None:
    """Sort the keys that are already on disk."""
    start, text = (
        read_column(folder / f"{name}.npy", COLUMN_TYPES[name], writers[name].rows, block_sums=writers[name].block_sums)
        for name in ("key_start", "key_bytes")
    )
    first = np.cumsum([0] + [samples for _, _, samples in shards])
    duplicates = DuplicateKeys()

    def note(pairs: npt.NDArray[np.int64]) -> None:
        shard_numbers = np.searchsorted(first, pairs, side="right") - 1
        examples = (
            (text[start[number] : start[number + 1]].tobytes(), shards[one][0], shards[other][0])
            for (number, _), (one, other) in zip(pairs, shard_numbers, strict=True)
        )
        duplicates.add(len(pairs), examples)

    for block in external_key_order(start, text, folder, on_duplicates=note if unique_keys else None):
        writers["key_order"].append(block)
    duplicates.refuse()


def _scan_all(dataset: DataFolder, info: DatasetInfo) -> Iterator[ShardScan]:
    """Scan all shards, several at a time and ahead of the consumer, and check each against the known facts."""
    records = read_records_file(dataset.local)
    firsts = itertools.accumulate(info.shard_counts.values(), initial=0)
    threads = min(_SCANNING_THREADS, usable_cores(), max(1, len(info.shard_counts)))
    with ThreadPoolExecutor(threads, thread_name_prefix="scan") as pool:
        shards = zip(info.shard_counts.items(), firsts, strict=False)
        described = ((dataset, shard, count, records, first) for (shard, count), first in shards)
        yield from map_in_order(pool, threads, scan_checked, described)


def scan_checked(dataset: DataFolder, shard: str, count: int, records: RecordEncoding | None, first: int) -> ShardScan:
    """Scan a shard of a prepared dataset, and check it against the dataset's metadata.

    `first` is the index in the dataset of the shard's first sample. Raises StaleIndexError, and FormatError if the
    shard is damaged.
    """
    scan = container_of(records).scan_indexed(dataset, shard, count, records, first=first)
    if len(scan) != count:
        raise StaleIndexError(
            f"{dataset.shard(shard)}: has {len(scan)} samples, but `.info.json` lists {count}; "
            f"{repair_advice(dataset.location)}"
        )
    return scan
