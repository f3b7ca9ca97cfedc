"""Random access to the samples of tar shards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, EmptyDatasetError, StaleIndexError
from energon_grain.formats.columnar import ColumnarIndex, open_columnar
from energon_grain.samplers.hashing import fold
from energon_grain.samplers.subset import Selection
from energon_grain.sources.index_pages import IndexPages
from energon_grain.sources.part_filter import PartFilter, accepts
from energon_grain.sources.raw import RawBatch
from energon_grain.sources.source import SampleLocation
from energon_grain.storage.byte_store import ByteStore
from energon_grain.storage.local import LocalFiles
from energon_grain.storage.spans import coalesce

Int64Array = npt.NDArray[np.int64]

_BLOCK_BYTES = 512


class WebDatasetSource:
    """The samples of some shards of a prepared dataset, in the order of the shards.

    Opening maps the columnar index and reads no shard, whatever their number; the first read from a shard checks that
    it still is the file that was indexed.

    Args:
        path: The dataset's folder (the one that holds `.nv-meta`).
        shards: Names of the shards to serve, in order; default: all of them, in the order of `.info.json`.
        parts: Which parts to read: names, or a predicate on the name; default: all.
        start: First sample to serve, counted over `shards` before `excluded` are taken out.
        stop: One past the last sample, counted likewise; default: the end.
        excluded: (shard, key) of samples to leave out. The length and the indices count what remains.
        store: Where the bytes live; default: local files.
        index_cache_dir: Where a missing columnar index is built when the dataset is not writable.

    Raises:
        DatasetNotFoundError: `path` is not a prepared dataset.
        StaleIndexError: The index does not fit the shards.
        EmptyDatasetError: No sample is left.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        shards: Sequence[str] | None = None,
        parts: PartFilter = None,
        start: int = 0,
        stop: int | None = None,
        excluded: Sequence[tuple[str, str]] = (),
        store: ByteStore | None = None,
        index_cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self._arguments = (os.fspath(path), shards, parts, start, stop, excluded, store, index_cache_dir)
        self._root = Path(path)
        self._store: ByteStore = store or LocalFiles()
        self._index: ColumnarIndex = open_columnar(
            self._root, cache_dir=Path(index_cache_dir) if index_cache_dir is not None else None
        )
        index = self._index
        self._paths = [os.fspath(self._root / name) for name in index.shards]
        numbers = {name: number for number, name in enumerate(index.shards)}
        self._shard_order = self._chosen_shards(shards, numbers)
        counts = index.shard_first[self._shard_order + 1] - index.shard_first[self._shard_order]
        self._first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        total = int(self._first[-1])
        self._selection = Selection(
            total=total, start=start, stop=total if stop is None else stop, excluded=self._raw_ranks(excluded, numbers)
        )
        if len(self._selection) == 0:
            raise EmptyDatasetError(
                f"{self._root}: nothing is left of {total} samples in {len(self._shard_order)} shards after taking the "
                f"range [{start}, {stop}) and {len(excluded)} excludes; widen the subset or the split"
            )
        self._wanted = self._wanted_parts(parts)
        self._pages = IndexPages(index.columns, samples=len(index), rows=index.rows)
        self._pages.release()  # looking up excluded keys goes all over the index
        self._verified = np.zeros(len(index.shards), np.bool_)
        # Plain arrays: indexing a memmap costs microseconds of subclass bookkeeping each time.
        self._sample_start = np.asarray(index.sample_start)
        self._part_start = np.asarray(index.part_start)
        self._part_name = np.asarray(index.part_name)
        self._part_offset = np.asarray(index.part_offset)
        self._part_size = np.asarray(index.part_size)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, self._arguments

    def __repr__(self) -> str:
        return f"WebDatasetSource({str(self._root)!r}, samples={len(self)}, content_id={self.content_id!r})"

    def _raw_ranks(self, excluded: Sequence[tuple[str, str]], numbers: dict[str, int]) -> Int64Array:
        """Ranks, over the chosen shards, of the samples to leave out. Samples that do not exist exclude nothing."""
        ranks: list[int] = []
        for shard, key in excluded:
            number = numbers.get(shard)
            places = () if number is None else np.flatnonzero(self._shard_order == number).tolist()
            if number is not None and places:
                ranks += [int(self._first[place]) + sample for place in places for sample in self._within(number, key)]
        return np.unique(np.asarray(ranks, np.int64))

    def _within(self, shard: int, key: str) -> list[int]:
        """Places in a shard of the samples with this key: none or one, but for datasets with repeated keys."""
        first, last = int(self._index.shard_first[shard]), int(self._index.shard_first[shard + 1])
        sample = self._index.find(key)
        if sample is None:
            return []
        if first <= sample < last:
            return [sample - first]
        return [place for place, other in enumerate(self._index.keys(np.arange(first, last))) if other == key]

    def _chosen_shards(self, shards: Sequence[str] | None, numbers: dict[str, int]) -> Int64Array:
        names = self._index.shards if shards is None else shards
        unknown = [name for name in names if name not in numbers]
        if unknown:
            raise ConfigError(
                f"{self._root}: has no shard {unknown[0]!r}; it has {len(numbers)}, such as "
                f"{next(iter(numbers), None)!r}"
            )
        return np.array([numbers[name] for name in names], np.int64)

    def _wanted_parts(self, parts: PartFilter) -> npt.NDArray[np.bool_] | None:
        names = self._index.part_names
        if parts is None:
            return None
        wanted = np.fromiter((accepts(parts, name) for name in names), np.bool_, len(names))
        return None if wanted.all() else wanted

    @property
    def path(self) -> str:
        """The dataset's folder."""
        return os.fspath(self._root)

    @property
    def content_id(self) -> str:
        """Digest of the index and of which of its samples are served."""
        selection = self._selection
        return "{}-{:016x}".format(
            self._index.content_id[:16],
            fold(
                self._shard_order.tobytes(), selection.start, selection.stop, np.asarray(selection.excluded).tobytes()
            ),
        )

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts that a read may return."""
        names = self._index.part_names
        return names if self._wanted is None else tuple(n for n, w in zip(names, self._wanted, strict=True) if w)

    def __len__(self) -> int:
        return len(self._selection)

    def _resolve(self, indices: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Dataset-wide sample number, and shard number, of each index."""
        indices = np.asarray(indices, np.int64)
        if len(indices) and (int(indices.min()) < 0 or int(indices.max()) >= len(self)):
            wrong = indices[(indices < 0) | (indices >= len(self))][0]
            raise IndexError(f"{self._root}: sample {int(wrong)} asked for, but there are {len(self)}")
        raw = self._selection.to_raw(indices)
        position = np.searchsorted(self._first, raw, side="right") - 1
        shard = self._shard_order[position]
        return raw - self._first[position] + self._index.shard_first[shard], shard

    def sizes(self, indices: Int64Array) -> Int64Array:
        """(n,) bytes that reading each sample takes: its payloads, or its extent in the tar when all parts are read."""
        samples, shard = self._resolve(indices)
        if self._wanted is None:
            row = samples + shard
            taken = self._sample_start[row + 1] - self._sample_start[row]
        else:
            owner, rows = self._part_rows(samples)
            taken = np.bincount(owner, weights=self._part_size[rows], minlength=len(samples)).astype(np.int64)
        self._pages.touch(samples)
        return taken

    def _part_rows(self, samples: Int64Array) -> tuple[Int64Array, Int64Array]:
        """(owner, row) of every wanted part: which of `samples` it belongs to, and its row in the part columns."""
        first = self._part_start[samples]
        count = self._part_start[samples + 1] - first
        owner = np.repeat(np.arange(len(samples)), count)
        ends = np.cumsum(count)
        rows = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(first - (ends - count), count)
        if self._wanted is not None:
            keep = self._wanted[self._part_name[rows]]
            owner, rows = owner[keep], rows[keep]
        return owner, rows

    def read(self, indices: Int64Array, *, keys: list[str] | None = None) -> RawBatch:
        """Read samples in the order asked for. See `Source.read`.

        Args:
            indices: Of the samples.
            keys: Theirs, where they are known.
        """
        indices = np.asarray(indices, np.int64)
        samples, shard = self._resolve(indices)
        self._check_shards(shard)
        owner, rows = self._part_rows(samples)
        file = shard[owner]
        size = self._part_size[rows]
        spans = coalesce(
            file,
            self._part_offset[rows],
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
            columns=self._columns(len(samples), owner, self._part_name[rows], values),
        )
        self._pages.touch(samples)
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
        for number in np.unique(shard[~verified]).tolist():
            path, expected = self._paths[number], int(self._index.shard_bytes[number])
            actual = self._store.size(path)
            end = int(self._sample_start[int(self._index.shard_first[number + 1]) + number])
            marker = b""
            if actual == expected:
                file, start = np.zeros(1, np.int64), np.array([end], np.int64)
                marker = self._store.read_spans([path], file, start, start + min(_BLOCK_BYTES, actual - end))[0]
            if actual != expected or marker.strip(b"\0"):
                found = f"it has {actual} bytes" if actual != expected else f"there is data at its end marker @ {end}"
                raise StaleIndexError(
                    f"{path} was indexed with {expected} bytes ending at {end}, but {found}; the shard was changed "
                    f"after it was indexed: run `energon-grain prepare {self._root} --tar-index-only`"
                )
            self._verified[number] = True

    def locate(self, index: int) -> SampleLocation:
        """Where sample `index` lies. Raises IndexError when it is out of range."""
        samples, shard = self._resolve(np.array([index], np.int64))
        sample, number = int(samples[0]), int(shard[0])
        _, rows = self._part_rows(samples)
        names = self._index.part_names
        row = sample + number
        return SampleLocation(
            index=index,
            shard=self._index.shards[number],
            key=self._index.keys(samples)[0],
            start=int(self._sample_start[row]),
            stop=int(self._sample_start[row + 1]),
            parts={
                names[int(self._part_name[r])]: (int(self._part_offset[r]), int(self._part_size[r]))
                for r in rows.tolist()
            },
        )

    def place_of(self, index: int) -> str:
        """The shard and the key of sample `index`."""
        place = self.locate(index)
        return f"{place.shard}: {place.key}"

    def close(self) -> None:
        """Close the shards; reading again opens them anew."""
        self._store.close()


def _restore(
    path: str,
    shards: Sequence[str] | None,
    parts: PartFilter,
    start: int,
    stop: int | None,
    excluded: Sequence[tuple[str, str]],
    store: ByteStore | None,
    index_cache_dir: str | None,
) -> WebDatasetSource:
    return WebDatasetSource(
        path,
        shards=shards,
        parts=parts,
        start=start,
        stop=stop,
        excluded=excluded,
        store=store,
        index_cache_dir=index_cache_dir,
    )
