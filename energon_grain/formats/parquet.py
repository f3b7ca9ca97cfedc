"""Parquet files: footers, and row groups as Arrow tables. See `TableFiles`.

pyarrow gets a file that has the bytes of the wanted columns and no others. It checks pages as it decodes; footers are
parsed here, as pyarrow ends the process where one contradicts itself.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from energon_grain.errors import FormatError
from energon_grain.formats.table_files import DAMAGED, MOST_ROWS, HeldFile, Record, TableFiles
from energon_grain.storage.cores import over_forks

_MAGIC = b"PAR1"
_TAIL_BYTES = 64 << 10
_LARGEST_FOOTER_BYTES = 1 << 30
_PARSED_BYTES = 64 << 20
"""Footers that stay parsed, as they lie in files: parsed they take about ten times as much."""
_parsing = over_forks(threading.Lock())


class ParquetFiles(TableFiles):
    """Parquet files; see `TableFiles`."""

    kind = "Parquet files"
    endings = (".parquet",)
    group_option = "`row_group_size`"
    reads_whole_groups = False

    def __init__(self, path: str | os.PathLike[str], *, cache_dir: str | os.PathLike[str] | None = None) -> None:
        self._parsed: OrderedDict[int, Any] = OrderedDict()
        super().__init__(path, cache_dir=cache_dir)

    def schema(self, file: int = 0) -> Any:
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
        parsed = self._parse(file, self._head(file))
        with _parsing:
            self._parsed[file] = parsed
            held = sum(self._records[each].head_bytes for each in self._parsed)
            while len(self._parsed) > 1 and held > _PARSED_BYTES:
                held -= self._records[self._parsed.popitem(last=False)[0]].head_bytes
        return parsed

    def _table(self, group: int, names: list[str]) -> Any:
        import pyarrow.parquet

        file, number = int(self.groups.file[group]), int(self.groups.number[group])
        _, start, size, _ = self.spans(np.array([group]), names)
        held = HeldFile(self.paths[file], self.store, self._bytes_of(file, start, size))
        opened = pyarrow.parquet.ParquetFile(
            held, metadata=self.metadata(file), pre_buffer=False, page_checksum_verification=True
        )
        table = opened.read_row_group(number, columns=names, use_threads=False)
        table.validate()
        return table.select(names)  # by the name of a column `a.b` pyarrow also takes the field `b` of a struct `a`

    def _read_heads(self, files: Sequence[int]) -> list[bytes]:
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

    def _parse(self, file: int, footer: bytes) -> Any:
        import pyarrow
        import pyarrow.parquet

        whole = b"".join((footer, len(footer).to_bytes(4, "little"), _MAGIC))
        with self._decoding(self.paths[file]):
            return pyarrow.parquet.read_metadata(pyarrow.BufferReader(whole))

    def _record(self, file: int, head: bytes) -> Record:
        import pyarrow
        import pyarrow.parquet

        path, version = self.paths[file], self._versions[file]
        metadata = self._parse(file, head)
        with self._decoding(path):
            schema = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(b""), metadata=metadata).schema_arrow
            names: list[str] = schema.names
            if len(set(names)) < len(names):
                raise ValueError("two columns have one name")
            leaves = [_leaves(column.type) for column in schema]
            if sum(leaves) != metadata.num_columns:
                raise ValueError(f"{sum(leaves)} columns by the schema, {metadata.num_columns} in the file")
            said = _thrift(head)
            groups = _structs(said, _ROW_GROUPS)
            rows = np.array([_number(group, _ROWS) for group in groups], "<i8")
            extents = np.array(
                [_extents(_structs(group, _CHUNKS), leaves, end=version[0] - 8 - len(head)) for group in groups],
                "<i8",
            ).reshape(len(rows), len(names), 3)
            if len(groups) != metadata.num_row_groups or (rows < 0).any():
                raise ValueError(f"{len(groups)} row groups, {metadata.num_row_groups} in the file")
            if sum(rows.tolist()) != metadata.num_rows or metadata.num_rows >= MOST_ROWS:
                raise ValueError(f"row groups of {sum(rows.tolist())} rows, {metadata.num_rows} in the file")
        full = rows > 0
        if not full.all():
            # Numbers of row groups are those of the file, so an empty one keeps its place and has no rows.
            extents[~full] = 0
        return self._recorded(file, head, names, rows.tolist(), extents)


def _footer_length(path: str, tail: bytes, size_bytes: int) -> int:
    """Bytes of the footer of a file with this end. Raises FormatError."""
    said = int.from_bytes(tail[-8:-4], "little")
    if tail[-4:] == b"PARE":
        raise FormatError(f"{path}: its footer is encrypted, which is not read; write it in the clear")
    if tail[-4:] != _MAGIC or not 0 < said <= min(size_bytes - 12, _LARGEST_FOOTER_BYTES):
        found = (
            f"ends in {tail[-4:]!r}, not {_MAGIC!r}" if tail[-4:] != _MAGIC else f"announces a footer of {said} bytes"
        )
        raise FormatError(f"{path}: {found} ({size_bytes} bytes); {DAMAGED}")
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

    Raises ValueError: it is none.
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

    Raises ValueError: they do not lie in the file.
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
        if not (0 <= begin <= begin + packed <= end and 0 <= unpacked < MOST_ROWS):
            raise ValueError(f"a column at bytes {begin} to {begin + packed}, but the footer begins @ {end}")
        places.append((begin, begin + packed, unpacked))
    cuts = [0, *itertools.accumulate(leaves)]
    columns = [places[begin:stop] for begin, stop in itertools.pairwise(cuts)]
    return [(min(c[0] for c in each), max(c[1] for c in each), sum(c[2] for c in each)) for each in columns]
