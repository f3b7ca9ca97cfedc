"""Writing `index.sqlite`: every sample and part of a dataset, for Energon's joins, side stores and mounts.

The schema is that of Energon 7.3 and later. Iterating over a dataset does not need this file.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_grain.formats.columnar_build import DuplicateKeys
from energon_grain.storage.atomic import sync_folder

if TYPE_CHECKING:
    from energon_grain.formats.tar.scan import ShardScan

_TABLES = (
    "CREATE TABLE samples (tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, "
    "sample_index INTEGER NOT NULL, byte_offset INTEGER, byte_size INTEGER)",
    "CREATE TABLE sample_parts (tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, "
    "content_byte_offset INTEGER, content_byte_size INTEGER)",
)
# Rows come in the order of all three: filling them as rows come needs no sorting, which takes 100 bytes a part.
_INDICES = (
    "CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index)",
    "CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset)",
    "CREATE INDEX idx_sample_parts_full ON "
    "sample_parts(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size)",
)
# The file is new and used by nothing else until it is renamed: no journal, no waiting for the disk, no locks.
_FAST = (
    "PRAGMA journal_mode = OFF",
    "PRAGMA synchronous = OFF",
    "PRAGMA locking_mode = EXCLUSIVE",
)
_CACHE_BYTES = 256 << 20
_ROWS_A_STATEMENT = 16  # half the time of one row a statement; more bring nothing
_Row = tuple[Any, ...]


def write_sqlite_index(
    path: str | os.PathLike[str],
    scans: Iterable[tuple[int, ShardScan]],
    *,
    shard_name: Callable[[int], str] = "tar file {}".format,
    cache_bytes: int = _CACHE_BYTES,
) -> None:
    """Write `index.sqlite` at `path`, whole or not at all; rows are in the order of `scans`.

    Takes about 1.3 s for 200,000 samples with two parts each, and memory for one scan and `cache_bytes`.

    Args:
        path: The file. One that exists is replaced.
        scans: `tar_file_id` (the place of the shard in `.info.json`) and scan of each shard; consumed one by one.
        shard_name: Name of a shard by its `tar_file_id`, for the error about duplicate keys.
        cache_bytes: Pages of the file that are kept in memory; keys in random order need those of their index.

    Raises:
        DuplicateKeyError: Two samples have the same key.
        OSError: The folder is missing or not writable, or the disk is full.
    """
    with _new_database(Path(path)) as database:
        for statement in (*_FAST, f"PRAGMA cache_size = -{cache_bytes >> 10}", "BEGIN", *_TABLES, *_INDICES):
            database.execute(statement)
        duplicates = DuplicateKeys()
        for tar_file_id, scan in scans:
            if missing := _insert_shard(database, tar_file_id, scan):
                duplicates.add(missing, _duplicates_of(database, tar_file_id, scan, shard_name))
        duplicates.refuse()
        database.execute("COMMIT")


def _insert_shard(database: sqlite3.Connection, tar_file_id: int, scan: ShardScan) -> int:
    """Insert the rows of a shard. Returns how many samples were left out because their key is there already."""
    samples = len(scan.sample_start) - 1
    start, size = scan.sample_start[:-1].tolist(), np.diff(scan.sample_start).tolist()
    index = np.repeat(np.arange(samples), np.diff(scan.part_start)).tolist()
    part_offset, part_size = scan.part_offset.tolist(), scan.part_size.tolist()
    keys, key = _texts(scan.keys())
    names, name = _texts(list(scan.part_names))
    parts = [names[number] for number in scan.part_name.tolist()]
    # Zip stops at the shortest: `repeat` has no end.
    samples_rows = list(zip(repeat(tar_file_id), keys, range(samples), start, size, strict=False))
    parts_rows = list(zip(repeat(tar_file_id), index, parts, part_offset, part_size, strict=False))
    before = database.total_changes
    _insert(database, "samples", f"?,{key},?,?,?", samples_rows)
    missing = samples - (database.total_changes - before)
    _insert(database, "sample_parts", f"?,?,{name},?,?", parts_rows)
    return missing


def _duplicates_of(
    database: sqlite3.Connection, tar_file_id: int, scan: ShardScan, shard_name: Callable[[int], str]
) -> Iterator[tuple[bytes, str, str]]:
    """Key and the names of both shards, of each sample of a shard whose key another one has."""
    keys, key = _texts(scan.keys())
    find = f"SELECT tar_file_id, sample_index FROM samples WHERE sample_key = {key}"
    for number, text in enumerate(keys):
        other, place = database.execute(find, (text,)).fetchone()
        if (other, place) != (tar_file_id, number):
            yield text if isinstance(text, bytes) else text.encode(), shard_name(other), shard_name(tar_file_id)


def _insert(database: sqlite3.Connection, table: str, values: str, rows: list[_Row]) -> None:
    into = f"INSERT OR IGNORE INTO {table} VALUES "
    many = ",".join([f"({values})"] * _ROWS_A_STATEMENT)
    whole = len(rows) - len(rows) % _ROWS_A_STATEMENT
    flat = chain.from_iterable(rows[:whole])
    database.executemany(into + many, zip(*[flat] * (5 * _ROWS_A_STATEMENT), strict=True))
    database.executemany(f"{into}({values})", rows[whole:])


def _texts(texts: list[str]) -> tuple[list[Any], str]:
    """Return texts as SQLite takes them, with the placeholder for them: names that are not UTF-8 go in as bytes."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return [text.encode("utf-8", "surrogateescape") for text in texts], "CAST(? AS TEXT)"
    return texts, "?"


@contextlib.contextmanager
def _new_database(path: Path) -> Generator[sqlite3.Connection]:
    """Give a connection to a new database that takes the place of `path` when the block ends without an error."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        temporary.touch(exist_ok=False)  # whose errors say more than those of SQLite
        database = sqlite3.connect(temporary, isolation_level=None)
        try:
            yield database
        except sqlite3.OperationalError as error:
            raise OSError(f"{path}: cannot be written: {error}; is there room on the disk?") from error
        finally:
            database.close()
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
