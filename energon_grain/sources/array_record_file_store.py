"""The parts of the samples in ArrayRecord files, by their names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from energon_grain.errors import KeyNotFoundError
from energon_grain.formats.columnar import open_columnar
from energon_grain.formats.data_folder import DataFolder, open_folder
from energon_grain.samples.source_info import SourceInfo
from energon_grain.sources.array_record_folder import ArrayRecordFolder
from energon_grain.sources.file_store import FileStore
from energon_grain.sources.opened_stores import remember, reopen
from energon_grain.storage.epath import shared_epath


class ArrayRecordFileStore(FileStore[Any]):
    """Reads single parts of samples; a key is the sample's key and the part's name with a dot between: `000012.jpg`.

    All shards are served: splits, subsets and excluded samples have no meaning here. The record of a sample is read
    whole, once for all of its parts that are asked for together. Opening maps the columnar index and reads no file.

    Args:
        path: The dataset's folder, or its URL.
        index_cache_dir: Where a missing columnar index is built when the dataset is not writable.

    Raises:
        DatasetNotFoundError: `path` is not a prepared dataset of ArrayRecord files.
    """

    def __init__(
        self, path: str | os.PathLike[str] | DataFolder, *, index_cache_dir: str | os.PathLike[str] | None = None
    ) -> None:
        folder = open_folder(path)
        self._arguments = (folder, None if index_cache_dir is None else os.fspath(index_cache_dir))
        cache_dir = None if index_cache_dir is None else Path(index_cache_dir)
        self._records = ArrayRecordFolder(folder, open_columnar(folder, cache_dir=cache_dir))
        self._parts = {name: number for number, name in enumerate(self._records.index.part_names)}
        remember(self, self._arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return reopen, (ArrayRecordFileStore, *self._arguments)

    def __repr__(self) -> str:
        return f"ArrayRecordFileStore({self.get_path()!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArrayRecordFileStore) and self._arguments == other._arguments

    def __hash__(self) -> int:
        return hash(self._arguments)

    def get_path(self) -> str:
        """The dataset's folder."""
        return self._records.location

    def __contains__(self, key: object) -> bool:
        """Whether a sample has such a part."""
        return isinstance(key, str) and self._find(key) is not None

    def read(self, keys: Sequence[str]) -> list[tuple[Any, SourceInfo]]:
        """Read parts in the order asked for. See `FileStore.read`."""
        found = [self._found(key) for key in keys]
        samples = np.array([sample for sample, _ in found], np.int64)
        index = self._records.index
        rows = self._records.read(samples, index.keys(samples))
        shards = map(index.shards.__getitem__, index.shard_of(samples).tolist())
        path = shared_epath(self.get_path())
        return [
            (row[part], SourceInfo(dataset_path=path, index=key, shard_name=shard, file_names=(key,)))
            for key, (_, part), row, shard in zip(keys, found, rows, shards, strict=True)
        ]

    def _found(self, key: str) -> tuple[int, str]:
        found = self._find(key)
        if found is None:
            raise KeyNotFoundError(
                f"{self.get_path()}: there is no part {key!r}; a key is the key of a sample, a dot, and the name of "
                f"one of its parts. There are parts {', '.join(list(self._parts)[:10])}"
            )
        return found

    def _find(self, key: str) -> tuple[int, str] | None:
        """The sample, and which part of it. Keys of records may have dots, and so may names of parts."""
        index = self._records.index
        dot = key.find(".")
        while dot >= 0:
            part = key[dot + 1 :]
            sample = index.find(key[:dot]) if part in self._parts else None
            if sample is not None:
                names = index.part_name[index.part_start[sample] : index.part_start[sample + 1]]
                if self._parts[part] in names.tolist():
                    return sample, part
            dot = key.find(".", dot + 1)
        return None

    def close(self) -> None:
        """Close the files; reading again opens them anew."""
        self._records.close()
