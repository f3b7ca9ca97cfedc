"""Columns: numbers that are known of every sample before it is read, one `.npy` file each beside the columnar index.

    .nv-meta/columnar/columns.json               names the file of each column; replaced atomically
    .nv-meta/columnar/columns/<name>-<hex>.npy   (N,) a number a sample; NaN where a sample has none

A column belongs to samples, by the `content_id` of the index that it was made with, and not to a generation of the
index. So it stays when the index of the same samples is written anew, and is not given out for others.

Sizes of parts are columns that need no file: `bytes` of all parts of a sample, `bytes.jpg` of one, 0 where it has none.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import numpy as np
import numpy.typing as npt

from energon_grain.errors import IndexFileError, KeyNotFoundError
from energon_grain.formats.columnar import ColumnarIndex, open_columnar
from energon_grain.formats.columnar_header import (
    COLUMNAR_FOLDER,
    COLUMNS_JSON,
    BlockSums,
    Column,
    ColumnWriter,
    column_file_bytes,
    columnar_folder,
    header_digest,
    read_column,
    release_pages,
)
from energon_grain.formats.data_folder import DataFolder, copy_columns, naming, open_folder
from energon_grain.formats.nv_meta import META_FOLDER
from energon_grain.forms import Form, encode_json

COLUMNS_FOLDER = "columns"
SIZES = "bytes"
_VERSION = 1
_BLOCK_SAMPLES = 1 << 20
_LONGEST_NAME = 100
_logger = logging.getLogger("energon_grain")


class StoredColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column that has a file.

    Attributes:
        file: Its name in the folder `columns`.
        dtype: Type of its numbers.
        column: Length and checksums.
        content_id: Of the samples that they are of.
        function: What made them, as `module:name`.
        version: Of that function.
    """

    file: Annotated[str, msgspec.Meta(pattern=r"^[\w.~%-]+\.npy$")]
    dtype: Annotated[str, msgspec.Meta(pattern="^(float|int|uint)(8|16|32|64)$")]
    column: Column
    content_id: str
    function: str
    version: int

    @property
    def size_bytes(self) -> int:
        """Of the file."""
        return column_file_bytes(self.dtype, self.column.rows, block_sums=self.column.block_sums)


class _ColumnsFile(msgspec.Struct, frozen=True, kw_only=True):
    version: int = _VERSION
    columns: dict[str, StoredColumn] = {}
    header_checksum: str = ""


_FILE = Form(_ColumnsFile)


def read_stored(root: Path) -> dict[str, StoredColumn]:
    """The columns of the dataset at `root` that have files, those of other samples too.

    Raises:
        IndexFileError: The file that names them is damaged, or newer than this release can read.
    """
    path = columnar_folder(root) / COLUMNS_JSON
    try:
        found = _FILE.from_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except msgspec.MsgspecError as error:
        raise IndexFileError(f"{path}: {error}; {_mending(root)}") from error
    if found.version > _VERSION:
        raise IndexFileError(
            f"{path}: has version {found.version}, this release of energon-grain reads up to {_VERSION}; install a "
            f"newer one"
        )
    if found.header_checksum != header_digest(found):
        raise IndexFileError(f"{path}: is not what was written (its checksum differs); {_mending(root)}")
    return found.columns


_MADE_BY = "those of media are made by `energon-grain prepare-media {} --media-metadata-by-extension`"


def _mending(root: str | os.PathLike[str]) -> str:
    return f"remove it, and make the columns again; {_MADE_BY.format(root)}"


