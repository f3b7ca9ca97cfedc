"""Parquet files: which lie at a path, what their footers say, and row groups as Arrow tables.

A footer says how many rows each row group has and where its columns lie. Those of all files are read once and kept in
one file in the cache folder, so that a folder of thousands is opened by looking at sizes and times of modification (in
a store: one list, with entity tags) and reading one file:

    footers, one behind the other | records of the files (msgpack) | bytes of these (8) | XXH3-64 of these (8)

Bytes are read by our own storage (pages that are kept, attempts, versions) and given to pyarrow as a file that has the
bytes of the wanted columns and no others; pyarrow decodes. Footers, pages and schemas come from strangers: pyarrow
checks them as it decodes, and what it decodes is compared with what the footer said.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import io
import itertools
import os
import re
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from energon_grain.errors import ConfigError, DatasetNotFoundError, EmptyDatasetError, FormatError, StaleIndexError
from energon_grain.extras import needed_for
from energon_grain.formats.brace_patterns import expand_braces
from energon_grain.forms import Form
from energon_grain.storage.addresses import has_lists
from energon_grain.storage.atomic import atomic_write
from energon_grain.storage.local import LocalFiles
from energon_grain.storage.location import as_joined, is_url, join, located, name_of, no_such_path
from energon_grain.storage.mirror import mirror_of
from energon_grain.storage.object_client import shared_client
from energon_grain.storage.remote_files import RemoteFiles
from energon_grain.storage.settings import storage_settings
from energon_grain.storage.spans import coalesce

Int64Array = npt.NDArray[np.int64]
Version = tuple[int, int | bytes]
"""Size of a file, and its time of modification or generation: what `ByteStore.version` gives."""
PARQUET_SUFFIX = ".parquet"
_MAGIC = b"PAR1"
_TAIL_BYTES = 64 << 10
_LARGEST_FOOTER_BYTES = 1 << 30
_MOST_ROWS = 1 << 56
_PARSED_BYTES = 64 << 20
"""Footers that stay parsed, as they lie in files: parsed they take about ten times as much."""
_PATTERN = re.compile(r"[*?\[]")
_DAMAGED = "is damaged, or no Parquet file; write it anew, or leave it out by a pattern"
_Store = LocalFiles | RemoteFiles
_parsing = threading.Lock()


def _renew_lock() -> None:
    global _parsing
    _parsing = threading.Lock()  # a thread that does not exist in a forked child may have held it


os.register_at_fork(after_in_child=_renew_lock)


def is_parquet(location: str) -> bool:
    """Whether Parquet files are meant by a path: by its ending, or as some lie in that folder of this machine.

    In a store the ending decides, or a list. Never raises but for what a store does.

    Raises:
        ReadError: A store cannot be reached.
    """
    if location.endswith(PARQUET_SUFFIX):
        return True
    if is_url(location):
        if _PATTERN.search(name_of(location)) or not has_lists(location, storage_settings()):
            return False
        return any(map(_counts, shared_client(storage_settings()).list(location)))
    return next(_below(location), None) is not None


def _counts(name: str) -> bool:
    """Whether a name below a folder is that of a file with data: `_metadata` and what is hidden is not."""
    return name.endswith(PARQUET_SUFFIX) and not any(step.startswith((".", "_")) for step in name.split("/"))


def _below(folder: str) -> Iterator[str]:
    """Names of the files below a folder of this machine."""
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        inside = os.path.relpath(root, folder).replace(os.sep, "/")
        names = files if inside == "." else [f"{inside}/{name}" for name in files]
        yield from filter(_counts, names)


def _find(location: str) -> tuple[str, list[str], dict[str, Version] | None]:
    """A folder, names of files in it, and their versions where a list said them.

    Raises:
        DatasetNotFoundError: There is none.
        ReadError: A store cannot be reached.
    """
    there = not is_url(location) and os.path.lexists(location)  # it is what it says, whatever signs are in it
    patterns = expand_braces(location) if "{" in location and not there else [location]
    wild = not there and any(map(_PATTERN.search, patterns))
    fixed = [_PATTERN.split(pattern, maxsplit=1)[0] if wild else pattern for pattern in patterns]
    same = next((at for at, signs in enumerate(zip(*fixed, strict=False)) if len(set(signs)) > 1), min(map(len, fixed)))
    cut = fixed[0][:same].rfind("/")
    root = fixed[0][:cut] if cut > 0 else "/"[: cut + 1]
    if not is_url(location):
        if os.path.isdir(location):
            return location, _sorted(_below(location), location), None
        found = {path for pattern in patterns for path in glob.iglob(pattern, recursive=True)} if wild else {*patterns}
        files = {path for path in found if os.path.isfile(path)}
        files |= {os.path.join(path, name) for path in found if os.path.isdir(path) for name in _below(path)}
        if not wild and (missing := sorted(path for path in found if not os.path.exists(path))):
            raise DatasetNotFoundError(no_such_path(missing[0]))
        return root, _sorted((path[len(root) + (cut > 0) :] for path in files), location), None
    client = shared_client(storage_settings())
    if not has_lists(location, storage_settings()):
        if wild:
            raise ConfigError(f"{location}: this server has no lists; write the names, as {{000..009}}.parquet")
        return root, _sorted({as_joined(root, pattern[cut + 1 :]) for pattern in patterns}, location), None
    if not wild and len(patterns) == 1:
        below: Any = client.list_versions(location)
        if below:
            return location, _sorted(filter(_counts, below), location), below
        return root, [name_of(location)], None
    below = client.list_versions(root)
    wanted = [re.compile(_translated(pattern[cut + 1 :])) for pattern in patterns]
    names = (name for name in below if _counts(name) and any(each.fullmatch(name) for each in wanted))
    return root, _sorted(names, location), below


def _sorted(names: Any, location: str) -> list[str]:
    found = sorted(names)
    if not found:
        raise DatasetNotFoundError(f"{location}: no file there ends in {PARQUET_SUFFIX}")
    return found


def _translated(pattern: str) -> str:
    """A pattern as `glob` understands it, for names in a store."""
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern)
    return "".join(
        words.get(part) or (part.replace("[!", "[^") if part.startswith("[") and len(part) > 2 else re.escape(part))
        for part in parts
    )


class _Record(msgspec.Struct, array_like=True, kw_only=True):
    """What is kept of a file.

    Attributes:
        version: When its footer was read.
        begin: Where the footer lies in the file of all footers.
        footer_bytes: Of it.
        footer_sum: XXH3-64 of it.
        columns: Names of the columns.
        rows: (groups,) int64.
        extents: (groups, columns, 3) int64: first byte, one past the last, and bytes uncompressed, of each column.
    """

    name: str
    version: tuple[int, int | bytes]
    begin: int
    footer_bytes: int
    footer_sum: int
    columns: list[str]
    rows: bytes
    extents: bytes


_RECORDS = Form(list[_Record])


@dataclass(frozen=True, kw_only=True, slots=True)
class RowGroups:
    """All row groups, in the order of the files.

    Attributes:
        first: (groups + 1,) number of the first row of each, and of all rows.
        file: (groups,) the file of each.
        number: (groups,) which row group of its file each is.
        extents: (groups, columns, 3) see `_Record`; zeros where a file lacks a column.
    """

    first: Int64Array
    file: Int64Array
    number: Int64Array
    extents: Int64Array


class ParquetFiles:
    """The files at a path and their footers. Picklable: copies in other processes look at the files anew.

    Args:
        path: A file, a folder (with all files below), a pattern (`data/**/train-*.parquet`), with braces too
            (`{000..009}.parquet`); or a URL of one of these.
        cache_dir: Where what is known of footers is kept; default: with the caches of the user.

    Attributes:
        location: The path.
        names: Of the files, relative to the folder that they have in common, in order.
        paths: Of the files.
        columns: Names of the columns of any file, in order.
        content_id: Digest of names, sizes and footers.

    Raises:
        DatasetNotFoundError: There is no file.
        FormatError: A footer is damaged.
        EmptyDatasetError: There is no row.
        MissingPackageError: pyarrow is not installed.
        ReadError: A store cannot be reached, or a file not be read.
    """

    def __init__(self, path: str | os.PathLike[str], *, cache_dir: str | os.PathLike[str] | None = None) -> None:
        with needed_for("reading Parquet files"):
            import pyarrow.parquet  # noqa: F401  # pyright: ignore[reportUnusedImport]
        self.location, self._cache_dir = located(path), cache_dir
        root, self.names, versions = _find(self.location)
        self.paths = [join(root, name) for name in self.names]
        self.store: _Store = RemoteFiles(storage_settings()) if is_url(root) else LocalFiles(indexed_by="")
        self._parsed: OrderedDict[int, Any] = OrderedDict()
        if isinstance(self.store, LocalFiles):
            self._versions: list[Version] = [_of_file(path) for path in self.paths]
        elif versions is None:
            self._versions = shared_client(self.store.settings).map(self.store.version, self.paths)
        else:
            self._versions = [versions[name] for name in self.names]
        self._index = self._index_path(root)
        self._records = self._kept()
        self.columns = tuple(dict.fromkeys(name for record in self._records for name in record.columns))
        digest = hashlib.blake2b(digest_size=8)
        for record in self._records:
            said = msgspec.msgpack.encode((record.name, record.version[0], record.footer_sum))
            digest.update(said)
        self.content_id = digest.hexdigest()
        if not len(self):
            raise EmptyDatasetError(f"{self.location}: its {len(self.names)} Parquet files have no row")

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self.location, self._cache_dir, self.content_id)

    def __len__(self) -> int:
        """How many rows there are."""
        return int(self.groups.first[-1])

    @cached_property
    def groups(self) -> RowGroups:
        """The row groups."""
        place = {name: number for number, name in enumerate(self.columns)}
        counts = [len(record.rows) // 8 for record in self._records]
        rows = np.concatenate([np.frombuffer(record.rows, "<i8") for record in self._records])
        extents = np.zeros((len(rows), len(place), 3), np.int64)
        at = 0
        for record, count in zip(self._records, counts, strict=True):
            own = np.frombuffer(record.extents, "<i8").reshape(count, len(record.columns), 3)
            extents[at : at + count, [place[name] for name in record.columns]] = own
            at += count
        first = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(rows, out=first[1:])
        file = np.repeat(np.arange(len(counts)), counts)
        starts = np.cumsum([0, *counts[:-1]])
        return RowGroups(first=first, file=file, number=np.arange(len(rows)) - starts[file], extents=extents)

    def schema(self, file: int = 0) -> Any:
        """The `pyarrow.Schema` of a file. Raises FormatError where pyarrow does not understand it."""
        import pyarrow
        import pyarrow.parquet

        with self._decoding(self.paths[file]):
            return pyarrow.parquet.ParquetFile(pyarrow.BufferReader(b""), metadata=self.metadata(file)).schema_arrow

    def metadata(self, file: int) -> Any:
        """The `pyarrow.parquet.FileMetaData` of a file; those used last stay parsed."""
        with _parsing:
            found = self._parsed.get(file)
            if found is not None:
                self._parsed.move_to_end(file)
                return found
        parsed = self._parse(file, self._footer(file))
        with _parsing:
            self._parsed[file] = parsed
            held = sum(self._records[each].footer_bytes for each in self._parsed)
            while len(self._parsed) > 1 and held > _PARSED_BYTES:
                held -= self._records[self._parsed.popitem(last=False)[0]].footer_bytes
        return parsed

    def spans(
        self, groups: Int64Array, columns: Sequence[str]
    ) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """(file, start, size, owner) of the bytes of columns of row groups; `owner`: the place in `groups`."""
        places = [number for number, name in enumerate(self.columns) if name in columns]
        extents = self.groups.extents[groups][:, places]
        start, stop = extents[..., 0].reshape(-1), extents[..., 1].reshape(-1)
        owner = np.repeat(np.arange(len(groups)), len(places))
        there = stop > start
        return self.groups.file[groups][owner[there]], start[there], (stop - start)[there], owner[there]

    def read(self, group: int, columns: Sequence[str]) -> Any:
        """A row group as a `pyarrow.Table` of these columns, without those that its file lacks.

        Raises:
            FormatError: Its pages do not decode, or not to what the footer says.
            StaleIndexError, ReadError: The file was changed since it was opened, or cannot be read.
        """
        import pyarrow.parquet

        groups = self.groups
        file, number = int(groups.file[group]), int(groups.number[group])
        path, rows = self.paths[file], int(groups.first[group + 1] - groups.first[group])
        self.store.expect(path, self._versions[file])  # type: ignore[arg-type]
        names = [name for name in self._records[file].columns if name in columns]
        if not names:
            return None
        held = self._held(path, np.array([group]), columns)
        with self._decoding(f"{path}: row group {number}"):
            opened = pyarrow.parquet.ParquetFile(
                held, metadata=self.metadata(file), pre_buffer=False, page_checksum_verification=True
            )
            table = opened.read_row_group(number, columns=names, use_threads=False)
            if table.num_rows != rows or table.num_columns != len(names):
                raise ValueError(f"{table.num_rows} rows of {table.num_columns} columns, not {rows} of {len(names)}")
            table.validate()
        return table

    def _held(self, path: str, groups: Int64Array, columns: Sequence[str]) -> _HeldFile:
        _, start, size, _ = self.spans(groups, columns)
        file = np.zeros(len(start), np.int64)
        gap = self.store.merge_gap_bytes
        spans = coalesce(file, start, size, merge_gap_bytes=gap, solo_bytes=self.store.solo_bytes)
        data = self.store.read_spans([path], spans.file, spans.start, spans.stop)
        return _HeldFile(path, self.store, dict(zip(spans.start.tolist(), data, strict=True)))

    @contextlib.contextmanager
    def _decoding(self, where: str) -> Generator[None]:
        """Errors of pyarrow name the place."""
        import pyarrow

        try:
            yield
        except (pyarrow.ArrowException, ValueError, OSError, OverflowError, UnicodeError) as error:
            if isinstance(error, FormatError) or type(error).__module__.startswith("energon_grain"):
                raise
            raise FormatError(f"{where}: {str(error).strip() or type(error).__name__}; the file {_DAMAGED}") from error

    # What is known of footers.

    def _index_path(self, root: str) -> Path:
        identity = hashlib.blake2b("\0".join([root, *self.names]).encode("utf-8", "surrogateescape"), digest_size=16)
        name = f"{identity.hexdigest()}.footers"
        if self._cache_dir is None and is_url(root):
            return mirror_of(root).folder / "parquet" / name
        base = self._cache_dir or os.path.join(os.path.dirname(storage_settings().cache_folder), "parquet")
        identity.update(os.fsencode(os.path.realpath(root)))
        return Path(base) / f"{identity.hexdigest()}.footers"

    def _kept(self) -> list[_Record]:
        """What is known of all files: of those that are new or changed it is read now, and written."""
        known = {record.name: record for record in _read_records(self._index)}
        fresh: dict[int, bytes] = {}
        records: list[_Record | None] = []
        for number, (name, version) in enumerate(zip(self.names, self._versions, strict=True)):
            record = known.get(name)
            records.append(record if record is not None and tuple(record.version) == version and version[1] else None)
            if records[-1] is None:
                fresh[number] = b""
        if not fresh:
            return records  # type: ignore[return-value]
        fresh.update(zip(fresh, self._read_footers(list(fresh)), strict=True))
        for number, footer in fresh.items():
            records[number] = self._record(number, footer)
        return self._write(records, fresh)  # type: ignore[arg-type]

    def _read_footers(self, files: Sequence[int]) -> list[bytes]:
        """The footers of files: the ends of all at once, and more of those that are longer."""
        sizes = np.array([self._versions[file][0] for file in files], np.int64)
        for file in files:
            self.store.expect(self.paths[file], self._versions[file])  # type: ignore[arg-type]
        paths = [self.paths[file] for file in files]
        which = np.arange(len(files))
        tails = self.store.read_spans(paths, which, np.maximum(0, sizes - _TAIL_BYTES), sizes)
        lengths = np.array([_footer_length(*each) for each in zip(paths, tails, sizes.tolist(), strict=True)], np.int64)
        longer = np.flatnonzero(lengths + 8 > _TAIL_BYTES)
        more = self.store.read_spans(paths, longer, (sizes - lengths - 8)[longer], sizes[longer])
        for file, tail in zip(longer.tolist(), more, strict=True):
            tails[file] = tail
        return [tail[len(tail) - 8 - length : -8] for tail, length in zip(tails, lengths.tolist(), strict=True)]

    def _footer(self, file: int) -> bytes:
        """The footer of a file, as it is kept; else from the file itself."""
        record = self._records[file]
        with contextlib.suppress(OSError), open(self._index, "rb") as kept:
            footer = os.pread(kept.fileno(), record.footer_bytes, record.begin)
            if xxhash.xxh3_64_intdigest(footer) == record.footer_sum:
                return footer
        (footer,) = self._read_footers([file])
        if xxhash.xxh3_64_intdigest(footer) != record.footer_sum:
            raise StaleIndexError(f"{self.paths[file]}: was changed since it was opened; begin anew")
        return footer

    def _parse(self, file: int, footer: bytes) -> Any:
        import pyarrow
        import pyarrow.parquet

        whole = b"".join((footer, len(footer).to_bytes(4, "little"), _MAGIC))
        with self._decoding(self.paths[file]):
            return pyarrow.parquet.read_metadata(pyarrow.BufferReader(whole))

    def _record(self, file: int, footer: bytes) -> _Record:
        """What a footer says. Raises FormatError where it contradicts itself or the size of the file."""
        import pyarrow
        import pyarrow.parquet

        path, version = self.paths[file], self._versions[file]
        metadata = self._parse(file, footer)
        with self._decoding(path):
            schema = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(b""), metadata=metadata).schema_arrow
            names: list[str] = schema.names
            if len(set(names)) < len(names):
                raise ValueError("two columns have one name")
            leaves = [_leaves(column.type) for column in schema]
            if sum(leaves) != metadata.num_columns:
                raise ValueError(f"{sum(leaves)} columns by the schema, {metadata.num_columns} in the file")
            said = _thrift(footer)
            groups = _structs(said, _ROW_GROUPS)
            rows = np.array([_number(group, _ROWS) for group in groups], "<i8")
            extents = np.array(
                [_extents(_structs(group, _CHUNKS), leaves, end=version[0] - 8 - len(footer)) for group in groups],
                "<i8",
            ).reshape(len(rows), len(names), 3)
            if len(groups) != metadata.num_row_groups or (rows < 0).any():
                raise ValueError(f"{len(groups)} row groups, {metadata.num_row_groups} in the file")
            if sum(rows.tolist()) != metadata.num_rows or metadata.num_rows >= _MOST_ROWS:
                raise ValueError(f"row groups of {sum(rows.tolist())} rows, {metadata.num_rows} in the file")
        full = rows > 0
        if not full.all():
            # Numbers of row groups are those of the file, so an empty one keeps its place and has no rows.
            extents[~full] = 0
        return _Record(
            name=self.names[file],
            version=version,
            begin=0,
            footer_bytes=len(footer),
            footer_sum=xxhash.xxh3_64_intdigest(footer),
            columns=names,
            rows=rows.tobytes(),
            extents=extents.tobytes(),
        )

    def _write(self, records: list[_Record], fresh: dict[int, bytes]) -> list[_Record]:
        """Keep footers and records, if there is somewhere to."""
        self._records = records
        footers = [fresh[number] if number in fresh else self._footer(number) for number in range(len(records))]
        begins = itertools.accumulate(map(len, footers), initial=0)
        placed = [msgspec.structs.replace(record, begin=at) for record, at in zip(records, begins, strict=False)]
        said = msgspec.msgpack.encode(placed)
        with contextlib.suppress(OSError):
            self._index.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(self._index) as file:
                file.writelines(footers)
                file.write(said)
                file.write(len(said).to_bytes(8, "little") + xxhash.xxh3_64_intdigest(said).to_bytes(8, "little"))
        return placed

    @property
    def kept_ever(self) -> Path:
        """The file in the cache folder that belongs to these, whatever becomes of them."""
        return self._index

    @property
    def kept_beside(self) -> Path:
        """What the names of files in the cache folder that belong to these begin with, as they are now.

        By their versions, too: other numbers may well have the same footer.
        """
        said = msgspec.msgpack.encode(self._versions)
        return self._index.with_name(f"{self._index.stem}-{xxhash.xxh3_64_hexdigest(said)}")

    def close(self) -> None:
        """Close the files; reading again opens them anew."""
        self.store.close()


def _opened(location: str, cache_dir: str | None, content_id: str) -> ParquetFiles:
    files = ParquetFiles(location, cache_dir=cache_dir)
    if files.content_id != content_id:
        raise StaleIndexError(
            f"{location}: its files were changed since this process's parent opened them; begin anew, and write to no "
            "files that are being read"
        )
    return files


def _of_file(path: str) -> Version:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise DatasetNotFoundError(no_such_path(path)) from None
    return status.st_size, status.st_mtime_ns


def _read_records(path: Path) -> list[_Record]:
    """What was kept; nothing where that is damaged."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError), open(path, "rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - 16))
        end = file.read(16)
        length = int.from_bytes(end[:8], "little")
        if len(end) == 16 and length <= size - 16:
            file.seek(size - 16 - length)
            said = file.read(length)
            if xxhash.xxh3_64_intdigest(said) == int.from_bytes(end[8:], "little"):
                return _RECORDS.from_msgpack(said)
    return []


