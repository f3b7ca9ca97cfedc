"""Rows of an `index.sqlite`."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any


def rows(path: Path, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """What a statement selects; names that are not UTF-8 come as Python decodes file names."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        return database.execute(statement, values).fetchall()
