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

_VARINT, _BYTES, _FIXED32 = 0, 2, 5
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
    except (IndexError, struct.error) as error:
        raise FormatError("is no tf.train.Example: it ends in the middle of a field") from error
    except UnicodeDecodeError as error:
        raise FormatError(f"is no tf.train.Example: the name of a feature is not UTF-8: {error}") from error
    return features


def _entry(data: bytes) -> tuple[str, Value | None]:
    """Name and value of an entry of the map."""
    name, value = "", None
    for field, content in _fields(data):
        if field == 1 and isinstance(content, bytes):
            name = content.decode("utf-8")
        elif field == 2 and isinstance(content, bytes):
            value = _feature(content)
        else:
            raise _unknown("an entry of Features", field)
    return name, value


def _feature(data: bytes) -> Value | None:
    value = None
    for field, content in _fields(data):
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
    for field, content in _fields(data):
        if field != 1 or not isinstance(content, bytes | float):
            raise _unknown("FloatList", field)
        pieces.append(content if isinstance(content, bytes) else _FLOAT32.pack(content))
    text = b"".join(pieces)
    if len(text) % 4:
        raise FormatError(f"is no tf.train.Example: {len(text)} bytes of float values, not a multiple of 4")
    return np.frombuffer(text, "<f4").astype(np.float32)


def _int64_list(data: bytes) -> npt.NDArray[np.int64]:
    pieces: list[npt.NDArray[np.uint64]] = []
    for field, content in _fields(data):
        if field != 1 or isinstance(content, float):
            raise _unknown("Int64List", field)
        pieces.append(_packed(content) if isinstance(content, bytes) else np.array([content], np.uint64))
    return np.concatenate([np.zeros(0, np.uint64), *pieces]).view(np.int64)  # negative ones are written as 2**64 more


def _packed(data: bytes) -> npt.NDArray[np.uint64]:
    """Numbers that follow one another, seven bits a byte, the lowest first; the last byte of each is below 128."""
    octets = np.frombuffer(data, np.uint8)
    last = np.flatnonzero(octets < 0x80)
    if len(octets) and octets[-1] >= 0x80:
        raise IndexError
    first = np.concatenate([np.zeros(min(1, len(last)), np.int64), last[:-1] + 1])
    length = last - first + 1
    numbers = np.zeros(len(last), np.uint64)
    for place in range(int(length.max(initial=0))):
        longer = np.flatnonzero(length > place)
        bits = octets[first[longer] + place].astype(np.uint64) & np.uint64(0x7F)
        if place > 9 or (place == 9 and bits.max() > 1):
            raise FormatError("is no tf.train.Example: a number has more than 64 bits")
        numbers[longer] |= bits << np.uint64(7 * place)
    return numbers


def _messages(data: bytes, where: str) -> Iterator[bytes]:
    """The contents of field 1, the only one that the message has."""
    for field, content in _fields(data):
        if field != 1 or not isinstance(content, bytes):
            raise _unknown(where, field)
        yield content


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int | float]]:
    """Number and content of each field of a message."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        field, wire = tag >> 3, tag & 7
        if wire == _BYTES:
            size, place = _varint(data, place)
            if place + size > len(data):
                raise IndexError
            yield field, data[place : place + size]
            place += size
        elif wire == _VARINT:
            number, place = _varint(data, place)
            yield field, number
        elif wire == _FIXED32:
            yield field, _FLOAT32.unpack_from(data, place)[0]
            place += 4
        else:
            raise _unknown(f"wire type {wire}", field)


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """A number of 64 bits, and where it ends."""
    number = shift = 0
    while True:
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >= 1 << 64:
                raise FormatError("is no tf.train.Example: a number has more than 64 bits")
            return number, place
        shift += 7
        if shift > 63:
            raise FormatError("is no tf.train.Example: a number has more than 64 bits")


def _unknown(where: str, field: int) -> FormatError:
    return FormatError(f"is no tf.train.Example: {where} has no field {field} of this type")
