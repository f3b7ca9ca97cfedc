"""Short texts for short lists of small integers, as a cursor holds them."""

from __future__ import annotations

import base64
import binascii

from energon_grain.errors import StateError


def pack_integers(values: list[int]) -> str:
    """Non-negative integers as base64 of LEB128: seven bits a byte, the lowest first, one byte for values under 128."""
    data = bytearray()
    for value in values:
        while value >= 0x80:
            data.append(value & 0x7F | 0x80)
            value >>= 7
        data.append(value)
    return base64.b64encode(bytes(data)).decode()


def unpack_integers(text: str) -> list[int]:
    """The integers that `pack_integers` made a text of.

    Raises:
        StateError: `text` is not such a text.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise StateError(f"a saved state holds {text[:40]!r} where packed integers are meant: {error}") from error
    values: list[int] = []
    value, shift = 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            values.append(value)
            value, shift = 0, 0
    if shift:
        raise StateError(f"a saved state holds packed integers that end in the middle of one: {text[-40:]!r}")
    return values
