from __future__ import annotations

import tarfile

import numpy as np
import pytest
from hypothesis import given, strategies as st

from energon_grain.formats.tar.header import checksum_holds, first_bad_checksum, parse_number, read_sizes


def header(name: str = "a.txt", size: int = 0, **fields: object) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.GNU_FORMAT)


def stack(blocks: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(blocks), np.uint8).reshape(-1, 512)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (b"00000001750\0", 1000),
        (b"    1750 \0\0\0", 1000),
        (b"1750\0garbage", 1000),
        (b"            ", 0),
        (b"777777777777", 8**12 - 1),
        (b"\x80" + (10**15).to_bytes(11, "big"), 10**15),
        (b"\xff" * 12, -1),
    ],
)
def test_reads_numbers(field: bytes, value: int) -> None:
    assert parse_number(field) == value


@pytest.mark.parametrize(
    "field", [b"00000000008\0", b"-0000000005\0", b"+0000000005\0", b"0_000000005\0", b"12 34\0      "]
)
def test_refuses_what_is_no_number(field: bytes) -> None:
    with pytest.raises(ValueError, match="octal"):
        parse_number(field)


@given(st.lists(st.integers(0, 8**12 - 1), min_size=1, max_size=20))
def test_reads_sizes_in_bulk(sizes: list[int]) -> None:
    plain = [size if size < 8**11 else -1 for size in sizes]
    assert read_sizes(stack([header(size=size) for size in sizes])).tolist() == plain


@given(st.binary(min_size=12, max_size=12) | st.text("01789 \0", min_size=12, max_size=12).map(str.encode))
def test_bulk_sizes_are_right_or_left_out(field: bytes) -> None:
    block = bytearray(header())
    block[124:136] = field
    (size,) = read_sizes(stack([bytes(block)])).tolist()
    assert size == -1 or size == parse_number(field)


@given(
    st.lists(st.tuples(st.text(max_size=20), st.integers(0, 8**11), st.integers(0, 8**7 - 1)), min_size=1, max_size=12),
    st.integers(0, 11),
    st.integers(0, 511),
    st.integers(0, 255),
)
def test_finds_the_first_bad_checksum(members: list[tuple[str, int, int]], row: int, at: int, byte: int) -> None:
    blocks = [header(name, size, uid=uid) for name, size, uid in members]
    assert first_bad_checksum(stack(blocks)) is None
    damaged = bytearray(blocks[row % len(blocks)])
    damaged[at] = byte
    blocks[row % len(blocks)] = bytes(damaged)
    assert all(map(checksum_holds, blocks)) == (first_bad_checksum(stack(blocks)) is None)
    if not checksum_holds(bytes(damaged)):
        assert first_bad_checksum(stack(blocks)) == row % len(blocks)


def test_accepts_sums_of_signed_bytes_and_blank_padding() -> None:
    block = bytearray(header("\xfc.txt"))
    signed = sum(byte - 256 * (byte > 127) for byte in bytes(block[:148]) + b" " * 8 + bytes(block[156:]))
    block[148:156] = b"%06o\0 " % signed
    assert checksum_holds(bytes(block))
    block[148:156] = b"%7o " % signed
    assert checksum_holds(bytes(block))
    assert first_bad_checksum(stack([bytes(block)] * 2)) is None
