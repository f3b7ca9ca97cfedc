"""Protocol buffers' wire format: fields of a message, and rows of numbers.

https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

_VARINT, _BYTES, _FIXED32 = 0, 2, 5
_FLOAT32 = struct.Struct("<f")


class WireError(ValueError):
    """These bytes are no message."""


def fields(data: bytes) -> Iterator[tuple[int, bytes | int | float]]:
    """Number and content of each field of a message: bytes, unsigned numbers, and floats of 32 bits.

    Raises:
        WireError: It ends early, or has a field of another kind.
    """
    place = 0
    while place < len(data):
        tag, place = varint(data, place)
        field, wire = tag >> 3, tag & 7
        if wire == _BYTES:
            size, place = varint(data, place)
            if place + size > len(data):
                raise _early()
            yield field, data[place : place + size]
            place += size
        elif wire == _VARINT:
            number, place = varint(data, place)
            yield field, number
        elif wire == _FIXED32:
            if place + 4 > len(data):
                raise _early()
            yield field, _FLOAT32.unpack_from(data, place)[0]
            place += 4
        else:
            raise WireError(f"field {field} has wire type {wire}")


def varint(data: bytes | memoryview, place: int) -> tuple[int, int]:
    """The number of 64 bits at `place`, and where it ends. Raises WireError."""
    number = shift = 0
    while True:
        if place >= len(data):
            raise _early()
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >= 1 << 64:
                raise _large()
            return number, place
        shift += 7
        if shift > 63:
            raise _large()


def packed_numbers(data: bytes | memoryview) -> npt.NDArray[np.uint64]:
    """Numbers that follow one another, seven bits a byte, the lowest first; the last byte of each is below 128.

    Raises:
        WireError: They end in the middle of one, or one has more than 64 bits.
    """
    octets = np.frombuffer(data, np.uint8)
    last = np.flatnonzero(octets < 0x80)
    if len(octets) and octets[-1] >= 0x80:
        raise _early()
    first = np.concatenate([np.zeros(min(1, len(last)), np.int64), last[:-1] + 1])
    length = last - first + 1
    numbers = np.zeros(len(last), np.uint64)
    for place in range(int(length.max(initial=0))):
        longer = np.flatnonzero(length > place)
        bits = octets[first[longer] + place].astype(np.uint64) & np.uint64(0x7F)
        if place > 9 or (place == 9 and bits.max() > 1):
            raise _large()
        numbers[longer] |= bits << np.uint64(7 * place)
    return numbers


def _early() -> WireError:
    return WireError("it ends in the middle of a field")


def _large() -> WireError:
    return WireError("a number has more than 64 bits")
