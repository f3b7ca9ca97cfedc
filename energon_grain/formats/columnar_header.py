"""`header.json`, the small file that makes one generation of the columnar index the current one."""

from __future__ import annotations

import hashlib
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

from energon_grain.errors import IndexFileError
from energon_grain.formats.nv_meta import META_FOLDER, DatasetInfo
from energon_grain.forms import Form, encode_json

_HEADER_BYTES = 128
_BUFFER_BYTES = 1 << 20
_BLOCK_BYTES = 8 << 10
_SUM_BYTES = 8
_WINDOW_SHIFT = 10
READ_INSTEAD_OF_MAP_BYTES = 64 << 10
"""Files up to this size are read: a memory map costs a file descriptor (before Python 3.13) and whole pages."""


class ColumnWriter:
    """Writes a `.npy` file of which the length is known only at the end.

    `append` adds rows, `close` adds the sums, fills in the header and flushes to disk. Memory grows by a thousandth of
    the file.

    Args:
        path: A file that does not exist.
        dtype: Type of the numbers.
        width: Numbers in a row, for an array of two dimensions; default: an array of one.
    """

    def __init__(self, path: Path, dtype: npt.DTypeLike, *, width: int | None = None) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._width = width
        self._digest = hashlib.blake2b(digest_size=16)
        self._block, self._block_bytes = hashlib.blake2b(digest_size=_SUM_BYTES), 0
        self._sums = bytearray()
        self._file: BinaryIO = open(path, "xb", buffering=_BUFFER_BYTES)  # noqa: SIM115 (closed by `close`)
        self._file.write(bytes(_HEADER_BYTES))
        self.rows = 0

    @property
    def checksum(self) -> str:
        """BLAKE2b-128, in hex, of all rows so far."""
        return self._digest.hexdigest()

    @property
    def block_sums(self) -> str | None:
        """BLAKE2b-128, in hex, of the sums behind the rows; None: the rows are one block. To be asked when closed."""
        return _digest_of(self._sums) if len(self._sums) > _SUM_BYTES else None

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Add `rows`, an array of one dimension, or of two with rows of `width`."""
        if not len(rows):
            return
        data = np.ascontiguousarray(rows, dtype=self._dtype).data.cast("B")
        self._digest.update(data)
        self._add_to_blocks(data)
        self._file.write(data)
        self.rows += len(rows)

    def _add_to_blocks(self, data: memoryview) -> None:
        start = 0
        while start < len(data):
            piece = data[start : start + _BLOCK_BYTES - self._block_bytes]
            self._block.update(piece)
            self._block_bytes += len(piece)
            start += len(piece)
            if self._block_bytes == _BLOCK_BYTES:
                self._end_block()

    def _end_block(self) -> None:
        self._sums += self._block.digest()
        self._block, self._block_bytes = hashlib.blake2b(digest_size=_SUM_BYTES), 0

    def close(self) -> None:
        """Write sums and header, and flush the file to disk. Closing again does nothing."""
        if self._file.closed:
            return
        if self._block_bytes:
            self._end_block()
        if self.block_sums is not None:
            self._file.write(self._sums)
        self._file.seek(0)
        self._file.write(_npy_header(self._dtype, self.rows, self._width))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def column_file_bytes(
    dtype: npt.DTypeLike, rows: int, *, width: int | None = None, block_sums: str | None = None
) -> int:
    """Size of the file of a column, in bytes; arguments as of `read_column`."""
    data_bytes = rows * (width or 1) * np.dtype(dtype).itemsize
    return _HEADER_BYTES + data_bytes + (0 if block_sums is None else -(-data_bytes // _BLOCK_BYTES) * _SUM_BYTES)


def read_column(
    path: Path, dtype: npt.DTypeLike, rows: int, *, width: int | None = None, block_sums: str | None = None
) -> npt.NDArray[Any]:
    """Map the `.npy` file at `path`, read-only, after checking type and length against what is expected.

    Costs one open file descriptor before Python 3.13 and none since; files of at most 64 KiB are read instead.

    Args:
        path: A file that `ColumnWriter` wrote.
        dtype: The type that it must have.
        rows: The number of rows that it must have.
        width: Numbers in a row, for an array of two dimensions.
        block_sums: What `ColumnWriter.block_sums` was.

    Raises:
        FileNotFoundError: There is no such file.
        IndexFileError: The file is damaged or not of this type and length.
    """
    dtype = np.dtype(dtype).newbyteorder("<")
    size_bytes = column_file_bytes(dtype, rows, width=width, block_sums=block_sums)
    with open(path, "rb", buffering=0) as file:
        found_bytes = os.fstat(file.fileno()).st_size
        if found_bytes != size_bytes:
            raise IndexFileError(f"{path}: has {found_bytes} bytes, but {rows} rows of {dtype} take {size_bytes}")
        buffer = read_or_map(file, size_bytes)
    if buffer[:_HEADER_BYTES] != _npy_header(dtype, rows, width):
        raise IndexFileError(f"{path}: the header is not that of a .npy file with {rows} rows of {dtype}")
    shape = (rows,) if width is None else (rows, width)
    column = np.ndarray(shape, dtype=dtype, buffer=buffer, offset=_HEADER_BYTES)
    column.flags.writeable = False
    return column


class BlockSums:
    """Compares a column with its checksums, each block when it is first used.

    A column without sums of blocks is one block. Thread-safe: at worst two threads compare the same block.

    Args:
        path: The file.
        column: What `read_column` gave.
        checksum: `ColumnWriter.checksum`.
        block_sums: `ColumnWriter.block_sums`.
        where: The file, as errors name it.
        mending: What to do about a damaged file, at the end of its error.
        fetch_again: Writes the file anew, in place, where it is a copy of one elsewhere. Done once.
    """

    __slots__ = (
        "_base",
        "_block_bytes",
        "_checked",
        "_column",
        "_fetch_again",
        "_has_sums",
        "_mending",
        "_path",
        "_row_bytes",
        "_sum",
        "_sums_are_right",
        "_where",
    )

    def __init__(
        self,
        path: Path,
        column: npt.NDArray[Any],
        *,
        checksum: str,
        block_sums: str | None,
        where: str,
        mending: str,
        fetch_again: Callable[[], None] | None = None,
    ) -> None:
        self._path, self._column, self._fetch_again = path, column, fetch_again
        self._where, self._mending = where, mending
        self._base: bytearray | mmap.mmap | Any = column.base
        self._has_sums, self._sums_are_right = block_sums is not None, False
        self._sum = checksum if block_sums is None else block_sums
        self._row_bytes = column.strides[0]
        self._block_bytes = _BLOCK_BYTES if self._has_sums else max(1, column.nbytes)
        self._checked = bytearray(-(-column.nbytes // self._block_bytes))
        if column.nbytes <= _BLOCK_BYTES:
            self.check(0, len(column))

    def check(self, first: int, stop: int) -> None:
        """Compare rows [first, stop) unless that was done. Raises IndexFileError where they are damaged."""
        if first < stop:
            begin, end = first * self._row_bytes // self._block_bytes, -(-stop * self._row_bytes // self._block_bytes)
            number = self._checked.find(0, begin, end)
            while number >= 0:
                if not self._is_right(number) and not self._is_right_when_fetched_again(number):
                    raise self.damaged(
                        f"bytes of block {number} are not those that were written (its checksum differs)"
                    )
                self._checked[number] = 1
                number = self._checked.find(0, number + 1, end)

    def damaged(self, reason: str) -> IndexFileError:
        """The error that says so."""
        return IndexFileError(f"{self._where}: {reason}; {self._mending}")

    def _is_right(self, number: int) -> bool:
        file, rows_end = memoryview(self._base), _HEADER_BYTES + self._column.nbytes
        start = _HEADER_BYTES + number * self._block_bytes
        block = file[start : min(start + self._block_bytes, rows_end)]
        if not self._has_sums:
            right = _digest_of(block) == self._sum
            if self._column.nbytes > READ_INSTEAD_OF_MAP_BYTES:
                release_pages(self._column)
            return right
        sums = file[rows_end:]
        self._sums_are_right = self._sums_are_right or _digest_of(sums) == self._sum
        wanted = bytes(sums[number * _SUM_BYTES : (number + 1) * _SUM_BYTES])
        return self._sums_are_right and hashlib.blake2b(block, digest_size=_SUM_BYTES).digest() == wanted

    def _is_right_when_fetched_again(self, number: int) -> bool:
        fetch, self._fetch_again = self._fetch_again, None
        if fetch is None:
            return False
        fetch()
        if isinstance(self._base, bytearray):  # what is mapped shows it already
            with open(self._path, "rb") as file:
                file.readinto(self._base)
        return self._is_right(number)


class Seen:
    """Which rows of something were looked at, in windows of 1,024: what is looked at once costs little afterwards.

    Args:
        rows: How many there are.

    Attributes:
        all: Whether every row was looked at.
    """

    __slots__ = ("_rows", "_windows", "all")

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._windows = np.zeros(-(-rows >> _WINDOW_SHIFT), np.bool_)
        self.all = not rows

    def __contains__(self, row: int) -> bool:
        return self.all or bool(self._windows[row >> _WINDOW_SHIFT])

    def unseen(self, rows: npt.NDArray[np.int64] | None = None) -> Iterator[tuple[int, int]]:
        """First row, and one past the last, of each window with any of `rows` (None: all) that nobody looked at.

        It counts as seen once the next one is asked for.
        """
        if self.all:
            return
        windows = np.arange(len(self._windows)) if rows is None else rows >> _WINDOW_SHIFT
        seen = self._windows[windows]
        if seen.all():
            return
        for window in np.unique(windows[~seen]).tolist():
            yield window << _WINDOW_SHIFT, min((window + 1) << _WINDOW_SHIFT, self._rows)
            self._windows[window] = True
        self.all = bool(self._windows.all())


def read_or_map(file: BinaryIO | FileIO, size_bytes: int) -> bytearray | mmap.mmap:
    """The bytes of an open file: read if they are few, else mapped, which outlives the file object."""
    if size_bytes <= READ_INSTEAD_OF_MAP_BYTES:
        return bytearray(file.read())
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


def _digest_of(data: bytes | bytearray | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


COLUMNAR_FOLDER = "columnar"
HEADER_NAME = "header.json"
HEADER_VERSION = 2
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]

COLUMN_TYPES = {
    "sample_start": "int64",
    "part_start": "int64",
    "part_name": "int32",
    "part_offset": "int64",
    "part_size": "int64",
    "key_start": "int64",
    "key_bytes": "uint8",
    "key_order": "int64",
}
"""The columns in the order in which they are written, and the type of each."""
_CONTENT_COLUMNS = ("key_start", "key_bytes", "part_start", "part_name", "part_size")


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Length and checksums of one column.

    Attributes:
        rows: Length.
        checksum: BLAKE2b-128, in hex, of the rows without the `.npy` header.
        block_sums: The same of the sums behind the rows (see `column_file`); None: there are none.
    """

    rows: Count
    checksum: str
    block_sums: str | None = None


class ColumnarHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What `header.json` holds.

    Attributes:
        version: Version of this layout. The first one had no sums of blocks, and no checksum of its own.
        generation: The folder beside the header that holds the columns.
        shards: Name, bytes of the tar file, and samples of each shard, in the order of `.info.json`.
        part_names: Distinct part names; `part_name.npy` holds places in this list.
        columns: Length and checksum of each column.
        info_stamp: Size and modification time (ns) of `.info.json`, only where the index lies in a cache folder.
        header_checksum: BLAKE2b-128, in hex, of all the rest but the generation; see `header_digest`.
    """

    version: int = HEADER_VERSION
    generation: Annotated[str, msgspec.Meta(pattern="^g[0-9a-f]+$")]
    shards: list[tuple[str, Count, Count]]
    part_names: list[str]
    columns: dict[str, Column]
    info_stamp: tuple[int, int] | None = None
    header_checksum: str = ""

    @property
    def content_id(self) -> str:
        """16 bytes, in hex, that change whenever a key, a part's name or size, or a shard's number of samples does.

        They say which samples these are, not how they are kept: the same ones have the same id in tars and in
        ArrayRecord files, whatever the shards are called. Nothing but the checksums of columns is looked at.
        """
        counts = [samples for _, _, samples in self.shards]
        checksums = [self.columns[name].checksum for name in _CONTENT_COLUMNS]
        described = encode_json([counts, self.part_names, checksums])
        return hashlib.blake2b(described, digest_size=16).hexdigest()

    def fits(self, info: DatasetInfo) -> bool:
        """Say whether this describes the shards of `info`, in that order and with as many samples each."""
        counts = info.shard_counts
        return len(counts) == len(self.shards) and all(
            name == shard and samples == count
            for (name, _, samples), (shard, count) in zip(self.shards, counts.items(), strict=True)
        )


def columnar_folder(root: Path) -> Path:
    """Return the folder of the columnar index inside the dataset at `root`."""
    return root / META_FOLDER / COLUMNAR_FOLDER


def encode_header(header: ColumnarHeader) -> bytes:
    """Return the bytes of `header.json`."""
    return encode_json(msgspec.structs.replace(header, header_checksum=_digest(header))) + b"\n"


def _digest(header: ColumnarHeader) -> str:
    """The same for equal datasets: a wrong name of a generation leads to none."""
    return header_digest(header, generation="")


def header_digest(header: Any, **instead: Any) -> str:
    """BLAKE2b-128, in hex, of what a header says beside its own `header_checksum`, with other values `instead`."""
    bare = msgspec.structs.replace(header, header_checksum="", **instead)
    return hashlib.blake2b(encode_json(bare), digest_size=16).hexdigest()


def read_header(folder: Path, root: Path) -> ColumnarHeader | None:
    """Read the header of the columnar index in `folder`, for the dataset at `root`; None where there is none.

    Raises:
        IndexFileError: The header is damaged, or newer than this release can read.
    """
    path = folder / HEADER_NAME
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        version = _VERSION.from_json(data).version
        if version > HEADER_VERSION:
            raise IndexFileError(
                f"{path}: has version {version}, this release of energon-grain reads up to {HEADER_VERSION}; "
                f"install a newer one or {mending(root)}"
            )
        header = _HEADER.from_json(data)
    except msgspec.MsgspecError as error:
        raise IndexFileError(f"{path}: {error}; {mending(root)}") from error
    if (header.version > 1 or header.header_checksum) and header.header_checksum != _digest(header):
        raise IndexFileError(f"{path}: is not what was written (its checksum differs); {mending(root)}")
    missing = COLUMN_TYPES.keys() - header.columns.keys()
    if missing:
        raise IndexFileError(f"{path}: names no columns {sorted(missing)}; {mending(root)}")
    return header


def mending(root: str | os.PathLike[str]) -> str:
    """Return the advice that ends every error about an index."""
    return f"`energon-grain prepare {root} --force-overwrite` writes the index anew"


class _Version(msgspec.Struct):
    version: int


_VERSION, _HEADER = Form(_Version), Form(ColumnarHeader)
