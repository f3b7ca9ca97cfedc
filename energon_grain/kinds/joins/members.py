# SPDX-License-Identifier: Apache-2.0
"""The members of a join: the samples of a dataset's split part, and the rows of an array.

Both are columns of keys. The samples of a primary are ranked in the order of its shards, including excluded ones; the
rank is the position of a row in the join.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, DatasetNotFoundError, DuplicateKeyError
from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.columnar_header import ColumnWriter, read_column
from energon_grain.formats.data_folder import naming
from energon_grain.formats.dataset_config import DEFAULT_DATASET_CONFIG, read_dataset_config
from energon_grain.formats.key_order import KeyWords
from energon_grain.formats.nv_meta import META_FOLDER, read_info, read_uuid
from energon_grain.formats.splits import (
    DEFAULT_SPLIT_CONFIG,
    SelectedShards,
    SplitConfig,
    read_split_config,
    select_shards,
)
from energon_grain.kinds.joins.index import JoinedMember, shards_digest
from energon_grain.kinds.joins.source import MemberSource
from energon_grain.prepare.columnar_build import open_columnar
from energon_grain.prepare.containers import open_data
from energon_grain.sources.kinds import rows_joined_by
from energon_grain.sources.rows import rows_of
from energon_grain.sources.source import HasKeyColumns
from energon_grain.storage.location import is_url, located
from energon_grain.storage.memory_maps import release_pages
from energon_grain.storage.remote import read_whole

Int64Array = npt.NDArray[np.int64]
Nonmatch = Literal["error", "skip", "none"]
"""Treatment of rows whose key a member lacks: an error, skip the row, or use None."""
Identity: TypeAlias = tuple[str, str, Sequence[str], Sequence[str], str]
"""The values that determine the name of a join, see `kinds.joins.index.join_name`."""
_TEXT_BYTES = 16 << 20
_KEYS_AT_ONCE = 1 << 16


def _split_of(
    root: Path, split_part: str, split_config: str | None, dataset_config: str | None
) -> tuple[str, SplitConfig, SelectedShards]:
    """The effective split part, all parts, and its shards. Raises as `JoinedDataset`."""
    info, name = read_info(root), dataset_config or DEFAULT_DATASET_CONFIG
    if (root / META_FOLDER / name).exists():
        config = read_dataset_config(root, name)
        split_config, split_part = split_config or config.split_config, config.split_part or split_part
    splits = read_split_config(root, split_config or DEFAULT_SPLIT_CONFIG, shards=info.shard_counts)
    selected = select_shards(splits, split_part, info)
    if len(set(selected.shards)) < len(selected.shards):
        twice = next(shard for shard in selected.shards if selected.shards.count(shard) > 1)
        raise DuplicateKeyError(
            f"{root}: split part {split_part!r} lists {twice} more than once, so its keys are not unique; list each "
            "shard of a joined dataset once"
        )
    return split_part, splits, selected


class JoinedDataset:
    """The samples of a split part of a dataset.

    Args:
        split_part: Its split part, unless its `dataset.yaml` sets another.
        split_config: Name of its split file; default: as set in `dataset.yaml`, else `split.yaml`.
        dataset_config: Name of its `dataset.yaml`, which may be missing.
        nonmatch: See `Nonmatch`. The first dataset of a join has `error`.
        written: The path as shown and compared, for example relative to the metadataset's folder; default: the path.

    Attributes:
        listed: Shards that the part lists, in order, including excluded ones.
        excludes: All excluded shards and `<shard>/<key>` of the part, sorted.
        energon_excludes: Excludes of the whole split file that Energon treats as samples (those with a `/`).
        index: Its columnar index.
        total: Number of ranks.

    Raises:
        DatasetNotFoundError: `path` is not prepared.
        SplitError: The split part does not exist, or lists shards that the dataset does not have.
        EmptyDatasetError: The split part has no samples.
        DuplicateKeyError: The split part lists a shard twice.
        StaleIndexError: The index of the dataset does not match its shards.
    """

    by_row = False
    advice = ", or exclude all but one of each in the split file"

    def __init__(
        self,
        path: str | os.PathLike[str],
        split_part: str,
        *,
        split_config: str | None = None,
        dataset_config: str | None = None,
        nonmatch: Nonmatch = "error",
        written: str | None = None,
    ) -> None:
        self.folder, self.nonmatch = open_data(path), nonmatch
        with naming(self.folder):
            split_part, splits, selected = _split_of(self.folder.local, split_part, split_config, dataset_config)
        self.split_part, self.listed = split_part, splits.split_parts[split_part]
        excluded = {f"{shard}/{key}" for shard, key in selected.excluded_samples}
        self.excludes = tuple(sorted((set(self.listed) - set(selected.shards)) | excluded))
        self.energon_excludes = tuple(dict.fromkeys(exclude for exclude in splits.exclude if "/" in exclude))
        self.written = self.folder.location if written is None else written
        self.label = self.key_label = f"{self.folder.location} [{split_part}]"
        self.index: ColumnarIndex = open_columnar(self.folder)
        numbers = {name: number for number, name in enumerate(self.index.shards)}
        shards = np.array([numbers[name] for name in selected.shards], np.int64)
        self._start = self.index.shard_first[shards]
        self._first = np.concatenate([[0], np.cumsum(self.index.shard_first[shards + 1] - self._start)])
        self._rank_of_shard = np.full(len(numbers), -1, np.int64)
        self._rank_of_shard[shards] = self._first[:-1]
        self.total = int(self._first[-1])
        found = [sample for shard, key in selected.excluded_samples for sample in self._find(numbers[shard], key)]
        self._left_out = np.unique(self.ranks_of(np.array(found, np.int64)))
        self.columns = (self.index.key_start, self.index.key_bytes, self.index.sample_start)
        self.release()

    def __len__(self) -> int:
        return self.total - len(self._left_out)

    @cached_property
    def words(self) -> KeyWords:
        """The keys of the whole dataset, by sample. Raises IndexFileError when its index is damaged anywhere."""
        self.index.check()
        return KeyWords(self.index.key_start, self.index.key_bytes)

    @property
    def identity(self) -> Identity:
        return self.index.content_id, self.split_part, self.listed, self.excludes, self.nonmatch

    def blocks(self, ranks: int) -> Iterator[Int64Array]:
        """Samples by number in the whole dataset, in rank order, `ranks` at a time, without excluded ones."""
        for begin in range(0, self.total, ranks):
            block = np.arange(begin, min(begin + ranks, self.total))
            low, high = np.searchsorted(self._left_out, [begin, begin + ranks])
            block = np.delete(block, self._left_out[low:high] - begin) if high > low else block
            shard = np.searchsorted(self._first, block, side="right") - 1
            yield block + (self._start - self._first[:-1])[shard]
            self.release()

    def ranks_of(self, samples: Int64Array) -> Int64Array:
        """Rank of each sample of the dataset, -1 outside the part. Excluded samples have a rank."""
        shard = self.index.shard_of(samples)
        start = self._rank_of_shard[shard]
        return np.where(start < 0, -1, samples - self.index.shard_first[shard] + start)

    def release(self) -> None:
        self.index.release()

    def key(self, sample: int) -> str:
        return self.index.key(sample)

    def where(self, sample: int) -> str:
        return self.index.shards[int(self.index.shard_of(np.array([sample]))[0])]

    def describe(self, missing: int = 0) -> JoinedMember:
        return JoinedMember(
            path=self.written,
            split_part=self.split_part,
            content_id=self.index.content_id,
            uuid=read_uuid(self.folder.local),
            samples=len(self.index),
            shards=shards_digest(self.listed),
            excludes=list(self.excludes),
            nonmatch=self.nonmatch,
            missing=missing,
        )

    def _find(self, shard: int, key: str) -> list[int]:
        """Samples of a shard with this key: zero or one, unless keys repeat."""
        first, last = int(self.index.shard_first[shard]), int(self.index.shard_first[shard + 1])
        sample = self.index.find(key)
        if sample is None or first <= sample < last:
            return [] if sample is None else [sample]
        return [first + place for place, other in enumerate(self.index.keys(np.arange(first, last))) if other == key]


def array_rows(path: str | os.PathLike[str]) -> MemberSource:
    """The rows of the data that a metadataset's `array` names. Raises as `ArraySource`."""
    return rows_joined_by("array", located(path))