def _footer_length(path: str, tail: bytes, size_bytes: int) -> int:
    """Bytes of the footer of a file with this end. Raises FormatError."""
    said = int.from_bytes(tail[-8:-4], "little")
    if tail[-4:] == b"PARE":
        raise FormatError(f"{path}: its footer is encrypted, which is not read; write it in the clear")
    if tail[-4:] != _MAGIC or not 0 < said <= min(size_bytes - 12, _LARGEST_FOOTER_BYTES):
        found = (
            f"ends in {tail[-4:]!r}, not {_MAGIC!r}" if tail[-4:] != _MAGIC else f"announces a footer of {said} bytes"
        )
        raise FormatError(f"{path}: {found} ({size_bytes} bytes); the file {_DAMAGED}")
    return said


def _leaves(kind: Any) -> int:
    """Columns of a file that a column of this type takes."""
    import pyarrow

    if isinstance(kind, pyarrow.BaseExtensionType):
        return _leaves(kind.storage_type)
    if pyarrow.types.is_dictionary(kind):
        return _leaves(kind.value_type)
    return sum(_leaves(kind.field(number).type) for number in range(kind.num_fields)) if kind.num_fields else 1


_ROW_GROUPS, _CHUNKS, _ROWS, _ELSEWHERE, _CHUNK = 4, 1, 3, 1, 3
_UNPACKED, _PACKED, _PAGES, _DICTIONARY = 6, 7, 9, 11
_WANTED = {
    _ROW_GROUPS: {
        _ROWS: None,
        _CHUNKS: {_ELSEWHERE: None, _CHUNK: dict.fromkeys((_UNPACKED, _PACKED, _PAGES, _DICTIONARY))},
    }
}
"""Numbers of fields in `parquet.thrift`, of the structs FileMetaData, RowGroup, ColumnChunk and ColumnMetaData."""
_DEEPEST = 32


