"""How the records of a dataset of ArrayRecord files become parts: `.nv-meta/records.json`.

    {"version": 1, "encoding": "msgpack"}

* `msgpack`: a record is a map from the names of parts to their bytes, and from `__key__` to the key, a text.
* `tf_example`: a record is a `tf.train.Example`; each feature is a part. The key is the feature `__key__`, or the
  record's number in the dataset.
* `raw`: a record is the one part, `record`, of its sample. The key is the record's number in the dataset.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from energon_grain.errors import FormatError, IndexFileError
from energon_grain.formats.nv_meta import META_FOLDER, RECORDS_JSON
from energon_grain.formats.protobuf_messages import message_types
from energon_grain.forms import Form, encode_json

Value: TypeAlias = bytes | npt.NDArray[Any]


@functools.cache
def _example() -> Any:
    """The message `tf.train.Example`.

    Its features are declared as entries, which is what a map is on the wire: so they come in the order of the record.
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

    Floats are a float32 array and integers an int64 array, of one axis. A single bytes value comes as it is, and
    several, or none, as an array of objects. A feature of no kind is left out.

    Raises:
        FormatError: This is no Example.
    """
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

    try:
        example = _example().FromString(data)
    except DecodeError as error:
        raise FormatError(f"is no tf.train.Example: {error}") from error
    for unknown in UnknownFieldSet(example):  # of other messages, and of bytes that are none, protobuf takes these
        raise FormatError(f"is no tf.train.Example: Example has no field {unknown.field_number} of this type")
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


RecordEncoding: TypeAlias = Literal["msgpack", "tf_example", "raw"]
RECORD_ENCODINGS: tuple[RecordEncoding, ...] = ("msgpack", "tf_example", "raw")
KEY = "__key__"
RAW_PART = "record"
_VERSION = 1

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
