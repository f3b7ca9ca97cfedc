"""Objects in one SQLite file, named by the variable VAULT.

The object `vault://images/cat.jpg` is the row with the path `images/cat.jpg`.
"""

import os
import sqlite3
import uuid
from contextlib import closing

from energon_grain.storage.store import StoredObject

TABLE = """
CREATE TABLE IF NOT EXISTS objects (path TEXT PRIMARY KEY, version TEXT, data BLOB)
"""
BELOW = """
SELECT path, version, length(data) FROM objects WHERE substr(path, 1, ?) = ?
"""
RANGE = """
SELECT version, length(data), substr(data, ?, ?) FROM objects WHERE path = ?
"""


class Vault:
    def __init__(self, settings):
        self.path = os.environ["VAULT"]
        self.ask(TABLE)

    def ask(self, statement, *values):
        try:
            with closing(sqlite3.connect(self.path, timeout=60)) as file, file:
                return file.execute(statement, values).fetchall()
        except sqlite3.OperationalError as error:
            raise OSError(f"{self.path}: {error}") from error  # retried

    def head(self, path):
        return self.read(path, 0, 0)[0]

    def list(self, folder):
        begin = f"{folder}/" if folder else ""
        found = self.ask(BELOW, len(begin), begin)
        return [
            StoredObject(path=path, version=version, size_bytes=size)
            for path, version, size in found
        ]

    def read(self, path, start, stop):
        """One statement, so that bytes and version match."""
        length = 2**31 - 1 if stop is None else stop - start
        found = self.ask(RANGE, start + 1, length, path)
        if not found:
            raise FileNotFoundError(path)
        [(version, size, data)] = found
        return StoredObject(path=path, version=version, size_bytes=size), [
            data or b""
        ]

    def write(self, path, data):
        version = uuid.uuid4().hex
        self.ask(
            "INSERT OR REPLACE INTO objects VALUES (?, ?, ?)",
            path,
            version,
            bytes(data),
        )
        return StoredObject(path=path, version=version, size_bytes=len(data))

    def delete(self, path):
        self.ask("DELETE FROM objects WHERE path = ?", path)
