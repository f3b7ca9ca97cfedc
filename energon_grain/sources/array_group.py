"""Arrays as samples: sample i is row i of an array, or of each of several equally long ones."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError
from energon_grain.formats.array_group import NamedArray, read_array_group
from energon_grain.samplers.hashing import fold
from energon_grain.samplers.subset import Selection
from energon_grain.sources.array import ArraySource, array_digest, read_arrays
from energon_grain.sources.array_store import StoredArray
from energon_grain.sources.source import PartFilter, RawBatch, SampleLocation, accepts, in_range
from energon_grain.storage.location import is_url, located, name_of

Int64Array = npt.NDArray[np.int64]


class ArrayGroupSource:
    """The rows of a zarr array (v2, v3) or an N5 array, or of all that lie directly in a group.

    A part of a sample is a row as a numpy array, whose name is that of the array; an array that stands alone has its
    folder's name without the ending: `embeddings` of `embeddings.zarr`. The key of a sample is its row's number.

    A read issues the reads of all arrays before it awaits any. Of arrays that are not wanted only the metadata is read.
    What `ArraySource` says of forks and of copies holds here too.

    Args:
        path: Folder of the array or group, or its URL in an object store.
        start: First row to serve.
        stop: One past the last row; default: the end.
        parts: Which arrays to read, names or a predicate.

    Raises:
        DatasetNotFoundError: There is no array.
        FormatError: Its metadata is damaged.
        ConfigError: The arrays to be read differ in length, one of them holds no numbers or is a single number, or none
            is to be read.
        EmptyDatasetError: An array to be read has no row, or none is left.
        ReadError: The metadata or the store cannot be read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        start: int = 0,
        stop: int | None = None,
        parts: PartFilter = None,
    ) -> None:
        location = located(path)
        group = read_array_group(location)
        arrays = {
            array.name: ArraySource.of(StoredArray.found(array.location, array.metadata))
            for array in group
            if accepts(parts, array.name)
        }
        if not arrays:
            raise ConfigError(
                f"{path}: part_filter lets none of its arrays pass: {', '.join(each.name for each in group)}"
            )
        _check_lengths(location, arrays)
        self._begin(location, group, arrays, start, stop)

    def _begin(
        self,
        location: str,
        group: tuple[NamedArray, ...],
        arrays: dict[str, ArraySource],
        start: int,
        stop: int | None,
    ) -> None:
        self._path, self._group, self._arrays = location, group, arrays
        rows = next(iter(arrays.values())).stored.metadata.rows
        self._selection = Selection(rows, start=start, stop=stop)
        self._content_id = ""

    def cut(self, start: int, stop: int) -> ArrayGroupSource:
        """Rows [start, stop) of the whole arrays.

        Raises:
            ConfigError: There are fewer.
            EmptyDatasetError: There are none between.
        """
        return _restore(self._path, self._group, self._arrays, start, stop)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._path, self._group, self._arrays, self._selection.start, self._selection.stop)

    def __repr__(self) -> str:
        return f"ArrayGroupSource({self._path!r}, samples={len(self)}, arrays={list(self._arrays)})"

    @property
    def path(self) -> str:
        """The folder or URL."""
        return self._path

    @property
    def shard(self) -> str:
        """The name of the folder."""
        return name_of(self._path)

    @property
    def arrays(self) -> dict[str, ArraySource]:
        """The arrays that are read, by part."""
        return self._arrays

    @property
    def run_samples(self) -> int | None:
        """Of arrays in an object store, rows of the largest chunk, which is fetched whole for any row of it."""
        shapes = [array.stored.metadata.file_shape for array in self._arrays.values()]
        rows = max((shape[0] for shape in shapes if shape), default=1)
        return rows if is_url(self._path) and rows > 1 else None

    @property
    def part_names(self) -> tuple[str, ...]:
        """The names of all arrays, read or not."""
        return tuple(array.name for array in self._group)

    @property
    def content_id(self) -> str:
        """Digest of all arrays, read or not, as `ArraySource.content_id`, and of which rows are served."""
        if not self._content_id:
            digest = hashlib.blake2b(digest_size=8)
            for array in self._group:
                own = array_digest(array.location, array.metadata, array.metadata.type_name)
                digest.update(f"{array.name}\0{own}\0".encode())
            self._content_id = f"{digest.hexdigest()}-{fold(self._selection.start, self._selection.stop):016x}"
        return self._content_id

    def __len__(self) -> int:
        return len(self._selection)

    def _rows(self, indices: Int64Array) -> Int64Array:
        return self._selection.to_raw(in_range(indices, len(self), where=self._path))

    def read(self, indices: Int64Array) -> RawBatch:
        """Read samples in the order asked for. See `Source.read`; raises as `ArraySource.read` too."""
        rows = self._rows(indices)
        columns = read_arrays(list(self._arrays.values()), rows)
        return RawBatch(
            indices=np.asarray(indices, np.int64),
            keys=list(map(str, rows.tolist())),
            shards=[self.shard] * len(rows),
            columns={part: [*column] for part, column in zip(self._arrays, columns, strict=True)} if len(rows) else {},
        )

    def sizes(self, indices: Int64Array) -> Int64Array:
        """(n,) bytes of each sample: the same for all."""
        return np.full(len(self._rows(indices)), sum(array.row_bytes for array in self._arrays.values()), np.int64)

    def locate(self, index: int) -> SampleLocation:
        """Which row a sample is; places are counted in each array as if it were not compressed.

        Raises IndexError when `index` is out of range.
        """
        (row,) = self._rows(np.array([index], np.int64)).tolist()
        parts = {name: (row * array.row_bytes, array.row_bytes) for name, array in self._arrays.items()}
        size = sum(array.row_bytes for array in self._arrays.values())
        return SampleLocation(
            index=index, shard=self.shard, key=str(row), start=row * size, stop=(row + 1) * size, parts=parts
        )

    def place_of(self, index: int) -> str:
        """The folder's name and the row: `embeddings.zarr: 123`. Raises IndexError as `locate` does."""
        place = self.locate(index)
        return f"{place.shard}: {place.key}"

    def close(self) -> None:
        """Let go of the arrays; reading again opens them anew."""
        for array in self._arrays.values():
            array.close()


def _check_lengths(location: str, arrays: dict[str, ArraySource]) -> None:
    lengths = {name: array.stored.metadata.rows for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ConfigError(
            f"{location}: the arrays of a group must have the same number of rows, but {found}; choose those of one "
            "length by part_filter, name one of the arrays, or keep those of another length in a group of their own"
        )


def _restore(
    location: str, group: tuple[NamedArray, ...], arrays: dict[str, ArraySource], start: int, stop: int
) -> ArrayGroupSource:
    source = ArrayGroupSource.__new__(ArrayGroupSource)
    source._begin(location, group, arrays, start, stop)
    return source
