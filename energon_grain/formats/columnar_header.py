# SPDX-License-Identifier: Apache-2.0
"""The column file, and `header.json`, the small file that determines the current generation of the columnar index.

A column is a `.npy` file. If it has more than 8 KiB, data follow its rows, which numpy ignores: zeros up to a multiple
of 1 KiB blocks, then a sum of 8 bytes for each block. The header contains the digest of the sums.

The sum of a block is the sum of its 128 words, each multiplied by an odd number that depends on its place, modulo
2**64. A change of one word is always detected. A change of several (a page of zeros, or one of another place) is missed
with a probability of about 2**-32. Each word is first xored with its own upper 35 bits, as otherwise the top bits of
two words could cancel. (With its upper half, a bit stuck in every fourth byte would be missed.) This is no protection
from an attacker, who could also write the sums. numpy sums any blocks of a column in one call, at 5 to 10 GB/s; a
cryptographic hash takes 1 ns per byte and 1 µs per call, too slow for random reads of a large index.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

from energon_grain.errors import IndexFileError
from energon_grain.formats.mapped_files import map_file
from energon_grain.formats.nv_meta import INFO_JSON, INFO_YAML, META_FOLDER, DatasetInfo, refuse_outside
from energon_grain.forms import Form, encode_json
from energon_grain.samplers.hashing import splitmix64
from energon_grain.storage.memory_maps import release_pages

_HEADER_BYTES = 128
_BUFFER_BYTES = 1 << 20
_BLOCK_SHIFT = 10
_BLOCK_BYTES = 1 << _BLOCK_SHIFT
_SUM_BYTES = 8
_WITHOUT_SUMS_BYTES = 8 << 10
_SUMMED_AT_ONCE = 128  # blocks, so temporary arrays fit into the core's cache and need no system calls
_WEIGHTS = splitmix64(np.arange(_BLOCK_BYTES // _SUM_BYTES, dtype=np.uint64)) | np.uint64(1)
_FOLD = np.uint64(29)
_BY_BLOCKS = "1024:"
"""Prefix of `block_sums`: the length of a block."""
READ_INSTEAD_OF_MAP_BYTES = 64 << 10
"""Files up to this size are read: a memory map costs a file descriptor (before Python 3.13) and whole pages."""


def _sums_of(blocks: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """(n,) sums of (n, 128) words."""
    sums = np.empty(len(blocks), np.uint64)
    for at in range(0, len(blocks), _SUMMED_AT_ONCE):
        piece = blocks[at : at + _SUMMED_AT_ONCE]
        np.dot(piece ^ (piece >> _FOLD), _WEIGHTS, out=sums[at : at + len(piece)])
    return sums


def _padded_bytes(data_bytes: int, block_sums: str | None) -> tuple[int, int]:
    """Bytes of the rows of a column, padded to whole blocks, and of the sums after them."""
    if block_sums is None:
        return data_bytes, 0
    blocks = -(-data_bytes // _BLOCK_BYTES)
    return blocks * _BLOCK_BYTES, blocks * _SUM_BYTES


class ColumnWriter:
    """Writes a new `.npy` file whose length is known only at the end.

    `append` adds `rows`, `close` adds the sums, fills in the header and flushes to disk. Memory grows by 1/128 of the
    file. With a `width` the array has two dimensions.
    """

    def __init__(self, path: Path, dtype: npt.DTypeLike, *, width: int | None = None) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._width = width
        self._digest = hashlib.blake2b(digest_size=16)
        self._open_block = b""
        self._sums = bytearray()
        self._data_bytes = self.rows = 0
        self._file: BinaryIO = open(path, "xb", buffering=_BUFFER_BYTES)  # noqa: SIM115 (closed by `close`)
        self._file.write(bytes(_HEADER_BYTES))

    @property
    def checksum(self) -> str:
        """BLAKE2b-128, in hex, of all rows so far."""
        return self._digest.hexdigest()

    @property
    def block_sums(self) -> str | None:
        """The description of the sums after the rows for a header; None without sums. Valid after `close`."""
        return _BY_BLOCKS + _digest_of(self._sums) if self._data_bytes > _WITHOUT_SUMS_BYTES else None

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Add `rows`, an array of one dimension, or of two with rows of `width`."""
        if not len(rows):
            return
        data = np.ascontiguousarray(rows, dtype=self._dtype).data.cast("B")
        self._digest.update(data)
        self._file.write(data)
        self._add_to_blocks(data)
        self._data_bytes += len(data)
        self.rows += len(rows)

    def _add_to_blocks(self, data: bytes | memoryview) -> None:
        data = self._open_block + data
        whole = len(data) // _BLOCK_BYTES
        if whole:
            blocks = np.frombuffer(data, "<u8", whole * len(_WEIGHTS)).reshape(whole, -1)
            self._sums += _sums_of(blocks).astype("<u8").data
        self._open_block = data[whole * _BLOCK_BYTES :]

    def close(self) -> None:
        """Write sums and header, and flush the file to disk. Idempotent."""
        if self._file.closed:
            return
        if self._data_bytes > _WITHOUT_SUMS_BYTES:
            fill = bytes(-self._data_bytes % _BLOCK_BYTES)
            self._add_to_blocks(fill)
            self._file.write(fill + self._sums)
        self._file.seek(0)
        self._file.write(_npy_header(self._dtype, self.rows, self._width))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def column_file_bytes(
    dtype: npt.DTypeLike, rows: int, *, width: int | None = None, block_sums: str | None = None
) -> int:
    """Size of the file of a column, in bytes; arguments as for `read_column`."""
    return _HEADER_BYTES + sum(_padded_bytes(rows * (width or 1) * np.dtype(dtype).itemsize, block_sums))


