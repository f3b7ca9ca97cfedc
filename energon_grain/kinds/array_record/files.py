# SPDX-License-Identifier: Apache-2.0
"""ArrayRecord files: decoding records into parts, and reading them with array_record's own C++ reader.

`.nv-meta/records.json` names the encoding of a dataset's records, `{"version": 1, "encoding": "msgpack"}`:

* `msgpack`: a record is a map from part names to bytes, and from `__key__` to the key, a string.
* `tf_example`: a record is a `tf.train.Example`; each feature is a part. The key is the feature `__key__`, or the
  record's number in the dataset.
* `raw`: a record is the only part of its sample, `record`. The key is the record's number in the dataset.

The reader takes 0.05 µs per record to open a file and keeps 15 to 20 bytes per record, since it loads all offsets. Its
calls for several records use 64 threads of its own, and a list of records costs 2.7 ns for *every* record of the file.
Therefore records are read one by one in the calling thread, which always needs less CPU time: 2.5 to 3.9 µs per record
of 1 KB, where a range takes 1.5 to 7.8 (and 2.8 to 13 of CPU time) and a list 1.7 to 12 (3.3 to 20). Only files with
records compressed in groups are read by lists, since each call decompresses the groups that it touches.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from energon_grain.errors import FormatError, ReadError
from energon_grain.extras import needed_for
from energon_grain.formats.records import RecordEncoding
from energon_grain.formats.scan import ShardScan
from energon_grain.forms import Form
from energon_grain.kinds.array_record.ranges import ArrayRecordObject, message_types
from energon_grain.storage.location import is_url

Value: TypeAlias = bytes | npt.NDArray[Any]


@functools.cache
def _example() -> Any:
    """The message `tf.train.Example`.

    Features are declared as entries, the wire format of a map, so they keep the order of the record.
    """
    return message_types(
        "tensorflow",
        {
            "BytesList": [("value", "bytes*")],
            "FloatList": [("value", "float*")],
            "Int64List": [("value", "int64*")],
            "Feature": [("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")],
            "FeatureEntry": [("key", "string"), ("value", "Feature")],
            "Features": [("feature", "FeatureEntry*")],
            "Example": [("features", "Features")],
        },
        oneof="Feature",
    )["Example"]


def read_example(data: bytes) -> dict[str, Value]:
    """Return the features by name, in the order of the record.

    Floats become a one-axis float32 array and integers an int64 array. A single bytes value is returned as bytes;
    several, or none, as an object array. A feature without a kind is skipped. Raises FormatError.
    """
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

    try:
        example = _example().FromString(data)
    except DecodeError as error:
        raise FormatError(f"is not a tf.train.Example: {error}") from error
    for unknown in UnknownFieldSet(example):  # protobuf accepts other messages and garbage as unknown fields
        raise FormatError(f"is not a tf.train.Example: Example has no field {unknown.field_number} of this type")
    features: dict[str, Value] = {}
    for entry in example.features.feature:
        feature = entry.value
        kind = feature.WhichOneof("kind")
        if kind == "bytes_list":
            values = feature.bytes_list.value
            features[entry.key] = values[0] if len(values) == 1 else np.fromiter(values, np.object_, len(values))
        elif kind == "float_list":
            features[entry.key] = np.array(feature.float_list.value, np.float32)
        elif kind == "int64_list":
            features[entry.key] = np.array(feature.int64_list.value, np.int64)
    return features


KEY = "__key__"
RAW_PART = "record"

Decode: TypeAlias = Callable[[bytes], tuple[str | None, Mapping[str, Value]]]
"""From a record to its key (None without one) and its parts."""


def record_decoder(encoding: RecordEncoding) -> Decode:
    """Return the decoder of records. It raises FormatError with the problem, without the location."""
    return {"msgpack": _from_msgpack, "tf_example": _from_example, "raw": _from_raw}[encoding]


_MAP: Form[dict[str, Any]] = Form(dict[str, Any])


def _from_msgpack(data: bytes) -> tuple[str | None, Mapping[str, Value]]:
    try:
        parts = _MAP.from_msgpack(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"is not a msgpack map from part names to bytes: {error}") from error
    key = parts.pop(KEY, None)
    if not isinstance(key, str):
        raise FormatError(f"its {KEY} is {'missing' if key is None else 'not a string'}")
    for name, value in parts.items():
        if type(value) is not bytes:
            raise FormatError(f"its part {name!r} is a msgpack {type(value).__name__}, not bytes")
    return key, parts


def _from_example(data: bytes) -> tuple[str | None, Mapping[str, Value]]:
    parts = read_example(data)
    key = parts.pop(KEY, None)
    if key is None:
        return None, parts
    if not isinstance(key, bytes):
        raise FormatError(f"its feature {KEY} is not one bytes value")
    try:
        return key.decode("utf-8"), parts
    except UnicodeDecodeError as error:
        raise FormatError(f"its feature {KEY} is not UTF-8: {error}") from error


def _from_raw(data: bytes) -> tuple[str | None, Mapping[str, Value]]:
    return None, {RAW_PART: data}


def part_bytes(value: Value) -> int:
    """Payload bytes of a part."""
    if isinstance(value, bytes):
        return len(value)
    return sum(map(len, value.tolist())) if value.dtype == np.object_ else value.nbytes


_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
_BUFFER_BYTES = 2048  # with the default of 1 MiB, a record of 1 KB takes 70 µs


class ArrayRecordFile:
    """One open local file. Thread-safe; closed with the last reference to it. Raises ReadError."""

    __slots__ = ("_alone", "_path", "_reader", "records", "size_bytes")
    generation = b""

    def __init__(self, path: str) -> None:
        with needed_for("reading ArrayRecord files"):
            from array_record.python.array_record_module import ArrayRecordReader

        self._path = path
        if not os.path.isfile(path):
            raise ReadError(f"{path}: no such file; check the path")
        self.size_bytes = os.path.getsize(path)
        self._reader: Any = ArrayRecordReader(path, _OPTIONS, file_reader_buffer_size=_BUFFER_BYTES)
        if not self._reader.ok():
            raise ReadError(f"{path}: is not an ArrayRecord file, or is damaged: {self._reason()}")
        self.records: int = self._reader.num_records()
        group = re.search(r"group_size:(\d+)", self._reader.writer_options_string() or "")
        self._alone = group is not None and group[1] == "1"

    def read(self, records: list[int]) -> list[bytes]:
        read = self._reader.read
        try:
            return [read(record, record + 1)[0] for record in records] if self._alone else read(records)
        except (RuntimeError, IndexError):
            return [self._one(record) for record in records]  # its error names the record

    def _one(self, record: int) -> bytes:
        try:
            return self._reader.read(record, record + 1)[0]
        except (RuntimeError, IndexError) as error:
            raise ReadError(f"{self._path}: record {record}: {error}") from error

    def _reason(self) -> str:
        """The reader's error, from a read after it failed to open the file."""
        try:
            self._reader.read([0])
        except RuntimeError as error:
            return str(error)
        return "its end, which contains the record offsets, is missing"


