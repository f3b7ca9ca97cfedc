# SPDX-License-Identifier: Apache-2.0
"""`index.sqlite`: all samples and parts of a dataset, for Energon's joins, side stores and mounts; metadata of media.

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

from energon_grain.errors import FatalSampleError, IndexFileError, KeyNotFoundError
from energon_grain.formats.data_folder import copy_database
from energon_grain.formats.key_order import DuplicateKeys
from energon_grain.media.headers import MediaFilterConfig, MediaFilterStrategy
from energon_grain.samples.media_metadata import AVMetadata, ImageMetadata, deserialize_media_metadata
from energon_grain.storage.atomic import sync_folder

if TYPE_CHECKING:
    from energon_grain.formats.scan import MediaRows, ShardScan

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
_MEDIA_TABLES = (
    "CREATE TABLE IF NOT EXISTS media_metadata (entry_key TEXT PRIMARY KEY, metadata_type TEXT NOT NULL, "
    "metadata_json TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS media_filters (filter_id INTEGER PRIMARY KEY AUTOINCREMENT, strategy TEXT NOT NULL, "
    "patterns TEXT, created_at_utc TEXT DEFAULT CURRENT_TIMESTAMP, UNIQUE(strategy, patterns))",
)
# The file is new and used by nothing else until it is renamed: no journal, no waiting for the disk, no locks.
_FAST = (
    "PRAGMA journal_mode = OFF",
    "PRAGMA synchronous = OFF",
    "PRAGMA locking_mode = EXCLUSIVE",
)
_CACHE_BYTES = 256 << 20
_ASKED_AT_ONCE = 500
_ROWS_A_STATEMENT = 16  # half the time of one row a statement; more bring nothing
_Row = tuple[Any, ...]


def write_sqlite_index(
    path: str | os.PathLike[str],
    scans: Iterable[tuple[int, ShardScan]],
    *,
    shard_name: Callable[[int], str] = "tar file {}".format,
    media: MediaFilterConfig | None = None,
    cache_bytes: int = _CACHE_BYTES,
) -> None:
    """Write `index.sqlite` at `path`, whole or not at all; rows are in the order of `scans`.

    Takes about 1.3 s for 200,000 samples with two parts each, and memory for one scan and `cache_bytes`.

    Args:
        path: The file. One that exists is replaced.
        scans: `tar_file_id` (the place of the shard in `.info.json`) and scan of each shard; consumed one by one.
        shard_name: Name of a shard by its `tar_file_id`, for the error about duplicate keys.
        media: What chose the media of the scans, which get the tables of media then.
        cache_bytes: Pages of the file that are kept in memory; keys in random order need those of their index.

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
    """Key and the names of both shards, of each sample of a shard whose key another one has."""
    keys, key = _texts(scan.keys())
    find = f"SELECT tar_file_id, sample_index FROM samples WHERE sample_key = {key}"
    for number, text in enumerate(keys):
        other, place = database.execute(find, (text,)).fetchone()
        if (other, place) != (tar_file_id, number):
            yield text if isinstance(text, bytes) else text.encode(), shard_name(other), shard_name(tar_file_id)


def _insert(database: sqlite3.Connection, table: str, values: str, rows: list[_Row], *, over: str = "IGNORE") -> None:
    into = f"INSERT OR {over} INTO {table} VALUES "
    many = ",".join([f"({values})"] * _ROWS_A_STATEMENT)
    whole = len(rows) - len(rows) % _ROWS_A_STATEMENT
    flat = chain.from_iterable(rows[:whole])
    database.executemany(into + many, zip(*[flat] * (values.count("?") * _ROWS_A_STATEMENT), strict=True))
    database.executemany(f"{into}({values})", rows[whole:])


def _insert_media(database: sqlite3.Connection, names: list[str], media: MediaRows) -> None:
    """Insert what is known of media by the names of their files; of a name that comes twice the last counts."""
    keys, key = _texts(names)
    kinds = ["av" if is_av else "image" for is_av in media.is_av.tolist()]
    texts = media.texts.decode().split("\n")[: len(keys)]
    _insert(database, "media_metadata", f"{key},?,?", list(zip(keys, kinds, texts, strict=True)), over="REPLACE")


def _insert_filter(database: sqlite3.Connection, media: MediaFilterConfig) -> None:
    row = media.strategy.value, ",".join(media.patterns)
    database.execute("INSERT OR IGNORE INTO media_filters (strategy, patterns) VALUES (?, ?)", row)


