# SPDX-License-Identifier: Apache-2.0
"""Random access to the lines of a JSONL file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property, partial
from itertools import repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from energon_grain.errors import IndexFileError, KeyNotFoundError, StaleIndexError
from energon_grain.formats.columns import ColumnFolder, KeptColumns
from energon_grain.formats.index_pages import IndexPages
from energon_grain.formats.one_file import OneFile
from energon_grain.kinds.jsonl.lines import (
    JsonlFile,
    LineNumbers,
    check_jsonl_size,
    lines_id,
    measured_lines,
    open_jsonl,
)
from energon_grain.samples.sample import SourceInfo
from energon_grain.sources.file_store import OwnFileStore, with_sources
from energon_grain.sources.source import PartFilter, accepts
from energon_grain.storage.location import is_url

Int64Array = npt.NDArray[np.int64]

PART = "json"
"""Name of the only part of a sample: its line, with the line end and following blank lines."""
_CHECKED_LINE_ENDS = 8


class JsonlRows(OneFile):
    """The samples of a JSONL file, in the order of its lines. The key of a sample is its number, from 0.

    Opening maps the index, which is created if there is none. The first read checks that the file is the one that was
    indexed, by its size and some line ends, and in an object store also by its version. Copies in other processes of
    this machine map the same index without searching again.

    Args:
        path: The file, whose name ends in `.jsonl`: a path, a URL, or the result of `open_jsonl`.
        parts: Parts to read, names or a predicate; the only part is `json`. Without it samples have no part.
        index_cache_dir: Folder for a new index if the file's folder is not writable.

    Raises:
        DatasetNotFoundError: There is no such file.
        StaleIndexError: The index belongs to another version of the file.
        IndexFileError: The index is damaged.
        DecodingError: There is no index, and lines contain no object.
        ReadError: An object store cannot be reached.
    """

    _part = PART
    own_columns = ()

    def __init__(
        self,
        path: str | os.PathLike[str] | JsonlFile,
        *,
        parts: PartFilter = None,
        index_cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.file = open_jsonl(path, cache_dir=None if index_cache_dir is None else Path(index_cache_dir))
        self.path, self._store = self.file.location, self.file.store
        self._starts = self.file.starts()
        self.size_bytes, self.samples = int(self._starts[-1]), len(self._starts) - 1
        self._parts = parts
        self._reads = accepts(parts, PART)
        self._pages = IndexPages((self._starts,), samples=self.samples, rows=self.samples)
        self._lines = LineNumbers(self.path, self._store)
        self._verified = False

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(JsonlRows, parts=self._parts), (self.file,)

    @property
    def digest(self) -> str:
        digest = lines_id(self._starts)
        self._pages.release()
        return f"{digest:016x}"

    def _bounds(self, numbers: Any) -> tuple[Int64Array, Int64Array]:
        start, stop = self._starts[numbers], self._starts[numbers + 1]
        if len(start) and not (int(start.min()) >= 0 and (start < stop).all() and int(stop.max()) <= self.size_bytes):
            raise self._not_ascending()
        return start, stop

    def _not_ascending(self) -> IndexFileError:
        return IndexFileError(
            f"{self.path}.idx: its offsets are not ascending. The index is damaged; `energon-grain prepare "
            f"{self.path}` rewrites it"
        )

    def _values(self, start: Int64Array, stop: Int64Array) -> Sequence[bytes]:
        texts = cast("list[bytes]", self._runs(start, stop))
        last = bytes(map(itemgetter(-1), texts))
        if last.count(b"\n") < len(texts):
            wrong = stop[(np.frombuffer(last, np.uint8) != ord("\n")) & (stop < self.size_bytes)]
            if len(wrong):
                raise IndexFileError(
                    f"{self.path}.idx: lists a line end @ {int(wrong[0])}, but the file has none there. The index is "
                    f"damaged, or the file changed after it was indexed; `energon-grain prepare {self.path}` rewrites "
                    f"it"
                )
        return texts

    def _verify(self) -> None:
        """Check once that the file has the indexed size, and that line ends precede some of its samples.

        Raises StaleIndexError if the file changed.
        """
        if self._verified:
            return
        self.file.check_version(self.size_bytes)
        check_jsonl_size(self.path, self._starts, self._store.size(self.path))
        # The first sample has no line before it.
        before = self._starts[np.unique(np.linspace(1, self.samples, _CHECKED_LINE_ENDS).astype(np.int64))][:-1] - 1
        if (before < 0).any() or (before >= self.size_bytes).any():
            raise self._not_ascending()
        file = np.zeros(len(before), np.int64)
        for offset, byte in zip(before, self._store.read_spans([self.path], file, before, before + 1), strict=True):
            if byte != b"\n":
                raise StaleIndexError(
                    f"{self.path} @ {int(offset)}: expected a line end; the file changed after it was indexed: run "
                    f"`energon-grain prepare {self.path}`"
                )
        self._verified = True

    @cached_property
    def kept(self) -> KeptColumns:
        return KeptColumns(ColumnFolder.beside(self.path, f"{self.path}.columns"), measured_lines(self._starts))

    def column(self, name: str, numbers: Int64Array | slice) -> npt.NDArray[Any]:
        found = super().column(name, numbers)
        if not isinstance(numbers, slice):
            self._pages.touch(numbers)
        return found

    def place_of(self, number: int) -> str:
        """The file's name (or URL) and the line number of the sample, counted from 1 as in editors: `x.jsonl:123`.

        Counts line ends, so it may read the file up to that line.
        """
        start, stop = self._bounds(np.array([number], np.int64))
        (text,) = self._values(start, stop)
        blank = len(text) - len(text.lstrip())  # blank lines before the first sample belong to it
        name = self.path if is_url(self.path) else self.shard
        return f"{name}:{self._lines.at(int(start[0]) + blank)}"

    def close(self) -> None:
        self._verified = False
        super().close()


class JsonlFileStore(OwnFileStore[bytes]):
    """Reads single samples of a JSONL file. The key of sample 12 is `12.json`.

    The whole file is served, independent of the subset of a leaf.

    Args:
        path: The file: a path, a URL, or the result of `open_jsonl`.

    Raises EnergonGrainError as `JsonlRows` does.
    """

    def __init__(self, path: str | os.PathLike[str] | JsonlFile) -> None:
        self._rows = JsonlRows(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonlFileStore, (self._rows.file,)

    def get_path(self) -> str:
        return self._rows.path

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._number(key) is not None

    def read(self, keys: Sequence[str]) -> list[tuple[bytes, SourceInfo]]:
        """Read lines in the order requested; neighbors are read together. See `FileStore.read`."""
        numbers = [self._number(key) for key in keys]
        for key, number in zip(keys, numbers, strict=True):
            if number is None:
                raise KeyNotFoundError(
                    f"{self.get_path()}: no key {key!r}; keys go from '0.{PART}' to '{self._rows.samples - 1}.{PART}'"
                )
        if not keys:
            return []
        lines = cast("list[bytes]", self._rows.read_rows(np.array(numbers, np.int64)).columns[PART])
        return with_sources(self.get_path(), keys, repeat(self._rows.shard), lines)

    def _number(self, key: str) -> int | None:
        """The number of a sample; None if there is none, or the key is not in canonical form."""
        text, dot, part = key.partition(".")
        if not (dot and part == PART and text.isascii() and text.isdecimal()) or (text[0] == "0" and text != "0"):
            return None
        number = int(text)
        return number if number < self._rows.samples else None

    def close(self) -> None:
        self._rows.close()
