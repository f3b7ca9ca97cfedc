from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from energon_grain.errors import DecodingError
from energon_grain.transforms.decode import integer_codec, json_codec, text_codec

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Equal, and of equal types at every depth."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return math.copysign(1, a) == math.copysign(1, b) and (a == b or (a != a and b != b))
    return a == b


@given(JSON, st.booleans(), st.sampled_from([None, 1]))
def test_json_decodes_as_in_the_standard_library(value: Any, ascii_only: bool, indent: int | None):
    data = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    try:
        wanted = json.loads(data)
    except ValueError:
        with pytest.raises(DecodingError):
            json_codec("json")(data)
        return
    assert same(json_codec("json")(data), wanted)


@given(
    st.one_of(
        st.from_regex(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d{1,3})?", fullmatch=True),
        st.text("0123456789.eE+-", max_size=8),
    )
)
def test_numbers_decode_as_in_the_standard_library(text: str):
    try:
        wanted = json.loads(text)
    except ValueError:
        with pytest.raises(DecodingError):
            json_codec("json")(text.encode())
        return
    assert same(json_codec("json")(text.encode()), wanted)


@pytest.mark.parametrize(
    "data",
    [
        b"NaN",
        b"[Infinity, -Infinity]",
        b'"\\ud800"',
        b"123456789012345678901234567890",
        b"\xef\xbb\xbf1",
        '{"a":1}'.encode("utf-16"),
    ],
)
def test_json_beyond_the_standard_decodes_as_in_the_standard_library(data: bytes):
    try:
        wanted = json.loads(data)
    except ValueError:
        with pytest.raises(DecodingError):
            json_codec("json")(data)
        return
    assert same(json_codec("json")(data), wanted)


def test_views_decode_like_bytes():
    assert json_codec("json")(memoryview(b'{"a": [1]}')) == {"a": [1]}
    assert json_codec("json")(memoryview(b"NaN")) != 0
    assert text_codec("txt")(memoryview("ä".encode())) == "ä"
    assert integer_codec("cls")(memoryview(b"12")) == 12


@pytest.mark.parametrize(("data", "value"), [(b"3", 3), (b" -7\n", -7), (b"1_000", 1000), (b"+5", 5)])
def test_integers(data: bytes, value: int):
    assert integer_codec("cls")(data) == value


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (text_codec, b"\xff\xfe"),
        (integer_codec, b""),
        (integer_codec, b"1.0"),
        (json_codec, b""),
        (json_codec, b"{"),
        (json_codec, b"\xff"),
        (json_codec, b"[" * 100_000),
    ],
)
def test_errors_name_the_part(codec: Any, data: bytes):
    with pytest.raises(DecodingError, match=r"part 'a\.part': "):
        codec("a.part")(data)