def open_records(location: str) -> ArrayRecordFile | ArrayRecordObject:
    """Open the ArrayRecord file at a path or URL. Raises ReadError if it cannot be opened."""
    if not is_url(location):
        return ArrayRecordFile(location)
    return ArrayRecordObject(location)


_AT_ONCE_BYTES = 16 << 20
_AT_ONCE = 4096


def scan_records(path: str | os.PathLike[str], encoding: RecordEncoding, *, first: int) -> ShardScan:
    """Read a file or object from start to end, about 32 MiB at a time.

    In the scan a sample starts where the previous one ends, as if records were contiguous from 0; all parts have offset
    0, since a record is read whole. Records without a key get their number in the dataset, counted from `first`. Raises
    ReadError, and FormatError, which names the record.
    """
    path = os.fspath(path)
    file, decode = open_records(path), record_decoder(encoding)
    numbers: dict[str, int] = {}
    record_bytes, counts, names, sizes, keys = list[int](), list[int](), list[int](), list[int](), list[bytes]()
    place, step = 0, 64
    while place < file.records:
        records = file.read(list(range(place, min(place + step, file.records))))
        for data in records:
            record = len(keys)
            try:
                key, parts = decode(data)
                # Decoders refuse text that is not UTF-8, so no escapes are needed.
                keys.append((str(first + record) if key is None else key).encode())
            except FormatError as error:
                raise FormatError(f"{path}: record {record}: {error}. Is it encoded as {encoding}?") from error
            record_bytes.append(len(data))
            counts.append(len(parts))
            for name, value in parts.items():
                names.append(numbers.setdefault(name, len(numbers)))
                sizes.append(part_bytes(value))
        place += len(records)
        mean_bytes = sum(record_bytes[-len(records) :]) // len(records)
        step = max(1, min(_AT_ONCE, _AT_ONCE_BYTES // max(1, mean_bytes)))
    return ShardScan(
        size_bytes=file.size_bytes,
        sample_start=np.cumsum([0, *record_bytes], dtype=np.int64),
        part_start=np.cumsum([0, *counts], dtype=np.int64),
        part_names=tuple(numbers),
        part_name=np.array(names, np.int32),
        part_offset=np.zeros(len(names), np.int64),
        part_size=np.array(sizes, np.int64),
        key_start=np.cumsum([0, *map(len, keys)], dtype=np.int64),
        key_bytes=np.frombuffer(b"".join(keys), np.uint8),
        generation=file.generation,
    )
