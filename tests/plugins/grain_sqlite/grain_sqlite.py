"""SQLite files as a kind of data: each row of the table `samples` is a sample.

Texts and blobs are parts. Numbers are columns, known before reading, for `where`.
"""

import hashlib
import sqlite3
from contextlib import closing
from functools import cached_property
from pathlib import Path

import numpy as np

from energon_grain.errors import (
    DatasetNotFoundError,
    FormatError,
    KeyNotFoundError,
    StaleIndexError,
)
from energon_grain.samples.sample import SourceInfo
from energon_grain.sources.file_store import OwnFileStore
from energon_grain.sources.kinds import Kind, Opened
from energon_grain.sources.rows import Rows
from energon_grain.sources.source import accepts
from energon_grain.storage.epath import EPath


class SqliteRows(Rows):
    """All rows by number: row 0 is the one with the smallest `rowid`."""

    def __init__(self, path, parts=None, digest=None):
        self.path, self.parts = str(path), parts
        if not Path(self.path).is_file():
            raise DatasetNotFoundError(f"{path}: no such file")
        columns = self.ask(
            "SELECT name, upper(type) FROM pragma_table_info('samples')"
        )
        self.all = tuple(name for name, kind in columns if kind in ("TEXT", "BLOB"))
        numbers = tuple(
            name for name, kind in columns if kind in ("INTEGER", "REAL")
        )
        if not self.all:
            raise FormatError(f"{path}: has no table `samples` with texts or blobs")
        self.own_columns = ("bytes", *numbers)
        self.rowids, self.read_columns = self.numbers_of("rowid"), {}
        if digest not in (None, self.digest):
            raise StaleIndexError(f"{path}: changed since it was opened")

    def __reduce__(self):  # workers open the file again, and compare
        return SqliteRows, (self.path, self.parts, self.digest)

    def ask(self, statement, values=()):
        try:  # called in any thread and process
            with closing(
                sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)
            ) as file:
                return file.execute(statement, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise FormatError(f"{self.path}: {error}") from error

    def numbers_of(self, expression):
        found = self.ask(f"SELECT {expression} FROM samples ORDER BY rowid")
        return np.array([np.nan if value is None else value for (value,) in found])

    @property
    def part_names(self):
        return tuple(name for name in self.all if accepts(self.parts, name))

    @property
    def shard_counts(self):
        return {Path(self.path).name: len(self.rowids)}

    @cached_property
    def digest(self):  # depends on the file's bytes alone
        with open(self.path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]

    @cached_property
    def lengths(self):
        each = [
            f'ifnull(length(CAST("{name}" AS BLOB)), 0)' for name in self.part_names
        ]
        return self.numbers_of(" + ".join(each) or "0").astype(np.int64)

    def sizes(self, numbers):
        return self.lengths[numbers]

    @cached_property
    def place_by_key(self):  # the key of a row is its number, as text
        return {str(number): number for number in range(len(self.rowids))}

    def own_column(self, name, numbers):
        if name == "bytes":
            return self.sizes(numbers)
        if name not in self.read_columns:
            self.read_columns[name] = self.numbers_of(f'"{name}"')
        return self.read_columns[name][numbers]

    def read_rows(self, numbers):
        wanted = ", ".join(f'CAST("{name}" AS BLOB)' for name in self.part_names)
        rows = {}
        rowids = self.rowids[numbers].tolist()
        limit = 500  # values per statement
        for begin in range(0, len(rowids) if wanted else 0, limit):
            some = rowids[begin : begin + limit]
            marks = ", ".join("?" * len(some))
            for rowid, *values in self.ask(
                f"SELECT rowid, {wanted} FROM samples WHERE rowid IN ({marks})",
                some,
            ):
                rows[rowid] = values
        columns = {
            name: [rows[rowid][place] for rowid in rowids]
            for place, name in enumerate(self.part_names)
        }
        return self.batch(numbers, columns)


class SqliteStore(OwnFileStore):
    """Single parts by key, for cookers: `7.txt` is part `txt` of row 7."""

    def __init__(self, path):
        self.path = str(path)

    def get_path(self):
        return self.path

    @cached_property
    def rows(self):
        return SqliteRows(self.path)

    def __reduce__(self):
        return SqliteStore, (self.path,)

    def read(self, keys):
        return [self.value(key) for key in keys]

    def value(self, key):
        number, _, part = str(key).partition(".")
        place = self.rows.place_by_key.get(number)
        if place is not None and part in self.rows.all:
            rows = SqliteRows(self.path, [part])
            value = rows.read_rows(np.array([place])).columns[part][0]
            if value is not None:
                return value, SourceInfo(
                    dataset_path=EPath(self.path),
                    index=key,
                    shard_name=Path(self.path).name,
                    file_names=(key,),
                )
        raise KeyNotFoundError(f"{self.path}: there is no {key!r}")


def open_sqlite(location, parts):
    rows = SqliteRows(location, parts)
    return Opened(rows=rows, part_names=rows.all)


SQLITE = Kind(
    name="sqlite",
    described="an SQLite file",  # in messages
    endings=(".sqlite3",),  # of file names
    open=open_sqlite,
    store=SqliteStore,
)
