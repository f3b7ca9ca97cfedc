"""Where the chunks of an ArrayRecord file lie, from the end of the file.

    chunks     one or more records each, as many in each but the last
    footer     a chunk: `RiegeliFooterMetadata`, then an `ArrayRecordFooter` for each chunk before
    postscript a chunk in the last 64 KiB: `RiegeliPostscript`, which says where the footer begins

https://github.com/google/array_record/blob/main/cpp/layout.proto
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from energon_grain.errors import FormatError
from energon_grain.formats.riegeli_chunk import BLOCK_BYTES, chunk_records, chunk_values
from energon_grain.formats.wire_format import WireError, fields, packed_numbers

POSTSCRIPT_BYTES = 1024
"""All of a postscript is in so many bytes; zeros follow."""
_MAGIC = 0x71930E704FDAE05E
_VERSION = 1
_FOOTER_NUMBERS = 6
_OFFSET_TAG, _DECODED_TAG, _RECORDS_TAG = 1 << 3, 2 << 3, 3 << 3

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RecordPlaces:
    """Where records lie.

    Attributes:
        start: (chunks + 1,) chunk i is bytes [start[i], start[i + 1]) of the file.
        first: (chunks + 1,) it has the records [first[i], first[i + 1]).
    """

    start: Int64Array
    first: Int64Array

    @property
    def records(self) -> int:
        """Number of records."""
        return int(self.first[-1])

    def chunk_of(self, record: Int64Array) -> Int64Array:
        """(n,) chunk of each record."""
        if self.records == len(self.first) - 1:  # one a chunk
            return record
        return np.searchsorted(self.first, record, side="right") - 1


def postscript_start(size_bytes: int) -> int:
    """Where the postscript of a file begins. Raises FormatError when it is too short to have one."""
    if size_bytes < 2 * BLOCK_BYTES or size_bytes % BLOCK_BYTES:
        raise FormatError(f"is no ArrayRecord file: {size_bytes} bytes are not a multiple of 64 KiB, or just one")
    return size_bytes - BLOCK_BYTES


def footer_start(postscript: bytes, start: int) -> int:
    """Where the footer begins.

    Args:
        postscript: Bytes of the file from `start` on, `POSTSCRIPT_BYTES` of them.
        start: What `postscript_start` gave.

    Raises:
        FormatError: The file is no ArrayRecord file, or a damaged one.
    """
    try:
        found = dict(fields(chunk_records(postscript, start)[0]))
    except (FormatError, WireError) as error:
        raise FormatError(f"is no ArrayRecord file, or its end is missing: its postscript {error}") from error
    begin = found.get(1)
    if found.get(2) != _MAGIC or not isinstance(begin, int) or not 0 < begin < start:
        raise FormatError("is no ArrayRecord file: its postscript says something else")
    return begin


def read_places(footer: bytes, start: int) -> RecordPlaces:
    """Take a footer apart.

    Args:
        footer: Bytes of the file from `start` to the postscript.
        start: What `footer_start` gave.

    Raises:
        FormatError: It is damaged, or of a version that this release does not know.
    """
    try:
        sizes, values = chunk_values(footer, start)
        version, chunks, records = _metadata(values[: sizes[0]])
        numbers = packed_numbers(memoryview(values)[sizes[0] :])
    except (FormatError, WireError) as error:
        raise FormatError(f"has a damaged footer: it {error}") from error
    if version != _VERSION:
        raise FormatError(f"is an ArrayRecord file of version {version}; this release reads {_VERSION}")
    if len(numbers) != _FOOTER_NUMBERS * chunks:
        raise FormatError(f"has a damaged footer: {len(numbers)} numbers do not describe {chunks} chunks")
    table = numbers.reshape(chunks, _FOOTER_NUMBERS)
    offsets = np.append(table[:, 1], np.uint64(start)).astype(np.int64)
    first = np.zeros(chunks + 1, np.int64)
    np.cumsum(table[:, 5].astype(np.int64), out=first[1:])
    tagged = (table[:, ::2] == (_OFFSET_TAG, _DECODED_TAG, _RECORDS_TAG)).all()
    if not tagged or (np.diff(offsets) <= 0).any() or (np.diff(first) <= 0).any() or first[-1] != records:
        raise FormatError(f"has a damaged footer: it does not say where {records} records lie")
    return RecordPlaces(offsets, first)


def _metadata(data: bytes) -> tuple[int, int, int]:
    """Version, number of chunks and of records."""
    inner = dict(fields(data)).get(1)
    if not isinstance(inner, bytes):
        raise FormatError("has no metadata of an ArrayRecord file")
    found = dict(fields(inner))
    numbers = [found.get(field, 0) for field in (1, 2, 3)]
    if not all(isinstance(number, int) for number in numbers):
        raise FormatError("has metadata of another kind")
    version, chunks, records = map(int, numbers)
    return version, chunks, records
