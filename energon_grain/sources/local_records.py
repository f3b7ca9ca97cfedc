"""Records of files on this machine, by array_record's own reader."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ReadError
from energon_grain.formats.array_record_files import ArrayRecordFile, ArrayRecordFiles
from energon_grain.sources.record_shards import RecordShards

Int64Array = npt.NDArray[np.int64]


class LocalRecords:
    """A `RecordReader`. Files stay open, as many as `ArrayRecordFiles` keeps, and are looked at behind each read.

    Args:
        shards: The files.
    """

    def __init__(self, shards: RecordShards) -> None:
        self._shards = shards
        self._files = ArrayRecordFiles()
        self._written: dict[int, tuple[int, int]] = {}

    def read(self, shard: Int64Array, record: Int64Array) -> list[bytes]:
        """See `RecordReader`."""
        numbers, first = np.unique(shard, return_index=True)
        records = record.tolist()
        ends = [*first.tolist(), len(records)]
        found: list[bytes] = []
        for place, number in enumerate(numbers.tolist()):
            file = self._file(number)
            try:
                found += file.read(records[ends[place] : ends[place + 1]])
            finally:
                if self._look(number) != self._written[number]:
                    raise self._shards.stale(number, "it was changed while it was read")
        return found

    def _file(self, shard: int) -> ArrayRecordFile:
        path = self._shards.paths[shard]
        if shard in self._written:
            return self._files.file(path)
        expected = self._shards.size_bytes[shard]
        size, written_ns = self._look(shard)
        if size != expected:
            raise self._shards.stale(shard, f"it has {size} bytes, not {expected}")
        file = self._files.file(path)
        self._shards.check_records(shard, file.records)
        self._written[shard] = size, written_ns
        return file

    def _look(self, shard: int) -> tuple[int, int]:
        """Size, and time of modification in ns, of a file as it is now."""
        path = self._shards.paths[shard]
        try:
            status = os.stat(path)
        except OSError as error:
            raise ReadError(f"{path}: {error.strerror}") from error
        return status.st_size, status.st_mtime_ns

    def close(self) -> None:
        """See `RecordReader`."""
        self._files.close()