class Columns(Mapping[str, npt.NDArray[Any]]):
    """The columns of a prepared dataset by name: `columns["width"]` is a read-only array, (N,), a number a sample.

    Those with files are memory maps, which are compared with their checksums when they are asked for. NaN stands for
    what a sample has not. To be had from `open_columns`.

    Attributes:
        stored: What is known of those with files.
    """

    def __init__(self, folder: DataFolder, index: ColumnarIndex, stored: Mapping[str, StoredColumn]) -> None:
        self._folder, self._index = folder, index
        self._all = stored
        self.stored = {name: each for name, each in stored.items() if each.content_id == index.content_id}
        self._open: dict[str, tuple[npt.NDArray[Any], BlockSums]] = {}
        self._parts = {f"{SIZES}.{part}": number for number, part in enumerate(index.part_names)}
        self._names = tuple(dict.fromkeys((SIZES, *self._parts, *self.stored)))

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __repr__(self) -> str:
        return f"Columns({self._folder.location!r}, {', '.join(self._names)})"

    @property
    def stale(self) -> tuple[str, ...]:
        """Names of those that are of samples that are not here any more."""
        return tuple(name for name in self._all if name not in self.stored)

    @property
    def samples(self) -> int:
        """How many numbers each column has."""
        return len(self._index)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """The column of this name.

        Raises:
            KeyNotFoundError: There is none, or it was made for other samples.
            IndexFileError: Its file is damaged.
        """
        if name in self.stored:
            column, sums = self._opened(name)
            sums.check(0, len(column))
            return column
        blocks = [*self.blocks(name)]
        column = np.concatenate(blocks) if blocks else np.zeros(0, np.int64)
        column.flags.writeable = False
        return column

    def blocks(self, name: str) -> Iterator[npt.NDArray[Any]]:
        """The column in pieces, one after the other, in memory that does not grow with it. Raises as `[name]` does."""
        if name not in self:
            raise KeyNotFoundError(f"{self._folder.location}: {self._why_not(name)}")
        for begin in range(0, self.samples, _BLOCK_SAMPLES):
            stop = min(begin + _BLOCK_SAMPLES, self.samples)
            if name not in self.stored:
                yield self._sizes(begin, stop, self._parts.get(name))
                continue
            column, sums = self._opened(name)
            sums.check(begin, stop)
            yield column[begin:stop]
            release_pages(column)

    def _sizes(self, begin: int, stop: int, part: int | None) -> npt.NDArray[np.int64]:
        index = self._index
        index.check(np.arange(begin, stop))
        start = np.asarray(index.part_start[begin : stop + 1])
        size = np.asarray(index.part_size[start[0] : start[-1]])
        if part is not None:
            size = np.where(np.asarray(index.part_name[start[0] : start[-1]]) == part, size, 0)
        running = np.concatenate([[0], np.cumsum(size, dtype=np.int64)])
        index.release()
        return np.diff(running[start - start[0]])  # so, since a sample may have no part at all

    def _opened(self, name: str) -> tuple[npt.NDArray[Any], BlockSums]:
        if name not in self._open:
            self._open[name] = _open_column(self._folder, name, self.stored[name], self.samples)
        return self._open[name]

    def _why_not(self, name: str) -> str:
        if name in self._all:
            made_by = self._all[name].function
            return f"the column {name!r} is of samples that are not here any more; make it again ({made_by})"
        return f"there is no column {name!r}; there are {', '.join(self)}; {_MADE_BY.format(self._folder.location)}"


def _open_column(
    folder: DataFolder, name: str, stored: StoredColumn, samples: int
) -> tuple[npt.NDArray[Any], BlockSums]:
    path = columnar_folder(folder.local) / COLUMNS_FOLDER / stored.file
    where = folder.shard(f"{META_FOLDER}/{COLUMNAR_FOLDER}/{COLUMNS_FOLDER}/{stored.file}")
    mending = f"make the column {name!r} again ({stored.function})"
    rows, checksum, block_sums = stored.column.rows, stored.column.checksum, stored.column.block_sums
    try:
        if rows != samples:
            raise IndexFileError(f"{where}: has {rows} rows for {samples} samples")
        column = read_column(path, stored.dtype, samples, block_sums=block_sums)
    except (FileNotFoundError, IndexFileError) as error:
        raise IndexFileError(f"{where}: the column {name!r} cannot be opened: {error}; {mending}") from error
    return column, BlockSums(path, column, checksum=checksum, block_sums=block_sums, where=where, mending=mending)


def _copied(folder: DataFolder) -> dict[str, StoredColumn]:
    """The columns of a dataset that have files, on this machine."""
    stored = read_stored(folder.local)
    if folder.is_mirrored and stored:
        copy_columns(folder, COLUMNS_FOLDER, {each.file: each.size_bytes for each in stored.values()})
    return stored


