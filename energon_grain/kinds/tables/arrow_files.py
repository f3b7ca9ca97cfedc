# SPDX-License-Identifier: Apache-2.0
"""Arrow files, as written by Feather 2 and Hugging Face's `datasets`, and their record batches. See `TableFiles`.

A file is a sequence of messages (Apache Arrow, "Serialization and Interprocess Communication"): a schema, dictionaries
and record batches. The head of each message is a FlatBuffers structure with the length of its body and the offsets of
the buffers of each column. The file format adds `ARROW1` before them and a footer after them, which repeats the schema
and the offsets of dictionaries and batches; the stream format has neither.

The messages are walked once; in a store, their heads are fetched in parallel if a footer lists their offsets. A file
that begins with `ARROW1` must end in a footer that lists exactly the messages found by the walk: a truncated file, or
one that lost some heads, is an error and never a shorter table. To read a batch, pyarrow gets a synthetic stream: the
schema, the dictionaries before the batch, and the batch, with only the wanted columns read and zeros elsewhere. For
uncompressed local files the body is the memory-mapped file itself: decoding copies nothing, and truncating such a file
during a read kills the process.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from energon_grain.errors import StaleIndexError
from energon_grain.formats.data_files import Version, find_files, nothing_found, version_of
from energon_grain.formats.local_files import LocalFiles
from energon_grain.formats.mapped_files import map_file
from energon_grain.forms import Form
from energon_grain.kinds.tables.files import Record, TableFiles
from energon_grain.kinds.tables.saved_datasets import STATE_JSON, files_of_saved, refuse_splits
from energon_grain.storage.location import join, name_of
from energon_grain.words import counted

Int64Array = npt.NDArray[np.int64]
_MAGIC, _FEATHER_1 = b"ARROW1", b"FEA1"
_NEXT = b"\xff\xff\xff\xff"
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_LARGEST_HEAD_BYTES = 64 << 20
_STEP_BYTES = 4096
_FOOTER_BYTES = 8 << 10
_MAX_BLOCKS = 1 << 14
_ALIGNMENTS = [1 << bits for bits in range(3, 13)]
"""Paddings of buffers that writers use: usually 8 or 64 bytes."""


class _Head(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The stored description of a file.

    Attributes:
        schema: The first message.
        dictionaries: In the order of the file, as (first byte, bytes).
        batches: As (first byte, bytes, rows, head).
        is_compressed: Whether any body is compressed.
        digest: XXH3-64 of everything read to walk the file: all heads, and the beginnings of bodies.
    """

    schema: bytes
    dictionaries: list[tuple[int, int]] = []
    batches: list[tuple[int, int, int, bytes]] = []
    is_compressed: bool = False
    digest: int = 0


_HEAD = Form(_Head)


