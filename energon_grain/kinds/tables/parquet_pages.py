# SPDX-License-Identifier: Apache-2.0
"""Estimates the memory of a row group of a Parquet file from its page headers, before any page is decoded.

A footer is untrusted, and a page of a few bytes can decode to gigabytes in three ways: compression, a dictionary with
one long value that all rows have, and values that repeat the beginning of the previous one (`DELTA_BYTE_ARRAY`). The
first is known from the page headers. A dictionary is kept as such: the requested rows look up their values in it. The
third is decoded a few rows at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from energon_grain.kinds.tables.parquet_thrift import Buffer, number, read_struct

_TYPE, _UNPACKED, _PACKED, _V1, _DICTIONARY, _V2 = 1, 2, 3, 5, 7, 8
_COUNT = 1
_HEADS = {
    _TYPE: None,
    _UNPACKED: None,
    _PACKED: None,
    _V1: {_COUNT: None, 2: None},
    _DICTIONARY: {_COUNT: None},
    _V2: {_COUNT: None, 4: None},
}
"""Field numbers from `parquet.thrift`, of the struct PageHeader and its nested structs."""
_ENCODINGS = {0: (_V1, 2), 3: (_V2, 4)}
"""By data page type: the field of its own header and, in that, the field of its encoding."""
_DICTIONARY_PAGE = 2
_BY_CODES, _BY_BEGINNINGS = (2, 8), 7
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8, "BYTE_ARRAY": 4}
"""Bytes of a value; for variable length, of its offset."""
_CODECS = {0: None, 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
_SMALL_BYTES = 64 << 20
"""Maximum size from dictionaries and shared beginnings for which a row group is decoded in the usual way."""
_SCANNED_BYTES = 4 << 20
"""Maximum size of a dictionary that is searched for its longest value. Writers stop at 1 MiB by default."""
_STEP_BYTES = 256 << 20
"""Maximum size of the rows decoded at a time if values share beginnings."""


class _File(Protocol):
    def seek(self, offset: int) -> int: ...

    def read(self, size: int) -> Buffer: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaf:
    """One column of the file, from the schema.

    Attributes:
        column: The schema column that it belongs to, completely or in part.
        path: Its own name.
        physical: Its physical type, such as `BYTE_ARRAY`.
        width: Bytes of a value of `FIXED_LEN_BYTE_ARRAY`.
        has_codes: Whether pyarrow can return codes and a dictionary instead of values.
    """

    column: str
    path: str
    physical: str
    width: int
    has_codes: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Such a column in one row group, from the footer.

    Attributes:
        start: First byte in the file.
        stop: One past the last.
        unpacked_bytes: Uncompressed size of its pages.
        values: Number of values.
        codec: Number of the compression in `parquet.thrift`.
    """

    leaf: Leaf
    start: int
    stop: int
    unpacked_bytes: int
    values: int
    codec: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How to decode a row group.

    Attributes:
        sizes: Maximum bytes of each schema column, unless limited by `rows_at_once`.
        coded: Paths of file columns to read as codes and a dictionary.
        rows_at_once: Number of rows to decode before checking their size; None: all.
    """

    sizes: dict[str, int]
    coded: tuple[str, ...]
    rows_at_once: int | None


@dataclass(kw_only=True, slots=True)
class _Pages:
    """Totals from the headers of the pages of a chunk.

    Attributes:
        values: Values of all pages.
        unpacked_bytes: Uncompressed size of all pages.
        largest_bytes: Uncompressed size of the largest page: it is in memory beside its decoded values.
        dictionary_bytes: Uncompressed size of the dictionary page.
        dictionary: The dictionary page as stored in the file.
        coded: Values that are codes of the dictionary.
        shared_bytes: Maximum size of values that share beginnings.
        largest_shared_bytes: Maximum size of one of these.
    """

    values: int = 0
    unpacked_bytes: int = 0
    largest_bytes: int = 0
    dictionary_bytes: int = 0
    dictionary: Buffer = b""
    coded: int = 0
    shared_bytes: int = 0
    largest_shared_bytes: int = 0


def plan_reading(chunks: Sequence[Chunk], file: _File, most_bytes: int) -> Reading:
    """Plan the decoding of columns of a row group within `most_bytes`. Raises ValueError on a damaged page header."""
    texts = sum(chunk.leaf.physical == "BYTE_ARRAY" for chunk in chunks)
    small = min(_SMALL_BYTES, most_bytes // 16) // max(1, texts)
    sizes: dict[str, int] = {}
    coded: list[str] = []
    steps: list[int] = []
    for chunk in chunks:
        leaf = chunk.leaf
        file.seek(chunk.start)
        pages = _pages(memoryview(file.read(chunk.stop - chunk.start)), chunk)
        size = max(pages.unpacked_bytes, max(chunk.values, pages.values) * (_WIDTHS.get(leaf.physical) or leaf.width))
        if leaf.physical == "BYTE_ARRAY":
            more = _more_bytes(chunk, pages, small)
            if more > small and leaf.has_codes and pages.coded:
                coded.append(leaf.path)
                more = 4 * pages.values + pages.shared_bytes
            if more > small + size:
                steps.append(
                    max(
                        1,
                        min(_STEP_BYTES, most_bytes // 4) // max(pages.largest_shared_bytes, pages.dictionary_bytes, 1),
                    )
                )
            else:
                size += more
        sizes[leaf.column] = sizes.get(leaf.column, 0) + size + pages.largest_bytes
    return Reading(sizes=sizes, coded=tuple(coded), rows_at_once=min(steps, default=None))


def _more_bytes(chunk: Chunk, pages: _Pages, small: int) -> int:
    """Maximum size of values beyond the bytes of the pages, if they are not left in the dictionary."""
    by_codes = pages.coded * max(0, pages.dictionary_bytes - 4)
    if small < by_codes and pages.dictionary_bytes <= _SCANNED_BYTES:
        # Codes cost time when values are taken and where pages have plain values, so compute a tighter bound.
        by_codes = pages.coded * _longest(pages, chunk.codec)
    return by_codes + pages.shared_bytes


def _pages(data: memoryview, chunk: Chunk) -> _Pages:
    """The headers of the pages of a chunk, as far as pyarrow reads them. Raises ValueError."""
    found = _Pages()
    at = 0
    while at < len(data) and found.values < chunk.values:
        try:
            head, at = read_struct(data, _HEADS, at)
        except IndexError:
            break  # old writers declare a few bytes too few; pyarrow finds no page or a partial one here
        except ValueError as error:
            raise ValueError(f"the page at byte {chunk.start + at} has a damaged header: {error}") from error
        unpacked, packed = number(head, _UNPACKED), number(head, _PACKED)
        if unpacked < 0 or packed < 0:
            raise ValueError(
                f"the page at byte {chunk.start + at} declares a size of {packed} bytes, {unpacked} uncompressed"
            )
        found.unpacked_bytes += unpacked
        found.largest_bytes = max(found.largest_bytes, unpacked)
        _add(found, head, unpacked, data[at : at + packed])
        at += packed
    return found


def _add(found: _Pages, head: dict[int, Any], unpacked: int, data: memoryview) -> None:
    kind = head.get(_TYPE, 0)
    if kind == _DICTIONARY_PAGE:
        found.dictionary_bytes, found.dictionary = max(unpacked, found.dictionary_bytes), data
    if kind not in _ENCODINGS:
        return
    own, encoding = _ENCODINGS[kind]
    header = head.get(own)
    if not isinstance(header, dict):
        raise ValueError("one of its pages lacks the header of its type")
    count = number(header, _COUNT)
    found.values += count
    if header.get(encoding) in _BY_CODES:
        found.coded += count
    elif header.get(encoding) == _BY_BEGINNINGS:
        found.shared_bytes += count * unpacked
        found.largest_shared_bytes = max(found.largest_shared_bytes, unpacked)


def _longest(pages: _Pages, codec: int) -> int:
    """Bytes of the longest value in a dictionary; the size of the dictionary if it cannot be decompressed here."""
    import pyarrow

    try:
        name = _CODECS[codec]
        data = pages.dictionary if name is None else pyarrow.decompress(pages.dictionary, pages.dictionary_bytes, name)
        view = memoryview(data)
    except (KeyError, ValueError, OSError, MemoryError):
        return pages.dictionary_bytes
    longest = at = 0
    unpack, end = struct.Struct("<I").unpack_from, len(view) - 4
    while at <= end:
        (length,) = unpack(view, at)
        at += 4 + length
        if length > longest:
            longest = length
    return min(longest, pages.dictionary_bytes)