def read_column(
    path: str | os.PathLike[str],
    dtype: npt.DTypeLike,
    rows: int,
    *,
    width: int | None = None,
    block_sums: str | None = None,
) -> npt.NDArray[Any]:
    """Map the `.npy` file at `path`, read-only, after checking its type and length.

    Costs one open file descriptor before Python 3.13, and none later; files of at most 64 KiB are read instead. Raises
    FileNotFoundError, and IndexFileError if the file is damaged or has another type or length.
    """
    dtype = np.dtype(dtype).newbyteorder("<")
    size_bytes = column_file_bytes(dtype, rows, width=width, block_sums=block_sums)
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))  # `open` takes three times as long
    try:
        found_bytes = os.fstat(descriptor).st_size
        if found_bytes != size_bytes:
            raise IndexFileError(f"{path}: has {found_bytes} bytes, but {rows} rows of {dtype} have {size_bytes}")
        buffer = read_or_map(descriptor, size_bytes)
    finally:
        os.close(descriptor)
    if buffer[:_HEADER_BYTES] != _npy_header(dtype, rows, width):
        raise IndexFileError(f"{path}: its header is not that of a .npy file with {rows} rows of {dtype}")
    shape = (rows,) if width is None else (rows, width)
    column = np.ndarray(shape, dtype=dtype, buffer=buffer, offset=_HEADER_BYTES)
    column.flags.writeable = False
    return column


