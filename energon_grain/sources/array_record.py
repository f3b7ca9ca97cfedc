"""Random access to the samples of ArrayRecord files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.formats.data_folder import DataFolder, open_folder
from energon_grain.sources.array_record_folder import ArrayRecordFolder
from energon_grain.sources.indexed_samples import IndexedSamples
from energon_grain.sources.part_filter import PartFilter
from energon_grain.sources.raw import PartValue, RawBatch
from energon_grain.sources.source import SampleLocation

Int64Array = npt.NDArray[np.int64]


class ArrayRecordSource:
    """The samples of some ArrayRecord files of a prepared dataset, in the order of the files.

    A record is read whole, whatever parts are wanted of it. A read takes all records of a file at once. Opening maps
    the columnar index and reads no file; the first read from a file checks that it is the one that was indexed, by its
    size and number of records, and every read that records have the keys of the index.

    Thread-safe and picklable (paths only); in a forked process files are opened anew.

    Args:
        path: The dataset's folder, of this machine.
        shards: Names of the files to serve, in order; default: all of them, in the order of `.info.json`.
        parts: Which parts to return: names, or a predicate on the name; default: all.
        start: First sample to serve, counted over `shards` before `excluded` are taken out.
        stop: One past the last sample, counted likewise; default: the end.
        excluded: (shard, key) of samples to leave out. The length and the indices count what remains.
        index_cache_dir: Where a missing columnar index is built when the dataset is not writable.

    Raises:
        DatasetNotFoundError: `path` is not a prepared dataset of ArrayRecord files.
        ConfigError: It lies in an object store, or the range or a shard does not fit.
        StaleIndexError: The index does not fit the files.
        EmptyDatasetError: No sample is left.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | DataFolder,
        *,
        shards: Sequence[str] | None = None,
        parts: PartFilter = None,
        start: int = 0,
        stop: int | None = None,
        excluded: Sequence[tuple[str, str]] = (),
        index_cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        folder = open_folder(path)
        self._arguments = (folder, shards, parts, start, stop, excluded, index_cache_dir)
        self._records = ArrayRecordFolder(folder, index_cache_dir=index_cache_dir)
        self._samples = IndexedSamples(
            self._records.index,
            where=self._records.location,
            shards=shards,
            parts=parts,
            start=start,
            stop=stop,
            excluded=excluded,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, self._arguments

    def __repr__(self) -> str:
        return f"ArrayRecordSource({self.path!r}, samples={len(self)}, content_id={self.content_id!r})"

    @property
    def path(self) -> str:
        """The dataset's folder."""
        return self._records.location

    @property
    def content_id(self) -> str:
        """Digest of the index and of which of its samples are served: the same as of the same samples in tars."""
        return self._samples.content_id

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts that a read may return."""
        return self._samples.part_names

    def __len__(self) -> int:
        return len(self._samples)

    def sizes(self, indices: Int64Array) -> Int64Array:
        """(n,) bytes of each sample: its record when all parts are read, else its wanted parts."""
        return self._samples.sizes(indices)

    def read(self, indices: Int64Array) -> RawBatch:
        """Read samples in the order asked for. See `Source.read`.

        Raises:
            StaleIndexError: A file is not the one that was indexed.
        """
        indices = np.asarray(indices, np.int64)
        samples, shard = self._samples.resolve(indices)
        index = self._records.index
        keys = index.keys(samples)
        rows = self._records.read(samples, keys)
        batch = RawBatch(
            indices=indices,
            keys=keys,
            shards=[index.shards[number] for number in shard.tolist()],
            columns=_columns(rows, None if self._samples.wanted is None else frozenset(self.part_names)),
        )
        self._samples.touch(samples)
        return batch

    def locate(self, index: int) -> SampleLocation:
        """Where sample `index` lies. Raises IndexError when it is out of range.

        Offsets are as if the records of a file lay one behind the other; those of parts are 0.
        """
        return self._samples.locate(index)

    def place_of(self, index: int) -> str:
        """The file and the key of sample `index`."""
        return self._samples.place_of(index)

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


def _restore(
    folder: DataFolder,
    shards: Sequence[str] | None,
    parts: PartFilter,
    start: int,
    stop: int | None,
    excluded: Sequence[tuple[str, str]],
    index_cache_dir: str | os.PathLike[str] | None,
) -> ArrayRecordSource:
    return ArrayRecordSource(
        folder,
        shards=shards,
        parts=parts,
        start=start,
        stop=stop,
        excluded=excluded,
        index_cache_dir=index_cache_dir,
    )
