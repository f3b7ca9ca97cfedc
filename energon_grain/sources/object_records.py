"""Records of files in an object store, by ranges of bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from energon_grain.errors import RangeError
from energon_grain.formats.array_record_objects import find_places, read_records, record_extents
from energon_grain.formats.open_files import OpenFiles
from energon_grain.formats.record_places import RecordPlaces
from energon_grain.sources.record_shards import RecordShards
from energon_grain.storage.remote_files import RemoteFiles

Int64Array = npt.NDArray[np.int64]


class ObjectRecords:
    """A `RecordReader`.

    It stays known where the records of a file lie, 16 bytes a record, for the files used last: ten million records.

    Args:
        shards: The files.
        store: Where they lie.
    """

    def __init__(self, shards: RecordShards, store: RemoteFiles) -> None:
        self.store = store
        self._shards = shards
        self._places: OpenFiles[RecordPlaces] = OpenFiles(max_open_files=1 << 20)

    def read(self, shard: Int64Array, record: Int64Array) -> list[bytes]:
        """See `RecordReader`."""
        paths, places, file = self._files(shard)
        return read_records(self.store, paths, places, file, record)

    def extents(self, shard: Int64Array, record: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(n,) where the chunk of each record begins in its file, and (n,) size of it. Raises like `read`."""
        _, places, file = self._files(shard)
        return record_extents(places, file, record)

    def _files(self, shard: Int64Array) -> tuple[list[str], list[RecordPlaces], Int64Array]:
        """Files that are asked for, where their records lie, and (n,) which of these files each number means."""
        numbers, file = np.unique(shard, return_inverse=True)
        wanted: list[int] = numbers.tolist()
        paths = [self._shards.paths[number] for number in wanted]
        places = [self._places.get(path) for path in paths]
        unknown = [place for place, known in enumerate(places) if known is None]
        if unknown:
            for place, found in zip(unknown, self._look([wanted[place] for place in unknown]), strict=True):
                places[place] = found
                self._places.put(paths[place], found)
        return paths, places, file.reshape(-1)  # type: ignore[return-value]

    def _look(self, numbers: Sequence[int]) -> list[RecordPlaces]:
        """Compare files with the index, and read where their records lie."""
        shards = self._shards
        paths = [shards.paths[number] for number in numbers]
        sizes = [shards.size_bytes[number] for number in numbers]
        try:
            tails = self.store.tails(paths, sizes)
        except RangeError as error:
            raise shards.changed(str(error)) from error
        for number, tail in zip(numbers, tails, strict=True):
            if tail:
                size = shards.size_bytes[number]
                raise shards.stale(number, f"it has {size + len(tail)} bytes, not {size}")
        found = find_places(self.store, paths, sizes)
        for number, places in zip(numbers, found, strict=True):
            shards.check_records(number, places.records)
        return found

    def close(self) -> None:
        """See `RecordReader`."""
        self._places.close()
        self.store.close()
