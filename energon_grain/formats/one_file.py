# SPDX-License-Identifier: Apache-2.0
"""Random access to samples that are byte ranges of one file, local or in an object store."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from energon_grain.formats.index_pages import IndexPages
from energon_grain.sources.remote_runs import RemoteExtents, remote_extents, remote_run
from energon_grain.sources.rows import Rows
from energon_grain.sources.source import Int64Array, PartValue, RawBatch, SampleLocation
from energon_grain.storage.byte_store import ByteStore, coalesce
from energon_grain.storage.location import is_url, name_of
from energon_grain.storage.remote import RemoteFiles


class OneFile(Rows):
    """The samples of a file, each a byte range with one part. The key of a sample is its number, from 0.

    Attributes:
        size_bytes: Size of the file when it was indexed.
        samples: Number of samples.
    """

    size_bytes: int
    samples: int
    _part: ClassVar[str]
    _reads: bool = True
    _store: ByteStore
    _pages: IndexPages

    @abstractmethod
    def _bounds(self, numbers: Any) -> tuple[Int64Array, Int64Array]:
        """(n,) first byte of each sample by number, and one past the last. Raises on damaged entries."""

    @abstractmethod
    def _verify(self) -> None:
        """Check that the file is the one that was indexed, as far as possible."""

    @abstractmethod
    def _values(self, start: Int64Array, stop: Int64Array) -> Sequence[PartValue]:
        """The values of the file's bytes from `start` to `stop`."""

    def _runs(self, start: Int64Array, stop: Int64Array) -> Sequence[bytes | None]:
        file, size = np.zeros(len(start), np.int64), stop - start
        gap, solo = self._store.merge_gap_bytes, self._store.solo_bytes
        spans = coalesce(file, start, size, merge_gap_bytes=gap, solo_bytes=solo)
        return spans.cut(self._store.read_spans([self.path], spans.file, spans.start, spans.stop), size)

    @property
    def shard(self) -> str:
        return name_of(self.path)

    @property
    def part_names(self) -> tuple[str, ...]:
        return (self._part,) if self._reads else ()

    @property
    def shard_counts(self) -> Mapping[str, int]:
        return {self.shard: self.samples}

    @property
    def run_rows(self) -> int | None:
        """For a file in an object store, the number of samples in about 4 MiB; None: the file is local."""
        return remote_run(self.size_bytes, self.samples) if is_url(self.path) else None

    @property
    def remote_files(self) -> Sequence[RemoteFiles]:
        return (self._store,) if self._reads and isinstance(self._store, RemoteFiles) else ()

    def extents(self, numbers: Int64Array) -> list[RemoteExtents]:
        self._verify()
        start, stop = self._bounds(numbers)
        file, owner = np.zeros(len(start), np.int64), np.arange(len(start))
        return [remote_extents(files, [self.path], file, start, stop - start, owner) for files in self.remote_files]

    def read_rows(self, numbers: Int64Array) -> RawBatch:
        start, stop = self._bounds(numbers)
        self._verify()
        values = self._values(start, stop) if self._reads and len(numbers) else []
        self._pages.touch(numbers)
        return self.batch(numbers, {self._part: values} if values else {})

    def sizes(self, numbers: Int64Array) -> Int64Array:
        start, stop = self._bounds(numbers)
        self._pages.touch(numbers)
        return stop - start

    def locate(self, number: int) -> SampleLocation:
        (start,), (stop,) = (each.tolist() for each in self._bounds(np.array([number], np.int64)))
        parts = {self._part: (start, stop - start)} if self._reads else {}
        return SampleLocation(index=number, shard=self.shard, key=str(number), start=start, stop=stop, parts=parts)

    def close(self) -> None:
        self._store.close()