def _thrift(footer: bytes) -> dict[int, Any]:
    """The wanted fields of a footer, which is a struct in Thrift's compact protocol; see its compact-protocol.md.

    pyarrow tells the same of each chunk, but ends the process where what a footer says contradicts itself.

    Raises:
        ValueError: It is none.
    """
    try:
        return _struct(footer, 0, _WANTED, 0)[0]
    except IndexError:
        raise ValueError("the footer ends within a value") from None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value = byte & 0x7F
    for shift in range(7, 70, 7):
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
    raise ValueError("the footer has a number of more than 64 bits")


def _struct(data: bytes, at: int, wanted: Mapping[int, Any], depth: int) -> tuple[dict[int, Any], int]:
    if depth > _DEEPEST:
        raise ValueError("the footer is nested too deeply")
    found: dict[int, Any] = {}
    field = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            field += head >> 4
        else:
            field, at = _varint(data, at)
            field = field >> 1 ^ -(field & 1)
        value, at = _value(data, at, head & 15, wanted.get(field) or {}, depth)
        if field in wanted:
            found[field] = value
    return found, at + 1


def _value(data: bytes, at: int, kind: int, wanted: Mapping[int, Any], depth: int) -> tuple[Any, int]:
    if 4 <= kind <= 6:
        value, at = _varint(data, at)
        return value >> 1 ^ -(value & 1), at
    if kind == 8:
        length, at = _varint(data, at)
        if at + length > len(data):
            raise IndexError
        return data[at : at + length], at + length
    if kind == 12:
        return _struct(data, at, wanted, depth + 1)
    if kind in (9, 10):
        of, count = data[at] & 15, data[at] >> 4
        at += 1
        if count == 15:
            count, at = _varint(data, at)
        values: list[Any] = []
        for _ in range(count):  # truth values take a byte each here
            value, at = _value(data, at, 3 if of < 3 else of, wanted, depth + 1)
            if wanted:
                values.append(value)
        return values, at
    if kind not in (1, 2, 3, 7):
        raise ValueError(f"the footer has a value of type {kind}")
    at += {3: 1, 7: 8}.get(kind, 0)
    if at > len(data):
        raise IndexError
    return kind == 1, at