class JoinedArray:
    """The rows of an array.

    Args:
        keys: A text file, or its URL, with the key of each row; None: row i belongs to sample i of the whole primary
            dataset, with shards in the order of its columnar index, independent of split parts and excludes.
        written: The path as shown and compared; default: the path.

    Raises:
        DatasetNotFoundError: The array or the file with keys does not exist.
        ConfigError, FormatError, EmptyDatasetError: As `ArraySource`.
    """

    advice = ""
    words: KeyWords

    def __init__(
        self,
        path: str | os.PathLike[str],
        keys: str | os.PathLike[str] | None = None,
        *,
        nonmatch: Nonmatch = "error",
        written: str | None = None,
    ) -> None:
        self.nonmatch, self.by_row = nonmatch, keys is None
        self.written = os.fspath(path) if written is None else written
        self._source = array_rows(path)
        self._content_id = self._source.content_id
        self.label, self.key_label = f"{path} ({len(self)} rows)", ""
        self.total = 0 if keys is None else len(self)
        if keys is not None:
            self.key_label = located(keys)
            self._content_id += f"-{_digest(self.key_label)}"

    def __len__(self) -> int:
        return len(self._source)

    @property
    def identity(self) -> Identity:
        return self._content_id, "", (), (), self.nonmatch

    def read_keys(self, scratch: Path) -> None:
        """Read the keys of the rows into temporary files. Raises ConfigError if their number differs from the rows."""
        file = Path(self.key_label)
        if is_url(self.key_label):
            file = scratch / f"keys_{self._content_id}"
            file.write_bytes(read_whole(self.key_label))
        self.columns = start, text = read_key_lines(file, scratch)
        if len(start) - 1 != len(self):
            raise ConfigError(
                f"{self.key_label}: has {len(start) - 1} lines, but {self.label.rpartition(' (')[0]} has {len(self)} "
                "rows; write one line with a key for each row, in the same order"
            )
        self.words = KeyWords(start, text)

    def blocks(self, ranks: int) -> Iterator[Int64Array]:
        """All rows in order, at most `ranks` at a time."""
        for begin in range(0, self.total, ranks):
            yield np.arange(begin, min(begin + ranks, self.total))
            self.release()

    def release(self) -> None:
        for column in self.columns:
            release_pages(column)

    def key(self, row: int) -> str:
        """The key of a row. Bytes that are not UTF-8 become surrogates, as in names of tar members."""
        start, text = self.columns
        return text[start[row] : start[row + 1]].tobytes().decode("utf-8", "surrogateescape")

    def where(self, row: int) -> str:
        return f"line {row + 1}"

    def describe(self, missing: int = 0) -> JoinedMember:
        return JoinedMember(
            path=self.written,
            split_part="",
            content_id=self._content_id,
            samples=len(self),
            shards="",
            excludes=[],
            nonmatch=self.nonmatch,
            missing=missing,
            array="row" if self.by_row else "key",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Keys:
    """How samples of unprepared files are found.

    Attributes:
        by_row: By the number of the sample in the whole primary; else by key.
        column: The column that contains the keys; None: the samples' own keys.
    """

    by_row: bool = False
    column: str | None = None


class JoinedFiles(JoinedArray):
    """The samples of unprepared files: Parquet, Arrow, MDS, JSONL, tokens. Any of them can be a primary.

    Args:
        written: The path as shown and compared; default: the path.

    Raises ConfigError if a key column is requested from files without columns.
    """

    def __init__(self, source: Any, keys: Keys, *, nonmatch: Nonmatch = "error", written: str | None = None) -> None:
        self.nonmatch, self.by_row = nonmatch, keys.by_row
        self.written = source.path if written is None else written
        self._source, self._column = source, keys.column
        self._rows = rows = rows_of(source)
        if keys.column is not None and not isinstance(rows, HasKeyColumns):
            raise ConfigError(f"{source.path}: has no column {keys.column!r}: its keys are numbers; remove `keys`")
        keys_id = rows.keys_id(keys.column) if isinstance(rows, HasKeyColumns) and not keys.by_row else ""
        self._content_id = f"{source.content_id}-{keys.column or ''}{keys_id}"
        self.label = self.key_label = f"{source.path} ({len(self)} samples)"
        self.total = 0 if keys.by_row else len(self)

    def read_keys(self, scratch: Path) -> None:
        """Read the keys into temporary files. Raises as reading does, and if a key is missing."""
        count = len(self._source)
        if isinstance(self._rows, HasKeyColumns):
            blocks = self._rows.key_blocks(self._column)
        else:
            begins = range(0, count, _KEYS_AT_ONCE)
            blocks = (map(str, range(begin, min(begin + _KEYS_AT_ONCE, count))) for begin in begins)
        self.columns = _key_columns(map(_encoded, blocks), scratch)
        self.words = KeyWords(*self.columns)

    def ranks_of(self, samples: Int64Array) -> Int64Array:
        """Rank of each sample of a primary: its number."""
        return samples

    def where(self, row: int) -> str:
        return self._source.place_of(row)


JoinMember: TypeAlias = JoinedDataset | JoinedArray
Primary: TypeAlias = JoinedDataset | JoinedFiles


def read_key_lines(
    path: Path, scratch: Path, *, block_bytes: int = _TEXT_BYTES
) -> tuple[Int64Array, npt.NDArray[np.uint8]]:
    """Read the lines of a file, which end with LF or CR LF; the end of the last line is optional.

    Returns (n + 1,) the start of each line, and all lines concatenated, mapped from `scratch`.
    """
    return _key_columns(_lines(path, block_bytes), scratch)


def _lines(path: Path, block_bytes: int) -> Iterator[tuple[Int64Array, npt.NDArray[np.uint8]]]:
    ended = True
    with open(path, "rb") as file:
        while block := file.read(block_bytes) or (b"" if ended else b"\n"):
            while block.endswith(b"\r"):  # the next byte decides whether CR belongs to the line
                block += file.read(1) or b"\n"
            ended = block.endswith(b"\n")
            found = np.frombuffer(block.replace(b"\r\n", b"\n"), np.uint8)
            yield np.cumsum(found != ord("\n"))[found == ord("\n")], found[found != ord("\n")]


def _encoded(keys: Iterable[str]) -> tuple[Int64Array, npt.NDArray[np.uint8]]:
    """(n,) end of each key, and all keys concatenated."""
    encoded = [key.encode("utf-8", "surrogateescape") for key in keys]
    return np.cumsum([*map(len, encoded)], dtype=np.int64), np.frombuffer(b"".join(encoded), np.uint8)


def _key_columns(
    blocks: Iterable[tuple[Int64Array, npt.NDArray[np.uint8]]], scratch: Path
) -> tuple[Int64Array, npt.NDArray[np.uint8]]:
    """(n + 1,) start of each key, and all keys, memory-mapped; from blocks of (ends of keys, text)."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    starts, text = ColumnWriter(folder / "start", np.int64), ColumnWriter(folder / "text", np.uint8)
    with contextlib.closing(starts), contextlib.closing(text):
        starts.append(np.zeros(1, np.int64))
        for ends, block in blocks:
            starts.append(text.rows + ends)
            text.append(block)
    return (
        read_column(folder / "start", np.int64, starts.rows, block_sums=starts.block_sums),
        read_column(folder / "text", np.uint8, text.rows, block_sums=text.block_sums),
    )


def _digest(location: str) -> str:
    try:
        if is_url(location):
            return hashlib.blake2b(read_whole(location), digest_size=8).hexdigest()
        with open(location, "rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()
    except (FileNotFoundError, IsADirectoryError) as error:
        raise DatasetNotFoundError(
            f"{location}: expected a text file with one key per line: {error.strerror or 'no such file'}"
        ) from error
