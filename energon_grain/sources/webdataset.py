"""Random access to the samples of tar shards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.formats.columnar import open_columnar
from energon_grain.formats.data_folder import DataFolder, open_folder
from energon_grain.formats.shard_check import check_shards
from energon_grain.sources.indexed_samples import IndexedSamples
from energon_grain.sources.part_filter import PartFilter
from energon_grain.sources.raw import RawBatch
from energon_grain.sources.remote_runs import long_runs, remote_run
from energon_grain.sources.source import SampleLocation
from energon_grain.storage.remote_files import RemoteFiles
from energon_grain.storage.spans import Spans, coalesce

Int64Array = npt.NDArray[np.int64]


class WebDatasetSource:
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

    Raises:
        DatasetNotFoundError: `path` is not a prepared dataset.
        StaleIndexError: The index does not fit the shards.
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
        self._folder = open_folder(path)
        self._arguments = (self._folder, shards, parts, start, stop, excluded, index_cache_dir)
        self._store = self._folder.store
        self._index = open_columnar(self._folder, cache_dir=None if index_cache_dir is None else Path(index_cache_dir))
        self._samples = IndexedSamples(
            self._index,
            where=self._folder.location,
            shards=shards,
            parts=parts,
            start=start,
            stop=stop,
            excluded=excluded,
        )
        self._paths = [self._folder.shard(name) for name in self._index.shards]
        self._verified = np.zeros(len(self._index.shards), np.bool_)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, self._arguments

    def __repr__(self) -> str:
        return f"WebDatasetSource({self.path!r}, samples={len(self)}, content_id={self.content_id!r})"

    @property
    def path(self) -> str:
        """The dataset's folder, path or URL."""
        return self._folder.location

    @property
    def content_id(self) -> str:
        """Digest of the index and of which of its samples are served."""
        return self._samples.content_id

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts that a read may return."""
        return self._samples.part_names

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def run_samples(self) -> int | None:
        """Of shards in an object store, samples in about 4 MiB; None: they lie on this machine, or are that large."""
        index = self._index
        return remote_run(int(index.shard_bytes.sum()), len(index)) if self._folder.is_remote else None

    def sizes(self, indices: Int64Array) -> Int64Array:
        """(n,) bytes that reading each sample takes: its payloads, or its extent in the tar when all parts are read."""
        return self._samples.sizes(indices)

    @property
    def remote_files(self) -> RemoteFiles | None:
        """What reads the shards where they lie in an object store."""
        return self._store if isinstance(self._store, RemoteFiles) else None

    def extents(self, indices: Int64Array) -> tuple[Spans, Int64Array, Sequence[str]]:
        """Long runs of bytes that hold samples, the sample that each range belongs to, and names of the objects."""
        samples, shard = self._samples.resolve(indices)
        self._check_shards(shard)
        owner, rows = self._samples.part_rows(samples)
        spans = long_runs(shard[owner], self._samples.part_offset(rows), self._samples.part_size(rows))
        return spans, owner, self._paths

    def read(self, indices: Int64Array, *, keys: list[str] | None = None) -> RawBatch:
        """Read samples in the order asked for. See `Source.read`.

        Args:
            indices: Of the samples.
            keys: Theirs, where they are known.
        """
        indices = np.asarray(indices, np.int64)
        samples, shard = self._samples.resolve(indices)
        self._check_shards(shard)
        owner, rows = self._samples.part_rows(samples)
        size = self._samples.part_size(rows)
        spans = coalesce(
            shard[owner],
            self._samples.part_offset(rows),
            size,
            merge_gap_bytes=self._store.merge_gap_bytes,
            solo_bytes=self._store.solo_bytes,
        )
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

    def locate(self, index: int) -> SampleLocation:
        """Where sample `index` lies. Raises IndexError when it is out of range."""
        return self._samples.locate(index)

    def place_of(self, index: int) -> str:
        """The shard and the key of sample `index`."""
        return self._samples.place_of(index)

    def close(self) -> None:
        """Close the shards; reading again opens them anew."""
        self._store.close()


def _restore(
    path: DataFolder,
    shards: Sequence[str] | None,
    parts: PartFilter,
    start: int,
    stop: int | None,
    excluded: Sequence[tuple[str, str]],
    index_cache_dir: str | None,
) -> WebDatasetSource:
    return WebDatasetSource(
        path,
        shards=shards,
        parts=parts,
        start=start,
        stop=stop,
        excluded=excluded,
        index_cache_dir=index_cache_dir,
    )
