"""`tf.train.Example` against protobuf's own encoder, and damage."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from records import encode_example

from energon_grain.errors import FormatError
from energon_grain.formats.array_record_encoding import read_example

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


def test_the_encoding_is_protobufs() -> None:
    descriptors = pytest.importorskip("google.protobuf.descriptor_pb2")
    from google.protobuf import descriptor_pool, message_factory

    field = descriptors.FieldDescriptorProto
    file = descriptors.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, int, int, str]) -> Any:
        made = file.message_type.add(name=name)
        for title, number, label, kind, type_name in fields:
            added = made.field.add(name=title, number=number, label=label, type=kind)
            if type_name:
                added.type_name = type_name
        return made

    many, one, nested = field.LABEL_REPEATED, field.LABEL_OPTIONAL, field.TYPE_MESSAGE
    message("BytesList", ("value", 1, many, field.TYPE_BYTES, ""))
    message("FloatList", ("value", 1, many, field.TYPE_FLOAT, ""))
    message("Int64List", ("value", 1, many, field.TYPE_INT64, ""))
    lists = ("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")
    message("Feature", *((name, number, one, nested, f".t.{kind}") for number, (name, kind) in enumerate(lists, 1)))
    features = message("Features", ("feature", 1, many, nested, ".t.Features.FeatureEntry"))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=one, type=field.TYPE_STRING)
    entry.field.add(name="value", number=2, label=one, type=nested, type_name=".t.Feature")
    message("Example", ("features", 1, one, nested, ".t.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    example = message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))()
    example.features.feature["b"].bytes_list.value.append(b"text")
    example.features.feature["f"].float_list.value.extend([1.5, -2.0])
    example.features.feature["i"].int64_list.value.extend([0, 300, -1, 1 << 62])
    example.features.feature["none"].SetInParent()
    found = read_example(example.SerializeToString())
    assert {name: plain(value) for name, value in found.items()} == {
        "b": [b"text"],
        "f": [1.5, -2.0],
        "i": [0, 300, -1, 1 << 62],
    }


def test_numbers_one_by_one() -> None:
    # feature "i": field 1 as varints 5 and 2**64 - 1; feature "f": 0.5 as fixed32
    ints = bytes.fromhex("0a16 0a14 0a0169 120f 1a0d 0805 08" + "ff" * 9 + "01")
    assert plain(read_example(ints)["i"]) == [5, -1]
    floats = bytes.fromhex("0a0e 0a0c 0a0166 1207 1205 0d0000003f")
    assert plain(read_example(floats)["f"]) == [0.5]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x0a\x05abc", "ends in the middle"),
        (b"\x0a", "ends in the middle"),
        (b"\x12\x00", "Example has no field 2"),
        (b"hello world", "Example has no field 13"),
        (b"\x0b", "wire type 3"),
        (bytes.fromhex("0a0b 0a09 0a0169 1204 1a02 0a80"), "ends in the middle"),
        (bytes.fromhex("0a0d 0a0b 0a0166 1206 1204 0a020000"), "not a multiple of 4"),
        (b"\x0a" + b"\xff" * 11, "more than 64 bits"),
        (bytes.fromhex("0a05 0a03 0a01ff"), "not UTF-8"),
    ],
)
def test_what_is_no_example(data: bytes, said: str) -> None:
    with pytest.raises(FormatError, match=said):
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
