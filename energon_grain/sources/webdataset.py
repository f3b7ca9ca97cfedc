"""Random access to the samples of tar shards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import StaleIndexError
from energon_grain.formats.columnar import open_columnar
from energon_grain.sources.indexed_samples import IndexedSamples
from energon_grain.sources.part_filter import PartFilter
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
        self._index = open_columnar(
            self._root, cache_dir=Path(index_cache_dir) if index_cache_dir is not None else None
        )
        self._samples = IndexedSamples(
            self._index,
            where=os.fspath(self._root),
            shards=shards,
            parts=parts,
            start=start,
            stop=stop,
            excluded=excluded,
        )
        self._paths = [os.fspath(self._root / name) for name in self._index.shards]
        self._verified = np.zeros(len(self._index.shards), np.bool_)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, self._arguments

    def __repr__(self) -> str:
        return f"WebDatasetSource({str(self._root)!r}, samples={len(self)}, content_id={self.content_id!r})"

    @property
    def path(self) -> str:
        """The dataset's folder."""
        return os.fspath(self._root)

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

    def sizes(self, indices: Int64Array) -> Int64Array:
        """(n,) bytes that reading each sample takes: its payloads, or its extent in the tar when all parts are read."""
        return self._samples.sizes(indices)

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
        for number in np.unique(shard[~verified]).tolist():
            path, expected = self._paths[number], int(self._index.shard_bytes[number])
            actual = self._store.size(path)
            end = self._samples.shard_end(number)
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
        return self._samples.locate(index)

    def place_of(self, index: int) -> str:
        """The shard and the key of sample `index`."""
        return self._samples.place_of(index)

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
