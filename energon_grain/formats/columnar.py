# SPDX-License-Identifier: Apache-2.0
"""The columnar index: the location of every part of every sample of a dataset, as memory-mapped numpy columns.

    .nv-meta/columnar/header.json          names the current generation; replaced atomically
    .nv-meta/columnar/<generation>/*.npy   the columns

With S shards, N samples and M parts in total:

    sample_start  (N + S,)  the `.tar.idx` of all shards, concatenated: shard s begins at row first[s] + s
    part_start    (N + 1,)  parts of sample i are rows part_start[i]:part_start[i + 1] of the part columns
    part_name, part_offset, part_size  (M,)  index in `part_names`, offset of the payload in its tar, size in bytes
    key_start     (N + 1,)  key i is key_bytes[key_start[i]:key_start[i + 1]], UTF-8
    key_order     (N,)      argsort of the keys as bytes

Opening it costs one small JSON file and eight memory maps, for any number of shards. Opening an index that is already
in use returns the same object. Columns of at most 8 KiB are verified by their checksums when opened. Larger ones are
verified in windows of 128 samples, on first use, including that all numbers point into their columns and shards. The
new windows of a read are verified by one set of numpy calls.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import msgspec
import numpy as np
import numpy.typing as npt

from energon_grain.errors import IndexFileError
from energon_grain.formats.columnar_header import (
    COLUMN_TYPES,
    BlockSums,
    Column,
    ColumnarHeader,
    column_file_bytes,
    columnar_folder,
    read_column,
    read_header,
    repair_advice,
    rows_of,
)
from energon_grain.formats.data_folder import DataFolder, fetch_again
from energon_grain.formats.nv_meta import META_FOLDER, RECORDS_JSON
from energon_grain.formats.scan import ShardScan
from energon_grain.storage.memory_maps import release_pages

_WINDOW_SHIFT = 7  # 128 samples, the number of starts in a block
_CHECKED_AT_ONCE = 64  # windows, whose memory is reused without system calls
_RELEASED_AT_ONCE = 512  # windows, about 10 MB
_ORDER_AT_ONCE = 1 << 20  # 8 MiB
_VECTORISED_KEYS = 64  # below, a loop over the keys is as fast


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, weakref_slot=True)
class ColumnarIndex:
    """The location of every part of every sample of a dataset. Samples are numbered from 0 through all shards.

    Rows of columns may be used only after `check` of their samples. Functions that return keys call it themselves.
    """

    root: Path
    shards: tuple[str, ...]  # relative to `root`, in the order of `.info.json`
    shard_bytes: npt.NDArray[np.int64]  # (S,) size when the index was written
    shard_first: npt.NDArray[np.int64]  # (S + 1,) number of the first sample of each, and the total
    part_names: tuple[str, ...]
    content_id: str  # see `ColumnarHeader`, also for `earlier`
    has_records: bool  # whether the shards are ArrayRecord files
    earlier: tuple[tuple[int, str], ...]
    sample_start: npt.NDArray[np.int64]  # (N + S,)
    part_start: npt.NDArray[np.int64]  # (N + 1,)
    part_name: npt.NDArray[np.int32]  # (M,)
    part_offset: npt.NDArray[np.int64]  # (M,)
    part_size: npt.NDArray[np.int64]  # (M,)
    key_start: npt.NDArray[np.int64]  # (N + 1,)
    key_bytes: npt.NDArray[np.uint8]
    key_order: npt.NDArray[np.int64]  # (N,)
    sums: Mapping[str, BlockSums]
    _seen: npt.NDArray[np.bool_] = field(init=False)  # by windows of samples

    def __post_init__(self) -> None:
        object.__setattr__(self, "_seen", np.zeros(-(-len(self) >> _WINDOW_SHIFT), np.bool_))

    def __len__(self) -> int:
        return len(self.part_start) - 1

    @property
    def columns(self) -> tuple[npt.NDArray[Any], ...]:
        """All columns, in the order of `COLUMN_TYPES`."""
        return tuple(getattr(self, name) for name in COLUMN_TYPES)

    @property
    def rows(self) -> int:
        """Length of the longest column with entries of 8 bytes."""
        return max(len(self), len(self.part_offset))

    def shard_of(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.searchsorted(self.shard_first, samples, side="right") - 1

    def shard_sample_start(self, shard: int) -> npt.NDArray[np.int64]:
        """Return the content of the `.tar.idx` of a shard: (n + 1,) offsets of its samples and of its end."""
        first, last = int(self.shard_first[shard]) + shard, int(self.shard_first[shard + 1]) + shard
        self.sums["sample_start"].check(first, last + 1)
        return self.sample_start[first : last + 1]

    def state_of(self, shards: int) -> tuple[int, str]:
        """Number of shards and content id of the dataset when it first had at least `shards` shards."""
        later = (state for state in self.earlier if state[0] >= shards)
        return next(later, (len(self.shards), self.content_id))

    def scan(self, shard: int) -> ShardScan:
        """Return the scan of a shard, without the metadata of media. Raises IndexFileError."""
        first, last = int(self.shard_first[shard]), int(self.shard_first[shard + 1])
        self.check(np.arange(first, last))
        rows, keys = (slice(int(each[first]), int(each[last])) for each in (self.part_start, self.key_start))
        numbers, appeared, part = np.unique(self.part_name[rows], return_index=True, return_inverse=True)
        order = np.argsort(appeared)
        return ShardScan(
            size_bytes=int(self.shard_bytes[shard]),
            sample_start=np.asarray(self.shard_sample_start(shard)),
            part_start=self.part_start[first : last + 1] - rows.start,
            part_names=tuple(self.part_names[number] for number in numbers[order]),
            part_name=np.argsort(order).astype(np.int32)[part],
            part_offset=np.asarray(self.part_offset[rows]),
            part_size=np.asarray(self.part_size[rows]),
            key_start=self.key_start[first : last + 1] - keys.start,
            key_bytes=np.asarray(self.key_bytes[keys]),
        )

    def shard_end(self, shard: int) -> int:
        """Return the end of the last sample of a shard, in bytes."""
        row = int(self.shard_first[shard + 1]) + shard
        self.sums["sample_start"].check(row, row + 1)
        return int(self.sample_start[row])

    def check(self, samples: npt.NDArray[np.int64] | None = None) -> None:
        """Verify the columns of samples (None: of all, and their order) by checksums, once.

        Raises IndexFileError.
        """
        if samples is None:
            windows = np.flatnonzero(~self._seen)
        else:
            windows = samples >> _WINDOW_SHIFT
            windows = windows[~self._seen[windows]]
            if len(windows) > 1:
                wanted = np.zeros_like(self._seen)
                wanted[windows] = True
                windows = np.flatnonzero(wanted)
        for at in range(0, len(windows), _CHECKED_AT_ONCE):
            piece = windows[at : at + _CHECKED_AT_ONCE]
            self._check(piece)
            self._seen[piece] = True
            if samples is None and at % _RELEASED_AT_ONCE == 0:
                self.release()
        if samples is None:
            for at in range(0, len(self), _ORDER_AT_ONCE):
                piece = self.key_order[at : at + _ORDER_AT_ONCE]
                self.sums["key_order"].check(at, at + len(piece))
                if not 0 <= piece.min() <= piece.max() < len(self):
                    raise self._wrong_order()
                release_pages(self.key_order)
            self.release()

    def release(self) -> None:
        for column in self.columns:
            release_pages(column)

    def keys(self, samples: npt.NDArray[np.int64]) -> list[str]:
        """Return the key of each sample, at about 0.1 µs per key.

        Bytes that are not UTF-8 become surrogates, as in file names decoded by Python.
        """
        self.check(samples)
        start, stop = self.key_start[samples], self.key_start[samples + 1]
        length = stop - start
        if len(start) >= _VECTORISED_KEYS:
            same = int(length[0]) if length[0] > 0 and (length == length[0]).all() else None
            text = self._join_keys(start, length) if same is None else self._join_keys_of_length(start, same)
            keys = text.decode("utf-8", "surrogateescape").split("\0")
            if len(keys) == len(start) + 1:  # otherwise a key contains a NUL
                keys.pop()
                return keys
        view = self.key_bytes.data
        bounds = zip(start.tolist(), stop.tolist(), strict=True)
        return [str(view[begin:end], "utf-8", "surrogateescape") for begin, end in bounds]

    def key(self, sample: int) -> str:
        return self._key_bytes(sample).decode("utf-8", "surrogateescape")

    def find(self, key: str) -> int | None:
        """Return the sample with this key (the first one if several have it), or None."""
        wanted = key.encode("utf-8", "surrogateescape")
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._key_bytes(self._in_order(middle)) < wanted:
                low = middle + 1
            else:
                high = middle
        if low == len(self):
            return None
        sample = self._in_order(low)
        return sample if self._key_bytes(sample) == wanted else None

    def _join_keys_of_length(self, start: npt.NDArray[np.int64], length: int) -> bytes:
        """Return the keys that start at `start`, all of the same length, with a NUL after each."""
        starting_anywhere = np.ndarray(
            (len(self.key_bytes) - length + 1,), dtype=f"V{length}", buffer=self.key_bytes, strides=(1,)
        )
        text = np.zeros((len(start), length + 1), dtype=np.uint8)
        text[:, :length] = starting_anywhere[start].view(np.uint8).reshape(len(start), length)
        return text.tobytes()

    def _join_keys(self, start: npt.NDArray[np.int64], length: npt.NDArray[np.int64]) -> bytes:
        """Return the keys that start at `start` with a NUL after each."""
        place = np.cumsum(length + 1)
        source = np.arange(int(place[-1])) + np.repeat(start - place + length + 1, length + 1)
        text = self.key_bytes.take(source, mode="clip")
        text[place - 1] = 0
        return text.tobytes()

    def _in_order(self, place: int) -> int:
        self.sums["key_order"].check(place, place + 1)
        sample = int(self.key_order[place])
        if not 0 <= sample < len(self):
            raise self._wrong_order()
        return sample

    def _wrong_order(self) -> IndexFileError:
        return self.sums["key_order"].damaged(f"contains numbers beyond the {len(self)} samples")

    def _key_bytes(self, sample: int) -> bytes:
        if not self._seen[sample >> _WINDOW_SHIFT]:
            self.check(np.array([sample]))
        return self.key_bytes[self.key_start[sample] : self.key_start[sample + 1]].tobytes()

    def _check(self, windows: npt.NDArray[np.int64]) -> None:
        """Verify the rows of windows of samples by checksums, and the ranges of their numbers."""
        breaks = np.flatnonzero(windows[1:] - windows[:-1] > 1)
        first = windows[np.concatenate([[0], breaks + 1])] << _WINDOW_SHIFT
        stop = np.minimum((windows[np.append(breaks, -1)] + 1) << _WINDOW_SHIFT, len(self))
        samples = rows_of(first, stop)
        shard = self.shard_of(samples)
        ends = np.cumsum(stop - first)
        self.sums["sample_start"].check_runs(first + shard[ends - (stop - first)], stop + shard[ends - 1] + 1)
        begin, end = self._check_starts("key_start", first, stop, samples, "key_bytes")
        self.sums["key_bytes"].check_runs(begin, end)
        begin, end = self._check_starts("part_start", first, stop, samples, "part_name")
        for name in ("part_name", "part_offset", "part_size"):
            self.sums[name].check_runs(begin, end)
        parts = rows_of(begin, end)
        names = self.part_name[parts]
        if len(parts) and not 0 <= names.min() <= names.max() < len(self.part_names):
            raise self.sums["part_name"].damaged(f"contains part numbers beyond the {len(self.part_names)} part names")
        if self.has_records:
            return  # offsets in ArrayRecord files assume uncompressed records
        limit = self.shard_bytes[shard]
        starts, stops = self.sample_start[samples + shard], self.sample_start[samples + shard + 1]
        if (starts < 0).any() or (stops < starts).any() or (stops > limit).any():
            raise self.sums["sample_start"].damaged("contains samples outside their shard")
        limit = np.repeat(limit, self.part_start[samples + 1] - self.part_start[samples])
        available = limit - self.part_offset[parts]
        if ((available < 0) | (available > limit)).any():
            raise self.sums["part_offset"].damaged("contains parts outside their shard")
        size = self.part_size[parts]
        if ((size < 0) | (size > available)).any():
            raise self.sums["part_size"].damaged("contains parts that end outside their shard")

    def _check_starts(
        self,
        name: str,
        first: npt.NDArray[np.int64],
        stop: npt.NDArray[np.int64],
        samples: npt.NDArray[np.int64],
        of: str,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """First row, and one past the last, of the column `of`, for each run [first, stop) of samples."""
        self.sums[name].check_runs(first, stop + 1)
        starts, total = getattr(self, name), len(getattr(self, of))
        begin, end = starts[first], starts[stop]
        if begin.min() < 0 or end.max() > total or (starts[samples + 1] < starts[samples]).any():
            raise self.sums[name].damaged(f"must be ascending from 0 to {total}")
        return begin, end


def find_columnar(folder: DataFolder) -> ColumnarIndex | None:
    """Open the columnar index inside a dataset, stale or not; None if there is none, or it is damaged."""
    target = columnar_folder(folder.local)
    with contextlib.suppress(IndexFileError, FileNotFoundError):
        header = read_header(target, folder.local)
        return None if header is None else load_columnar(folder, target, header, repair_advice(folder.location))
    return None


def load_columnar(dataset: DataFolder, folder: Path, header: ColumnarHeader, advice: str) -> ColumnarIndex:
    """Map the columns that `header` names, inside the index folder `folder` of a dataset, unless they are in use.

    Damaged columns of a mirror are fetched again, once. Raises FileNotFoundError and IndexFileError.
    """
    base = os.path.join(folder, header.generation)  # paths as text: a thousand datasets are opened at once
    paths = {name: f"{base}/{name}.npy" for name in COLUMN_TYPES}
    stats = [os.stat(path) for path in paths.values()]
    files = tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)
    known = dataset.location, str(folder), header.generation, header.header_checksum, files
    index = _open.get(known)
    if index is not None and not any(each.is_damaged for each in index.sums.values()):
        return index
    samples = [count for _, _, count in header.shards]
    total, parts = sum(samples), header.columns["part_offset"].rows
    expected = dict.fromkeys(("part_name", "part_offset", "part_size"), parts)
    expected |= {"part_start": total + 1, "key_start": total + 1, "key_order": total}
    expected["sample_start"] = total + len(samples)
    expected["key_bytes"] = header.columns["key_bytes"].rows
    columns: dict[str, npt.NDArray[Any]] = {}
    sums: dict[str, BlockSums] = {}
    mirrored = dataset.is_mirrored
    for name, path in paths.items():
        described = header.columns[name]
        again = _fetching_again(dataset, path, COLUMN_TYPES[name], described) if mirrored else None
        columns[name] = _mapped(path, COLUMN_TYPES[name], expected[name], described, again, advice)
        sums[name] = BlockSums(
            path,
            columns[name],
            checksum=described.checksum,
            block_sums=described.block_sums,
            where=path.replace(str(dataset.local), dataset.location),  # errors name the store, not the mirror
            repair_advice=advice,
            fetch_again=again,
        )
    index = ColumnarIndex(
        root=dataset.local,
        shards=tuple(name for name, _, _ in header.shards),
        shard_bytes=np.array([size for _, size, _ in header.shards], dtype=np.int64),
        shard_first=np.cumsum([0, *samples], dtype=np.int64),
        part_names=tuple(header.part_names),
        content_id=header.content_id,
        has_records=(dataset.local / META_FOLDER / RECORDS_JSON).exists(),
        earlier=() if header.earlier is msgspec.UNSET else tuple(header.earlier),
        sums=sums,
        **columns,
    )
    _open[known] = index
    return index


_open: WeakValueDictionary[tuple[Any, ...], ColumnarIndex] = WeakValueDictionary()
"""Indices in use. A second loader of a dataset shares the verified windows of the first one, and maps nothing."""


def _mapped(
    path: str, dtype: str, rows: int, column: Column, again: Callable[[], None] | None, advice: str
) -> npt.NDArray[Any]:
    try:
        return read_column(path, dtype, rows, block_sums=column.block_sums)
    except IndexFileError as error:
        if again is None:
            raise IndexFileError(f"{error}; {advice}") from error
    again()
    return _mapped(path, dtype, rows, column, None, advice)


def _fetching_again(dataset: DataFolder, path: str, dtype: str, column: Column) -> Callable[[], None] | None:
    """A function that fetches a column of a mirror again; None for an index that is not part of the mirror."""
    if not Path(path).is_relative_to(dataset.local):
        return None
    size_bytes = column_file_bytes(dtype, column.rows, block_sums=column.block_sums)
    return lambda: fetch_again(dataset, Path(path), size_bytes)
