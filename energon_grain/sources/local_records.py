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
    """A `RecordReader`. Files stay open, as many as `ArrayRecordFiles` keeps.

    Args:
        shards: The files.
    """

    def __init__(self, shards: RecordShards) -> None:
        self._shards = shards
        self._files = ArrayRecordFiles()
        self._verified = np.zeros(len(shards.paths), np.bool_)

    def read(self, shard: Int64Array, record: Int64Array) -> list[bytes]:
        """See `RecordReader`."""
        numbers, first = np.unique(shard, return_index=True)
        records = record.tolist()
        ends = [*first.tolist(), len(records)]
        found: list[bytes] = []
        for place, number in enumerate(numbers.tolist()):
            found += self._file(number).read(records[ends[place] : ends[place + 1]])
        return found

    def _file(self, shard: int) -> ArrayRecordFile:
        path = self._shards.paths[shard]
        if self._verified[shard]:
            return self._files.file(path)
        expected = self._shards.size_bytes[shard]
        try:
            size = os.path.getsize(path)
        except OSError as error:
            raise ReadError(f"{path}: {error.strerror}") from error
        if size != expected:
            raise self._shards.stale(shard, f"it has {size} bytes, not {expected}")
        file = self._files.file(path)
        self._shards.check_records(shard, file.records)
        self._verified[shard] = True
        return file

    def close(self) -> None:
        """See `RecordReader`."""
        self._files.close()