class BlockSums:
    """Verifies a column by the checksums of its `ColumnWriter`, each block on first use.

    A column without block sums is one block. Columns of at most 8 KiB are verified on creation, which may raise.
    Thread-safe: at worst two threads verify the same block.

    Errors name the file `where`, and end with `repair_advice`. `fetch_again` rewrites a copy in place; it is called
    once.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        column: npt.NDArray[Any],
        *,
        checksum: str,
        block_sums: str | None,
        where: str,
        repair_advice: str,
        fetch_again: Callable[[], None] | None = None,
    ) -> None:
        self._path, self._column, self._fetch_again = path, column, fetch_again
        self._fetching = Lock()  # other threads with a damaged block wait, and verify it again
        self._where, self._repair_advice = where, repair_advice
        self.is_damaged = False
        self._base: bytearray | mmap.mmap | Any = column.base
        self._row_bytes = column.strides[0]
        self._words: npt.NDArray[np.uint64] | None = None
        if block_sums is None:
            self._digest, self._shift, blocks = checksum, 63, min(1, column.nbytes)
        else:
            padded, _ = _padded_bytes(column.nbytes, block_sums)
            self._digest, self._shift = block_sums.removeprefix(_BY_BLOCKS), _BLOCK_SHIFT
            blocks = padded // _BLOCK_BYTES
            self._words = np.ndarray((blocks, len(_WEIGHTS)), "<u8", self._base, _HEADER_BYTES)
            self._sums = np.ndarray((blocks,), "<u8", self._base, _HEADER_BYTES + padded)
            self._sums_are_right = False
        self._checked = np.zeros(blocks, np.bool_)
        if column.nbytes <= _WITHOUT_SUMS_BYTES:
            if self._words is None and self._is_whole:
                self._checked[:] = True  # `check` takes several times as long
            else:
                self.check(0, len(column))

    def check(self, first: int, stop: int) -> None:
        """Verify rows [first, stop) unless already done. Raises IndexFileError if they are damaged."""
        if first < stop:
            begin = first * self._row_bytes >> self._shift
            checked = self._checked[begin : (stop * self._row_bytes - 1 >> self._shift) + 1]
            if not checked.all():
                self._compare(begin + np.flatnonzero(~checked))

    def check_rows(self, rows: npt.NDArray[np.int64]) -> None:
        """Verify rows in any order, each of which is inside one block."""
        blocks = rows * self._row_bytes >> self._shift
        blocks = blocks[~self._checked[blocks]]
        if len(blocks):
            self._compare(np.unique(blocks))

    def check_runs(self, first: npt.NDArray[np.int64], stop: npt.NDArray[np.int64]) -> None:
        """Verify many runs of rows, [first[i], stop[i]) for every i."""
        begin, end = first * self._row_bytes >> self._shift, (stop * self._row_bytes - 1 >> self._shift) + 1
        blocks = rows_of(begin, np.maximum(end, begin))
        blocks = blocks[~self._checked[blocks]]
        if len(blocks):
            self._compare(blocks)

    def damaged(self, reason: str) -> IndexFileError:
        """The error for damage, with its reason."""
        self.is_damaged = True
        return IndexFileError(f"{self._where}: {reason}; {self._repair_advice}")

    def _compare(self, blocks: npt.NDArray[np.int64]) -> None:
        wrong = self._wrong(blocks)
        if len(wrong):
            with self._fetching:
                fetch, self._fetch_again = self._fetch_again, None
                if fetch is not None:
                    fetch()
                    if isinstance(self._base, bytearray):  # a mapping is already up to date
                        with open(self._path, "rb") as file:
                            file.readinto(self._base)
                wrong = self._wrong(blocks)
        if len(wrong):
            raise self.damaged(f"block {wrong[0]} is damaged (checksum mismatch)")
        self._checked[blocks] = True

    @property
    def _is_whole(self) -> bool:
        """Whether a column without block sums is intact."""
        data = memoryview(self._base)[_HEADER_BYTES : _HEADER_BYTES + self._column.nbytes]
        return _digest_of(data) == self._digest

    def _wrong(self, blocks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if self._words is None:
            right = self._is_whole
            if self._column.nbytes > READ_INSTEAD_OF_MAP_BYTES:
                release_pages(self._column)
            return blocks[:0] if right else blocks
        self._sums_are_right = self._sums_are_right or _digest_of(self._sums.data) == self._digest
        if not self._sums_are_right:
            return blocks
        pieces = [blocks[at : at + _SUMMED_AT_ONCE] for at in range(0, len(blocks), _SUMMED_AT_ONCE)]
        wrong = [piece[_sums_of(self._words[piece]) != self._sums[piece]] for piece in pieces]
        return wrong[0] if len(wrong) == 1 else np.concatenate(wrong)


def rows_of(first: npt.NDArray[np.int64], stop: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """All rows of the runs [first[i], stop[i]), concatenated."""
    if len(first) == 1:
        return np.arange(first[0], stop[0])
    ends = (stop - first).cumsum()
    return np.arange(int(ends[-1]) if len(ends) else 0) + (stop - ends).repeat(stop - first)


def read_or_map(descriptor: int, size_bytes: int) -> bytearray | mmap.mmap:
    """The bytes of an open file: read if it is small, else mapped, which outlives the descriptor."""
    if size_bytes <= READ_INSTEAD_OF_MAP_BYTES:
        return bytearray(os.pread(descriptor, size_bytes, 0))
    return map_file(descriptor)


@lru_cache(maxsize=1024)
def _npy_header(dtype: np.dtype[Any], rows: int, width: int | None = None) -> bytes:
    """Return the header of NPY format 1.0 (numpy.lib.format) with a fixed size, so that it can be filled in last."""
    shape = f"({rows},)" if width is None else f"({rows}, {width})"
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': {shape}, }}"
    length = _HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + text.encode().ljust(length - 1) + b"\n"


def _digest_of(data: bytes | bytearray | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


COLUMNAR_FOLDER = "columnar"
HEADER_NAME = "header.json"
COLUMNS_JSON = "columns.json"
HEADER_VERSION = 4
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
"""The columns in the order in which they are written, with their types."""
CONTENT_COLUMNS = ("key_start", "key_bytes", "part_start", "part_name", "part_size")


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Length and checksums of one column: BLAKE2b-128, in hex, of the rows, and `ColumnWriter.block_sums`."""

    rows: Count
    checksum: str
    block_sums: str | None = None


class ColumnarHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `header.json`.

    Attributes:
        version: Version of this layout. Indices with block sums of another kind, or without a header checksum, are
            rebuilt.
        generation: The folder of the columns, beside the header.
        shards: Name, bytes of the tar file, and samples of each shard, in the order of `.info.json`.
        part_names: Distinct part names; `part_name.npy` contains indices into this list.
        columns: Length and checksum of each column.
        info_stamp: Size and modification time (ns) of `.info.json`, only for an index in a cache folder.
        earlier: After shards were appended: number of shards and content id of the dataset before each time, oldest
            first. Not present up to version 3.
        header_checksum: BLAKE2b-128, in hex, of everything else except the generation; see `header_digest`.
    """

    version: int = HEADER_VERSION
    generation: Annotated[str, msgspec.Meta(pattern="^g[0-9a-f]+$")]
    shards: list[tuple[str, Count, Count]]
    part_names: list[str]
    columns: dict[str, Column]
    info_stamp: tuple[int, int] | None = None
    earlier: list[tuple[Count, str]] | msgspec.UnsetType = msgspec.UNSET
    header_checksum: str = ""

    @property
    def content_id(self) -> str:
        """16 bytes, in hex, that change with any key, part name or size, or number of samples in a shard.

        They identify the samples, not their storage: the same samples have the same id in tars and in ArrayRecord
        files, with any shard names. Computed from the checksums of columns only.
        """
        counts = [samples for _, _, samples in self.shards]
        checksums = [self.columns[name].checksum for name in CONTENT_COLUMNS]
        described = encode_json([counts, self.part_names, checksums])
        return hashlib.blake2b(described, digest_size=16).hexdigest()

    def fits(self, info: DatasetInfo) -> bool:
        """Whether this describes the shards of `info`, in the same order and with the same numbers of samples."""
        counts = info.shard_counts
        return len(counts) == len(self.shards) and all(
            name == shard and samples == count
            for (name, _, samples), (shard, count) in zip(self.shards, counts.items(), strict=True)
        )


def columnar_folder(root: Path) -> Path:
    """Return the folder of the columnar index inside the dataset at `root`."""
    return root / META_FOLDER / COLUMNAR_FOLDER


def index_cache_folder(path: Path, cache_dir: Path | None = None) -> Path:
    """The folder for the index of a read-only dataset, a different one for each real path.

    It is in `cache_dir`, by default `$XDG_CACHE_HOME/energon-grain`.
    """
    if cache_dir is None:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        cache_dir = Path(base) / "energon-grain"
    name = hashlib.blake2b(os.fsencode(os.path.realpath(path)), digest_size=16).hexdigest()
    return cache_dir / name


def encode_header(header: ColumnarHeader) -> bytes:
    """Return the bytes of `header.json`."""
    return encode_json(msgspec.structs.replace(header, header_checksum=_digest(header))) + b"\n"


def _digest(header: ColumnarHeader) -> str:
    """Equal for equal datasets: the name of the generation is not included."""
    return header_digest(header, generation="")


def header_digest(header: Any, **instead: Any) -> str:
    """BLAKE2b-128, in hex, of a header without its own `header_checksum`, with some values replaced by `instead`."""
    bare = msgspec.structs.replace(header, header_checksum="", **instead)
    return hashlib.blake2b(encode_json(bare), digest_size=16).hexdigest()


def read_header(folder: Path, root: Path) -> ColumnarHeader | None:
    """Read the header of the columnar index in `folder`, for the dataset at `root`; None if missing or outdated.

    Raises IndexFileError.
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
                f"{path}: has version {version}, but this release of energon-grain reads up to {HEADER_VERSION}; "
                f"install a newer one, or {repair_advice(root)}"
            )
        header = _HEADER.from_json(data)
    except msgspec.MsgspecError as error:
        raise IndexFileError(f"{path}: {error}; {repair_advice(root)}") from error
    if header.version == 1:
        return None
    if header.header_checksum != _digest(header):
        raise IndexFileError(f"{path}: is damaged (checksum mismatch); {repair_advice(root)}")
    refuse_outside((name for name, _, _ in header.shards), path, root)
    missing = COLUMN_TYPES.keys() - header.columns.keys()
    if missing:
        raise IndexFileError(f"{path}: lacks the columns {sorted(missing)}; {repair_advice(root)}")
    sums = [each.block_sums for each in header.columns.values() if each.block_sums is not None]
    return header if all(each.startswith(_BY_BLOCKS) for each in sums) else None


def repair_advice(root: str | os.PathLike[str]) -> str:
    """Return the advice at the end of errors about an index."""
    return f"run `energon-grain prepare {root} --force-overwrite` to rewrite the index"


class _Version(msgspec.Struct):
    version: int


_VERSION, _HEADER = Form(_Version), Form(ColumnarHeader)


def info_stamp(root: Path) -> tuple[int, int]:
    """Return size and modification time (ns) of the info file, which tie an index in a cache folder to its dataset."""
    for name in (INFO_JSON, INFO_YAML):
        with contextlib.suppress(FileNotFoundError):
            status = (root / META_FOLDER / name).stat()
            return status.st_size, status.st_mtime_ns
    return 0, 0
