# SPDX-License-Identifier: Apache-2.0
"""The 512-byte tar header: field offsets, numbers and checksum, for single headers or in bulk.

Layout after POSIX.1-2017 (pax, "ustar Interchange Format") and the GNU tar manual ("Basic Tar Format").
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

BLOCK = 512
ZERO_BLOCK = bytes(BLOCK)

NAME = slice(0, 100)
SIZE = slice(124, 136)
CHECKSUM = slice(148, 156)
TYPE = 156
LINK_NAME = slice(157, 257)
MAGIC = 257
PREFIX = slice(345, 500)
USTAR_MAGIC = b"ustar\0"

REGULAR, OLD_REGULAR, CONTIGUOUS = b"0\0007"
HARD_LINK = b"1"[0]
WITHOUT_PAYLOAD = frozenset(b"123456")
GNU_LONG_NAME, GNU_LONG_LINK, GNU_SPARSE, GNU_MULTI_VOLUME = b"LKSM"
PAX_MEMBER, PAX_SOLARIS, PAX_GLOBAL = b"xXg"

_SEVEN_BITS = bytes(range(128))
_OCTAL = re.compile(rb" *([0-7]*) *(?:\0.*)?", re.DOTALL)

# Constants of the bulk code, which reads eight bytes of each header at a time as a little-endian word.
_EIGHT, _SIXTEEN, _HALF, _TERMINATOR, _THREE_DIGITS = (np.uint64(bits) for bits in (8, 16, 32, 56, 9))
_EVEN_BYTES, _EVEN_LANES, _LOW_HALF = (np.uint64(mask) for mask in (0x00FF00FF00FF00FF, 0x0000FFFF0000FFFF, 0xFFFFFFFF))
_THREE_BYTES = np.uint64(0xFFFFFF)
_DIGITS, _NO_OCTAL = np.uint64(0x0707070707070707), np.uint64(0xF8F8F8F8F8F8F8F8)
_ASCII_ZEROS = np.uint64(0x3030303030303030)
_ASCII_ZEROS_4, _ASCII_ZEROS_2, _ASCII_ZERO = (
    _ASCII_ZEROS & _LOW_HALF,
    _ASCII_ZEROS & np.uint64(0xFFFF),
    np.uint64(0x30),
)


def round_up(size_bytes: int) -> int:
    """Round up to whole blocks."""
    return -(-size_bytes // BLOCK) * BLOCK


def parse_number(field: bytes) -> int:
    """Parse a number field: octal digits between blanks, or base-256 (top bit set, big-endian, two's complement).

    Raises ValueError.
    """
    if field[0] & 0x80:
        bits = 8 * len(field) - 1
        value = int.from_bytes(field, "big") & ((1 << bits) - 1)
        return value - (1 << bits) if value >> (bits - 1) else value
    match = _OCTAL.fullmatch(field)
    if match is None:
        raise ValueError(f"{field!r} is not an octal number")
    return int(match[1] or b"0", 8)


def text(field: bytes) -> bytes:
    """Return a text field up to its first zero byte."""
    return field.partition(b"\0")[0]


def full_name(block: bytes) -> bytes:
    """Return the name in a header, with its prefix.

    Raises ValueError if there are bytes in the prefix field, but the format of the header has none.
    """
    name, prefix = text(block[NAME]), text(block[PREFIX])
    if not prefix:
        return name
    if not block.startswith(USTAR_MAGIC, MAGIC):
        raise ValueError(f"bytes in the field of the name's prefix, which this header format lacks: {prefix[:24]!r}")
    return prefix + b"/" + name


def checksum_holds(block: bytes) -> bool:
    """Check one header against its checksum, summed as unsigned or (old Sun and NeXT tars) as signed bytes."""
    try:
        expected = parse_number(block[CHECKSUM])
    except ValueError:
        return False
    blanked = block[: CHECKSUM.start] + b" " * 8 + block[CHECKSUM.stop :]
    unsigned = sum(blanked)
    return expected in (unsigned, unsigned - 256 * len(blanked.translate(None, _SEVEN_BITS)))


def read_sizes(headers: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Parse the size fields of (n, 512) contiguous headers that are eleven octal digits; -1 for all other forms."""
    words = headers.view("<u8")
    low, high = words[:, 15] >> _HALF, words[:, 16].copy()  # bytes 124 to 127, and 128 to 135
    terminator = high >> _TERMINATOR
    digits = low | (high << _HALF)  # the first eight
    rest = ((high >> _HALF) & _THREE_BYTES) << _EIGHT | _ASCII_ZERO  # the last three, after one more zero
    valid = (((digits ^ _ASCII_ZEROS) & _NO_OCTAL) == 0) & (((rest ^ _ASCII_ZEROS_4) & _NO_OCTAL) == 0)
    valid &= (terminator == 0) | (terminator == ord(" "))
    sizes = ((_octal(digits) << _THREE_DIGITS) | (_octal(rest << _HALF))).astype(np.int64)
    sizes[~valid] = -1
    return sizes


def first_bad_checksum(headers: npt.NDArray[np.uint8]) -> int | None:
    """Return the first row of (n, 512) contiguous headers with a wrong checksum, None if all are correct."""
    words = headers.view("<u8")
    low, high = words[:, 18] >> _HALF, words[:, 19] & _LOW_HALF  # bytes 148 to 151, and 152 to 155
    field = low | (high << _HALF)
    digits = (field << _SIXTEEN) | _ASCII_ZEROS_2  # six, after two more zeros
    plain = (((digits ^ _ASCII_ZEROS) & _NO_OCTAL) == 0) & (field >> np.uint64(48) & np.uint64(0xFF) == 0)
    sums = _byte_sums(words) - _fold(_lanes(field)) + np.uint64(8 * ord(" "))
    for row in np.flatnonzero(~plain | (sums != _octal(digits))):
        if not checksum_holds(headers[row].tobytes()):
            return int(row)
    return None


def _byte_sums(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Sum the bytes of each header, given as (n, 64) words.

    Most words are the same in all headers of a tar (zeros, owner, mode): they are summed once, and only the words that
    vary are summed row by row, as four lanes of 16 bits (64 words · 2 bytes · 255 fits).
    """
    if not len(words):
        return np.zeros(0, np.uint64)
    varies = np.bitwise_or.reduce(words, axis=0) != np.bitwise_and.reduce(words, axis=0)
    lanes = np.zeros(len(words), np.uint64)
    for column in np.flatnonzero(varies):
        lanes += _lanes(words[:, column])
    return _fold(lanes) + _fold(_lanes(words[0, ~varies])).sum(dtype=np.uint64)


def _lanes(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Add the odd bytes of each word to its even ones: four sums in 16-bit lanes."""
    return (words & _EVEN_BYTES) + ((words >> _EIGHT) & _EVEN_BYTES)


def _fold(lanes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Sum the four 16-bit lanes, each at most 32,640."""
    pairs = (lanes & _EVEN_LANES) + ((lanes >> _SIXTEEN) & _EVEN_LANES)
    return (pairs + (pairs >> _HALF)) & _LOW_HALF


def _octal(digits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Convert eight octal digits, the most significant in the lowest byte, to a number: by pairs, fours, eights."""
    values = digits & _DIGITS
    values = ((values << np.uint64(3)) + (values >> _EIGHT)) & _EVEN_BYTES
    values = ((values << np.uint64(6)) + (values >> _SIXTEEN)) & _EVEN_LANES
    return ((values << np.uint64(12)) + (values >> _HALF)) & _LOW_HALF
