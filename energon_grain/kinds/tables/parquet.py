# SPDX-License-Identifier: Apache-2.0
"""Parquet files: footers, and row groups as Arrow tables. See `TableFiles`.

pyarrow gets a file that contains only the bytes of the wanted columns. It checks pages as it decodes. Footers are
parsed by our own code, since pyarrow aborts the process on contradictory ones.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from energon_grain.errors import FormatError
from energon_grain.kinds.tables.files import DAMAGED, MAX_ROWS, BufferedFile, Record, TableFiles
from energon_grain.kinds.tables.parquet_pages import Chunk, Leaf, Reading, plan_reading
from energon_grain.kinds.tables.parquet_thrift import number, read_struct, structs
from energon_grain.storage.cores import reset_after_fork
from energon_grain.storage.settings import storage_settings

_MAGIC = b"PAR1"
_TAIL_BYTES = 64 << 10
_LARGEST_FOOTER_BYTES = 1 << 30
_PARSED_BYTES = 64 << 20
"""Limit on footers that stay parsed, by their size in files; parsed they take about ten times as much."""
_parsing = reset_after_fork(threading.Lock())


class ParquetFiles(TableFiles):
    """Parquet files; see `TableFiles`."""

    kind = "Parquet files"
    endings = (".parquet",)
    group_option = "`row_group_size`"
    reads_whole_groups = False

    def __init__(self, path: str | os.PathLike[str], *, cache_dir: str | os.PathLike[str] | None = None) -> None:
        self._parsed: OrderedDict[int, _Footer] = OrderedDict()
        super().__init__(path, cache_dir=cache_dir)

    def schema(self, file: int = 0) -> Any:
        with self._decoding(self.paths[file]):
            return self._footer(file).schema

    def _footer(self, file: int) -> _Footer:
        """The footer of a file. Recently used ones stay parsed."""
        with _parsing:
            found = self._parsed.get(file)
            if found is not None:
                self._parsed.move_to_end(file)
                return found
        parsed = self._parse(file, self._head(file))
        with _parsing:
            self._parsed[file] = parsed
            parsed_bytes = sum(self._records[each].head_bytes for each in self._parsed)
            while len(self._parsed) > 1 and parsed_bytes > _PARSED_BYTES:
                parsed_bytes -= self._records[self._parsed.popitem(last=False)[0]].head_bytes
        return parsed

    def _table(self, group: int, names: list[str]) -> Any:
        import pyarrow

        file, within = int(self.groups.file[group]), int(self.groups.number[group])
        footer = self._footer(file)
        _, start, size, _ = self.spans(np.array([group]), names)
        buffered = BufferedFile(self.paths[file], self.store, self._bytes_of(file, start, size))
        chunks = [chunk for chunk in footer.chunks[within] if chunk.leaf.column in names]
        plan = plan_reading(chunks, buffered, storage_settings().largest_group_bytes)
        self._check_size(group, plan.sizes)
        opened = footer.open(buffered, plan)
        if plan.rows_at_once is None:
            table = opened.read_row_group(within, columns=names, use_threads=False)
        else:
            steps = opened.iter_batches(plan.rows_at_once, [within], columns=names, use_threads=False)
            table = pyarrow.Table.from_batches(list(self._checked(group, names, steps)))
        table.validate()
        return table.select(names)  # for a column `a.b` pyarrow also returns the field `b` of a struct `a`

    def _checked(self, group: int, names: list[str], batches: Iterator[Any]) -> Iterator[Any]:
        """Record batches of a row group, until they exceed the size limit. Raises FormatError."""
        sizes = dict.fromkeys(names, 0)
        for batch in batches:
            for name in names:
                sizes[name] += batch.column(name).nbytes
            self._check_size(group, sizes)
            yield batch

    def _read_heads(self, files: Sequence[int]) -> list[bytes]:
        """The footers of files: reads the ends of all at once, and more of longer footers."""
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

    def _parse(self, file: int, footer: bytes) -> _Footer:
        import pyarrow
        import pyarrow.parquet

        whole = b"".join((footer, len(footer).to_bytes(4, "little"), _MAGIC))
        with self._decoding(self.paths[file]):
            metadata = pyarrow.parquet.read_metadata(pyarrow.BufferReader(whole))
            return _Footer(metadata, footer, self._versions[file][0] - 8 - len(footer))

    def _record(self, file: int, head: bytes) -> Record:
        footer = self._parse(file, head)
        with self._decoding(self.paths[file]):
            names, leaves, metadata = footer.schema.names, footer.leaves, footer.metadata
            if len(set(names)) < len(names):
                raise ValueError("two columns have the same name")
            if sum(leaves) != metadata.num_columns:
                raise ValueError(f"the schema has {sum(leaves)} columns, the file {metadata.num_columns}")
            groups = footer.groups
            rows = np.array([number(each, _ROWS) for each in groups], "<i8")
            cuts = [0, *itertools.accumulate(leaves)]
            extents = np.array([_extents(chunks, cuts) for chunks in footer.chunks], "<i8")
            extents = extents.reshape(len(rows), len(names), 3)
            if len(groups) != metadata.num_row_groups or (rows < 0).any():
                raise ValueError(f"found {len(groups)} row groups, but the file declares {metadata.num_row_groups}")
            if sum(rows.tolist()) != metadata.num_rows or metadata.num_rows >= MAX_ROWS:
                raise ValueError(
                    f"row groups have {sum(rows.tolist())} rows, but the file declares {metadata.num_rows}"
                )
        full = rows > 0
        if not full.all():
            # Row group numbers are those of the file, so an empty group keeps its number and has no rows.
            extents[~full] = 0
        return self._recorded(file, head, names, rows.tolist(), extents)


def _footer_length(path: str, tail: bytes, size_bytes: int) -> int:
    """Size of the footer of a file with this end. Raises FormatError."""
    declared = int.from_bytes(tail[-8:-4], "little")
    if tail[-4:] == b"PARE":
        raise FormatError(f"{path}: its footer is encrypted, which is not supported; write the file without encryption")
    if tail[-4:] != _MAGIC or not 0 < declared <= min(size_bytes - 12, _LARGEST_FOOTER_BYTES):
        found = (
            f"ends in {tail[-4:]!r}, not {_MAGIC!r}"
            if tail[-4:] != _MAGIC
            else f"declares a footer of {declared} bytes"
        )
        raise FormatError(f"{path}: {found} ({size_bytes} bytes); {DAMAGED}")
    return declared


class _Footer:
    """A parsed footer.

    Args:
        metadata: Parsed by pyarrow.
        head: Its bytes.
        begin: Its offset in the file.
    """

    def __init__(self, metadata: Any, head: bytes, begin: int) -> None:
        self.metadata, self._head, self._begin = metadata, head, begin

    def open(self, file: Any, plan: Reading | None = None) -> Any:
        """The `pyarrow.parquet.ParquetFile` of a file with this footer. INT96 is limited to the microsecond range."""
        import pyarrow.parquet

        return pyarrow.parquet.ParquetFile(
            file,
            metadata=self.metadata,
            pre_buffer=False,
            page_checksum_verification=True,
            coerce_int96_timestamp_unit="us",
            read_dictionary=None if plan is None else list(plan.coded),
        )

    @cached_property
    def schema(self) -> Any:
        """The `pyarrow.Schema`."""
        import pyarrow

        return self.open(pyarrow.BufferReader(b"")).schema_arrow

    @cached_property
    def leaves(self) -> list[int]:
        """Number of file columns of each schema column."""
        return [_leaves(column.type) for column in self.schema]

    @cached_property
    def _columns(self) -> list[Leaf]:
        """The columns of the file."""
        owners = [column for column, count in zip(self.schema, self.leaves, strict=True) for _ in range(count)]
        leaves = [self.metadata.schema.column(number) for number in range(len(owners))]
        return [
            Leaf(
                column=owner.name,
                path=leaf.path,
                physical=leaf.physical_type,
                width=leaf.length or 0,
                has_codes=not _has_extension(owner.type),
            )
            for owner, leaf in zip(owners, leaves, strict=True)
        ]

    @cached_property
    def groups(self) -> list[dict[int, Any]]:
        """The row groups, see `_WANTED`. Raises ValueError."""
        try:
            return structs(read_struct(self._head, _WANTED)[0], _ROW_GROUPS)
        except IndexError:
            raise ValueError("the footer ends within a value") from None

    @cached_property
    def chunks(self) -> list[list[Chunk]]:
        """The columns of the file in each row group. Raises ValueError."""
        return [_chunks(structs(group, _CHUNKS), self._columns, end=self._begin) for group in self.groups]


def _has_extension(kind: Any) -> bool:
    """Whether a type is or contains an extension type: pyarrow returns no dictionary codes for these."""
    import pyarrow

    if isinstance(kind, pyarrow.BaseExtensionType):
        return True
    return any(_has_extension(kind.field(number).type) for number in range(kind.num_fields))


def _leaves(kind: Any) -> int:
    """Number of file columns of a schema column of this type."""
    import pyarrow

    if isinstance(kind, pyarrow.BaseExtensionType):
        return _leaves(kind.storage_type)
    if pyarrow.types.is_dictionary(kind):
        return _leaves(kind.value_type)
    return sum(_leaves(kind.field(number).type) for number in range(kind.num_fields)) if kind.num_fields else 1


_ROW_GROUPS, _CHUNKS, _ROWS, _ELSEWHERE, _CHUNK = 4, 1, 3, 1, 3
_FIELDS = 4, 5, 6, 7, 9, 11  # codec, values, uncompressed and compressed bytes, first data page, dictionary
_WANTED = {
    _ROW_GROUPS: {
        _ROWS: None,
        _CHUNKS: {
            _ELSEWHERE: None,
            _CHUNK: dict.fromkeys(_FIELDS),
        },
    }
}
"""Field numbers from `parquet.thrift`, in the structs FileMetaData, RowGroup, ColumnChunk and ColumnMetaData."""


def _chunks(entries: Sequence[dict[int, Any]], leaves: Sequence[Leaf], *, end: int) -> list[Chunk]:
    """The columns of a row group.

    Args:
        said: Their entries in the footer.
        leaves: The columns of the schema.
        end: Offset of the footer.

    Raises ValueError if they are not in the file.
    """
    if len(entries) != len(leaves):
        raise ValueError(f"a row group has {len(entries)} columns, but the schema has {len(leaves)}")
    chunks: list[Chunk] = []
    for leaf, own in zip(leaves, entries, strict=True):
        if own.get(_ELSEWHERE):
            raise ValueError("its columns are in other files, which is not supported")
        own = own.get(_CHUNK)
        if not isinstance(own, dict):
            raise ValueError("its footer lacks the entry of a column")
        codec, values, unpacked, packed, pages, dictionary = (number(own, field) for field in _FIELDS)
        begin = min(pages, dictionary) if dictionary else pages
        if not (0 <= begin <= begin + packed <= end and 0 <= unpacked < MAX_ROWS):
            raise ValueError(f"a column at bytes {begin} to {begin + packed}, but the footer begins at byte {end}")
        chunks.append(
            Chunk(leaf=leaf, start=begin, stop=begin + packed, unpacked_bytes=unpacked, values=values, codec=codec)
        )
    return chunks


def _extents(chunks: Sequence[Chunk], cuts: Sequence[int]) -> list[tuple[int, int, int]]:
    """First byte, one past the last, and uncompressed bytes, of each schema column in a row group.

    Args:
        cuts: Boundaries of the file columns of each schema column.
    """
    columns = [chunks[begin:stop] for begin, stop in itertools.pairwise(cuts)]
    return [
        (min(c.start for c in each), max(c.stop for c in each), sum(c.unpacked_bytes for c in each)) for each in columns
    ]