class ArrowFiles(TableFiles):
    """Arrow files in the file or stream format; see `TableFiles`."""

    kind = "Arrow files"
    endings = (".arrow", ".feather")
    group_word = "record batch"
    group_option = "`writer_batch_size` of `datasets`, `max_chunksize` of pyarrow"
    reads_whole_groups = False
    _cache_ending = ".heads"  # `.footers` of earlier releases may describe truncated files
    _named_by = "heads with heads of batches"

    def __init__(self, path: str | os.PathLike[str], *, cache_dir: str | os.PathLike[str] | None = None) -> None:
        self._maps: dict[int, memoryview] = {}
        self._layouts: dict[int, _Layout] = {}
        super().__init__(path, cache_dir=cache_dir)
        self._heads = [_HEAD.from_msgpack(self._head(file)) for file in range(len(self.names))]
        compressed = any(head.is_compressed for head in self._heads)
        self.is_mapped = isinstance(self.store, LocalFiles) and not compressed

    def _find(self) -> tuple[str, list[str], dict[str, Version] | None]:
        if self.location.endswith(self.endings):
            return super()._find()
        refuse_splits(self.location)
        root, found, versions = find_files(self.location, (*self.endings, STATE_JSON))
        states = [name for name in found if name_of(name) == STATE_JSON]
        names = [name for name in found if name.endswith(self.endings)]
        if states:
            exists = versions.__contains__ if versions is not None else lambda name: os.path.isfile(join(root, name))
            names = files_of_saved(root, names, states, exists)
        if not names:
            raise nothing_found(self.location, self.endings)
        return root, names, versions

    def schema(self, file: int = 0) -> Any:
        return self._schema(file, self._heads[file])

    def _schema(self, file: int, head: _Head) -> Any:
        import pyarrow

        with self._decoding(self.paths[file]):
            return pyarrow.ipc.read_schema(pyarrow.py_buffer(head.schema))

    def _table(self, group: int, names: list[str]) -> Any:
        import pyarrow

        file, number = int(self.groups.file[group]), int(self.groups.number[group])
        head = self._heads[file]
        start, size, _, message = head.batches[number]
        before = self._pieces(file, [each for each in head.dictionaries if each[0] < start])
        body_start, head_bytes = start + len(message), _with_null_counts(self._layout_of(file), message)
        if self.is_mapped:
            batch = [head_bytes, *self._pieces(file, [(body_start, size - len(message))])]
        else:
            body = np.zeros(size - len(message), np.uint8)
            _, first, long, _ = self.spans(np.array([group]), names)
            for at, data in self._bytes_of(file, first, long).items():
                body[at - body_start : at - body_start + len(data)] = np.frombuffer(data, np.uint8)
            batch = [head_bytes, body.data]
        if head.is_compressed:
            self._check_size(group, self._unpacked(group, names, body_start, batch, before))
        places = [self._records[file].columns.index(name) for name in names]
        options = pyarrow.ipc.IpcReadOptions(included_fields=places, use_threads=False)
        stream: Any = _Stream([head.schema, *before, *batch])
        table = pyarrow.ipc.open_stream(pyarrow.PythonFile(stream, mode="r"), options=options).read_all()
        table.validate(full=True)
        return table.select(names)

    def _layout_of(self, file: int) -> _Layout:
        if file not in self._layouts:
            try:
                nodes = [each for column in self.schema(file) for each in _layout(column.type)]
            except (KeyError, NotImplementedError):  # pyarrow does not support a column; others are readable
                nodes = []
            counts, has_bitmap, is_view = np.array(nodes, np.int64).reshape(-1, 3).T
            views = np.flatnonzero(is_view)
            self._layouts[file] = _Layout(counts=counts, has_bitmap=has_bitmap.astype(np.bool_), views=views)
        return self._layouts[file]

    def _unpacked(
        self, group: int, names: list[str], begin: int, batch: list[Any], before: list[Any]
    ) -> dict[str, int]:
        """Uncompressed bytes of columns of a compressed batch, the first one with all dictionaries. Raises ValueError.

        Args:
            begin: Offset of the batch's body in the file.
            batch: Its head and body.
            before: The dictionaries.
        """
        sizes = dict.fromkeys(names, 0)
        sizes[names[0]] = sum(size for each in before for _, size in _unpacked_buffers(*_split(each)))
        places = self.groups.extents[group, [self.columns.index(name) for name in names], :2] - begin
        for at, size in _unpacked_buffers(*batch):
            own = np.flatnonzero((places[:, 0] <= at) & (at < places[:, 1]))
            if len(own):
                sizes[names[own[0]]] += size
        return sizes

    def _pieces(self, file: int, places: Sequence[tuple[int, int]]) -> list[Any]:
        """Bytes of a file; views if it is mapped."""
        if self.is_mapped:
            path = self.paths[file]
            if file not in self._maps:
                with open(path, "rb") as opened:
                    self._maps[file] = memoryview(map_file(opened.fileno()))
            if version_of(path) != self._versions[file]:  # a mapping changes with the file
                raise StaleIndexError(f"{path}: changed after it was opened; restart")
            return [self._maps[file][start : start + size] for start, size in places]
        start, size = np.array(places, np.int64).reshape(-1, 2).T
        return self.store.read_spans([self.paths[file]], np.zeros(len(places), np.int64), start, start + size)

    def _read_head(self, file: int) -> bytes:
        path, size_bytes = self.paths[file], self._versions[file][0]
        self.store.expect(path, self._versions[file])  # type: ignore[arg-type]
        digest = xxhash.xxh3_64()
        with self._decoding(path):
            messages = list(self._walk(file, size_bytes, digest))
            if [each.kind for each in messages].count(_SCHEMA) != 1 or messages[0].kind != _SCHEMA:
                raise ValueError("expected exactly one schema, as the first message")
        return msgspec.msgpack.encode(
            _Head(
                schema=messages[0].head,
                dictionaries=[(each.start, each.size) for each in messages if each.kind == _DICTIONARY],
                batches=[(each.start, each.size, each.rows, each.head) for each in messages if each.kind == _BATCH],
                is_compressed=any(each.is_compressed for each in messages),
                digest=digest.intdigest(),
            )
        )

    def _walk(self, file: int, size_bytes: int, digest: xxhash.xxh3_64) -> Iterator[_Message]:
        """The messages of a file, in order. Raises ValueError."""
        begin = self._read(file, 0, min(8, size_bytes))
        if begin[:4] == _FEATHER_1:
            raise ValueError("is Feather version 1, which is not supported; write it again with `pyarrow.feather`")
        if begin[:6] != _MAGIC:
            yield from self._messages(file, 0, size_bytes, size_bytes, digest)
            return
        footer = self._footer(file, size_bytes)
        messages = list(self._messages(file, 8, footer.start, size_bytes, digest))
        footer.compare(messages)
        yield from messages

    def _messages(self, file: int, at: int, end: int, size_bytes: int, digest: xxhash.xxh3_64) -> Iterator[_Message]:
        """The messages between two offsets. Raises ValueError."""
        marks = b""  # before the length; not written by Arrow before 0.15
        while at < end:
            data = self._read(file, at, min(at + _STEP_BYTES, size_bytes))
            mark = _NEXT if data[:4] == _NEXT else b""
            prefix = len(mark) + 4
            length = int.from_bytes(data[len(mark) : prefix], "little", signed=True)
            if len(data) < prefix or (marks and not mark):
                raise ValueError(f"expected a message or the end of the table at byte {at}")
            if length == 0:
                return
            if not 0 < length <= min(_LARGEST_HEAD_BYTES, end - at - prefix):
                raise ValueError(
                    f"the message at byte {at} has a head of {length} bytes, but the file has {size_bytes}"
                )
            if prefix + length > len(data):
                data = self._read(file, at, at + prefix + length)
            digest.update(data)
            message = _message(data[: prefix + length], at)
            if not 0 <= message.body_bytes <= end - at - len(message.head):
                data = f"has a body of {message.body_bytes} bytes, but the file has {size_bytes}"
                raise ValueError(f"the message at byte {at} {data}")
            yield message
            at, marks = at + message.size, mark

    def _footer(self, file: int, size_bytes: int) -> _Footer:
        """The footer of a file in the file format. Raises ValueError.

        In a store, the heads that it lists are prefetched in parallel for `_messages`.
        """
        tail = self._read(file, max(0, size_bytes - _FOOTER_BYTES), size_bytes)
        length = int.from_bytes(tail[-10:-6], "little")
        if tail[-6:] != _MAGIC or not 0 < length <= min(_LARGEST_HEAD_BYTES, size_bytes - 18):
            raise ValueError(
                f"begins as an Arrow file, but does not end in a footer ({size_bytes} bytes): it was truncated, or its "
                "writer was not closed"
            )
        if length + 10 > len(tail):
            tail = self._read(file, size_bytes - length - 10, size_bytes)
        footer = _Footer(size_bytes - length - 10, tail[-10 - length :])
        if not isinstance(self.store, LocalFiles):
            start = np.array([at for _, at, *_ in footer.blocks if 0 <= at < size_bytes][:_MAX_BLOCKS], np.int64)
            self.fetch(np.full(len(start), file), start, np.minimum(_STEP_BYTES, size_bytes - start))
        return footer

    def _record(self, file: int, head: bytes) -> Record:
        parsed = _HEAD.from_msgpack(head)
        with self._decoding(self.paths[file]):
            schema = self._schema(file, parsed)
            names: list[str] = schema.names
            if len(set(names)) < len(names):
                raise ValueError("two columns have the same name")
            places = [_column_extents(schema, *batch) for batch in parsed.batches]
        return self._recorded(file, head, names, [rows for _, _, rows, _ in parsed.batches], places)

    def close(self) -> None:
        self._maps.clear()
        super().close()


