# SPDX-License-Identifier: Apache-2.0
"""How much memory a row group of a Parquet file takes, from the heads of its pages, before any of them is decoded.

A footer may say anything, and a page of some bytes may decode to gigabytes in three ways: compression, a dictionary
with one long value that all rows have, and values that repeat the beginning of the one before (`DELTA_BYTE_ARRAY`).
The first is known from the heads of pages. A dictionary stays one: the rows that are wanted look their values up in
it. The third is decoded some rows at a time.
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
"""Numbers of fields in `parquet.thrift`, of the struct PageHeader and those in it."""
_ENCODINGS = {0: (_V1, 2), 3: (_V2, 4)}
"""By the type of a page of data, the fields with its own head and, in that, with its encoding."""
_DICTIONARY_PAGE = 2
_BY_CODES, _BY_BEGINNINGS = (2, 8), 7
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8, "BYTE_ARRAY": 4}
"""Bytes of a value; of those of any length, of its place."""
_CODECS = {0: None, 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
_SMALL_BYTES = 64 << 20
"""What a row group may take by dictionaries and by shared beginnings, at most, to be decoded in the usual way."""
_SCANNED_BYTES = 4 << 20
"""A dictionary in which the longest value is looked for. Writers stop at a mebibyte, by default."""
_STEP_BYTES = 256 << 20
"""What the rows may take that are decoded at a time, where values share beginnings."""


class _File(Protocol):
    def seek(self, offset: int) -> int: ...

    def read(self, size: int) -> Buffer: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaf:
    """One column of the file, as the schema says.

    Attributes:
        column: The column of the schema that it belongs to, in whole or in part.
        path: Its own name.
        physical: Its physical type, as `BYTE_ARRAY`.
        width: Bytes of a value of `FIXED_LEN_BYTE_ARRAY`.
        has_codes: Whether pyarrow gives codes and a dictionary instead of values.
    """

    column: str
    path: str
    physical: str
    width: int
    has_codes: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Such a column in one row group, as the footer says.

    Attributes:
        start: First byte in the file.
        stop: One past the last.
        unpacked_bytes: Of its pages.
        values: How many.
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
        sizes: Bytes that each column of the schema takes, at most, where `rows_at_once` does not say otherwise.
        coded: Paths of columns of the file to read as codes and a dictionary.
        rows_at_once: How many rows to decode at a time and then look at what they take; None: all.
    """

    sizes: dict[str, int]
    coded: tuple[str, ...]
    rows_at_once: int | None


@dataclass(kw_only=True, slots=True)
class _Pages:
    """What the heads of the pages of a chunk say.

    Attributes:
        values: Of all pages.
        unpacked_bytes: Of all pages.
        largest_bytes: Of these, those of the largest page: it is in memory beside what it decodes to.
        dictionary_bytes: Of the page with the dictionary.
        dictionary: That page as it is in the file.
        coded: Values that are codes of the dictionary.
        shared_bytes: What values may take that share beginnings, at most.
        largest_shared_bytes: What one of these may take.
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
    """How to decode columns of a row group, that may take `most_bytes`. Raises ValueError: a head is damaged."""
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
    """What values may take beyond the bytes of the pages, at most, where they are not left in the dictionary."""
    by_codes = pages.coded * max(0, pages.dictionary_bytes - 4)
    if small < by_codes and pages.dictionary_bytes <= _SCANNED_BYTES:
        # Codes cost time where values are taken, and where pages have values instead, so look closer.
        by_codes = pages.coded * _longest(pages, chunk.codec)
    return by_codes + pages.shared_bytes


def _pages(data: memoryview, chunk: Chunk) -> _Pages:
    """The heads of the pages of a chunk, as far as pyarrow reads them. Raises ValueError."""
    found = _Pages()
    at = 0
    while at < len(data) and found.values < chunk.values:
        try:
            head, at = read_struct(data, _HEADS, at)
        except IndexError:
            break  # files of old writers say some bytes too few; pyarrow finds no page here, or what is left of one
        except ValueError as error:
            raise ValueError(f"a page of it @ {chunk.start + at} has a damaged head: {error}") from error
        unpacked, packed = number(head, _UNPACKED), number(head, _PACKED)
        if unpacked < 0 or packed < 0:
            raise ValueError(f"a page of it @ {chunk.start + at} has {packed} bytes, and {unpacked} uncompressed")
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
    said = head.get(own)
    if not isinstance(said, dict):
        raise ValueError("a page of it has no head of its kind")
    count = number(said, _COUNT)
    found.values += count
    if said.get(encoding) in _BY_CODES:
        found.coded += count
    elif said.get(encoding) == _BY_BEGINNINGS:
        found.shared_bytes += count * unpacked
        found.largest_shared_bytes = max(found.largest_shared_bytes, unpacked)


def _longest(pages: _Pages, codec: int) -> int:
    """Bytes of the longest value in a dictionary; of the whole, where it does not unpack here."""
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
