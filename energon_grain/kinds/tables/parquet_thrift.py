# SPDX-License-Identifier: Apache-2.0
"""Structs in Thrift's compact protocol (see its compact-protocol.md): footers and page headers of Parquet files.

pyarrow could parse footers too, but it aborts the process on contradictory ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Wanted = Mapping[int, Any]
"""Numbers of the requested fields of a struct; for a field that is a struct, its requested fields."""
_DEEPEST = 32
Buffer = bytes | memoryview


def read_struct(data: Buffer, wanted: Wanted, at: int = 0) -> tuple[dict[int, Any], int]:
    """The wanted fields of the struct at byte `at`, and its end.

    Raises ValueError if it is invalid, and IndexError if it does not end within the data.
    """
    return _struct(data, at, wanted, 0)


def _varint(data: Buffer, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value = byte & 0x7F
    for shift in range(7, 70, 7):
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
    raise ValueError("a number has more than 64 bits")


def _struct(data: Buffer, at: int, wanted: Wanted, depth: int) -> tuple[dict[int, Any], int]:
    if depth > _DEEPEST:
        raise ValueError("it is nested too deeply")
    found: dict[int, Any] = {}
    field = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            field += head >> 4
        else:
            field, at = _varint(data, at)
            field = field >> 1 ^ -(field & 1)
        value, at = _value(data, at, head & 15, wanted.get(field) or {}, depth)
        if field in wanted:
            found[field] = value
    return found, at + 1


def _value(data: Buffer, at: int, kind: int, wanted: Wanted, depth: int) -> tuple[Any, int]:
    if 4 <= kind <= 6:
        value, at = _varint(data, at)
        return value >> 1 ^ -(value & 1), at
    if kind == 8:
        length, at = _varint(data, at)
        if at + length > len(data):
            raise IndexError
        return data[at : at + length], at + length
    if kind == 12:
        return _struct(data, at, wanted, depth + 1)
    if kind in (9, 10):
        of, count = data[at] & 15, data[at] >> 4
        at += 1
        if count == 15:
            count, at = _varint(data, at)
        values: list[Any] = []
        for _ in range(count):  # booleans take one byte each here
            value, at = _value(data, at, 3 if of < 3 else of, wanted, depth + 1)
            if wanted:
                values.append(value)
        return values, at
    if kind not in (1, 2, 3, 7):
        raise ValueError(f"it has a value of type {kind}")
    at += {3: 1, 7: 8}.get(kind, 0)
    if at > len(data):
        raise IndexError
    return kind == 1, at


def number(struct: Mapping[int, Any], field: int) -> int:
    """A number field; 0 if it is missing. Raises ValueError."""
    value = struct.get(field, 0)
    if type(value) is not int:
        raise ValueError(f"its footer has no number in field {field}")
    return value


def structs(struct: Mapping[int, Any], field: int) -> list[dict[int, Any]]:
    """A field with a list of structs; empty if it is missing. Raises ValueError."""
    value = struct.get(field, [])
    if not isinstance(value, list) or any(type(each) is not dict for each in value):
        raise ValueError(f"its footer has no list in field {field}")
    return value
