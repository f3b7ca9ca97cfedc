# SPDX-License-Identifier: Apache-2.0
"""Scalars in the event files that TensorBoard's writers make. No other package is needed.

A file is a sequence of records: length (8 bytes, little-endian), masked CRC-32C of the length, data, masked CRC-32C of
the data. The data is the protobuf message `Event`, of which these fields are read:

    Event    2: step (varint)          5: summary (Summary)
    Summary  1: value (Value), repeated
    Value    1: tag (string)           2: simple_value (float)     8: tensor (TensorProto)
    Tensor   1: dtype (varint)         4: content (bytes)          5: float values     6: double values

Sources: tensorflow/core/lib/io/record_writer.cc, tensorflow/core/util/event.proto, summary.proto, tensor.proto; the
protobuf encoding, protobuf.dev/programming-guides/encoding. The checksums are not compared: a file that is still being
written ends in the middle of a record, which ends the reading of it, as in TensorBoard itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError

Scalars: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]
EVENT_FILE = "tfevents"
"""Part of the name of every event file."""
_FLOAT, _DOUBLE = 1, 2
"""`DataType` of tensors."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_scalars(place: Path) -> dict[str, Scalars]:
    """Read the scalars of an event file, or of all event files below a folder, in the order of their names.

    Returns:
        By tag, (n,) int64 steps and (n,) float64 values, in the order in which they were written.

    Raises:
        ConfigError: There is no event file, a file is not one, or files of several runs are in the folder.
    """
    files = sorted(place.rglob(f"*{EVENT_FILE}*")) if place.is_dir() else [place]
    if not files:
        raise ConfigError(f"--losses {place}: the folder has no event file of TensorBoard (a name with {EVENT_FILE!r})")
    found: dict[str, tuple[list[int], list[float]]] = {}
    runs: dict[str, set[Path]] = {}
    for file in files:
        for step, tag, value in _scalars(file):
            steps, values = found.setdefault(tag, ([], []))
            steps.append(step)
            values.append(value)
            runs.setdefault(tag, set()).add(file.parent)
    several = [tag for tag, folders in runs.items() if len(folders) > 1 and "loss" in tag.lower()]
    if several:
        folders = ", ".join(sorted(map(str, runs[several[0]])))
        raise ConfigError(f"--losses {place}: several runs have {several[0]!r} ({folders}): give the folder of one")
    return {tag: (np.array(steps, np.int64), np.array(values)) for tag, (steps, values) in found.items()}


def _scalars(file: Path) -> Iterator[tuple[int, str, float]]:
    """Step, tag and value of each scalar in a file."""
    for number, record in enumerate(_records(file)):
        try:
            event = dict(_fields(record))
            step = _signed(event.get(2, 0))
            for _, value in _fields(event.get(5, b"")):
                fields = dict(_fields(value))
                scalar = _scalar(fields)
                if scalar is not None:
                    yield step, fields.get(1, b"").decode(), scalar
        except (ValueError, IndexError, struct.error, AttributeError, TypeError) as error:
            raise ConfigError(f"--losses {file}: record {number} is not an event of TensorBoard: {error}") from error


def _records(file: Path) -> Iterator[bytes]:
    """The data of each whole record."""
    data = file.read_bytes()
    at = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        begin, at = at + 12, at + 16 + length
        if at > len(data):
            if not begin - 12:
                raise ConfigError(f"--losses {file}: is not an event file of TensorBoard, or is cut in its first event")
            return
        yield data[begin : begin + length]


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a protobuf message: an integer, or bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(wire)
        if wire == _BYTES:
            size, at = _varint(message, at)
        if size is None or at + size > len(message):
            raise ValueError(f"field {number} is cut short, or of the unknown type {wire}")
        yield number, message[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """An integer of 7 bits per byte, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _scalar(fields: dict[int, Any]) -> float | None:
    """The number of a `Value`; None: it is no scalar."""
    if 2 in fields:
        return struct.unpack("<f", fields[2])[0]
    if 8 not in fields:
        return None
    tensor = dict(_fields(fields[8]))
    form = {_FLOAT: "f", _DOUBLE: "d"}.get(tensor.get(1, 0))
    if form is None:
        return None
    data = tensor.get(4) or tensor.get(5 if form == "f" else 6) or b""
    return struct.unpack(f"<{form}", data)[0] if len(data) == struct.calcsize(form) else None
