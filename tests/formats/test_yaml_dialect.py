from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from energon_grain.errors import ConfigError
from energon_grain.storage.yaml_dialect import WrittenFloat, cast_scalar, dump_yaml, parse_yaml


def parse(text: str) -> Any:
    return parse_yaml(text, where="meta.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("off", "off"),
        ("Yes", True),
        ("TRUE", True),
        ("no", False),
        ("NULL", None),
        ("~", None),
        ("1_000", 1000),
        ("012", 12),
        ("+3", 3),
        ("0x10", "0x10"),
        ("0o17", "0o17"),
        ("1_0.5", 10.5),
        ("1__0", "1__0"),
        ("1.", 1.0),
        ("-.5", -0.5),
        ("1e3", 1000.0),
        ("1e400", math.inf),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("e", "e"),
        ("5%", "5%"),
        ("end", "end"),
        ("2020-01-01", "2020-01-01"),
        ("1:30", "1:30"),
        ("'12'", "12"),
        ('"true"', "true"),
        ("'~'", "~"),
        ("|\n  12\n", "12\n"),
        (">-\n  true\n", "true"),
        ("12\n  13\n", "12 13"),
        ("", None),
        ("!!str 12", "12"),
        ("!!float 12", 12.0),
        ("!!null ~", None),
        ("[1, 2.5, x]", [1, 2.5, "x"]),
        ("{a: 1, a: 2}", {"a": 2}),
    ],
)
def test_scalars_are_typed_as_energon_types_them(text: str, value: Any) -> None:
    got = parse(f"a: {text}")["a"]
    assert got == value
    assert isinstance(got, float) == isinstance(value, float)
    assert isinstance(got, bool) == isinstance(value, bool)


def test_keys_are_text() -> None:
    assert parse("12: a\nnull: b\ntrue: c\n'1.5': d") == {"12": "a", "null": "b", "true": "c", "1.5": "d"}


def test_floats_remember_their_text() -> None:
    weight = parse("weight: 0.333333333333333333333")["weight"]
    assert isinstance(weight, WrittenFloat)
    assert weight.text == "0.333333333333333333333"
    assert weight == 1 / 3


def test_anchors_aliases_and_merge_keys_work() -> None:
    text = """
    one: &one {a: 1, b: 1}
    two: &two {b: 2, c: 2}
    same: *one
    own: {b: 9, <<: *one}
    several: {<<: [*one, *two], d: 3}
    list: &list [1, 2]
    lists: [*list, *list]
    """
    got = parse(text)
    assert got["same"] == {"a": 1, "b": 1}
    assert got["own"] == {"a": 1, "b": 9}
    assert got["several"] == {"a": 1, "b": 1, "c": 2, "d": 3}
    assert got["lists"] == [[1, 2], [1, 2]]


def test_a_merge_key_in_quotes_is_a_key() -> None:
    assert parse("{'<<': {a: 1}}") == {"<<": {"a": 1}}


def test_an_empty_document_is_none() -> None:
    assert parse("") is None
    assert parse("# nothing") is None


@pytest.mark.parametrize(
    "text",
    [
        "a: [1",
        "a: *nowhere",
        "a: &a [*a]",
        "a: &a {b: *a}",
        "? [1]\n: 2",
        "a: !!python/name:os.system x",
        "a: !mine 1",
        "a: !!int x",
        "a: !!set {b, c}",
        "<<: 3",
        "a: 1\n---\nb: 2",
        "\tb: 1",
        "[" * 5000,
    ],
)
def test_what_is_not_valid_is_refused_with_the_file(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^meta\.yaml: "):
        parse(text)


@pytest.mark.parametrize("text", ["a: 1\nb: [", "a: 1\nb: !!int x"])
def test_the_place_in_the_file_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match=r"at line [23], column \d") as caught:
        parse(text)
    assert "<" not in str(caught.value)


@given(st.text(alphabet="0123456789_.eE+-", min_size=1, max_size=8))
def test_numbers_follow_python(text: str) -> None:
    got = cast_scalar(text)
    try:
        expected: Any = float(text) if "." in text or "e" in text.lower() else int(text)
    except ValueError:
        expected = text
    assert got == expected
    assert isinstance(got, float) == isinstance(expected, float)


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs", "Cc"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc01.ey~", max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(
    content=st.dictionaries(
        st.text("abc", min_size=1), plain_values | st.sampled_from(["012", "on", "1e3", "~", "0x1"])
    )
)
def test_what_is_written_is_read(content: dict[str, Any]) -> None:
    written = dump_yaml(content)
    assert parse_yaml(written, where="w") == content
    assert yaml.safe_load(written) == content


def test_a_key_that_comes_again_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert (
        parse("blend:\n- path: a\n  weight: 2\n  path: b\n- &c {path: c}\n- {<<: *c, path: d}")["blend"][0]["path"]
        == "b"
    )
    (record,) = caplog.records
    assert "line 4: the key `path` comes again" in record.getMessage()
