"""Chunks of records as ArrayRecord files are made of them: those of Riegeli/records files.

    block header  24 bytes at each multiple of 64 KiB, in the middle of whatever is there
    chunk header  40 bytes: check sum, size of the data, check sum of the data, type (1 byte) and number of records (7),
                  size of the records when they are decompressed
    data          of type `r`: compression (1 byte), size of the sizes (varint), sizes, values. Sizes and values are
                  compressed apart, each with a varint before it that says how much it was.

For files that array_record's own reader cannot open, since they lie in an object store. Check sums (HighwayHash) are
not compared, all that chunks say of their sizes is: it is bounded, and no more than that is decompressed.
https://github.com/google/riegeli/blob/master/doc/riegeli_records_file_format.md
"""

from __future__ import annotations

import itertools
import struct

import cramjam
import numpy as np
import numpy.typing as npt

from energon_grain.errors import FormatError
from energon_grain.formats.wire_format import WireError, packed_numbers, varint

BLOCK_BYTES = 1 << 16
_BLOCK_HEADER_BYTES = 24
_HEADER = struct.Struct("<QQQQQ")
_RECORDS, _TRANSPOSED = ord("r"), ord("t")
_DECOMPRESS_INTO = {
    ord("z"): cramjam.zstd.decompress_into,
    ord("b"): cramjam.brotli.decompress_into,
    ord("s"): cramjam.snappy.decompress_raw_into,
}
_UNCOMPRESSED = 0
_VARINT_BYTES = 10
_MOST_BYTES = 1 << 31
"""Of the records of a chunk, of which a writer puts one to some thousand into one; and of their sizes."""


def chunk_records(data: bytes, start: int) -> list[bytes]:
    """The records of a chunk.

    Args:
        data: The bytes of the file from the chunk's beginning to its end, or further.
        start: Where in the file they begin.

    Raises:
        FormatError: This is no chunk of records, or a damaged one, or a transposed one.
    """
    count, decoded_bytes, sizes, values = _opened(data, start)
    if count == 1 and len(values) == decoded_bytes and _is_number(sizes, decoded_bytes):
        return [values]  # without arrays, which take longer than the rest
    ends = itertools.accumulate(_checked(count, decoded_bytes, sizes, values).tolist(), initial=0)
    return [values[begin:end] for begin, end in itertools.pairwise(ends)]


def chunk_values(data: bytes, start: int) -> tuple[npt.NDArray[np.int64], bytes]:
    """The sizes of the records of a chunk, and the records, one behind the other. See `chunk_records`."""
    count, decoded_bytes, sizes, values = _opened(data, start)
    return _checked(count, decoded_bytes, sizes, values), values


def _opened(data: bytes, start: int) -> tuple[int, int, bytes, bytes]:
    """Number of records, size of them together, sizes and values, decompressed."""
    data = _without_block_headers(data, start)
    if len(data) < _HEADER.size:
        raise FormatError("ends inside its header")
    _, size, _, kind, decoded_bytes = _HEADER.unpack_from(data)
    count, kind = kind >> 8, kind & 0xFF
    end = _HEADER.size + size
    if kind == _TRANSPOSED:
        raise FormatError(
            "is transposed, which only array_record's own reader takes apart: copy the file to a disk, or write it "
            "without `transpose`"
        )
    if kind != _RECORDS or not 0 < size <= len(data) - _HEADER.size:
        raise FormatError("is no chunk of records")
    compression = data[_HEADER.size]
    try:
        sizes_bytes, place = varint(data, _HEADER.size + 1)
        sizes = _decompressed(compression, data[place : min(place + sizes_bytes, end)], count * _VARINT_BYTES)
        values = _decompressed(compression, data[place + sizes_bytes : end], decoded_bytes)
    except WireError as error:
        raise FormatError(f"is damaged: {error}") from error
    return count, decoded_bytes, sizes, values


def _checked(count: int, decoded_bytes: int, sizes: bytes, values: bytes) -> npt.NDArray[np.int64]:
    """The sizes of the records, where they are what the chunk says of itself."""
    try:
        numbers = packed_numbers(sizes)
    except WireError as error:
        raise FormatError(f"is damaged: {error}") from error
    total = int(numbers.sum())
    if len(numbers) != count or total != len(values) or total != decoded_bytes:
        raise FormatError(
            f"is damaged: it should have {count} records of {decoded_bytes} bytes in all, but the sizes of "
            f"{len(numbers)} come to {total}, and there are {len(values)} bytes"
        )
    return numbers.astype(np.int64)


def _is_number(data: bytes, number: int) -> bool:
    try:
        return varint(data, 0) == (number, len(data))
    except WireError:
        return False


def _without_block_headers(data: bytes, start: int) -> bytes:
    boundary = -start % BLOCK_BYTES
    if boundary >= len(data):
        return data
    parts = [data[:boundary]]
    parts += [
        data[block + _BLOCK_HEADER_BYTES : block + BLOCK_BYTES] for block in range(boundary, len(data), BLOCK_BYTES)
    ]
    return b"".join(parts)


def _decompressed(compression: int, data: bytes, most: int) -> bytes:
    """What was compressed: as much as it announces, which is at most what the chunk announces."""
    if compression == _UNCOMPRESSED:
        return data
    decompress_into = _DECOMPRESS_INTO.get(compression)
    if decompress_into is None:
        raise FormatError(f"has an unknown compression, {chr(compression)!r}")
    size, place = varint(data, 0)
    if size > min(most, _MOST_BYTES):
        raise FormatError(
            f"is damaged, or not for us: {size} bytes are announced where the chunk has room for {most}, and at most "
            f"{_MOST_BYTES} are decompressed"
        )
    values = np.empty(size, np.uint8)
    try:
        written = decompress_into(memoryview(data)[place:], values.data)
    except cramjam.DecompressionError as error:
        raise FormatError(f"is damaged: {error}") from error
    if written != size:
        raise FormatError(f"is damaged: {written} bytes came of it instead of {size}")
    return values.tobytes()
