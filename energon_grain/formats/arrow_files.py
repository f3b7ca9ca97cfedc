"""Arrow files, as Feather 2 and Hugging Face's `datasets` write them, and their record batches. See `TableFiles`.

A file is a sequence of messages (Apache Arrow, "Serialization and Interprocess Communication"): a schema, dictionaries
and record batches, each with a head in which FlatBuffers say how long its body is, and where in it the buffers of each
column lie. In the file format `ARROW1` stands before them, and behind them a footer, which repeats where they are; the
stream format has neither.

The messages are walked once, in a store with their heads fetched side by side where a footer says where these are. To
read a batch pyarrow gets a stream that is put together: the schema, the dictionaries before the batch, and the batch,
of whose body only the wanted columns are read, and the rest is zeros. Where nothing is compressed and the file lies on
this machine that is the mapped file itself, so that decoding copies nothing; whoever shortens such a file while it is
read ends the process.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from energon_grain.errors import ConfigError, StaleIndexError
from energon_grain.formats.table_files import DAMAGED, Record, TableFiles, Version, version_of
from energon_grain.forms import Form
from energon_grain.storage.local import LocalFiles
from energon_grain.storage.location import join
from energon_grain.storage.object_bytes import read_beginning

Int64Array = npt.NDArray[np.int64]
_MAGIC, _FEATHER_1 = b"ARROW1", b"FEA1"
_NEXT = b"\xff\xff\xff\xff"
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_LARGEST_HEAD_BYTES = 64 << 20
_STEP_BYTES = 4096
_FOOTER_BYTES = 8 << 10
_MOST_BLOCKS = 1 << 14
_SPLITS_JSON = "dataset_dict.json"


class _Head(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What is kept of a file.

    Attributes:
        schema: The first message.
        dictionaries: In the order of the file, as (first byte, bytes).
        batches: With their rows, and their own heads.
        is_compressed: Whether any body is.
        digest: XXH3-64 of what was read of the file to walk it: all heads, and the beginnings of bodies.
    """

    schema: bytes
    dictionaries: list[tuple[int, int]] = []
    batches: list[tuple[int, int, int, bytes]] = []
    is_compressed: bool = False
    digest: int = 0


_HEAD = Form(_Head)


