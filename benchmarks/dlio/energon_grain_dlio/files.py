"""A kind of data: the files of a list, one sample each. DLIO writes its datasets in this way.

The list is a text file that ends in `.dlio`, with one path per line. All files have the same ending, which names the
part: `npy`, `npz` or `jpeg`.
"""

from __future__ import annotations

import hashlib
import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import DatasetNotFoundError, ReadError, StaleIndexError
from energon_grain.sources.kinds import Kind, Opened
from energon_grain.sources.rows import Rows
from energon_grain.sources.source import PartFilter, RawBatch


class FileRows(Rows):
    """The files of a list, by number. Sizes are read once, when the list is opened."""

    own_columns = ("bytes",)

    def __init__(self, path: str, digest: str | None = None) -> None:
        self.path = str(path)
        try:
            self.files = Path(self.path).read_text().splitlines()
        except FileNotFoundError as error:
            raise DatasetNotFoundError(f"{path}: no such list of files") from error
        if not self.files:
            raise DatasetNotFoundError(f"{path}: the list of files is empty")
        try:
            self.lengths = np.array([os.stat(file).st_size for file in self.files], np.int64)
        except FileNotFoundError as error:
            raise DatasetNotFoundError(f"{path}: {error.filename} does not exist") from error
        if digest not in (None, self.digest):
            raise StaleIndexError(f"{path}: the files changed since the list was opened")

    def __reduce__(self) -> tuple[Any, ...]:
        return FileRows, (self.path, self.digest)

    @cached_property
    def digest(self) -> str:
        """Digest of the names and sizes."""
        names = "\n".join(Path(file).name for file in self.files)
        return hashlib.sha256(names.encode() + self.lengths.tobytes()).hexdigest()[:16]

    @property
    def shard_counts(self) -> dict[str, int]:
        return {Path(self.path).name: len(self.files)}

    @property
    def part_names(self) -> tuple[str, ...]:
        return (Path(self.files[0]).suffix.lstrip("."),)

    def sizes(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self.lengths[numbers]

    def own_column(self, name: str, numbers: Any) -> npt.NDArray[Any]:
        return self.lengths[numbers]

    def keys(self, numbers: npt.NDArray[np.int64]) -> list[str]:
        return [Path(self.files[number]).stem for number in numbers.tolist()]

    def read_rows(self, numbers: npt.NDArray[np.int64]) -> RawBatch:
        lengths = self.lengths[numbers].tolist()
        files = [self.files[number] for number in numbers.tolist()]
        contents = [self._read(file, length) for file, length in zip(files, lengths, strict=True)]
        return self.batch(numbers, {self.part_names[0]: contents})

    def _read(self, file: str, length: int) -> bytearray:
        """Read a file into memory of its own, in which an array may be decoded."""
        content = bytearray(length)
        try:
            with open(file, "rb", buffering=0) as opened:
                size = os.fstat(opened.fileno()).st_size
                read = opened.readinto(content)
        except OSError as error:
            raise ReadError(f"{file}: cannot be read: {error}") from error
        if not read == size == length:
            raise StaleIndexError(f"{file}: has {size} bytes and had {length} when the list was opened")
        return content


def open_files(location: str, parts: PartFilter) -> Opened:
    """Open a list of files. All have one part, which is always read."""
    rows = FileRows(location)
    return Opened(rows=rows, part_names=rows.part_names, decoded="as asked")


FILES = Kind(name="dlio", described="a list of files", endings=(".dlio",), open=open_files)
