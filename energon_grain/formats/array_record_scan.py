"""The key, and the names and sizes of the parts, of every record of an ArrayRecord file.

All of it is read, which for tars is not needed: a record says nothing of its parts but by itself.
"""

from __future__ import annotations

import os

import numpy as np

from energon_grain.errors import FormatError
from energon_grain.formats.array_record_encoding import RecordEncoding, part_bytes, record_decoder
from energon_grain.formats.array_record_ranges import ArrayRecordObject, open_records
from energon_grain.formats.tar.scan import ShardScan

_AT_ONCE_BYTES = 16 << 20
_AT_ONCE = 4096


def count_records(path: str | os.PathLike[str]) -> int:
    """The number of records of a file, path or URL. Raises ReadError when it is no ArrayRecord file."""
    return open_records(os.fspath(path)).records


def scan_records(path: str | os.PathLike[str], encoding: RecordEncoding, *, first: int) -> ShardScan:
    """Read a file from end to end, about 32 MiB at a time.

    In the scan a sample starts where the one before it ends, as if records lay one behind the other from 0; all parts
    have offset 0, since a record is read whole.

    Args:
        path: The file, or its URL.
        encoding: How its records are encoded.
        first: Number in the dataset of its first record: the key of records that have none.

    Raises:
        ReadError: The file, or a record of it, cannot be read.
        FormatError: A record is not encoded like that; names it.
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
                # Text that is no UTF-8 is refused by the decoders, so nothing here needs an escape.
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
        size_bytes=file.size_bytes if isinstance(file, ArrayRecordObject) else os.path.getsize(path),
        sample_start=np.cumsum([0, *record_bytes], dtype=np.int64),
        part_start=np.cumsum([0, *counts], dtype=np.int64),
        part_names=tuple(numbers),
        part_name=np.array(names, np.int32),
        part_offset=np.zeros(len(names), np.int64),
        part_size=np.array(sizes, np.int64),
        key_start=np.cumsum([0, *map(len, keys)], dtype=np.int64),
        key_bytes=np.frombuffer(b"".join(keys), np.uint8),
        generation=file.generation if isinstance(file, ArrayRecordObject) else b"",
    )
