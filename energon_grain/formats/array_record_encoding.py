"""How the records of a dataset of ArrayRecord files become parts: `.nv-meta/records.json`.

    {"version": 1, "encoding": "msgpack"}

* `msgpack`: a record is a map from the names of parts to their bytes, and from `__key__` to the key, a text.
* `tf_example`: a record is a `tf.train.Example`; each feature is a part. The key is the feature `__key__`, or the
  record's number in the dataset.
* `raw`: a record is the one part, `record`, of its sample. The key is the record's number in the dataset.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from energon_grain.errors import FormatError, IndexFileError
from energon_grain.formats.nv_meta import META_FOLDER, RECORDS_JSON
from energon_grain.formats.wire_format import WireError, fields, packed_numbers
from energon_grain.forms import Form, encode_json

_FLOAT32 = struct.Struct("<f")

FeatureValue = bytes | npt.NDArray[Any]


def read_example(data: bytes) -> dict[str, FeatureValue]:
    """Return the features by name, in the order of the record.

    Floats are a float32 array and integers an int64 array, of one axis. A single bytes value comes as it is, and
    several, or none, as an array of objects. A feature of no kind is left out.

    Raises:
        FormatError: This is no Example.
    """
    features: dict[str, FeatureValue] = {}
    try:
        for message in _messages(data, "Example"):
            for entry in _messages(message, "Features"):
                name, value = _entry(entry)
                if value is not None:
                    features[name] = value
    except WireError as error:
        raise FormatError(f"is no tf.train.Example: {error}") from error
    except UnicodeDecodeError as error:
        raise FormatError(f"is no tf.train.Example: the name of a feature is not UTF-8: {error}") from error
    return features


def _entry(data: bytes) -> tuple[str, FeatureValue | None]:
    """Name and value of an entry of the map."""
    name, value = "", None
    for field, content in fields(data):
        if field == 1 and isinstance(content, bytes):
            name = content.decode("utf-8")
        elif field == 2 and isinstance(content, bytes):
            value = _feature(content)
        else:
            raise _unknown("an entry of Features", field)
    return name, value


def _feature(data: bytes) -> FeatureValue | None:
    value = None
    for field, content in fields(data):
        if field == 1 and isinstance(content, bytes):
            value = _bytes_list(content)
        elif field == 2 and isinstance(content, bytes):
            value = _float_list(content)
        elif field == 3 and isinstance(content, bytes):
            value = _int64_list(content)
        else:
            raise _unknown("Feature", field)
    return value


def _bytes_list(data: bytes) -> FeatureValue:
    values = list(_messages(data, "BytesList"))
    if len(values) == 1:
        return values[0]
    array = np.empty(len(values), np.object_)
    array[:] = values
    return array


def _float_list(data: bytes) -> npt.NDArray[np.float32]:
    pieces: list[bytes] = []
    for field, content in fields(data):
        if field != 1 or not isinstance(content, bytes | float):
            raise _unknown("FloatList", field)
        pieces.append(content if isinstance(content, bytes) else _FLOAT32.pack(content))
    text = b"".join(pieces)
    if len(text) % 4:
        raise FormatError(f"is no tf.train.Example: {len(text)} bytes of float values, not a multiple of 4")
    return np.frombuffer(text, "<f4").astype(np.float32)


def _int64_list(data: bytes) -> npt.NDArray[np.int64]:
    pieces: list[npt.NDArray[np.uint64]] = []
    for field, content in fields(data):
        if field != 1 or isinstance(content, float):
            raise _unknown("Int64List", field)
        pieces.append(packed_numbers(content) if isinstance(content, bytes) else np.array([content], np.uint64))
    return np.concatenate([np.zeros(0, np.uint64), *pieces]).view(np.int64)  # negative ones are written as 2**64 more


def _messages(data: bytes, where: str) -> Iterator[bytes]:
    """The contents of field 1, the only one that the message has."""
    for field, content in fields(data):
        if field != 1 or not isinstance(content, bytes):
            raise _unknown(where, field)
        yield content


def _unknown(where: str, field: int) -> FormatError:
    return FormatError(f"is no tf.train.Example: {where} has no field {field} of this type")


RecordEncoding: TypeAlias = Literal["msgpack", "tf_example", "raw"]
RECORD_ENCODINGS: tuple[RecordEncoding, ...] = ("msgpack", "tf_example", "raw")
KEY = "__key__"
RAW_PART = "record"
_VERSION = 1

Value: TypeAlias = bytes | npt.NDArray[Any]
Decode: TypeAlias = Callable[[bytes], tuple[str | None, Mapping[str, Value]]]
"""From a record to its key, None where it has none, and its parts."""


class _Records(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    encoding: RecordEncoding


_RECORDS = Form(_Records)


def encode_records_file(encoding: RecordEncoding) -> bytes:
    """Return the bytes of `records.json`."""
    return encode_json(_Records(_VERSION, encoding)) + b"\n"


def read_records_file(root: str | os.PathLike[str]) -> RecordEncoding | None:
    """Read how the records of the dataset at `root` are encoded; None where its shards are no ArrayRecord files.

    Raises:
        IndexFileError: The file is damaged, or newer than this release.
    """
    path = Path(root) / META_FOLDER / RECORDS_JSON
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        found = _RECORDS.from_json(data)
        if found.version != _VERSION:
            raise msgspec.ValidationError(f"version {found.version}, this release reads {_VERSION}")
    except msgspec.MsgspecError as error:
        raise IndexFileError(
            f'{path}: {error}. It must be like {{"version": 1, "encoding": "msgpack"}}, with one of '
            f"{', '.join(RECORD_ENCODINGS)}; `energon-grain prepare {root} --force-overwrite --records ENCODING` "
            f"writes it anew"
        ) from error
    return found.encoding


def record_decoder(encoding: RecordEncoding) -> Decode:
    """Give the function that takes records apart. It raises FormatError, which says what is wrong and not where."""
    return {"msgpack": _from_msgpack, "tf_example": _from_example, "raw": _from_raw}[encoding]


_MAP = Form(dict[str, Any])


def _from_msgpack(data: bytes) -> tuple[str | None, Mapping[str, Value]]:
    try:
        parts = _MAP.from_msgpack(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"is no msgpack map from part names to bytes: {error}") from error
    key = parts.pop(KEY, None)
    if not isinstance(key, str):
        raise FormatError(f"its {KEY} is {'missing' if key is None else 'no text'}")
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
