"""Reading `tf.train.Example` without TensorFlow: the four messages of it, in protocol buffers' wire format.

    Example  { Features features = 1; }
    Features { map<string, Feature> feature = 1; }
    Feature  { oneof { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
    …List    { repeated … value = 1; }       floats and integers packed (as TensorFlow writes them) or one by one

Strict: fields that are not among these, or of another wire type, are errors and not passed over, since a record that
has them is something else. https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import FormatError
from energon_grain.formats.wire_format import WireError, fields, packed_numbers

_FLOAT32 = struct.Struct("<f")

Value = bytes | npt.NDArray[Any]


def read_example(data: bytes) -> dict[str, Value]:
    """Return the features by name, in the order of the record.

    Floats are a float32 array and integers an int64 array, of one axis. A single bytes value comes as it is, and
    several, or none, as an array of objects. A feature of no kind is left out.

    Raises:
        FormatError: This is no Example.
    """
    features: dict[str, Value] = {}
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


def _entry(data: bytes) -> tuple[str, Value | None]:
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


def _feature(data: bytes) -> Value | None:
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


def _bytes_list(data: bytes) -> Value:
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
