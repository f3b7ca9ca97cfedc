"""The files inside the shards of a prepared dataset, by their names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import KeyNotFoundError
from energon_grain.formats.columnar import open_columnar
from energon_grain.formats.data_folder import DataFolder, open_folder
from energon_grain.formats.tar.index import check_shards
from energon_grain.formats.tar.names import split_member_name
from energon_grain.samples.source_info import SourceInfo
from energon_grain.sources.file_store import FileStore, remember, reopen
from energon_grain.sources.indexed import IndexPages
from energon_grain.storage.epath import shared_epath
from energon_grain.storage.spans import coalesce

Int64Array = npt.NDArray[np.int64]


class WebdatasetFileStore(FileStore[bytes]):
    """Reads single files out of tar shards; a key is the full name of a member, `folder/000012.jpg`.

    All shards are served: splits, subsets and excluded samples have no meaning here. Names count as the archive writes
    them. Opening maps the columnar index and reads no shard; shards that were read from stay open, 40 of them at most.

    Args:
        path: The dataset's folder (the one that holds `.nv-meta`): a path, a URL, or what `open_folder` made of it.
        index_cache_dir: Where a missing columnar index is built when the dataset is not writable.

    Raises:
        DatasetNotFoundError: `path` is not a prepared dataset.
        StaleIndexError: The index does not fit the shards.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | DataFolder,
        *,
        index_cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        cache_dir = None if index_cache_dir is None else os.fspath(index_cache_dir)
        self._folder = open_folder(path)
        self._arguments = (self._folder, cache_dir)
        self._store = self._folder.store
        self._index = open_columnar(self._folder, cache_dir=None if cache_dir is None else Path(cache_dir))
        self._paths = self._folder.shards(self._index.shards)
        self._parts = {name: number for number, name in enumerate(self._index.part_names)}
        self._pages = IndexPages(self._index.columns, samples=len(self._index), rows=self._index.rows)
        self._verified = np.zeros(len(self._paths), np.bool_)
        remember(self, self._arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return reopen, (WebdatasetFileStore, *self._arguments)

    def __repr__(self) -> str:
        return f"WebdatasetFileStore({self.get_path()!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WebdatasetFileStore) and self._arguments == other._arguments

    def __hash__(self) -> int:
        return hash(self._arguments)

    def get_path(self) -> str:
        """The dataset's folder, path or URL."""
        return self._folder.location

    def __contains__(self, key: object) -> bool:
        """Whether a shard has a member of this name."""
        return isinstance(key, str) and self._row(key) is not None

    def read(self, keys: Sequence[str]) -> list[tuple[bytes, SourceInfo]]:
        """Read files in the order asked for; neighbours in a shard are read together. See `FileStore.read`."""
        found = [self._row_of(key) for key in keys]
        sample, row = np.array(found, np.int64).reshape(len(found), 2).T
        shard = self._index.shard_of(sample)
        self._verify(shard)
        data = self._payloads(shard, self._index.part_offset[row], self._index.part_size[row])
        self._pages.touch(sample)
        names = map(self._index.shards.__getitem__, shard.tolist())
        path = shared_epath(self.get_path())
        return [
            (value, SourceInfo(dataset_path=path, index=key, shard_name=name, file_names=(key,)))
            for key, value, name in zip(keys, data, names, strict=True)
        ]

    def _payloads(self, shard: Int64Array, start: Int64Array, size: Int64Array) -> list[bytes]:
        if len(shard) == 1:  # nothing to bring together, and that takes half of the time of a single file
            return self._store.read_spans(self._paths, shard, start, start + size)
        spans = coalesce(
            shard, start, size, merge_gap_bytes=self._store.merge_gap_bytes, solo_bytes=self._store.solo_bytes
        )
        data = self._store.read_spans(self._paths, spans.file, spans.start, spans.stop)
        places = zip(spans.span.tolist(), spans.offset.tolist(), size.tolist(), strict=True)
        return [data[span][offset : offset + length] for span, offset, length in places]

    def _row_of(self, key: str) -> tuple[int, int]:
        found = self._row(key)
        if found is None:
            raise KeyNotFoundError(self._why_not(key))
        return found

    def _row(self, key: str) -> tuple[int, int] | None:
        """Sample, and row of the part columns, of a file; of several in a sample the last, as when samples are read."""
        # "keep": an index that was made without hidden files has none to be found.
        split = split_member_name(key, hidden="keep")
        part = None if split is None else self._parts.get(split[1])
        if split is None or part is None:
            return None
        sample = self._index.find(split[0])
        if sample is None:
            return None
        first, last = self._index.part_start[sample : sample + 2].tolist()
        names: list[int] = self._index.part_name[first:last].tolist()
        return next(((sample, row) for row in range(last - 1, first - 1, -1) if names[row - first] == part), None)

    def _why_not(self, key: str) -> str:
        split = split_member_name(key, hidden="keep")
        where = f"{self.get_path()}: there is no file {key!r}"
        if split is None:
            return f"{where}; a key is the full name of a file in a shard, folders and endings included"
        sample = self._index.find(split[0])
        if sample is None:
            return f"{where}, nor any other of a sample {split[0]!r}; a key is the full name of a file in a shard"
        rows = self._index.part_name[self._index.part_start[sample] : self._index.part_start[sample + 1]]
        names = ", ".join(f"{split[0]}.{self._index.part_names[number]}" for number in rows.tolist())
        return f"{where}; the sample {split[0]!r} has {names}"

    def _verify(self, shard: Int64Array) -> None:
        """Compare shards that have not been read from before with the index."""
        if not self._verified[shard].all():
            numbers: list[int] = np.unique(shard[~self._verified[shard]]).tolist()
            check_shards(self._folder, self._index, numbers)
            self._verified[numbers] = True

    def close(self) -> None:
        """Close the shards; reading again opens them anew."""
        self._store.close()
