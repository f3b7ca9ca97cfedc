"""Reading `index.sqlite` of any generation: looking up samples and parts by key.

| generation | since | what differs |
|---|---|---|
| 1 | Energon 5.3 | table `samples` with an `id`, no table of parts |
| 2 | Energon 7.0 | `sample_parts`; keys may repeat |
| 3 | Energon 7.3 | keys are unique |
"""

from __future__ import annotations

import os
import sqlite3
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from energon_grain.errors import IndexFileError
from energon_grain.formats.columnar_header import mending


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRow:
    """Where a sample lies: `byte_size` bytes from `byte_offset`, headers and padding included.

    `tar_file_id` is the place of the shard in `.info.json`, `sample_index` counts from 0 inside the shard.
    """

    tar_file_id: int
    sample_index: int
    byte_offset: int
    byte_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PartRow:
    """Where the payload of a part lies: `byte_size` bytes from `byte_offset` of the tar file."""

    tar_file_id: int
    part_name: str
    byte_offset: int
    byte_size: int


class SqliteIndex:
    """An open `index.sqlite`. For one thread; use it as a context manager or call `close`.

    Attributes:
        tables: Names of its tables.
        generation: 1, 2 or 3, see the head of this module.

    Raises:
        FileNotFoundError: There is no such file.
        IndexFileError: It is no such database.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"{self.path}: no such index; {mending(self.path.parent.parent)}")
        quoted = urllib.parse.quote(str(self.path.absolute()))
        self._database = sqlite3.connect(f"file:{quoted}?mode=ro&immutable=1", uri=True)
        self._database.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        try:
            self.tables = frozenset(row[0] for row in self._rows("SELECT name FROM sqlite_master WHERE type = 'table'"))
            self.generation = self._find_generation()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def __len__(self) -> int:
        """The number of samples."""
        return int(self._rows("SELECT COUNT(*) FROM samples")[0][0])

    def find(self, key: str) -> SampleRow | None:
        """Return where the sample with this key lies, the first of them where it repeats, or None."""
        rows = self._rows(
            "SELECT tar_file_id, sample_index, byte_offset, byte_size FROM samples WHERE sample_key = CAST(? AS TEXT) "
            "ORDER BY tar_file_id, sample_index LIMIT 1",
            _text(key),
        )
        if not rows:
            return None
        tar_file_id, sample_index, byte_offset, byte_size = rows[0]
        return SampleRow(
            tar_file_id=tar_file_id, sample_index=sample_index, byte_offset=byte_offset, byte_size=byte_size
        )

    def parts(self, key: str) -> list[PartRow]:
        """Return the parts of the sample with this key in the order of the tar, an empty list if there is none.

        Raises:
            IndexFileError: The index is of the first generation and knows no parts.
        """
        if self.generation == 1:
            raise IndexFileError(
                f"{self.path}: written before Energon 7, it knows where samples lie but not their parts; "
                f"{mending(self.path.parent.parent)}"
            )
        sample = self.find(key)
        if sample is None:
            return []
        rows = self._rows(
            "SELECT part_name, content_byte_offset, content_byte_size FROM sample_parts "
            "WHERE tar_file_id = ? AND sample_index = ? ORDER BY content_byte_offset",
            sample.tar_file_id,
            sample.sample_index,
        )
        return [
            PartRow(tar_file_id=sample.tar_file_id, part_name=name, byte_offset=offset, byte_size=size)
            for name, offset, size in rows
        ]

    def find_part(self, key: str, part: str) -> PartRow | None:
        """Return where a part of a sample lies, or None. Of several with one name the last counts, as when reading."""
        return next((row for row in reversed(self.parts(key)) if row.part_name == part), None)

    def _find_generation(self) -> int:
        if "samples" not in self.tables:
            raise IndexFileError(f"{self.path}: has no table of samples; {mending(self.path.parent.parent)}")
        if "sample_parts" not in self.tables:
            return 1
        unique = any(row[2] and row[3] == "u" for row in self._rows("PRAGMA index_list(samples)"))
        return 3 if unique else 2

    def _rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise IndexFileError(f"{self.path}: {error}; {mending(self.path.parent.parent)}") from error


def _text(key: str) -> str | bytes:
    """Return a key as SQLite takes it; one that is not UTF-8 goes in as bytes."""
    try:
        key.encode()
    except UnicodeEncodeError:
        return key.encode("utf-8", "surrogateescape")
    return key