def open_columns(path: str | os.PathLike[str] | DataFolder) -> Columns:
    """Open the columns of the prepared dataset at `path`: what is known of its samples before they are read.

    Args:
        path: Its folder, or its URL; of one in an object store the columns are copied.

    Raises:
        DatasetNotFoundError: There is no prepared dataset.
        IndexFileError: An index is damaged.
        ReadError: An object store cannot be reached.
    """
    folder = open_folder(path)
    with naming(folder):
        return Columns(folder, open_columnar(folder), _copied(folder))


class ColumnStage:
    """New columns of a dataset, on their way: written into a staging folder, from which a commit puts them in place.

    Args:
        dataset: Where they are to be.
        staging: A folder that mirrors it.
        function: What makes the numbers, as `module:name`.
        version: Of that function.
    """

    def __init__(self, dataset: DataFolder, staging: Path, *, function: str, version: int) -> None:
        self._dataset, self._function, self._version = dataset, function, version
        self._target = columnar_folder(staging)
        self._folder = self._target / COLUMNS_FOLDER
        self._folder.mkdir(parents=True, exist_ok=True)
        self._writers: dict[str, tuple[str, npt.DTypeLike, ColumnWriter]] = {}

    def new(self, name: str, dtype: npt.DTypeLike = np.float64) -> ColumnWriter:
        """Begin a column; rows are appended to what this gives."""
        file = f"{quote(name, safe='')[:_LONGEST_NAME]}-{secrets.token_hex(8)}.npy"
        writer = ColumnWriter(self._folder / file, dtype)
        self._writers[name] = file, dtype, writer
        return writer

    def drop(self, name: str) -> None:
        """Have no such column after all."""
        file, _, writer = self._writers.pop(name)
        writer.close()
        (self._folder / file).unlink()

    def finish(self, content_id: str, *, fill: bool = False) -> tuple[list[str], list[str]]:
        """End all columns, and write the file that names them beside those that the dataset has already.

        Args:
            content_id: Of the samples that the numbers are of.
            fill: Where a number is missing, take that of the column of this name that the dataset has, if it is of
                these samples and of this version of the function, and not damaged.

        Returns:
            What a commit is to put, in this order, and to remove.
        """
        old = _copied(self._dataset)
        new: dict[str, StoredColumn] = {}
        for name in [*self._writers]:
            before = old.get(name)
            if fill and before is not None and self._may_fill(before, content_id):
                self._fill(name, before)
            file, dtype, writer = self._writers[name]
            writer.close()
            new[name] = StoredColumn(
                file=file,
                dtype=np.dtype(dtype).name,
                column=Column(writer.rows, writer.checksum, writer.block_sums),
                content_id=content_id,
                function=self._function,
                version=self._version,
            )
        named = _ColumnsFile(columns={**old, **new})
        named = msgspec.structs.replace(named, header_checksum=header_digest(named))
        (self._target / COLUMNS_JSON).write_bytes(encode_json(named) + b"\n")
        with open(self._target / COLUMNS_JSON, "rb") as file:
            os.fsync(file.fileno())
        below = f"{META_FOLDER}/{COLUMNAR_FOLDER}"
        put = [f"{below}/{COLUMNS_FOLDER}/{each.file}" for each in new.values()] + [f"{below}/{COLUMNS_JSON}"]
        return put, [f"{below}/{COLUMNS_FOLDER}/{old[name].file}" for name in new if name in old]

    def _may_fill(self, before: StoredColumn, content_id: str) -> bool:
        made = (before.content_id, before.function, before.version)
        return made == (content_id, self._function, self._version)

    def _fill(self, name: str, before: StoredColumn) -> None:
        file, dtype, writer = self._writers[name]
        writer.close()
        rows = writer.rows
        try:
            held, sums = _open_column(self._dataset, name, before, rows)
            sums.check(0, rows)
        except IndexFileError as error:
            _logger.warning("nothing is taken over from a column that is made again: %s", error)
            return
        new = read_column(self._folder / file, dtype, rows, block_sums=writer.block_sums)
        filled = self.new(name, dtype)
        for begin in range(0, rows, _BLOCK_SAMPLES):
            piece = new[begin : begin + _BLOCK_SAMPLES]
            filled.append(np.where(np.isnan(piece), held[begin : begin + _BLOCK_SAMPLES], piece))
        (self._folder / file).unlink()