class _Stream:
    """Consecutive messages as a file. Reads by pyarrow never cross the end of a message."""

    closed = False

    def __init__(self, messages: list[Any]) -> None:
        self._left = [memoryview(message) for message in reversed(messages)]

    def read(self, size: int) -> memoryview:
        if not self._left:
            return memoryview(b"")
        message = self._left.pop()
        if len(message) > size:
            self._left.append(message[size:])
        return message[:size]

    def close(self) -> None:
        """Nothing to close."""


def _column_extents(schema: Any, start: int, size: int, _: int, head: bytes) -> Int64Array:
    """(columns, 3) first byte, one past the last, and bytes of each column of a batch. Raises ValueError.

    If the buffers of columns are unknown, each column is assigned the whole body.
    """
    with _within_the_head(start):
        batch = _batch(_Table.of_message(head))
        buffers = batch.numbers(2)
        views = iter(np.frombuffer(batch.vector(4, 8), "<i8").tolist())
    begin, stop = start + len(head), start + size
    try:
        nodes = [list(_nodes(column.type, views)) for column in schema]
    except (KeyError, NotImplementedError):  # pyarrow does not support intervals of months, days and ms
        return np.tile([begin, stop, -(-(stop - begin) // max(1, len(schema)))], (len(schema), 1))
    if sum(map(len, nodes)) != len(batch.numbers(1)):
        raise ValueError(f"the message at byte {start} has columns that differ from the schema")
    ends = np.cumsum([0, *(sum(count for count, _ in column) for column in nodes)])
    if ends[-1] != len(buffers) or next(views, None) is not None:
        return np.tile([begin, stop, -(-(stop - begin) // max(1, len(schema)))], (len(schema), 1))
    found = np.zeros((len(schema), 3), np.int64)
    for column, (first, last) in enumerate(itertools.pairwise(ends.tolist())):
        own = buffers[first:last]
        own = own[own[:, 1] > 0]
        if len(own):
            low, high = begin + int(own[:, 0].min()), begin + int(own.sum(axis=1).max())
            found[column] = low, high, high - low
    return found


def _nodes(kind: Any, views: Iterator[int]) -> Iterator[tuple[int, bool]]:
    """(number of own buffers, whether the first is a null bitmap) of a column of a type, and of its children.

    `views`: for each array of views, its number of buffers beyond two, which hold the values.
    """
    for count, has_bitmap, is_view in _layout(kind):
        yield count + (next(views, 0) if is_view else 0), has_bitmap


@cache
def _layout(kind: Any) -> list[tuple[int, bool, bool]]:
    """(own buffers, whether the first is a null bitmap, whether more follow) of a type and its children."""
    import pyarrow

    while isinstance(kind, pyarrow.BaseExtensionType):
        kind = kind.storage_type
    is_ = pyarrow.types
    children = [kind.field(number).type for number in range(kind.num_fields)]
    own = len(pyarrow.nulls(0, kind).buffers()) - sum(len(pyarrow.nulls(0, child).buffers()) for child in children)
    has_bitmap = not (is_.is_null(kind) or is_.is_union(kind) or is_.is_run_end_encoded(kind))
    if not has_bitmap:
        own -= 1  # pyarrow counts it anyway
    is_view = is_.is_string_view(kind) or is_.is_binary_view(kind)
    return [(own, has_bitmap, is_view), *(each for child in children for each in _layout(child))]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Message:
    """A message of a file.

    Attributes:
        start: Its first byte.
        size: Its bytes, with its body.
        rows: Rows of a record batch or dictionary.
        dictionary: Id of the dictionary, and whether the message adds values to it.
        head: Its bytes before the body.
    """

    kind: int
    start: int
    size: int
    rows: int = 0
    is_compressed: bool = False
    dictionary: tuple[int, bool] | None = None
    head: bytes

    @property
    def body_bytes(self) -> int:
        return self.size - len(self.head)


def _message(head: bytes, at: int) -> _Message:
    """Parse the head of a message @ `at`. Raises ValueError.

    `Message.fbs`: Message {version, header_type, header, bodyLength}.
    """
    with _within_the_head(at):
        message = _Table.of_message(head)
        kind, body_bytes = message.number("B", 1), message.number("q", 3)
        found = _Message(kind=kind, start=at, size=len(head) + body_bytes, head=head)
        if kind in (_DICTIONARY, _BATCH):
            batch, header = _batch(message), message.table(2)
            rows = batch.number("q", 0)
            if rows < 0:
                raise ValueError(f"the message at byte {at} has {rows} rows")
            nodes = batch.numbers(1)
            if len(nodes) and nodes[0, 0] != rows:
                raise ValueError(f"the message at byte {at} has {rows} rows, but its first column has {nodes[0, 0]}")
            _check_buffers(batch.numbers(2), body_bytes, at)
            dictionary = (header.number("q", 0), header.number("B", 2) != 0) if kind == _DICTIONARY else None
            found = replace(found, rows=rows, is_compressed=bool(batch.place(3)), dictionary=dictionary)
        elif kind != _SCHEMA:
            raise ValueError(f"the message at byte {at} is of kind {kind}, which does not occur in tables")
    return found


def _batch(message: _Table) -> _Table:
    """The RecordBatch {length, nodes, buffers, compression} of a message; a dictionary {id, data, isDelta} has one."""
    header = message.table(2)
    return header if message.number("B", 1) == _BATCH else header.table(1)


def _check_buffers(buffers: Int64Array, body_bytes: int, at: int) -> None:
    """Raise ValueError unless the buffers of a message fill its body completely, as the format requires.

    Args:
        buffers: (n, 2) offset in the body, and bytes.
    """
    start, size = buffers[(buffers != 0).any(axis=1)].T
    if (start < 0).any() or (size < 0).any() or (start > body_bytes).any() or (size > body_bytes).any():
        raise ValueError(f"the message at byte {at} has buffers outside its body")
    ends, nexts = np.concatenate([[0], start + size]), np.concatenate([start, [body_bytes]])
    if not any((-(-ends // each) * each == nexts).all() for each in _ALIGNMENTS):
        raise ValueError(f"the message at byte {at} has buffers that are not contiguous in its body")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layout:
    """The columns of a file and their children, in the order of heads of batches.

    Attributes:
        counts: (n,) buffers of each; for views, without those of their values.
        has_bitmap: (n,) whether the first of them is a null bitmap.
        views: Indices of views.
    """

    counts: Int64Array
    has_bitmap: npt.NDArray[np.bool_]
    views: Int64Array


def _with_null_counts(layout: _Layout, head: bytes) -> bytes:
    """The head of a record batch, changed so that pyarrow uses every null bitmap present.

    pyarrow ignores the bitmap if the head counts no nulls. Some writers then keep a bitmap of ones; otherwise the count
    is damaged.
    """
    batch = _batch(_Table.of_message(head))
    nodes, buffers = batch.numbers(1), batch.numbers(2)
    counts = layout.counts.copy()
    values = np.frombuffer(batch.vector(4, 8), "<i8")
    if len(values) == len(layout.views):
        counts[layout.views] += values
    first = np.cumsum(counts) - counts
    if len(counts) != len(nodes) or counts.sum() != len(buffers):
        return head
    with_bits = np.append(buffers[:, 1], 0)[first] > 0
    hidden = np.flatnonzero(layout.has_bitmap & with_bits & (nodes[:, 0] > 0) & (nodes[:, 1] == 0))
    if not len(hidden):
        return head
    changed = bytearray(head)
    for node in hidden.tolist():
        struct.pack_into("<q", changed, _prefix_bytes(head) + batch.items_at(1) + 16 * node + 8, -1)
    return bytes(changed)


def _prefix_bytes(message: bytes | memoryview) -> int:
    """Length of the prefix before the FlatBuffers of a message: Arrow before 0.15 wrote no mark."""
    return 8 if message[:4] == _NEXT else 4


@contextlib.contextmanager
def _within_the_head(at: int) -> Generator[None]:
    """Offsets outside the head of a message raise ValueError."""
    try:
        yield
    except struct.error as error:
        raise ValueError(f"the message at byte {at} has an offset outside its head") from error


_Block = tuple[int, int, int, int]
"""Kind of a message, its first byte, bytes of its head, and bytes of its body."""


class _Footer:
    """The end of a file in the file format.

    `File.fbs`: Footer {version, schema, dictionaries, recordBatches}, and Block {offset, metaDataLength, bodyLength}.

    Attributes:
        start: Its first byte.
        blocks: The messages that it lists.

    Raises:
        ValueError: It is damaged.
    """

    def __init__(self, start: int, data: bytes) -> None:
        self.start, self._data = start, data
        try:
            footer = _Table(data[:-10], _offset(data, 0))
            self.blocks: list[_Block] = [
                (kind, *block)
                for field, kind in ((2, _DICTIONARY), (3, _BATCH))
                for block in struct.iter_unpack("<qi4xq", footer.vector(field, 24))
            ]
        except struct.error as error:
            raise ValueError("its footer has an offset outside itself") from error

    def compare(self, messages: Sequence[_Message]) -> None:
        """Raise ValueError unless a file has exactly the messages that the footer lists."""
        import pyarrow

        begun = set[int]()
        for kind, what in ((_DICTIONARY, "dictionary"), (_BATCH, "record batch")):
            found = [each for each in messages if each.kind == kind]
            blocks = [(kind, each.start, len(each.head), each.body_bytes) for each in found]
            if blocks != [block for block in self.blocks if block[0] == kind]:
                raise ValueError(f"its footer does not match its {counted(len(found), what)}")
        for each in messages:
            if each.dictionary is not None:
                name, adds = each.dictionary
                if adds != (name in begun):
                    what = "is extended before it begins" if adds else "begins again"
                    raise ValueError(f"dictionary {name} at byte {each.start} {what}")
                begun.add(name)
        written, options = _MAGIC + bytes(2) + self._data, pyarrow.ipc.IpcReadOptions(ensure_native_endian=False)
        with pyarrow.ipc.open_file(pyarrow.py_buffer(written), options=options) as opened:
            schema = pyarrow.ipc.read_schema(pyarrow.py_buffer(messages[0].head)) if messages else None
            if schema is None or not opened.schema.equals(schema, check_metadata=True):
                raise ValueError("the schema in its footer differs from its first message")


def _split(message: bytes | memoryview) -> tuple[bytes, memoryview]:
    """The head and the body of a message."""
    prefix = _prefix_bytes(message)
    end = prefix + int.from_bytes(message[prefix - 4 : prefix], "little")
    return bytes(message[:end]), memoryview(message)[end:]


def _unpacked_buffers(head: bytes, body: Any) -> list[tuple[int, int]]:
    """Offset of each buffer in a message's body, and its uncompressed size, which precedes compressed data.

    Raises ValueError.
    """
    try:
        batch = _batch(_Table.of_message(head))
        buffers = batch.numbers(2).tolist()
    except struct.error as error:
        raise ValueError("a message has an offset outside its head") from error
    if not batch.place(3):
        return [(at, size) for at, size in buffers]
    first = ((at, size, int.from_bytes(body[at : at + 8], "little", signed=True)) for at, size in buffers if size >= 8)
    return [(at, size if unpacked == -1 else unpacked) for at, size, unpacked in first]


def _offset(data: bytes, at: int) -> int:
    return at + struct.unpack_from("<I", data, at)[0]


class _Table:
    """A FlatBuffers table. Fields are located by a table of offsets, whose distance precedes the data."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._places = at - struct.unpack_from("<i", data, at)[0]
        if self._places < 0:
            raise struct.error
        self._size = struct.unpack_from("<H", data, self._places)[0]

    @classmethod
    def of_message(cls, message: bytes) -> _Table:
        """The Message of a message. The length of its head precedes it."""
        data = message[_prefix_bytes(message) :]
        return cls(data, _offset(data, 0))

    def place(self, field: int) -> int:
        """Offset of a field; 0 if it is missing."""
        entry = 4 + 2 * field
        if entry + 2 > self._size:
            return 0
        found = struct.unpack_from("<H", self._data, self._places + entry)[0]
        return self._at + found if found else 0

    def number(self, kind: str, field: int) -> int:
        """A number; 0 if it is missing."""
        place = self.place(field)
        return struct.unpack_from(f"<{kind}", self._data, place)[0] if place else 0

    def items_at(self, field: int) -> int:
        """Offset of the items of the vector in a field; 0 if it is missing."""
        place = self.place(field)
        return _offset(self._data, place) + 4 if place else 0

    def vector(self, field: int, item_bytes: int) -> bytes:
        """The items of the vector in a field; empty if it is missing."""
        at = self.items_at(field)
        if not at:
            return b""
        size = item_bytes * struct.unpack_from("<I", self._data, at - 4)[0]
        if at + size > len(self._data):
            raise struct.error
        return self._data[at : at + size]

    def numbers(self, field: int) -> Int64Array:
        """(n, 2) items of a vector of pairs."""
        return np.frombuffer(self.vector(field, 16), "<i8").reshape(-1, 2)

    def table(self, field: int) -> _Table:
        """The table in a field."""
        place = self.place(field)
        if not place:
            raise struct.error
        return _Table(self._data, _offset(self._data, place))
