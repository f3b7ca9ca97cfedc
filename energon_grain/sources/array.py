"""Random access to the rows of an array on disk (zarr v2 and v3, N5), read by TensorStore."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.formats.array_metadata import ArrayMetadata, read_array_metadata
from energon_grain.formats.json_text import encode_json
from energon_grain.sources.array_reads import OpenArray, read_rows
from energon_grain.sources.array_store import check_process, numpy_type, open_array
from energon_grain.sources.source import SampleLocation

Int64Array = npt.NDArray[np.int64]

_DIGESTED_BYTES = 1 << 20


class ArraySource:
    """The rows of an array: what lies at each place of its first axis.

    A read takes the chunks that hold a wanted row, once each, some at a time and these at once, so that its memory
    does not grow with the number of rows asked for but for the rows themselves. Rows that were never written have the
    array's fill value.

    Opening reads the metadata only, and TensorStore's threads start with the first read: a process may be forked before
    it, and its children read with threads of their own. Thread-safe and picklable (the path only).

    Args:
        path: The array's folder.
        metadata: What is known of it already.

    Raises:
        DatasetNotFoundError: There is no array.
        FormatError: Its metadata is damaged.
        ConfigError: It is a single number, or one of texts or other things that are no numbers.
        EmptyDatasetError: It has zero rows.
    """

    def __init__(self, path: str | os.PathLike[str], *, metadata: ArrayMetadata | None = None) -> None:
        self._path = os.fspath(path)
        self._metadata = read_array_metadata(path) if metadata is None else metadata
        self._dtype = numpy_type(self._path, self._metadata.type_name)
        self._content_id = ""
        self._open: OpenArray | None = None

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
        The files are read when it is first asked for.
        """
        if not self._content_id:
            self._content_id = array_digest(self._path, self._metadata, self._dtype.name)
        return self._content_id

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the numbers."""
        return self._dtype

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row; () where the array has one axis."""
        return self._metadata.shape[1:]

    @property
    def row_bytes(self) -> int:
        """Size of a row."""
        return self._dtype.itemsize * int(np.prod(self.row_shape, dtype=np.int64))

    @property
    def chunk_rows(self) -> int:
        """Consecutive rows that are decompressed together. Opens the array; raises as `read`."""
        return self.opened().chunk_rows

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
            shard=self._metadata.file_of(index),
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
        indices = np.asarray(indices, np.int64)
        if len(indices) and (int(indices.min()) < 0 or int(indices.max()) >= len(self)):
            wrong = indices[(indices < 0) | (indices >= len(self))][0]
            raise IndexError(f"{self._path}: row {int(wrong)} asked for, but there are {len(self)}")
        return indices

    def opened(self) -> OpenArray:
        """The array, to read from. Raises as `read`. Threads that come here at once may open it twice: no harm."""
        check_process(self._path)
        if self._open is None:
            store = open_array(self._path, self._metadata, self._dtype)
            self._open = OpenArray(path=self._path, store=store, row_bytes=self.row_bytes)
        return self._open


def read_arrays(arrays: Sequence[ArraySource], indices: Int64Array) -> list[list[npt.NDArray[Any]]]:
    """Read the same rows of several arrays at once. See `ArraySource.read`."""
    for array in arrays:
        indices = array.check(indices)
    return read_rows([array.opened() for array in arrays], indices)


def array_digest(path: str, metadata: ArrayMetadata, type_name: str) -> str:
    """16 hex digits: of shape, type, and the beginning of the files with the first and the last row of an array."""
    digest = hashlib.blake2b(encode_json([list(metadata.shape), type_name]), digest_size=8)
    for name in sorted({metadata.file_of(0), metadata.file_of(metadata.shape[0] - 1)}):
        file = Path(path) / name
        digest.update(b"\0" + name.encode() + b"\0")
        if file.is_file():
            with open(file, "rb") as opened:
                digest.update(opened.read(_DIGESTED_BYTES))
    return digest.hexdigest()