def write_media_tables(path: Path, scans: Iterable[ShardScan], media: MediaFilterConfig) -> None:
    """Write the `index.sqlite` of a plain folder, whole or not at all: nothing but what is known of its media.

    In the scans, which are consumed one by one, each file is a sample of one part whose key is the whole name. Raises
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
    """Take over what an older `index.sqlite` knows of media, if it is of the same samples.

    Args:
        path: The new file, which nobody has yet.
        old: The older one. It may have no such tables.
        media: What chose the files that were looked at anew: of these nothing is taken over. None: all is.
        grown: The new one is known to have the samples of the older one, and more.

    Returns:
        Whether the samples are the same, by their number and by sizes and places of their parts; False too where there
        is nothing to take over, and nothing was looked at.

    Raises OSError: the disk is full.
    """
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        try:
            with contextlib.closing(_open_read_only(old)) as other:
                tables = {name for (name,) in other.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
                has_media = {"media_metadata", "media_filters"} <= tables
                if media is None and not has_media:
                    return False  # nobody needs to know
                for table in () if grown else ("samples", "sample_parts"):
                    (new,) = database.execute("SELECT COUNT(*) FROM sqlite_master WHERE name = ?", (table,)).fetchone()
                    if (table in tables) != bool(new) or (new and _sums(database, table) != _sums(other, table)):
                        return False
                if has_media:
                    _take_over(database, other, media)
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise OSError(
                    errno.ENOSPC, f"cannot be written: {error}; is there room on the disk?", str(path)
                ) from error
            return False  # the old one is damaged, or of another schema, and on its way out
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    return True


def filter_of(path: Path) -> MediaFilterConfig | None:
    """What chose the media that an `index.sqlite` knows of; None: nothing did, or not one filter alone."""
    try:
        with contextlib.closing(_open_read_only(path)) as database:
            found = [*database.execute("SELECT strategy, patterns FROM media_filters ORDER BY filter_id")]
        filters = {
            MediaFilterConfig(MediaFilterStrategy(kind), tuple(filter(None, text.split(",")))) for kind, text in found
        }
    except (sqlite3.DatabaseError, ValueError, AttributeError):
        return None  # it has no such table, or another one than ours and Energon's
    return filters.pop() if len(filters) == 1 else None


# Offsets are cut short, because of all of them the sum might be too large for SQLite.
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
    # What is damaged shows here: later nothing could be taken back, for want of a journal.
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
    """What `index.sqlite` knows of the media of a dataset or a plain folder, by the names of their files. Thread-safe.

    Of a folder in an object store the file is copied.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None
        self._process = 0

    def find(self, name: str) -> AVMetadata | ImageMetadata | None:
        """What is known of a file; None: nothing.

        Raises FatalSampleError where there are no metadata of media here at all, FormatError and ReadError.
        """
        found = "SELECT metadata_type, metadata_json FROM media_metadata WHERE entry_key = CAST(? AS TEXT)"
        with self._asked() as database:
            row = database.execute(found, (name.encode("utf-8", "surrogateescape"),)).fetchone()
        return None if row is None else deserialize_media_metadata(*row)

    def get(self, name: str, check: Callable[[], object]) -> AVMetadata | ImageMetadata:
        """The same, where something must be known. Raises KeyNotFoundError.

        `check` raises the error that says more where there can be no such file.
        """
        found = self.find(name)
        if found is None:
            check()
            raise KeyNotFoundError(
                f"{self._location}: nothing is known of {name!r} as a medium: it is none, its header is damaged, or it "
                f"was not looked at; `energon-grain prepare-media` says which are damaged"
            )
        return found

    def unknown(self, names: Sequence[str]) -> list[str]:
        """Those of some files of which nothing is known. Raises as `find`."""
        known: set[str] = set()
        with self._asked() as database:
            for at in range(0, len(names), _ASKED_AT_ONCE):
                keys, key = _texts([*names[at : at + _ASKED_AT_ONCE]])
                among = f"entry_key IN ({','.join([key] * len(keys))})"
                found = database.execute(f"SELECT CAST(entry_key AS BLOB) FROM media_metadata WHERE {among}", keys)
                known.update(_name(each) for (each,) in found)
        return [name for name in names if name not in known]

    def filters(self) -> list[MediaFilterConfig]:
        """What chose the files; empty where there are no metadata of media."""
        try:
            with self._asked() as database:
                rows = database.execute("SELECT strategy, patterns FROM media_filters").fetchall()
        except (FatalSampleError, IndexFileError):
            return []
        return [
            MediaFilterConfig(MediaFilterStrategy(strategy), tuple(filter(None, (patterns or "").split(","))))
            for strategy, patterns in rows
            if strategy in MediaFilterStrategy.__members__  # Energon may know others some day
        ]

    @contextlib.contextmanager
    def _asked(self) -> Generator[sqlite3.Connection]:
        try:
            with self._lock:
                yield self._opened()
        except sqlite3.OperationalError as error:
            raise FatalSampleError(f"{self._location}: {_NO_MEDIA.format(self._location)} ({error})") from error
        except sqlite3.DatabaseError as error:
            raise IndexFileError(f"{self._location}/.nv-meta/index.sqlite: {error}; prepare again") from error

    def _opened(self) -> sqlite3.Connection:
        if self._database is None or self._process != os.getpid():  # none crosses a fork
            path = copy_database(self._location)
            if path is None:
                raise FatalSampleError(f"{self._location}: {_NO_MEDIA.format(self._location)}")
            self._database, self._process = _open_read_only(path), os.getpid()
            # Since Python 3.13 SQLite warns where nobody does. At the end of the program threads may still ask.
            weakref.finalize(self, self._database.close).atexit = False
        return self._database


_NO_MEDIA = "has no metadata of media; run `energon-grain prepare-media {} --media-metadata-by-extension`"


def _texts(texts: list[str]) -> tuple[list[Any], str]:
    """Return texts as SQLite takes them, with the placeholder for them: names that are not UTF-8 go in as bytes."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return [text.encode("utf-8", "surrogateescape") for text in texts], "CAST(? AS TEXT)"
    return texts, "?"


def _no_room(path: Path, error: sqlite3.Error) -> OSError:
    return OSError(errno.ENOSPC, f"cannot be written: {error}; is there room on the disk?", str(path))


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
            raise _no_room(path, error) from error
        finally:
            database.close()
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
