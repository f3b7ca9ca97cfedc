"""Protocol buffers' wire format: what is written comes back, and what is no message is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from energon_grain.formats.wire_format import WireError, fields, packed_numbers, varint

NUMBERS = st.lists(st.one_of(st.integers(0, (1 << 64) - 1), st.integers(0, 300)))


def encoded(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + encoded(rest) if rest else bytes([low])


@given(NUMBERS)
def test_numbers_come_back(numbers: list[int]) -> None:
    data = b"".join(map(encoded, numbers))
    assert packed_numbers(data).tolist() == numbers
    assert packed_numbers(memoryview(data)).tolist() == numbers
    place, found = 0, list[int]()
    while place < len(data):
        number, place = varint(data, place)
        found.append(number)
    assert found == numbers


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x80", "ends in the middle"),
        (b"\x01\xff", "ends in the middle"),
        (b"\xff" * 9 + b"\x02", "more than 64 bits"),
        (b"\x80" * 10 + b"\x01", "more than 64 bits"),
    ],
)
def test_numbers_that_are_none(data: bytes, what: str) -> None:
    with pytest.raises(WireError, match=what):
        packed_numbers(data)
    with pytest.raises(WireError, match=what):
        place = 0
        while place < len(data):
            _, place = varint(data, place)


def test_fields() -> None:
    assert list(fields(b"\x08\x96\x01\x12\x02hi\x1d\x00\x00\x00\x3f")) == [(1, 150), (2, b"hi"), (3, 0.5)]
    for data in (b"\x08", b"\x12\x03hi", b"\x1d\x00\x00", b"\x12"):
        with pytest.raises(WireError, match="ends in the middle"):
            list(fields(data))
    with pytest.raises(WireError, match="field 1 has wire type 1"):
        list(fields(b"\x09" + bytes(8)))