def _number(struct: Mapping[int, Any], field: int) -> int:
    """A field that is a number; 0 where it is missing. Raises ValueError."""
    value = struct.get(field, 0)
    if type(value) is not int:
        raise ValueError(f"its footer has something else than a number in field {field}")
    return value


def _structs(struct: Mapping[int, Any], field: int) -> list[dict[int, Any]]:
    """A field that is a list of structs; none where it is missing. Raises ValueError."""
    value = struct.get(field, [])
    if not isinstance(value, list) or any(type(each) is not dict for each in value):
        raise ValueError(f"its footer has something else than a list in field {field}")
    return value


def _extents(chunks: Sequence[dict[int, Any]], leaves: Sequence[int], *, end: int) -> list[tuple[int, int, int]]:
    """First byte, one past the last, and bytes uncompressed, of each column of a row group.

    Args:
        chunks: What a footer says of the columns of the file.
        leaves: How many of these each column takes.
        end: Where the footer begins.

    Raises:
        ValueError: They do not lie in the file.
    """
    if len(chunks) != sum(leaves):
        raise ValueError(f"a row group has {len(chunks)} columns, but the schema {sum(leaves)}")
    places: list[tuple[int, int, int]] = []
    for chunk in chunks:
        if chunk.get(_ELSEWHERE):
            raise ValueError("its columns lie in other files, which is not read")
        said = chunk.get(_CHUNK)
        if not isinstance(said, dict):
            raise ValueError("its footer says nothing of a column")
        unpacked, packed, pages, dictionary = (_number(said, f) for f in (_UNPACKED, _PACKED, _PAGES, _DICTIONARY))
        begin = min(pages, dictionary) if dictionary else pages
        if not (0 <= begin <= begin + packed <= end and 0 <= unpacked < _MOST_ROWS):
            raise ValueError(f"a column at bytes {begin} to {begin + packed}, but the footer begins @ {end}")
        places.append((begin, begin + packed, unpacked))
    cuts = [0, *itertools.accumulate(leaves)]
    columns = [places[begin:stop] for begin, stop in itertools.pairwise(cuts)]
    return [(min(c[0] for c in each), max(c[1] for c in each), sum(c[2] for c in each)) for each in columns]


