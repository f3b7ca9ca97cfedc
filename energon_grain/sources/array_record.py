"""Random access to the samples of ArrayRecord files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Unpack

import numpy as np
import numpy.typing as npt

from energon_grain.formats.data_folder import DataFolder, needing_shards
from energon_grain.sources.array_record_folder import ArrayRecordFolder
from energon_grain.sources.indexed_source import IndexedSource, SourceOptions
from energon_grain.sources.raw import PartValue, RawBatch
from energon_grain.sources.remote_runs import RemoteExtents, remote_extents, remote_run
from energon_grain.storage.remote_files import RemoteFiles

Int64Array = npt.NDArray[np.int64]


class ArrayRecordSource(IndexedSource):
    """The samples of some ArrayRecord files of a prepared dataset, in the order of the files.

    A record is read whole, whatever parts are wanted of it. A read takes all records of a file at once. Opening maps
    the columnar index and reads no file; the first read from a file checks that it is the one that was indexed, by its
    size and number of records, and every read that records have the keys of the index.

    Files on this machine are read by array_record's own reader, those in an object store by ranges of bytes: then
    records may be compressed, and in groups, but not transposed.

    Thread-safe and picklable (paths only); in a forked process files are opened anew.

    Arguments: see `WebDatasetSource`.
    """

    def __init__(self, path: str | os.PathLike[str] | DataFolder, **options: Unpack[SourceOptions]) -> None:
        super().__init__(path, **options)
        self._records = ArrayRecordFolder(self._folder, self._index)

    @property
    def run_samples(self) -> int | None:
        """Of files in an object store, samples in about 4 MiB; None: they lie on this machine, or are that large."""
        index = self._index
        return remote_run(int(index.shard_bytes.sum()), len(index)) if self._folder.is_remote else None

    @property
    def remote_files(self) -> Sequence[RemoteFiles]:
        """What reads the files where they lie in an object store."""
        objects = self._records.objects
        return () if objects is None else (objects.store,)

    def extents(self, indices: Int64Array) -> list[RemoteExtents]:
        """See `FetchedAhead`. array_record's own reader keeps to itself where records lie in files of this machine."""
        objects = self._records.objects
        if objects is None:
            return []
        samples, shard = self._samples.resolve(indices)
        with needing_shards(self._folder):
            start, size = objects.extents(shard, samples - self._index.shard_first[shard])
        paths = self._records.shards.paths
        return [remote_extents(objects.store, paths, shard, start, size, np.arange(len(samples)))]

    def read(self, indices: Int64Array) -> RawBatch:
        """Read samples in the order asked for. See `Source.read`.

        Raises:
            StaleIndexError: A file is not the one that was indexed.
        """
        indices = np.asarray(indices, np.int64)
        samples, shard = self._samples.resolve(indices)
        index = self._index
        keys = index.keys(samples)
        with needing_shards(self._folder):
            rows = self._records.read(samples, keys)
        batch = RawBatch(
            indices=indices,
            keys=keys,
            shards=[index.shards[number] for number in shard.tolist()],
            columns=_columns(rows, None if self._samples.wanted is None else frozenset(self.part_names)),
        )
        self._samples.touch(samples)
        return batch

    def close(self) -> None:
        """Close the files; reading again opens them anew."""
        self._records.close()


def _columns(
    rows: Sequence[Mapping[str, PartValue]], wanted: frozenset[str] | None
) -> dict[str, list[PartValue | None]]:
    """One list a part name, in the order in which they come."""
    if not rows:
        return {}
    uniform = all(row.keys() == rows[0].keys() for row in rows)
    names = rows[0] if uniform else dict.fromkeys(name for row in rows for name in row)
    read = [name for name in names if wanted is None or name in wanted]
    return {name: [row.get(name) for row in rows] for name in read}
