"""Random access to the samples of tar shards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Unpack

import numpy as np
import numpy.typing as npt

from energon_grain.formats.data_folder import DataFolder, needing_shards
from energon_grain.formats.tar.index import check_shards
from energon_grain.sources.indexed import IndexedSource, SourceOptions
from energon_grain.sources.remote_runs import RemoteExtents, remote_extents, remote_run
from energon_grain.sources.source import RawBatch
from energon_grain.storage.remote_files import RemoteFiles
from energon_grain.storage.spans import coalesce

Int64Array = npt.NDArray[np.int64]


class WebDatasetSource(IndexedSource):
    """The samples of some shards of a prepared dataset, in the order of the shards.

    Opening maps the columnar index and reads no shard, whatever their number; the first read from a shard checks that
    it still is the file that was indexed.

    Args:
        path: The dataset's folder (the one that holds `.nv-meta`): a path, a URL, or what `open_folder` made of it.
        shards: Names of the shards to serve, in order; default: all of them, in the order of `.info.json`.
        parts: Which parts to read: names, or a predicate on the name; default: all.
        start: First sample to serve, counted over `shards` before `excluded` are taken out.
        stop: One past the last sample, counted likewise; default: the end.
        excluded: (shard, key) of samples to leave out. The length and the indices count what remains.
        index_cache_dir: Where a missing columnar index is built when the dataset is not writable.
        info: What its `.info.json` says, where that was read already.

    Raises:
        DatasetNotFoundError: `path` is not a prepared dataset.
        ConfigError: The range or a shard does not fit.
        StaleIndexError: The index does not fit the shards.
        EmptyDatasetError: No sample is left.
    """

    def __init__(self, path: str | os.PathLike[str] | DataFolder, **options: Unpack[SourceOptions]) -> None:
        super().__init__(path, **options)
        self._store = self._folder.store
        self._paths = self._folder.shards(self._index.shards)
        self._verified = np.zeros(len(self._index.shards), np.bool_)

    @property
    def run_samples(self) -> int | None:
        """Of shards in an object store, samples in about 4 MiB; None: they lie on this machine, or are that large."""
        index = self._index
        return remote_run(int(index.shard_bytes.sum()), len(index)) if self._folder.is_remote else None

    @property
    def remote_files(self) -> Sequence[RemoteFiles]:
        """What reads the shards where they lie in an object store."""
        return (self._store,) if isinstance(self._store, RemoteFiles) else ()

    def extents(self, indices: Int64Array) -> list[RemoteExtents]:
        """See `FetchedAhead`."""
        samples, shard = self._samples.resolve(indices)
        with needing_shards(self._folder):
            self._check_shards(shard)
        owner, rows = self._samples.part_rows(samples)
        start, size = self._samples.part_offset(rows), self._samples.part_size(rows)
        return [remote_extents(files, self._paths, shard[owner], start, size, owner) for files in self.remote_files]

    def read(self, indices: Int64Array, *, keys: list[str] | None = None) -> RawBatch:
        """Read samples in the order asked for. See `Source.read`.

        Args:
            indices: Of the samples.
            keys: Theirs, where they are known.
        """
        indices = np.asarray(indices, np.int64)
        samples, shard = self._samples.resolve(indices)
        owner, rows = self._samples.part_rows(samples)
        size = self._samples.part_size(rows)
        spans = coalesce(
            shard[owner],
            self._samples.part_offset(rows),
            size,
            merge_gap_bytes=self._store.merge_gap_bytes,
            solo_bytes=self._store.solo_bytes,
        )
        with needing_shards(self._folder):
            self._check_shards(shard)
            data = self._store.read_spans(self._paths, spans.file, spans.start, spans.stop)
        values: list[bytes | None] = [
            data[span][begin:end]
            for span, begin, end in zip(
                spans.span.tolist(), spans.offset.tolist(), (spans.offset + size).tolist(), strict=True
            )
        ]
        names = self._index.shards
        batch = RawBatch(
            indices=indices,
            keys=self._index.keys(samples) if keys is None else keys,
            shards=[names[number] for number in shard.tolist()],
            columns=self._columns(len(samples), owner, self._samples.part_name(rows), values),
        )
        self._samples.touch(samples)
        return batch

    def _columns(
        self, count: int, owner: Int64Array, name: npt.NDArray[np.int32], values: list[bytes | None]
    ) -> dict[str, list[bytes | None]]:
        """One list a part name. Where a sample has a part twice, the later one counts."""
        names = self._index.part_names
        if count == 0:
            return {}
        width = len(name) // count
        if width * count == len(name):
            table = name.reshape(count, width)
            if (table == table[0]).all() and (owner.reshape(count, width) == np.arange(count)[:, None]).all():
                return {names[number]: values[place::width] for place, number in enumerate(table[0].tolist())}
        columns: dict[str, list[bytes | None]] = {}
        for number, sample, value in zip(name.tolist(), owner.tolist(), values, strict=True):
            column = columns.get(names[number])
            if column is None:
                column = columns[names[number]] = [None] * count
            column[sample] = value
        return columns

    def _check_shards(self, shard: Int64Array) -> None:
        """Compare size and end marker of shards that have not been read from before with the index."""
        verified = self._verified[shard]
        if verified.all():
            return
        numbers: list[int] = np.unique(shard[~verified]).tolist()
        check_shards(self._folder, self._index, numbers)
        self._verified[numbers] = True

    def close(self) -> None:
        """Close the shards; reading again opens them anew."""
        self._store.close()