class ArrowFiles(TableFiles):
    """Arrow files, of the file format or of the stream format; see `TableFiles`."""

    kind = "Arrow files"
    endings = (".arrow", ".feather")
    group_word = "record batch"
    group_option = "`writer_batch_size` of `datasets`, `max_chunksize` of pyarrow"
    reads_whole_groups = False
    _named_by = "heads with heads of batches"

    def __init__(self, path: str | os.PathLike[str], *, cache_dir: str | os.PathLike[str] | None = None) -> None:
        self._maps: dict[int, memoryview] = {}
        super().__init__(path, cache_dir=cache_dir)
        self._heads = [_HEAD.from_msgpack(self._head(file)) for file in range(len(self.names))]
        compressed = any(head.is_compressed for head in self._heads)
        self.is_mapped = isinstance(self.store, LocalFiles) and not compressed

    def _find(self) -> tuple[str, list[str], dict[str, Version] | None]:
        if not self.location.endswith(self.endings) and read_beginning(join(self.location, _SPLITS_JSON), 1):
            raise ConfigError(
                f"{self.location}: holds the splits of a `DatasetDict` of Hugging Face, each in a folder of its name; "
                f"give the one that is meant, as {join(self.location, 'train')}"
            )
        return super()._find()

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
        if self.is_mapped:
            batch = self._pieces(file, [(start, size)])
        else:
            body_start, body = start + len(message), np.zeros(size - len(message), np.uint8)
            _, first, long, _ = self.spans(np.array([group]), names)
            for at, data in self._bytes_of(file, first, long).items():
                body[at - body_start : at - body_start + len(data)] = np.frombuffer(data, np.uint8)
            batch = [message, body.data]
        if head.is_compressed:
            self._check_size(group, self._unpacked(group, names, start + len(message), batch, before))
        places = [self._records[file].columns.index(name) for name in names]
        options = pyarrow.ipc.IpcReadOptions(included_fields=places, use_threads=False)
        stream: Any = _Stream([head.schema, *before, *batch])
        table = pyarrow.ipc.open_stream(pyarrow.PythonFile(stream, mode="r"), options=options).read_all()
        table.validate(full=True)
        return table.select(names)

    def _unpacked(
        self, group: int, names: list[str], begin: int, batch: list[Any], before: list[Any]
    ) -> dict[str, int]:
        """Bytes that columns of a compressed batch take, the first one with all dictionaries. Raises ValueError.

        Args:
            begin: Where the body of the batch begins in the file.
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
        """Bytes of a file: views of it, where it is mapped."""
        if self.is_mapped:
            path = self.paths[file]
            if file not in self._maps:
                with open(path, "rb") as opened:
                    self._maps[file] = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
            if version_of(path) != self._versions[file]:  # what is mapped changes with it
                raise StaleIndexError(f"{path}: was changed since it was opened; begin anew")
            return [self._maps[file][start : start + size] for start, size in places]
        start, size = np.array(places, np.int64).reshape(-1, 2).T
        return self.store.read_spans([self.paths[file]], np.zeros(len(places), np.int64), start, start + size)

    def _read_head(self, file: int) -> bytes:
        path, size_bytes = self.paths[file], self._versions[file][0]
        self.store.expect(path, self._versions[file])  # type: ignore[arg-type]
        digest = xxhash.xxh3_64()
        with self._decoding(path):
            messages = list(self._walk(file, size_bytes, digest))
            if not messages or messages[0][0] != _SCHEMA or any(kind == _SCHEMA for kind, *_ in messages[1:]):
                raise ValueError("its messages do not begin with the one schema of a table")
        return msgspec.msgpack.encode(
            _Head(
                schema=messages[0][-1],
                dictionaries=[(at, size) for kind, at, size, *_ in messages if kind == _DICTIONARY],
                batches=[(at, size, rows, head) for kind, at, size, rows, _, head in messages if kind == _BATCH],
                is_compressed=any(compressed for *_, compressed, _ in messages),
                digest=digest.intdigest(),
            )
        )

    def _walk(
        self, file: int, size_bytes: int, digest: xxhash.xxh3_64
    ) -> Iterator[tuple[int, int, int, int, bool, bytes]]:
        """(kind, first byte, bytes, rows, is compressed, head) of the messages of a file. Raises ValueError."""
        begin = self._read(file, 0, min(8, size_bytes))
        if begin[:4] == _FEATHER_1:
            raise ValueError("is Feather of version 1, which is not read; write it anew by `pyarrow.feather`")
        at = 8 if begin[:6] == _MAGIC else 0
        if at:
            self._fetch_heads(file, size_bytes)
        while at < size_bytes:
            said = self._read(file, at, min(at + _STEP_BYTES, size_bytes))
            prefix = 8 if said[:4] == _NEXT else 4  # which Arrow before 0.15 did not write
            length = int.from_bytes(said[prefix - 4 : prefix], "little", signed=True)
            if len(said) < prefix or length == 0:
                break
            if not 0 < length <= min(_LARGEST_HEAD_BYTES, size_bytes - at - prefix):
                raise ValueError(f"a message @ {at} has a head of {length} bytes, but the file has {size_bytes}")
            if prefix + length > len(said):
                said = self._read(file, at, at + prefix + length)
            digest.update(said)
            kind, body_bytes, rows, compressed = _message(said[prefix : prefix + length], at)
            size = prefix + length + body_bytes
            if not 0 <= body_bytes <= size_bytes - at - prefix - length:
                raise ValueError(f"a message @ {at} has a body of {body_bytes} bytes, but the file has {size_bytes}")
            yield kind, at, size, rows, compressed, said[: prefix + length]
            at += size

    def _fetch_heads(self, file: int, size_bytes: int) -> None:
        """Fetch what `_walk` will read from a store side by side, as far as a footer says where it is.

        `File.fbs`: Footer {version, schema, dictionaries, recordBatches}, and Block {offset, metaDataLength,
        bodyLength}.
        """
        if isinstance(self.store, LocalFiles):
            return
        tail = self._read(file, max(0, size_bytes - _FOOTER_BYTES), size_bytes)
        length = int.from_bytes(tail[-10:-6], "little")
        if tail[-6:] != _MAGIC or length + 10 > size_bytes:
            return
        if length + 10 > len(tail):
            tail = self._read(file, size_bytes - length - 10, size_bytes)
        footer = tail[-10 - length : -10]
        try:
            said = _Table(footer, _offset(footer, 0))
            blocks = np.concatenate([np.frombuffer(said.vector(field, 24), "<i8")[::3] for field in (2, 3)])
        except struct.error:
            return  # the walk says what is wrong
        start = np.unique(blocks[(blocks >= 0) & (blocks < size_bytes)])[:_MOST_BLOCKS]
        self.fetch(np.full(len(start), file), start, np.minimum(_STEP_BYTES, size_bytes - start))

    def _record(self, file: int, head: bytes) -> Record:
        said = _HEAD.from_msgpack(head)
        with self._decoding(self.paths[file]):
            schema = self._schema(file, said)
            names: list[str] = schema.names
            if len(set(names)) < len(names):
                raise ValueError("two columns have one name")
            places = [_column_extents(schema, *batch) for batch in said.batches]
        return self._recorded(file, head, names, [rows for _, _, rows, _ in said.batches], places)

    def close(self) -> None:
        self._maps.clear()
        super().close()


class _Stream:
    """Messages one after the other as a file; no reading of pyarrow's goes over the end of one."""

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
        """Nothing is open."""


