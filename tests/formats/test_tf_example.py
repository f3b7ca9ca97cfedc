"""`tf.train.Example`: what was written comes back, and damage is told."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from records import encode_example

from energon_grain.errors import FormatError
from energon_grain.formats.array_record import read_example

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
FEATURES = st.dictionaries(
    st.text(max_size=8),
    st.one_of(st.lists(st.binary(max_size=300), max_size=3), st.lists(INT64), st.lists(st.floats(width=32))),
    max_size=6,
)


def plain(value: Any) -> Any:
    return [value] if isinstance(value, bytes) else value.tolist()


@given(FEATURES)
def test_features_come_as_they_were_written(features: dict[str, list[Any]]) -> None:
    found = read_example(encode_example(features))
    assert list(found) == list(features)
    for name, values in features.items():
        np.testing.assert_array_equal(plain(found[name]), values)


def test_types() -> None:
    found = read_example(encode_example({"one": [b"x"], "two": [b"x", b""], "f": [0.5], "i": [-1]}))
    assert found["one"] == b"x"
    for name, dtype in (("two", np.object_), ("f", np.float32), ("i", np.int64)):
        value = found[name]
        assert isinstance(value, np.ndarray)
        assert value.dtype == dtype


def test_numbers_one_by_one() -> None:
    # feature "i": field 1 as varints 5 and 2**64 - 1; feature "f": 0.5 as fixed32
    ints = bytes.fromhex("0a16 0a14 0a0169 120f 1a0d 0805 08" + "ff" * 9 + "01")
    assert plain(read_example(ints)["i"]) == [5, -1]
    floats = bytes.fromhex("0a0e 0a0c 0a0166 1207 1205 0d0000003f")
    assert plain(read_example(floats)["f"]) == [0.5]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x0a\x05abc", "corrupt"),
        (b"\x0a", "corrupt"),
        (b"\x12\x00", "Example has no field 2"),
        (b"hello world", "corrupt"),
        (bytes.fromhex("0a0b 0a09 0a0169 1204 1a02 0a80"), "corrupt"),
        (bytes.fromhex("0a0d 0a0b 0a0166 1206 1204 0a020000"), "corrupt"),
        (b"\x0a" + b"\xff" * 11, "corrupt"),
        (bytes.fromhex("0a05 0a03 0a01ff"), "UTF-8"),
    ],
)
def test_what_is_no_example(data: bytes, said: str) -> None:
    with pytest.raises(FormatError, match=f"is no tf.train.Example: .*{said}"):
        read_example(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_features_or_an_error(data: bytes) -> None:
    with contextlib.suppress(FormatError):
        read_example(data)


@given(FEATURES, st.data())
def test_damage_is_features_or_an_error(features: dict[str, list[Any]], data: st.DataObject) -> None:
    text = bytearray(encode_example(features))
    for _ in range(data.draw(st.integers(0, 3)) if text else 0):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FormatError):
        read_example(bytes(text))
