"""Random access to the rows of an array on disk (zarr v2 and v3, N5), read by TensorStore."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, FormatError, ReadError, StaleIndexError, WorkerError
from energon_grain.formats.array_metadata import ArrayMetadata, read_array_metadata
from energon_grain.formats.json_text import encode_json
from energon_grain.sources.source import SampleLocation

Int64Array = npt.NDArray[np.int64]

CACHE_BYTES = 256 << 20
"""Chunks that are kept, decompressed, for the next read: of all arrays of a process together."""
IN_FLIGHT_BYTES = 64 << 20
"""Chunks that one read decompresses at a time; one chunk at least."""
_DIGESTED_BYTES = 1 << 20
_NO_NUMBERS = "OSUMm"


class ArraySource:
    """The rows of an array: what lies at each place of its first axis.

    A read takes the chunks that hold a wanted row, once each, some at a time and these at once, so that its memory
    does not grow with the number of rows asked for but for the rows themselves. Rows that were never written have the
    array's fill value.

    Opening reads the metadata only, and TensorStore's threads start with the first read: a process may be forked before
    it, and its children read with threads of their own. Thread-safe and picklable (the path only).

    Args:
        path: The array's folder.

    Raises:
        DatasetNotFoundError: There is no array.
        FormatError: Its metadata is damaged.
        ConfigError: It is a single number, or one of texts or other things that are no numbers.
        EmptyDatasetError: It has zero rows.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._metadata = read_array_metadata(Path(path))
        self._dtype = _numpy_type(self._path, self._metadata.type_name)
        self._content_id = _digest(Path(path), self._metadata, self._dtype)
        self._store: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ArraySource, (self._path,)

    def __repr__(self) -> str:
        return f"ArraySource({self._path!r}, rows={len(self)}, row={self._dtype}{list(self.row_shape)})"

    @property
    def path(self) -> str:
        """The array's folder."""
        return self._path

    @property
    def content_id(self) -> str:
        """16 hex digits: of shape, type, and the beginning of the files with the first and the last row.

        So an array that was computed anew is noticed, and one of which only rows in between were written again is not.
        """
        return self._content_id

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the numbers."""
        return self._dtype

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row; () where the array has one axis."""
        return self._metadata.shape[1:]

    def __len__(self) -> int:
        return self._metadata.shape[0]

    def read(self, indices: Int64Array) -> list[npt.NDArray[Any]]:
        """Read rows in the order asked for, each an array of its own; repeated indices are fine.

        Args:
            indices: (n,) in [0, len).

        Raises:
            IndexError: An index is out of range.
            ReadError: A chunk could not be read or does not decode.
            StaleIndexError: The array has another shape or type now than when it was opened.
            FormatError: TensorStore cannot read arrays of this kind.
            WorkerError: Rows were read in the process that this one was forked from.
        """
        indices = self._checked(indices)
        store = self._opened()
        wanted, place = np.unique(indices, return_inverse=True)
        found: list[npt.NDArray[Any]] = []
        for piece in self._pieces(wanted, store):
            try:
                block: npt.NDArray[Any] = store[_as_range(piece)].read().result()
            except Exception as error:
                raise ReadError(f"{self._path}: rows {int(piece[0])} to {int(piece[-1])}: {error}") from error
            found.extend(block[row, ...] for row in range(len(block)))
        # Copies, as a sample that is kept for long would else keep the rows of all that were read with it.
        return [found[row].copy() for row in place.tolist()]

    def _pieces(self, wanted: Int64Array, store: Any) -> Iterator[Int64Array]:
        """Cut rows, ascending, where the chunks that hold them become too many to be read at once."""
        chunk_rows = int(store.chunk_layout.read_chunk.shape[0])
        at_once = max(1, IN_FLIGHT_BYTES // max(1, chunk_rows * self._row_bytes))
        number = np.cumsum(np.diff(wanted // chunk_rows, prepend=-1) != 0) - 1
        for piece in np.split(wanted, np.flatnonzero(np.diff(number // at_once)) + 1):
            if len(piece):
                yield piece

    def sizes(self, indices: Int64Array) -> Int64Array:
        """(n,) bytes of each row: the same for all. Raises IndexError when an index is out of range."""
        return np.full(len(self._checked(indices)), self._row_bytes, np.int64)

    def locate(self, index: int) -> SampleLocation:
        """Where a row lies: the file with its beginning, and its bytes as counted in the uncompressed array.

        Raises IndexError when `index` is out of range.
        """
        self._checked(np.array([index], np.int64))
        start = index * self._row_bytes
        return SampleLocation(
            index=index,
            shard=self._metadata.file_of(index),
            key=str(index),
            start=start,
            stop=start + self._row_bytes,
            parts={},
        )

    def close(self) -> None:
        """Let go of the array; reading again opens it anew. What is cached of it stays."""
        self._store = None

    @property
    def _row_bytes(self) -> int:
        return self._dtype.itemsize * int(np.prod(self.row_shape, dtype=np.int64))

    def _checked(self, indices: Int64Array) -> Int64Array:
        indices = np.asarray(indices, np.int64)
        if len(indices) and (int(indices.min()) < 0 or int(indices.max()) >= len(self)):
            wrong = indices[(indices < 0) | (indices >= len(self))][0]
            raise IndexError(f"{self._path}: row {int(wrong)} asked for, but there are {len(self)}")
        return indices

    def _opened(self) -> Any:
        """TensorStore's array; threads that come here at once may open it twice, which does no harm."""
        process, context = _context()
        if process != os.getpid():
            raise WorkerError(
                f"{self._path}: arrays were read in the process that this one was forked from, and TensorStore cannot "
                "be used in both; start workers with `spawn` or `forkserver`, or read no arrays before they start"
            )
        if self._store is None:
            store = _open(self._path, self._metadata.driver, context)
            if store.shape != self._metadata.shape or store.dtype.numpy_dtype != self._dtype:
                raise StaleIndexError(
                    f"{self._path}: is {store.dtype.name}{list(store.shape)} now, and was "
                    f"{self._dtype}{list(self._metadata.shape)} when it was opened; begin anew, and let nothing write "
                    "to it meanwhile"
                )
            self._store = store
        return self._store


@functools.cache
def _context() -> tuple[int, Any]:
    """The process, and what its arrays share: the cache."""
    import tensorstore

    return os.getpid(), tensorstore.Context({"cache_pool": {"total_bytes_limit": CACHE_BYTES}})


def _open(path: str, driver: str, context: Any) -> Any:
    import tensorstore

    spec = {
        "driver": driver,
        "kvstore": {"driver": "file", "path": os.path.join(path, "")},
        # What was opened once counts as long as it is open: nothing is looked up on disk again for what is cached.
        "recheck_cached_data": "open",
        "recheck_cached_metadata": "open",
    }
    try:
        return tensorstore.open(spec, open=True, read=True, context=context).result()
    except Exception as error:
        raise FormatError(f"{path}: TensorStore cannot open it: {error}") from error


def _as_range(rows: Int64Array) -> slice | Int64Array:
    """Rows, ascending, as a slice where they are all there between the first and the last."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows


def _numpy_type(path: str, name: str) -> np.dtype[Any]:
    """The type of the rows of an array, whose metadata calls it `name`."""
    try:
        found: Any = np.dtype(name).newbyteorder("=")
    except TypeError:
        import tensorstore  # it knows more types (bfloat16, float8); this starts no threads

        try:
            found = tensorstore.dtype(name).numpy_dtype
        except ValueError:
            found = None
    if found is None or found.kind in _NO_NUMBERS or not found.itemsize:
        raise ConfigError(f"{path}: its elements are of type {name}; rows can be arrays of plain numbers only")
    return found


def _digest(path: Path, metadata: ArrayMetadata, dtype: np.dtype[Any]) -> str:
    digest = hashlib.blake2b(encode_json([list(metadata.shape), dtype.name]), digest_size=8)
    for name in sorted({metadata.file_of(0), metadata.file_of(metadata.shape[0] - 1)}):
        file = path / name
        digest.update(b"\0" + name.encode() + b"\0")
        if file.is_file():
            with open(file, "rb") as opened:
                digest.update(opened.read(_DIGESTED_BYTES))
    return digest.hexdigest()
