"""Random access to the rows of an array on disk (zarr v2 and v3, N5), read by TensorStore."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import WorkerError
from energon_grain.formats.array_metadata import ArrayMetadata, read_array_metadata
from energon_grain.forms import encode_json
from energon_grain.sources.array_context import inherited
from energon_grain.sources.array_helper import read_rows_by_helper
from energon_grain.sources.array_reads import OpenArray, read_rows
from energon_grain.sources.array_store import StoredArray
from energon_grain.sources.source import SampleLocation, in_range
from energon_grain.storage.location import join, located
from energon_grain.storage.read_whole import read_beginning

Int64Array = npt.NDArray[np.int64]

_DIGESTED_BYTES = 1 << 20


class ArraySource:
    """The rows of an array: what lies at each place of its first axis.

    A read takes the chunks that hold a wanted row, once each, some at a time and these at once, so that its memory
    does not grow with the number of rows asked for but for the rows themselves. Rows that were never written have the
    array's fill value.

    Opening reads the metadata only, and TensorStore's threads start with the first read. They do not outlive a fork: a
    process that was forked from one that had loaded TensorStore reads through a helper process of its own. Thread-safe
    and picklable: a copy asks for no metadata again.

    Args:
        path: The array's folder, or its URL in an object store.

    Raises:
        DatasetNotFoundError: There is no array.
        FormatError: Its metadata is damaged.
        ConfigError: It is a single number, or one of texts or other things that are no numbers.
        EmptyDatasetError: It has zero rows.
        ReadError: Its metadata or the store cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        location = located(path)
        self._begin(StoredArray.found(location, read_array_metadata(location)))

    @classmethod
    def of(cls, stored: StoredArray) -> ArraySource:
        """The rows of an array that was found already."""
        source = cls.__new__(cls)
        source._begin(stored)
        return source

    def _begin(self, stored: StoredArray) -> None:
        self.stored = stored
        self._content_id = ""
        self._open: OpenArray | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ArraySource.of, (self.stored,)

    def __repr__(self) -> str:
        return f"ArraySource({self.path!r}, rows={len(self)}, row={self.dtype}{list(self.row_shape)})"

    @property
    def path(self) -> str:
        """The array's folder or URL."""
        return self.stored.location

    @property
    def content_id(self) -> str:
        """16 hex digits: of shape, type, and the beginning of the files with the first and the last row.

        So an array that was computed anew is noticed, and one of which only rows in between were written again is not.
        The files are read when it is first asked for.
        """
        if not self._content_id:
            self._content_id = array_digest(self.path, self.stored.metadata, self.dtype.name)
        return self._content_id

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the numbers."""
        return self.stored.dtype

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row; () where the array has one axis."""
        return self.stored.row_shape

    @property
    def row_bytes(self) -> int:
        """Size of a row."""
        return self.stored.row_bytes

    @property
    def chunk_rows(self) -> int:
        """Consecutive rows that are decompressed together. Opens the array; raises as `read`."""
        return self.opened().chunk_rows

    def __len__(self) -> int:
        return self.stored.metadata.rows

    def read(self, indices: Int64Array) -> list[npt.NDArray[Any]]:
        """Read rows in the order asked for, each an array of its own; repeated indices are fine.

        Args:
            indices: (n,) in [0, len).

        Raises:
            IndexError: An index is out of range.
            ReadError: A chunk could not be read or does not decode.
            StaleIndexError: The array has another shape or type now than when it was opened.
            FormatError: TensorStore cannot read arrays of this kind.
            WorkerError: This process was forked, and no helper process can be started.
        """
        return read_arrays([self], indices)[0]

    def sizes(self, indices: Int64Array) -> Int64Array:
        """(n,) bytes of each row: the same for all. Raises IndexError when an index is out of range."""
        return np.full(len(self.check(indices)), self.row_bytes, np.int64)

    def locate(self, index: int) -> SampleLocation:
        """Where a row lies: the file with its beginning, and its bytes as counted in the uncompressed array.

        Raises IndexError when `index` is out of range.
        """
        self.check(np.array([index], np.int64))
        start = index * self.row_bytes
        return SampleLocation(
            index=index,
            shard=self.stored.metadata.file_of(index),
            key=str(index),
            start=start,
            stop=start + self.row_bytes,
            parts={},
        )

    def close(self) -> None:
        """Let go of the array; reading again opens it anew. What is cached of it stays."""
        self._open = None

    def check(self, indices: Int64Array) -> Int64Array:
        """Check rows. Raises IndexError when one is out of range."""
        return in_range(indices, len(self), where=self.path, what="row")

    def opened(self) -> OpenArray:
        """The array, to read from in this process. Threads that come here at once may open it twice: no harm.

        Raises:
            StaleIndexError, FormatError: As `read`.
            WorkerError: This process was forked from one that had loaded TensorStore.
        """
        if inherited():
            raise WorkerError(
                f"{self.path}: TensorStore cannot open an array in a process that was forked after its use"
            )
        if self._open is None:
            self._open = OpenArray.of(self.stored)
        return self._open


def read_arrays(arrays: Sequence[ArraySource], indices: Int64Array) -> list[list[npt.NDArray[Any]]]:
    """Read the same rows of several arrays at once. See `ArraySource.read`."""
    for array in arrays:
        indices = array.check(indices)
    if not len(indices):
        return [[] for _ in arrays]
    if inherited():
        return read_rows_by_helper([array.stored for array in arrays], indices)
    return read_rows([array.opened() for array in arrays], indices)


def array_digest(location: str, metadata: ArrayMetadata, type_name: str) -> str:
    """16 hex digits: of shape, type, and the beginning of the files with the first and the last row of an array.

    Raises:
        ReadError: A file cannot be read.
    """
    digest = hashlib.blake2b(encode_json([list(metadata.shape), type_name]), digest_size=8)
    for name in sorted({metadata.file_of(row) for row in (0, metadata.rows - 1)} if metadata.rows else ()):
        digest.update(b"\0" + name.encode() + b"\0")
        digest.update(read_beginning(join(location, name), _DIGESTED_BYTES) if name else b"")
    return digest.hexdigest()
