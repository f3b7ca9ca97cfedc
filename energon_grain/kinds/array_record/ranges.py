# SPDX-License-Identifier: Apache-2.0
"""Records of ArrayRecord files in object stores, read by byte ranges.

Protocol buffer messages are declared in code: no generated code, no compiler.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import struct
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import FormatError, ReadError
from energon_grain.extras import needed_for
from energon_grain.storage.byte_store import ByteStore, coalesce
from energon_grain.storage.remote import remote_files
from energon_grain.storage.settings import storage_settings

Field = tuple[str, str]
"""Name and type: a protobuf scalar (`int64`) or a message of the same package; a `*` suffix means repeated."""


def message_types(package: str, messages: dict[str, list[Field]], *, oneof: str = "") -> dict[str, Any]:
    """Create the classes of `proto3` messages, with fields numbered from 1 in the order listed.

    They do not conflict with messages of the same names declared elsewhere (TensorFlow's Example).

    Args:
        messages: Fields by message name. A message follows the messages that it contains.
        oneof: The message whose fields form a `oneof`, named `kind`.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field: Any = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for title, fields in messages.items():
        message = file.message_type.add(name=title)
        if title == oneof:
            message.oneof_decl.add(name="kind")
        for number, (name, written) in enumerate(fields, 1):
            kind = written.removesuffix("*")
            added = message.field.add(
                name=name, number=number, label=field.LABEL_OPTIONAL if kind == written else field.LABEL_REPEATED
            )
            if kind in messages:
                added.type, added.type_name = field.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                added.type = field.Type.Value(f"TYPE_{kind.upper()}")
            if title == oneof:
                added.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


BLOCK_BYTES = 1 << 16
_BLOCK_HEADER_BYTES = 24
_HEADER = struct.Struct("<QQQQQ")
_RECORDS, _TRANSPOSED = ord("r"), ord("t")
_UNCOMPRESSED = 0
_VARINT_BYTES = 10
_MAX_BYTES = 1 << 31
"""Limit for the records of a chunk (writers put one to a few thousand into each), and for their sizes."""


def chunk_records(data: bytes, start: int) -> list[bytes]:
    """The records of the chunk whose bytes begin at offset `start` of the file. Raises FormatError."""
    count, decoded_bytes, sizes, values = _opened(data, start)
    if count == 1 and len(values) == decoded_bytes and _is_number(sizes, decoded_bytes):
        return [values]  # fast path: numpy would take most of the time
    ends = itertools.accumulate(_checked(count, decoded_bytes, sizes, values).tolist(), initial=0)
    return [values[begin:end] for begin, end in itertools.pairwise(ends)]


def chunk_values(data: bytes, start: int) -> tuple[npt.NDArray[np.int64], bytes]:
    """The sizes of the records of a chunk, and the records concatenated. See `chunk_records`."""
    count, decoded_bytes, sizes, values = _opened(data, start)
    return _checked(count, decoded_bytes, sizes, values), values


def _opened(data: bytes, start: int) -> tuple[int, int, bytes, bytes]:
    """Number of records, their total size, sizes and values, decompressed."""
    data = _without_block_headers(data, start)
    if len(data) < _HEADER.size:
        raise FormatError("ends inside its header")
    _, size, _, kind, decoded_bytes = _HEADER.unpack_from(data)
    count, kind = kind >> 8, kind & 0xFF
    end = _HEADER.size + size
    if kind == _TRANSPOSED:
        raise FormatError(
            "is transposed, a layout that only array_record's own reader supports: copy the file to a local disk, or "
            "write it without `transpose`"
        )
    if kind != _RECORDS or not 0 < size <= len(data) - _HEADER.size:
        raise FormatError("is not a chunk of records")
    compression = data[_HEADER.size]
    sizes_bytes, place = varint(data, _HEADER.size + 1)
    sizes = _decompressed(compression, data[place : min(place + sizes_bytes, end)], count * _VARINT_BYTES)
    values = _decompressed(compression, data[place + sizes_bytes : end], decoded_bytes)
    return count, decoded_bytes, sizes, values


def _checked(count: int, decoded_bytes: int, sizes: bytes, values: bytes) -> npt.NDArray[np.int64]:
    """The sizes of the records, checked against the chunk header."""
    numbers = packed_numbers(sizes)
    total = int(numbers.sum())
    if len(numbers) != count or total != len(values) or total != decoded_bytes:
        raise FormatError(
            f"is damaged: expected {count} records of {decoded_bytes} bytes in total, but found {len(numbers)} sizes "
            f"with a sum of {total}, and {len(values)} bytes"
        )
    return numbers.astype(np.int64)


def _is_number(data: bytes, number: int) -> bool:
    try:
        return varint(data, 0) == (number, len(data))
    except FormatError:
        return False


def _without_block_headers(data: bytes, start: int) -> bytes:
    boundary = -start % BLOCK_BYTES
    if boundary >= len(data):
        return data
    parts = [data[:boundary]]
    parts += [
        data[block + _BLOCK_HEADER_BYTES : block + BLOCK_BYTES] for block in range(boundary, len(data), BLOCK_BYTES)
    ]
    return b"".join(parts)


@functools.cache
def _decompressors() -> tuple[dict[int, Any], type[Exception]]:
    """Functions that decompress into a buffer, by compression, and the exception type that they raise."""
    with needed_for("reading ArrayRecord files in object stores"):
        import cramjam
    into = {
        ord("z"): cramjam.zstd.decompress_into,
        ord("b"): cramjam.brotli.decompress_into,
        ord("s"): cramjam.snappy.decompress_raw_into,
    }
    return into, cramjam.DecompressionError


def _decompressed(compression: int, data: bytes, most: int) -> bytes:
    """Decompressed data. The announced size must not exceed that of the chunk."""
    if compression == _UNCOMPRESSED:
        return data
    decompressors, refusal = _decompressors()
    decompress_into = decompressors.get(compression)
    if decompress_into is None:
        raise FormatError(f"has an unknown compression, {chr(compression)!r}")
    size, place = varint(data, 0)
    if size > min(most, _MAX_BYTES):
        raise FormatError(
            f"is damaged or too large: it announces {size} bytes, its chunk has space for {most}, and at most "
            f"{_MAX_BYTES} are decompressed"
        )
    values = np.empty(size, np.uint8)
    try:
        written = decompress_into(memoryview(data)[place:], values.data)
    except refusal as error:
        raise FormatError(f"is damaged: {error}") from error
    if written != size:
        raise FormatError(f"is damaged: it decompressed to {written} bytes instead of {size}")
    return values.tobytes()


def varint(data: bytes, place: int) -> tuple[int, int]:
    """The 64-bit number at `place`, and where it ends. Raises FormatError."""
    number = shift = 0
    while True:
        if place >= len(data):
            raise FormatError("is damaged: it ends in the middle of a number")
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80 and number < 1 << 64:
            return number, place
        shift += 7
        if shift > 63 or byte < 0x80:
            raise FormatError("is damaged: a number has more than 64 bits")


def packed_numbers(data: bytes | memoryview) -> npt.NDArray[np.uint64]:
    """Decode consecutive numbers: seven bits per byte, lowest first; the last byte of each is below 128.

    Raises FormatError.
    """
    octets = np.frombuffer(data, np.uint8)
    last = np.flatnonzero(octets < 0x80)
    if len(octets) and octets[-1] >= 0x80:
        raise FormatError("is damaged: it ends in the middle of a number")
    first = np.concatenate([np.zeros(min(1, len(last)), np.int64), last[:-1] + 1])
    length = last - first + 1
    numbers = np.zeros(len(last), np.uint64)
    for place in range(int(length.max(initial=0))):
        longer = np.flatnonzero(length > place)
        bits = octets[first[longer] + place].astype(np.uint64) & np.uint64(0x7F)
        if place > 9 or (place == 9 and bits.max() > 1):
            raise FormatError("is damaged: a number has more than 64 bits")
        numbers[longer] |= bits << np.uint64(7 * place)
    return numbers


@functools.cache
def _messages() -> dict[str, Any]:
    """The protobuf messages at the end of a file."""
    return message_types(
        "array_record",
        {
            "Postscript": [("footer_offset", "uint64"), ("magic", "uint64")],
            "ArrayRecordMetadata": [("version", "uint64"), ("chunks", "uint64"), ("records", "uint64")],
            "Metadata": [("array_record_metadata", "ArrayRecordMetadata")],
        },
    )


def _parsed(name: str, data: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return _messages()[name].FromString(data)
    except DecodeError as error:
        raise FormatError(f"is damaged: {error}") from error


POSTSCRIPT_BYTES = 1024
"""A postscript fits into this size and is padded with zeros."""
_MAGIC = 0x71930E704FDAE05E
_VERSION = 1
_FOOTER_NUMBERS = 6
_OFFSET_TAG, _DECODED_TAG, _RECORDS_TAG = 1 << 3, 2 << 3, 3 << 3

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RecordPlaces:
    """Location of records.

    Attributes:
        start: (chunks + 1,) chunk i is bytes [start[i], start[i + 1]) of the file.
        first: (chunks + 1,) it has the records [first[i], first[i + 1]).
    """

    start: Int64Array
    first: Int64Array

    @property
    def records(self) -> int:
        return int(self.first[-1])

    def chunk_of(self, record: Int64Array) -> Int64Array:
        if self.records == len(self.first) - 1:  # one per chunk
            return record
        return np.searchsorted(self.first, record, side="right") - 1


def postscript_start(size_bytes: int) -> int:
    """Start of a file's postscript. Raises FormatError when the file is too short to have one."""
    if size_bytes < 2 * BLOCK_BYTES or size_bytes % BLOCK_BYTES:
        raise FormatError(
            f"is not an ArrayRecord file: its size of {size_bytes} bytes is too small, or not a multiple of 64 KiB"
        )
    return size_bytes - BLOCK_BYTES


def footer_start(postscript: bytes, start: int) -> int:
    """Start of the footer, from the last `POSTSCRIPT_BYTES` of the file, which begin at `start`. Raises FormatError."""
    try:
        found = _parsed("Postscript", chunk_records(postscript, start)[0])
    except FormatError as error:
        raise FormatError(f"is not an ArrayRecord file, or its end is missing: its postscript {error}") from error
    if found.magic != _MAGIC or not 0 < found.footer_offset < start:
        raise FormatError("is not an ArrayRecord file: its postscript does not match")
    return found.footer_offset


def read_places(footer: bytes, start: int) -> RecordPlaces:
    """Decode a footer: the bytes of the file from `start` to the postscript. Raises FormatError."""
    try:
        sizes, values = chunk_values(footer, start)
        metadata = _parsed("Metadata", values[: sizes[0]])
        numbers = packed_numbers(memoryview(values)[sizes[0] :])
    except FormatError as error:
        raise FormatError(f"has a damaged footer: it {error}") from error
    if not metadata.HasField("array_record_metadata"):
        raise FormatError("has a damaged footer: it has no ArrayRecord metadata")
    declared = metadata.array_record_metadata
    if declared.version != _VERSION:
        raise FormatError(
            f"is an ArrayRecord file of version {declared.version}; this release reads version {_VERSION}"
        )
    chunks, records = declared.chunks, declared.records
    if len(numbers) != _FOOTER_NUMBERS * chunks:
        raise FormatError(f"has a damaged footer: {len(numbers)} numbers do not describe {chunks} chunks")
    table = numbers.reshape(chunks, _FOOTER_NUMBERS)
    offsets = np.append(table[:, 1], np.uint64(start)).astype(np.int64)
    first = np.zeros(chunks + 1, np.int64)
    np.cumsum(table[:, 5].astype(np.int64), out=first[1:])
    tagged = (table[:, ::2] == (_OFFSET_TAG, _DECODED_TAG, _RECORDS_TAG)).all()
    if not tagged or (np.diff(offsets) <= 0).any() or (np.diff(first) <= 0).any() or first[-1] != records:
        raise FormatError(f"has a damaged footer: it does not locate the {records} records")
    return RecordPlaces(offsets, first)


def find_places(store: ByteStore, paths: Sequence[str], sizes_bytes: Sequence[int]) -> list[RecordPlaces]:
    """Read the record locations of some files, in two rounds of parallel requests. Raises ReadError."""
    every = np.arange(len(paths))
    ends, begins, places = list[int](), list[int](), list[RecordPlaces]()
    for path, size in zip(paths, sizes_bytes, strict=True):
        with _naming(path):
            ends.append(postscript_start(size))
    stops = np.array(ends, np.int64)
    postscripts = store.read_spans(paths, every, stops, stops + POSTSCRIPT_BYTES)
    for path, data, end in zip(paths, postscripts, ends, strict=True):
        with _naming(path):
            begins.append(footer_start(data, end))
    footers = store.read_spans(paths, every, np.array(begins, np.int64), stops)
    for path, data, begin in zip(paths, footers, begins, strict=True):
        with _naming(path):
            places.append(read_places(data, begin))
    return places


def record_extents(
    places: Sequence[RecordPlaces], file: Int64Array, record: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """(n,) first byte of the chunk of each record, (n,) size of the chunk, and (n,) index of the record in it."""
    start, size, within = np.empty((3, len(record)), np.int64)
    for number in np.unique(file).tolist():
        here = np.flatnonzero(file == number)
        chunk = places[number].chunk_of(record[here])
        start[here] = places[number].start[chunk]
        size[here] = places[number].start[chunk + 1] - start[here]
        within[here] = record[here] - places[number].first[chunk]
    return start, size, within


def read_records(
    store: ByteStore, paths: Sequence[str], places: Sequence[RecordPlaces], file: Int64Array, record: Int64Array
) -> list[bytes]:
    """Read records of some files in the order requested. Each chunk is read and decompressed once.

    Files must ascend, and records within each. Raises ReadError, which names the record.
    """
    start, size, within = record_extents(places, file, record)
    new = np.ones(len(record), np.bool_)
    new[1:] = (start[1:] != start[:-1]) | (file[1:] != file[:-1])
    heads = np.flatnonzero(new)
    spans = coalesce(
        file[heads],
        start[heads],
        size[heads],
        merge_gap_bytes=store.merge_gap_bytes,
        solo_bytes=store.solo_bytes,
    )
    data = store.read_spans(paths, spans.file, spans.start, spans.stop)
    chunks: list[list[bytes]] = []
    for head, span, begin in zip(heads.tolist(), spans.span.tolist(), spans.offset.tolist(), strict=True):
        try:
            chunks.append(chunk_records(data[span][begin : begin + int(size[head])], int(start[head])))
        except FormatError as error:
            raise ReadError(f"{paths[int(file[head])]}: record {int(record[head])}: its chunk {error}") from error
    found: list[bytes] = []
    for number, place, chunk in zip(range(len(record)), within.tolist(), (np.cumsum(new) - 1).tolist(), strict=True):
        if place >= len(chunks[chunk]):
            raise ReadError(
                f"{paths[int(file[number])]}: record {int(record[number])}: its chunk has fewer records than "
                f"the footer lists; the file is damaged"
            )
        found.append(chunks[chunk][place])
    return found


class ArrayRecordObject:
    """One file in an object store, the counterpart of `ArrayRecordFile`. Raises ReadError."""

    def __init__(self, url: str) -> None:
        self._store = remote_files(storage_settings())
        self._url = url
        self.size_bytes, self.generation = self._store.version(url)
        self._places = find_places(self._store, [url], [self.size_bytes])
        self.records = self._places[0].records

    def read(self, records: list[int]) -> list[bytes]:
        """Read records in ascending order. Raises ReadError, which names the record."""
        numbers = np.array(records, np.int64)
        return read_records(self._store, [self._url], self._places, np.zeros_like(numbers), numbers)


@contextlib.contextmanager
def _naming(path: str) -> Generator[None]:
    try:
        yield
    except FormatError as error:
        raise ReadError(f"{path}: {error}") from error
