# SPDX-License-Identifier: Apache-2.0
"""`index.sqlite`: all samples and parts of a dataset, for Energon's joins, side stores and mounts; media metadata.

The schema is that of Energon 7.3 and later. Iterating over a dataset does not need this file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import sqlite3
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_grain.atomic_files import sync_folder
from energon_grain.errors import FatalSampleError, IndexFileError, KeyNotFoundError
from energon_grain.formats.data_folder import copy_database
from energon_grain.formats.key_order import DuplicateKeys
from energon_grain.media.headers import MediaFilterConfig, MediaFilterStrategy
from energon_grain.samples.media_metadata import AVMetadata, ImageMetadata, deserialize_media_metadata

if TYPE_CHECKING:
    from energon_grain.formats.scan import MediaRows, ShardScan

_TABLES = (
    "CREATE TABLE samples (tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, "
    "sample_index INTEGER NOT NULL, byte_offset INTEGER, byte_size INTEGER)",
    "CREATE TABLE sample_parts (tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, "
    "content_byte_offset INTEGER, content_byte_size INTEGER)",
)
# Rows are inserted in the order of all three indices: updating these with each row avoids a sort of 100 bytes per part.
_INDICES = (
    "CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index)",
    "CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset)",
    "CREATE INDEX idx_sample_parts_full ON "
    "sample_parts(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size)",
)
_MEDIA_TABLES = (
    "CREATE TABLE IF NOT EXISTS media_metadata (entry_key TEXT PRIMARY KEY, metadata_type TEXT NOT NULL, "
    "metadata_json TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS media_filters (filter_id INTEGER PRIMARY KEY AUTOINCREMENT, strategy TEXT NOT NULL, "
    "patterns TEXT, created_at_utc TEXT DEFAULT CURRENT_TIMESTAMP, UNIQUE(strategy, patterns))",
)
# The file is new and unused until it is renamed: no journal, no waiting for the disk, no locks.
_FAST = (
    "PRAGMA journal_mode = OFF",
    "PRAGMA synchronous = OFF",
    "PRAGMA locking_mode = EXCLUSIVE",
)
_CACHE_BYTES = 256 << 20
_KEYS_PER_QUERY = 500
_ROWS_PER_STATEMENT = 16  # half the time of one row per statement; larger values are not faster
_Row = tuple[Any, ...]


def write_sqlite_index(
    path: str | os.PathLike[str],
    scans: Iterable[tuple[int, ShardScan]],
    *,
    shard_name: Callable[[int], str] = "tar file {}".format,
    media: MediaFilterConfig | None = None,
    cache_bytes: int = _CACHE_BYTES,
) -> None:
    """Write `index.sqlite` at `path` atomically; rows are in the order of `scans`.

    Takes about 1.3 s for 200,000 samples with two parts each, and memory for one scan and `cache_bytes`.

    Args:
        path: The file. An existing one is replaced.
        scans: `tar_file_id` (the position of the shard in `.info.json`) and scan of each shard; consumed one by one.
        shard_name: Name of a shard by its `tar_file_id`, for the error about duplicate keys.
        media: The filter of the media in the scans; if set, the media tables are written.
        cache_bytes: Size of the page cache; keys in random order need the pages of their index.

    Raises:
        DuplicateKeyError: Two samples have the same key.
        OSError: The folder is missing or not writable, or the disk is full.
    """
    with _new_database(Path(path)) as database:
        tables = (*_TABLES, *_INDICES, *(_MEDIA_TABLES if media is not None else ()))
        for statement in (*_FAST, f"PRAGMA cache_size = -{cache_bytes >> 10}", "BEGIN", *tables):
            database.execute(statement)
        if media is not None:
            _insert_filter(database, media)
        duplicates = DuplicateKeys()
        for tar_file_id, scan in scans:
            if missing := _insert_shard(database, tar_file_id, scan):
                duplicates.add(missing, _duplicates_of(database, tar_file_id, scan, shard_name))
        duplicates.refuse()
        database.execute("COMMIT")


def _insert_shard(database: sqlite3.Connection, tar_file_id: int, scan: ShardScan) -> int:
    """Insert the rows of a shard. Returns the number of samples that were skipped because of duplicate keys."""
    samples = len(scan.sample_start) - 1
    start, size = scan.sample_start[:-1].tolist(), np.diff(scan.sample_start).tolist()
    index = np.repeat(np.arange(samples), np.diff(scan.part_start)).tolist()
    part_offset, part_size = scan.part_offset.tolist(), scan.part_size.tolist()
    keys, key = _texts(scan.keys())
    names, name = _texts(list(scan.part_names))
    parts = [names[number] for number in scan.part_name.tolist()]
    # `zip` stops at the shortest: `repeat` is infinite.
    samples_rows = list(zip(repeat(tar_file_id), keys, range(samples), start, size, strict=False))
    parts_rows = list(zip(repeat(tar_file_id), index, parts, part_offset, part_size, strict=False))
    before = database.total_changes
    _insert(database, "samples", f"?,{key},?,?,?", samples_rows)
    missing = samples - (database.total_changes - before)
    _insert(database, "sample_parts", f"?,?,{name},?,?", parts_rows)
    if scan.media is not None:
        rows = scan.media.part.tolist()
        of = scan.keys()
        _insert_media(
            database, [f"{of[index[row]]}.{scan.part_names[scan.part_name[row]]}" for row in rows], scan.media
        )
    return missing


def _duplicates_of(
    database: sqlite3.Connection, tar_file_id: int, scan: ShardScan, shard_name: Callable[[int], str]
) -> Iterator[tuple[bytes, str, str]]:
    """Key and names of both shards, for each sample of a shard that shares its key with another one."""
    keys, key = _texts(scan.keys())
    find = f"SELECT tar_file_id, sample_index FROM samples WHERE sample_key = {key}"
    for number, text in enumerate(keys):
        other, place = database.execute(find, (text,)).fetchone()
        if (other, place) != (tar_file_id, number):
            yield text if isinstance(text, bytes) else text.encode(), shard_name(other), shard_name(tar_file_id)


def _insert(database: sqlite3.Connection, table: str, values: str, rows: list[_Row], *, over: str = "IGNORE") -> None:
    into = f"INSERT OR {over} INTO {table} VALUES "
    many = ",".join([f"({values})"] * _ROWS_PER_STATEMENT)
    whole = len(rows) - len(rows) % _ROWS_PER_STATEMENT
    flat = chain.from_iterable(rows[:whole])
    database.executemany(into + many, zip(*[flat] * (values.count("?") * _ROWS_PER_STATEMENT), strict=True))
    database.executemany(f"{into}({values})", rows[whole:])


def _insert_media(database: sqlite3.Connection, names: list[str], media: MediaRows) -> None:
    """Insert metadata of media by file name; the last entry of a repeated name counts."""
    keys, key = _texts(names)
    kinds = ["av" if is_av else "image" for is_av in media.is_av.tolist()]
    texts = media.texts.decode().split("\n")[: len(keys)]
    _insert(database, "media_metadata", f"{key},?,?", list(zip(keys, kinds, texts, strict=True)), over="REPLACE")


def _insert_filter(database: sqlite3.Connection, media: MediaFilterConfig) -> None:
    row = media.strategy.value, ",".join(media.patterns)
    database.execute("INSERT OR IGNORE INTO media_filters (strategy, patterns) VALUES (?, ?)", row)


def write_media_tables(path: Path, scans: Iterable[ShardScan], media: MediaFilterConfig) -> None:
    """Write the `index.sqlite` of a plain folder atomically, with the metadata of its media only.

    In the scans, which are consumed one by one, each file is a sample with one part whose key is the whole name. Raises
    OSError.
    """
    with _new_database(path) as database:
        for statement in (*_FAST, "BEGIN", *_MEDIA_TABLES):
            database.execute(statement)
        _insert_filter(database, media)
        for scan in scans:
            if scan.media is not None:
                names = scan.keys()
                _insert_media(database, [names[row] for row in scan.media.part.tolist()], scan.media)
        database.execute("COMMIT")


def keep_media_tables(path: Path, old: Path, media: MediaFilterConfig | None, *, grown: bool = False) -> bool:
    """Copy media metadata from an older `index.sqlite` of the same samples.

    Args:
        path: The new file, not yet in use.
        old: The older one. It may lack these tables.
        media: The filter of the files that were examined again: nothing is copied for these. None: all is copied.
        grown: Whether the new file is known to contain all samples of the older one, and more.

    Returns:
        Whether the samples are the same, by their number and by sizes and offsets of their parts; also False if there
        is nothing to copy and nothing was examined.

    Raises OSError if the disk is full.
    """
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        try:
            with contextlib.closing(_open_read_only(old)) as other:
                tables = {name for (name,) in other.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
                has_media = {"media_metadata", "media_filters"} <= tables
                if media is None and not has_media:
                    return False  # the result is not needed
                for table in () if grown else ("samples", "sample_parts"):
                    (new,) = database.execute("SELECT COUNT(*) FROM sqlite_master WHERE name = ?", (table,)).fetchone()
                    if (table in tables) != bool(new) or (new and _sums(database, table) != _sums(other, table)):
                        return False
                if has_media:
                    _take_over(database, other, media)
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise OSError(
                    errno.ENOSPC, f"cannot be written: {error}; check the free space of the disk", str(path)
                ) from error
            return False  # the old one is damaged or of another schema, and about to be replaced
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    return True


def filter_of(path: Path) -> MediaFilterConfig | None:
    """The filter of the media in an `index.sqlite`; None if there is none, or more than one."""
    try:
        with contextlib.closing(_open_read_only(path)) as database:
            found = [*database.execute("SELECT strategy, patterns FROM media_filters ORDER BY filter_id")]
        filters = {
            MediaFilterConfig(MediaFilterStrategy(kind), tuple(filter(None, text.split(",")))) for kind, text in found
        }
    except (sqlite3.DatabaseError, ValueError, AttributeError):
        return None  # the table is missing, or neither ours nor Energon's
    return filters.pop() if len(filters) == 1 else None


# Offsets are reduced, because their sum might exceed SQLite's integers.
_SUMMED = {
    "samples": "COUNT(*), SUM(byte_offset % 1000003), SUM(LENGTH(sample_key)), MIN(sample_key), MAX(sample_key)",
    "sample_parts": "COUNT(*), SUM(content_byte_offset % 1000003), SUM(content_byte_size % 1000003), MAX(part_name)",
}


def _sums(database: sqlite3.Connection, table: str) -> _Row:
    database.text_factory = bytes  # names need not be UTF-8
    try:
        return database.execute(f"SELECT {_SUMMED[table]} FROM {table}").fetchone()
    finally:
        database.text_factory = str


def _take_over(database: sqlite3.Connection, other: sqlite3.Connection, media: MediaFilterConfig | None) -> None:
    # Detects damage now: later changes cannot be rolled back without a journal.
    other.execute("SELECT SUM(LENGTH(entry_key) + LENGTH(metadata_json)) FROM media_metadata").fetchone()
    filters = other.execute(
        "SELECT strategy, patterns, created_at_utc FROM media_filters ORDER BY filter_id"
    ).fetchall()
    for statement in (*_FAST, "BEGIN", *_MEDIA_TABLES):
        database.execute(statement)
    rows = other.execute("SELECT CAST(entry_key AS BLOB), metadata_type, metadata_json FROM media_metadata")
    kept = (row for row in rows if media is None or not media.may_take(_name(row[0])))
    database.executemany("INSERT OR IGNORE INTO media_metadata VALUES (CAST(? AS TEXT), ?, ?)", kept)
    there = {*database.execute("SELECT strategy, patterns FROM media_filters")}
    into = "INSERT INTO media_filters (strategy, patterns, created_at_utc) VALUES (?, ?, ?)"
    database.executemany(into, [row for row in filters if row[:2] not in there])
    database.execute("COMMIT")


def _name(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


def _open_read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False)


class MediaTable:
    """Media metadata in the `index.sqlite` of a dataset or a plain folder, by file name. Thread-safe.

    The file of a folder in an object store is copied.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None
        self._process = 0

    def find(self, name: str) -> AVMetadata | ImageMetadata | None:
        """The metadata of a file; None if it has none.

        Raises FatalSampleError if there are no media metadata at all, FormatError and ReadError.
        """
        found = "SELECT metadata_type, metadata_json FROM media_metadata WHERE entry_key = CAST(? AS TEXT)"
        with self._connection() as database:
            row = database.execute(found, (name.encode("utf-8", "surrogateescape"),)).fetchone()
        return None if row is None else deserialize_media_metadata(*row)

    def get(self, name: str, check: Callable[[], object]) -> AVMetadata | ImageMetadata:
        """The metadata of a file. Raises KeyNotFoundError if it has none.

        `check` raises a more specific error if the file cannot exist.
        """
        found = self.find(name)
        if found is None:
            check()
            raise KeyNotFoundError(
                f"{self._location}: {name!r} has no media metadata: it is not a media file, its header is damaged, or "
                f"it was not examined; `energon-grain prepare-media` reports damaged files"
            )
        return found

    def unknown(self, names: Sequence[str]) -> list[str]:
        """The files without metadata, among `names`. Raises as `find`."""
        known: set[str] = set()
        with self._connection() as database:
            for at in range(0, len(names), _KEYS_PER_QUERY):
                keys, key = _texts([*names[at : at + _KEYS_PER_QUERY]])
                among = f"entry_key IN ({','.join([key] * len(keys))})"
                found = database.execute(f"SELECT CAST(entry_key AS BLOB) FROM media_metadata WHERE {among}", keys)
                known.update(_name(each) for (each,) in found)
        return [name for name in names if name not in known]

    def filters(self) -> list[MediaFilterConfig]:
        """The filters of the media; empty without media metadata."""
        try:
            with self._connection() as database:
                rows = database.execute("SELECT strategy, patterns FROM media_filters").fetchall()
        except (FatalSampleError, IndexFileError):
            return []
        return [
            MediaFilterConfig(MediaFilterStrategy(strategy), tuple(filter(None, (patterns or "").split(","))))
            for strategy, patterns in rows
            if strategy in MediaFilterStrategy.__members__  # Energon may add others
        ]

    @contextlib.contextmanager
    def _connection(self) -> Generator[sqlite3.Connection]:
        try:
            with self._lock:
                yield self._opened()
        except sqlite3.OperationalError as error:
            raise FatalSampleError(f"{self._location}: {_NO_MEDIA.format(self._location)} ({error})") from error
        except sqlite3.DatabaseError as error:
            raise IndexFileError(f"{self._location}/.nv-meta/index.sqlite: {error}; prepare it again") from error

    def _opened(self) -> sqlite3.Connection:
        if self._database is None or self._process != os.getpid():  # connections must not cross a fork
            path = copy_database(self._location)
            if path is None:
                raise FatalSampleError(f"{self._location}: {_NO_MEDIA.format(self._location)}")
            self._database, self._process = _open_read_only(path), os.getpid()
            # Since Python 3.13 SQLite warns about unclosed connections. At exit, threads may still use it.
            weakref.finalize(self, self._database.close).atexit = False
        return self._database


_NO_MEDIA = "has no media metadata; run `energon-grain prepare-media {} --media-metadata-by-extension`"


def _texts(texts: list[str]) -> tuple[list[Any], str]:
    """Return texts in a form that SQLite takes, with their placeholder: names that are not UTF-8 become bytes."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return [text.encode("utf-8", "surrogateescape") for text in texts], "CAST(? AS TEXT)"
    return texts, "?"


def _disk_full_error(path: Path, error: sqlite3.Error) -> OSError:
    return OSError(errno.ENOSPC, f"cannot be written: {error}; check the free space of the disk", str(path))


@contextlib.contextmanager
def _new_database(path: Path) -> Generator[sqlite3.Connection]:
    """A connection to a new database that replaces `path` when the block ends without an error."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        temporary.touch(exist_ok=False)  # its errors are clearer than those of SQLite
        database = sqlite3.connect(temporary, isolation_level=None)
        try:
            yield database
        except sqlite3.OperationalError as error:
            raise _disk_full_error(path, error) from error
        finally:
            database.close()
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