class _HeldFile:
    """A file of which some ranges are in memory; others are read when pyarrow asks for them."""

    closed = False

    def __init__(self, path: str, store: _Store, held: dict[int, bytes]) -> None:
        self._path, self._store = path, store
        self._starts = sorted(held)
        self._data = [memoryview(held[start]) for start in self._starts]
        self._at = 0

    def read(self, size: int = -1) -> memoryview | bytes:
        """The next bytes, as `io.RawIOBase.read`."""
        at, self._at = self._at, self._at + max(size, 0)
        place = bisect_right(self._starts, at) - 1
        if place >= 0:
            begin = at - self._starts[place]
            if begin + size <= len(self._data[place]):
                return self._data[place][begin : begin + size]
        stop = min(at + size, self._store.size(self._path))
        one = np.zeros(1, np.int64)
        return self._store.read_spans([self._path], one, np.array([at]), np.array([stop]))[0] if stop > at else b""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """See `io.IOBase`."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: 0}[whence]
        self._at = (self._store.size(self._path) if whence == io.SEEK_END else base) + offset
        return self._at

    def tell(self) -> int:
        """See `io.IOBase`."""
        return self._at

    def close(self) -> None:
        """Nothing is open."""

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def writable(self) -> bool:
        """False."""
        return False