def _column_extents(schema: Any, start: int, size: int, _: int, head: bytes) -> Int64Array:
    """(columns, 3) first byte, one past the last, and bytes of each column of a batch. Raises ValueError.

    Where it is not known which buffers a column has, all of the body is taken for each.
    """
    prefix = 8 if head[:4] == _NEXT else 4
    try:
        batch = _Table(head[prefix:], _offset(head[prefix:], 0)).table(2)
        buffers = np.frombuffer(batch.vector(2, 16), "<i8").reshape(-1, 2)
        views = iter(np.frombuffer(batch.vector(4, 8), "<i8").tolist())
    except struct.error as error:
        raise ValueError(f"a message @ {start} points out of its head; {DAMAGED}") from error
    begin, stop = start + len(head), start + size
    try:
        ends = np.cumsum([0, *(_buffers_of(column.type, views) for column in schema)])
    except KeyError:  # pyarrow has no arrays of intervals of months, and of days and milliseconds
        ends = np.array([-1])
    if ends[-1] != len(buffers) or next(views, None) is not None:
        return np.tile([begin, stop, -(-(stop - begin) // max(1, len(schema)))], (len(schema), 1))
    if (buffers < 0).any() or (buffers > stop - begin).any() or (buffers.sum(axis=1) > stop - begin).any():
        raise ValueError(f"a message @ {start} has buffers that are not in its body; {DAMAGED}")
    found = np.zeros((len(schema), 3), np.int64)
    for column, (first, last) in enumerate(itertools.pairwise(ends.tolist())):
        own = buffers[first:last]
        own = own[own[:, 1] > 0]
        if len(own):
            low, high = begin + int(own[:, 0].min()), begin + int(own.sum(axis=1).max())
            found[column] = low, high, high - low
    return found


def _buffers_of(kind: Any, views: Iterator[int]) -> int:
    """How many buffers a column of a type has, with its children; of views within lists and structs too few.

    `views`: how many each array of views has beyond two, where the values lie.
    """
    import pyarrow

    if pyarrow.types.is_null(kind):
        return 0
    while isinstance(kind, pyarrow.BaseExtensionType):
        kind = kind.storage_type
    of_values = pyarrow.types.is_string_view(kind) or pyarrow.types.is_binary_view(kind)
    return len(pyarrow.nulls(0, kind).buffers()) + (next(views, 0) if of_values else 0)


def _message(head: bytes, at: int) -> tuple[int, int, int, bool]:
    """Kind, bytes of the body, rows and whether it is compressed, as the head of a message says. Raises ValueError.

    `Message.fbs`: Message {version, header_type, header, bodyLength}, and RecordBatch {length, nodes, buffers,
    compression}.
    """
    try:
        message = _Table(head, _offset(head, 0))
        kind = message.number("B", 1)
        rows, compressed = 0, False
        if kind in (_DICTIONARY, _BATCH):
            batch = message.table(2)
            if kind == _DICTIONARY:  # {id, data, isDelta}
                batch = batch.table(1)
            rows, compressed = batch.number("q", 0), bool(batch.place(3))
            if rows < 0:
                raise ValueError(f"a message @ {at} has {rows} rows")
        elif kind != _SCHEMA:
            raise ValueError(f"a message @ {at} is of kind {kind}, which no table has")
        return kind, message.number("q", 3), rows, compressed
    except struct.error as error:
        raise ValueError(f"a message @ {at} points out of its head; {DAMAGED}") from error


def _split(message: bytes | memoryview) -> tuple[bytes, memoryview]:
    """The head and the body of a message."""
    prefix = 8 if message[:4] == _NEXT else 4
    end = prefix + int.from_bytes(message[prefix - 4 : prefix], "little")
    return bytes(message[:end]), memoryview(message)[end:]


def _unpacked_buffers(head: bytes, body: Any) -> list[tuple[int, int]]:
    """Where each buffer of a message is in its body, and its bytes uncompressed, with which a compressed one begins.

    Raises ValueError.
    """
    own = head[8 if head[:4] == _NEXT else 4 :]
    try:
        said = _Table(own, _offset(own, 0))
        batch = said.table(2).table(1) if said.number("B", 1) == _DICTIONARY else said.table(2)
        buffers = np.frombuffer(batch.vector(2, 16), "<i8").reshape(-1, 2).tolist()
    except struct.error as error:
        raise ValueError(f"a message points out of its head; {DAMAGED}") from error
    if not batch.place(3):
        return [(at, size) for at, size in buffers]
    first = ((at, size, int.from_bytes(body[at : at + 8], "little", signed=True)) for at, size in buffers if size >= 8)
    return [(at, size if unpacked == -1 else unpacked) for at, size, unpacked in first]


def _offset(data: bytes, at: int) -> int:
    return at + struct.unpack_from("<I", data, at)[0]


class _Table:
    """A table of FlatBuffers: its fields are found by a table of their places, in front of which it says how far."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._places = at - struct.unpack_from("<i", data, at)[0]
        if self._places < 0:
            raise struct.error
        self._size = struct.unpack_from("<H", data, self._places)[0]

    def place(self, field: int) -> int:
        """Where a field is; 0: it is left out."""
        entry = 4 + 2 * field
        if entry + 2 > self._size:
            return 0
        found = struct.unpack_from("<H", self._data, self._places + entry)[0]
        return self._at + found if found else 0

    def number(self, kind: str, field: int) -> int:
        """A number; 0 where it is left out."""
        place = self.place(field)
        return struct.unpack_from(f"<{kind}", self._data, place)[0] if place else 0

    def vector(self, field: int, item_bytes: int) -> bytes:
        """The items of a vector that a field points to; none where it is left out."""
        place = self.place(field)
        if not place:
            return b""
        at = _offset(self._data, place)
        size = item_bytes * struct.unpack_from("<I", self._data, at)[0]
        if at + 4 + size > len(self._data):
            raise struct.error
        return self._data[at + 4 : at + 4 + size]

    def table(self, field: int) -> _Table:
        """A table that a field points to."""
        place = self.place(field)
        if not place:
            raise struct.error
        return _Table(self._data, _offset(self._data, place))
