"""One-dimensional `.npy` files that are appended to while they are written and memory-mapped when they are read."""

from __future__ import annotations

import hashlib
import mmap
import os
import sys
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from energon_grain.errors import IndexFileError

_HEADER_BYTES = 128
_BUFFER_BYTES = 1 << 20
READ_INSTEAD_OF_MAP_BYTES = 64 << 10
"""Files up to this size are read: a memory map costs a file descriptor (before Python 3.13) and whole pages."""


class ColumnWriter:
    """Writes a `.npy` file of which the length is known only at the end.

    `append` adds rows, `close` fills in the header and flushes to disk. Memory does not grow with the file.

    Args:
        path: A file that does not exist.
        dtype: Type of the numbers.
        width: Numbers in a row, for an array of two dimensions; default: an array of one.
    """

    def __init__(self, path: Path, dtype: npt.DTypeLike, *, width: int | None = None) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._width = width
        self._digest = hashlib.blake2b(digest_size=16)
        self._file: BinaryIO = open(path, "xb", buffering=_BUFFER_BYTES)  # noqa: SIM115 (closed by `close`)
        self._file.write(bytes(_HEADER_BYTES))
        self.rows = 0

    @property
    def checksum(self) -> str:
        """BLAKE2b-128, in hex, of all rows so far."""
        return self._digest.hexdigest()

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Add `rows`, an array of one dimension, or of two with rows of `width`."""
        if not len(rows):
            return
        data = np.ascontiguousarray(rows, dtype=self._dtype).data.cast("B")
        self._digest.update(data)
        self._file.write(data)
        self.rows += len(rows)

    def close(self) -> None:
        """Write the header and flush the file to disk. Closing again does nothing."""
        if self._file.closed:
            return
        self._file.seek(0)
        self._file.write(_npy_header(self._dtype, self.rows, self._width))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def column_file_bytes(dtype: npt.DTypeLike, rows: int, *, width: int | None = None) -> int:
    """Size of the file of a column, in bytes."""
    return _HEADER_BYTES + rows * (width or 1) * np.dtype(dtype).itemsize


def read_column(path: Path, dtype: npt.DTypeLike, rows: int, *, width: int | None = None) -> npt.NDArray[Any]:
    """Map the `.npy` file at `path`, read-only, after checking type and length against what is expected.

    Costs one open file descriptor before Python 3.13 and none since; files of at most 64 KiB are read instead.

    Args:
        path: A file that `ColumnWriter` wrote.
        dtype: The type that it must have.
        rows: The number of rows that it must have.
        width: Numbers in a row, for an array of two dimensions.

    Raises:
        FileNotFoundError: There is no such file.
        IndexFileError: The file is damaged or not of this type and length.
    """
    dtype = np.dtype(dtype).newbyteorder("<")
    size_bytes = column_file_bytes(dtype, rows, width=width)
    with open(path, "rb", buffering=0) as file:
        found_bytes = os.fstat(file.fileno()).st_size
        if found_bytes != size_bytes:
            raise IndexFileError(f"{path}: has {found_bytes} bytes, but {rows} rows of {dtype} take {size_bytes}")
        buffer = read_or_map(file, size_bytes)
    if buffer[:_HEADER_BYTES] != _npy_header(dtype, rows, width):
        raise IndexFileError(f"{path}: the header is not that of a .npy file with {rows} rows of {dtype}")
    shape = (rows,) if width is None else (rows, width)
    return np.ndarray(shape, dtype=dtype, buffer=buffer, offset=_HEADER_BYTES)


def read_or_map(file: BinaryIO | FileIO, size_bytes: int) -> bytes | mmap.mmap:
    """The bytes of an open file: read if they are few, else mapped, which outlives the file object."""
    if size_bytes <= READ_INSTEAD_OF_MAP_BYTES:
        return file.read()
    if sys.version_info >= (3, 13):
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, trackfd=False)
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def release_pages(column: npt.NDArray[Any]) -> None:
    """Unmap the pages of a column of `read_column` that were touched; they stay in the page cache.

    Reading them again maps them again, 64 KiB at about 1 µs. Does nothing for columns that were read instead of mapped.
    """
    if isinstance(column.base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        column.base.madvise(mmap.MADV_DONTNEED)


def _npy_header(dtype: np.dtype[Any], rows: int, width: int | None = None) -> bytes:
    """Return the header of NPY format 1.0 (numpy.lib.format) at a fixed size, so that it can be filled in last."""
    shape = f"({rows},)" if width is None else f"({rows}, {width})"
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': {shape}, }}"
    room = _HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + room.to_bytes(2, "little") + text.encode().ljust(room - 1) + b"\n"
