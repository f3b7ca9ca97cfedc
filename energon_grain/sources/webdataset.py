"""Random access to the samples of tar shards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Unpack

import numpy as np
import numpy.typing as npt

from energon_grain.formats.data_folder import DataFolder, needing_shards
from energon_grain.formats.tar.index import check_shards
from energon_grain.sources.indexed import IndexedSource, SourceOptions, part_rows
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
        self._verified = np.zeros(len(self._index.shards), np.bool_)

    @cached_property
    def _paths(self) -> list[str]:
        """Of all shards; made on first use, which takes a second for a million of them."""
        return self._folder.shards(self._index.shards)

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
        merge_gap_bytes, solo_bytes = self.coalescing
        spans = coalesce(
            shard[owner],
            self._samples.part_offset(rows),
            size,
            merge_gap_bytes=merge_gap_bytes,
            solo_bytes=solo_bytes,
        )
        values = spans.cut(self._read_spans(shard, spans.file, spans.start, spans.stop), size)
        name = self._samples.part_name(rows)
        same = _have_the_same_parts(owner, name, np.array([0, len(samples)]))
        return self._batch(
            indices, samples, shard, keys, _columns(self._index.part_names, owner, name, values, len(samples), same)
        )

    @property
    def coalescing(self) -> tuple[int, int]:
        """How near each other, and how small, ranges are that its store reads as one; see `read_together`."""
        return self._store.merge_gap_bytes, self._store.solo_bytes

    def _read_spans(self, shard: Int64Array, file: Int64Array, start: Int64Array, stop: Int64Array) -> list[bytes]:
        """Bytes [start[i], stop[i]) of shard file[i], once all those that samples lie in (`shard`) are checked."""
        with needing_shards(self._folder):
            self._check_shards(shard)
            return self._store.read_spans(self._paths, file, start, stop)

    def _batch(
        self,
        indices: Int64Array,
        samples: Int64Array,
        shard: Int64Array,
        keys: list[str] | None,
        columns: dict[str, list[bytes | None]],
    ) -> RawBatch:
        names = self._index.shards
        batch = RawBatch(
            indices=indices,
            keys=self._index.keys(samples) if keys is None else keys,
            shards=[names[number] for number in shard.tolist()],
            columns=columns,
        )
        self._samples.touch(samples)
        return batch

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


def read_together(sources: Sequence[WebDatasetSource], indices: Sequence[Int64Array]) -> list[RawBatch]:
    """Read samples of several datasets, in numpy for all of them at once as far as that goes.

    Of a thousand datasets a chunk has a few samples each, and for few every numpy call costs as much as for many.

    Args:
        sources: Each once, all of the same `coalescing`.
        indices: Of samples of each, at least one.

    Raises:
        IndexError: An index is out of range.
        ReadError: Bytes could not be read after retries.
    """
    resolved = [source._samples.resolve(asked) for source, asked in zip(sources, indices, strict=True)]
    bounds = [source._samples.part_bounds(samples) for source, (samples, _) in zip(sources, resolved, strict=True)]
    owner, rows = part_rows(*(np.concatenate(column) for column in zip(*bounds, strict=True)))
    first_sample = np.cumsum([0, *map(len, indices)])
    cuts = np.searchsorted(owner, first_sample).tolist()
    parts = zip(sources, pairwise(cuts), strict=True)
    described = [source._samples.described(rows[begin:end]) for source, (begin, end) in parts]
    name, offset, size, wanted = (np.concatenate(column) for column in zip(*described, strict=True))
    if not wanted.all():
        owner, name, offset, size = owner[wanted], name[wanted], offset[wanted], size[wanted]
        cuts = np.searchsorted(owner, first_sample).tolist()

    first_file = np.cumsum([0, *(len(source._index.shards) for source in sources)])
    file = np.concatenate([shard + first for (_, shard), first in zip(resolved, first_file[:-1], strict=True)])
    merge_gap_bytes, solo_bytes = sources[0].coalescing
    spans = coalesce(file[owner], offset, size, merge_gap_bytes=merge_gap_bytes, solo_bytes=solo_bytes)
    own_file = spans.file - np.repeat(first_file[:-1], np.diff(np.searchsorted(spans.file, first_file)))
    data: list[bytes] = []
    span_cuts = pairwise(np.searchsorted(spans.file, first_file).tolist())
    for source, (_, shard), (begin, end) in zip(sources, resolved, span_cuts, strict=True):
        data += source._read_spans(shard, own_file[begin:end], spans.start[begin:end], spans.stop[begin:end])
    values = spans.cut(data, size)

    same = _have_the_same_parts(owner, name, first_sample)
    batches: list[RawBatch] = []
    owner -= np.repeat(first_sample[:-1], np.diff(cuts))
    for source, asked, (samples, shard), (begin, end) in zip(sources, indices, resolved, pairwise(cuts), strict=True):
        columns = _columns(
            source._index.part_names, owner[begin:end], name[begin:end], values[begin:end], len(samples), same
        )
        batches.append(source._batch(asked, samples, shard, None, columns))
    return batches


def _have_the_same_parts(owner: Int64Array, name: npt.NDArray[np.int32], first_sample: Int64Array) -> bool:
    """Whether samples [first_sample[i], first_sample[i + 1]) have the same parts in the same order, for every i.

    And all of them equally many.
    """
    count = int(first_sample[-1])
    width = len(owner) // max(1, count)
    if width * count != len(owner) or (owner.reshape(count, width) != np.arange(count)[:, None]).any():
        return False
    table = name.reshape(count, width)
    if len(first_sample) == 2:
        return bool((table == table[:1]).all())
    return bool((table == table[np.repeat(first_sample[:-1], np.diff(first_sample))]).all())


def _columns(
    names: Sequence[str],
    owner: Int64Array,
    name: npt.NDArray[np.int32],
    values: list[bytes | None],
    count: int,
    same: bool,
) -> dict[str, list[bytes | None]]:
    """One list a part name. Where a sample has a part twice, the later one counts.

    Args:
        names: Of the dataset's parts.
        owner: Sample, 0 to `count`, of each value.
        name: Place in `names` of each.
        values: The parts.
        count: Samples.
        same: Whether all samples have the same parts in the same order.
    """
    if same:
        width = len(name) // max(1, count)
        first: list[int] = name[:width].tolist()
        return {names[number]: values[place::width] for place, number in enumerate(first)}
    numbers: list[int] = name.tolist()
    columns: dict[str, list[bytes | None]] = {}
    for number, sample, value in zip(numbers, owner.tolist(), values, strict=True):
        column = columns.get(names[number])
        if column is None:
            column = columns[names[number]] = [None] * count
        column[sample] = value
    return columns
