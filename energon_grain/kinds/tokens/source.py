# SPDX-License-Identifier: Apache-2.0
"""Random access to Megatron-LM's indexed datasets: tokens in `x.bin`, document offsets in `x.idx`.

    MMIDIDX and two zeros (9) | version, 1 (8) | type of the tokens (1) | sequences (8) | documents and 1 (8)
    tokens of each sequence (4 each) | its first byte in x.bin (8 each) | first sequence of each document (8 each)

A sample is a document with the single part `tokens`, an array. The modes of multimodal datasets at the end of the index
are not read.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from energon_grain.errors import (
    ConfigError,
    DatasetNotFoundError,
    FormatError,
    ReadError,
    StaleIndexError,
)
from energon_grain.formats.index_pages import IndexPages
from energon_grain.formats.local_files import LocalFiles
from energon_grain.formats.mapped_files import add_mapped
from energon_grain.formats.one_file import OneFile
from energon_grain.samplers.hashing import fold
from energon_grain.sources.source import PartFilter, PartValue, accepts
from energon_grain.storage.location import folder_of, is_url, located, name_of
from energon_grain.storage.remote import RemoteFiles, mirror_of, remote_files
from energon_grain.storage.settings import storage_settings

Int64Array = npt.NDArray[np.int64]
PART = "tokens"
_MAGIC = b"MMIDIDX\0\0\1" + bytes(7)  # version 1
_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
_HEAD_BYTES = len(_MAGIC) + 1 + 8 + 8
_DIGESTED_BYTES = 1 << 20


class TokenRows(OneFile):
    """The documents of an indexed dataset, in order. The key of a document is its number, from 0.

    `tokens`, the number of tokens of a document, is a column, known from the index. Opening memory-maps the index; an
    index in an object store is copied first, once per version. Thread-safe and picklable.

    Args:
        path: `x`, `x.bin` or `x.idx`; a path or a URL.
        parts: Parts to read, names or a predicate; the only part is `tokens`.

    Raises:
        DatasetNotFoundError: One of the two files is missing.
        ConfigError: No part is selected.
        FormatError: The index is damaged, or belongs to another file.
        EmptyDatasetError: There is no document.
        ReadError: An object store cannot be reached.
    """

    _part = PART
    own_columns = ("bytes", PART)

    def __init__(self, path: str | os.PathLike[str], *, parts: PartFilter = None) -> None:
        location = located(path)
        self._stem = location[:-4] if location.endswith((".bin", ".idx")) else location
        self.path, self._parts = f"{self._stem}.bin", parts
        if not accepts(parts, PART):
            raise ConfigError(f"{self.path}: part_filter excludes its only part, {PART!r}")
        self._store = remote_files(storage_settings()) if is_url(location) else LocalFiles(indexed_by="")
        try:
            self._version: Any = self._store.version(self.path)
            self.size_bytes = self._store.size(self.path)
            index = self._local_index()
        except ReadError as error:
            if isinstance(error, FileNotFoundError) or isinstance(error.__cause__, FileNotFoundError):
                raise DatasetNotFoundError(f"{error}") from error
            raise
        self._map(index)

    def _local_index(self) -> Path:
        index = f"{self._stem}.idx"
        if not isinstance(self._store, RemoteFiles):
            self._store.size(index)  # raises if it is missing
            return Path(index)
        mirror, name, (size_bytes, generation) = mirror_of(folder_of(index)), name_of(index), self._store.version(index)
        copy = mirror.folder / f"{name}-{generation.hex()[-32:]}"
        with mirror.locked():
            mirror.copy_file(name, copy, size_bytes)
        return copy

    def _map(self, index: Path) -> None:
        size = index.stat().st_size
        try:
            data = np.memmap(index, np.uint8, "r") if size else np.zeros(0, np.uint8)
        except OSError as error:
            raise ReadError(
                f"{self._stem}.idx: {size:,} bytes cannot be memory-mapped ({error.strerror}); the address space limit "
                "of this process is too small (`ulimit -v`), or the file is not an index"
            ) from error
        if isinstance(data.base, mmap.mmap):
            add_mapped(data.base)
        head = data[:_HEAD_BYTES].tobytes()
        if len(head) < _HEAD_BYTES or not head.startswith(_MAGIC):
            raise FormatError(f"{self._stem}.idx: is no Megatron-LM index of version 1; it begins with {head[:17]!r}")
        kind, (sequences, documents) = head[len(_MAGIC)], np.frombuffer(head, "<u8", 2, len(_MAGIC) + 1).tolist()
        ends = np.cumsum([_HEAD_BYTES, 4 * sequences, 8 * sequences, 8 * documents], dtype=object).tolist()
        if kind not in _TYPES or not documents or ends[-1] > len(data):
            declared = f"{documents} documents of {sequences} sequences, type {kind}, in {len(data)} bytes"
            raise FormatError(f"{self._stem}.idx: declares {declared}; it is damaged")
        self.type = np.dtype(_TYPES[kind])
        self._lengths, self._starts, self._documents = (
            np.asarray(data[begin:end]).view(dtype)
            for begin, end, dtype in zip(ends, ends[1:], ("<i4", "<i8", "<i8"), strict=False)
        )
        self.samples = documents - 1
        self._pages = IndexPages((data,), samples=documents, rows=len(data) // 8)
        both_ends = data[:_DIGESTED_BYTES].tobytes() + data[-_DIGESTED_BYTES:].tobytes()
        self._digest = f"{fold(xxhash.xxh3_64_intdigest(both_ends), len(data), self.size_bytes):016x}"

    def __reduce__(self) -> tuple[Any, ...]:
        state = {"_version": self._version}  # detects a changed file
        return partial(_copied, parts=self._parts), (self._stem, self._digest), state

    @property
    def data_files(self) -> Mapping[str, str]:
        return {name_of(path): path for path in (f"{self._stem}.idx", self.path)}

    @property
    def digest(self) -> str:
        return self._digest

    def _bounds(self, numbers: Any) -> tuple[Int64Array, Int64Array]:
        """(n,) first byte of each document, and one past the last. Raises FormatError if the index is damaged."""
        first, last = self._documents[numbers], self._documents[numbers + 1]
        if len(first) and not ((first >= 0).all() and (first <= last).all() and last.max() <= len(self._starts)):
            raise FormatError(f"{self._stem}.idx: its documents are not in ascending order; it is damaged")
        sequences, ends = last - first, np.cumsum(last - first)
        each = np.repeat(first - (ends - sequences), sequences) + np.arange(int(sequences.sum()))
        lengths = self._lengths[each].astype(np.int64)
        before = np.concatenate([[0], np.cumsum(lengths)])
        start, size = np.zeros(len(first), np.int64), (before[ends] - before[ends - sequences]) * self.type.itemsize
        start[sequences > 0] = self._starts[first[sequences > 0]]
        # A document is read at once: its sequences must be contiguous.
        inside = before[:-1] - np.repeat(before[ends - sequences], sequences)
        expected = np.repeat(start, sequences) + inside * self.type.itemsize
        has_gaps = (self._starts[each] != expected).any() or (lengths < 0).any()
        stop = start + size
        if has_gaps or (start < 0).any() or (stop > self.size_bytes).any():
            where = f"a document is not one contiguous range of {self.shard}, which has {self.size_bytes} bytes"
            raise FormatError(f"{self._stem}.idx: {where}; one of the two files is damaged")
        return start, stop

    def _verify(self) -> None:
        self._store.expect(self.path, self._version)

    def _values(self, start: Int64Array, stop: Int64Array) -> Sequence[PartValue]:
        return [np.frombuffer(each or b"", self.type).copy() for each in self._runs(start, stop)]

    def own_column(self, name: str, numbers: Any) -> npt.NDArray[Any]:
        """Number of bytes or tokens of each document."""
        return self.sizes(numbers) // (1 if name == "bytes" else self.type.itemsize)


def _copied(stem: str, digest: str, *, parts: PartFilter) -> TokenRows:
    """A copy for another process. Raises StaleIndexError if the index has changed."""
    source = TokenRows(stem, parts=parts)
    if source._digest != digest:
        raise StaleIndexError(f"{stem}.idx: changed after the parent process opened it; restart")
    return source
