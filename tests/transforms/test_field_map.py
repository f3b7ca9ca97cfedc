from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given, strategies as st

from energon_grain import CaptioningSample, ImageClassificationSample, TextSample
from energon_grain.errors import ConfigError, DecodingError, FieldMapError
from energon_grain.transforms.field_map import FieldMap, Option, parse_expression


@pytest.mark.parametrize(
    ("expression", "options"),
    [
        ("jpg", [("jpg",)]),
        ("jpg,png", [("jpg",), ("png",)]),
        ("json[a]", [("json", "a")]),
        ("json[captions][0]", [("json", "captions", "0")]),
        ("d.json[q],txt", [("d.json", "q"), ("txt",)]),
        ("json[a b.c-d][-1]", [("json", "a b.c-d", "-1")]),
        ("json[c[0]]", [("json[c[0]]",)]),  # brackets in brackets: the name of a part
        ("json[]", [("json[]",)]),
        ("json[a", [("json[a",)]),
        ("json[a]b", [("json[a]b",)]),
        (" jpg", [(" jpg",)]),
    ],
)
def test_grammar(expression: str, options: list[tuple[str, ...]]):
    parsed = parse_expression(expression)
    assert [(option.part, *option.access) for option in parsed] == options
    assert ",".join(map(str, parsed)) == expression


NAMES = st.text(st.characters(exclude_characters="[],", exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(st.lists(st.tuples(NAMES, st.lists(NAMES, max_size=3)), min_size=1, max_size=4))
def test_printing_and_parsing_are_inverse(options: list[tuple[str, list[str]]]):
    made = tuple(Option(part, tuple(access)) for part, access in options)
    assert parse_expression(",".join(map(str, made))) == made


@given(st.text("ab[],0", max_size=12))
def test_every_text_parses_to_what_it_says(expression: str):
    assert ",".join(map(str, parse_expression(expression))) == expression


def test_parse_collects_parts_and_plain_maps():
    plain = FieldMap.parse({"image": "jpg", "caption": "txt"}, CaptioningSample)
    assert plain.parts == ("jpg", "txt")
    assert plain.simple == {"image": "jpg", "caption": "txt"}
    rich = FieldMap.parse({"image": "png,jpg", "caption": "json[c]", "__key__": "__key__"}, CaptioningSample)
    assert rich.parts == ("jpg", "json", "png")
    assert rich.simple is None
    assert "json[c]" in repr(rich)
    assert pickle.loads(pickle.dumps(rich)).fields == rich.fields


def test_optional_fields_and_key_may_be_left_out():
    FieldMap.parse({"image": "jpg"}, ImageClassificationSample)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"image": "jpg"}, r"CaptioningSample requires caption"),
        ({}, r"CaptioningSample requires image, caption"),
        (
            {"image": "jpg", "captoin": "txt"},
            r"CaptioningSample has no field 'captoin'; did you mean 'caption'\? there are image",
        ),
        ({"image": "jpg", "caption": "txt", "__sources__": "x"}, r"__sources__ cannot be mapped"),
        ({"image": "jpg", "caption": 3}, r"caption: 3 is not an expression"),
        ({"image": "jpg", "caption": ""}, r"caption: '' is not an expression"),
    ],
)
def test_maps_that_do_not_fit_are_refused_at_load_time(mapping: dict[str, Any], message: str):
    with pytest.raises(FieldMapError, match=f"^dataset.yaml: {message}"):
        FieldMap.parse(mapping, CaptioningSample, where="dataset.yaml")


def test_only_dataclasses_have_fields_to_map():
    with pytest.raises(ConfigError, match="int is not a dataclass"):
        FieldMap.parse({"a": "b"}, int)


def test_check_parts_names_fields_that_no_part_can_fill():
    mapping = FieldMap.parse({"image": "jpg,png", "caption": "jsn[c]"}, CaptioningSample)
    mapping.check_parts(["png", "jsn"])
    with pytest.raises(FieldMapError, match=r"caption: no sample has a part 'jsn'; did you mean 'json'\? there are"):
        mapping.check_parts(["png", "json"])
    FieldMap.parse({"text": "__key__"}, TextSample).check_parts([])


PARTS = {
    "__key__": "k",
    "jpg": b"j",
    "json": {"captions": ["one", {"deep": "two"}], "0": "zero", "n": None, "s": "text"},
    "list": [1, 2],
}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("jpg", b"j"),
        ("png,jpg", b"j"),
        ("json[captions][1][deep]", "two"),
        ("json[captions][-2]", "one"),
        ("json[0]", "zero"),  # a key of a dictionary is a text
        ("list[1]", 2),
        ("json[n]", None),
        ("json[captions][7],json[captions][x],json[s][0],json[missing],list[1]", 2),
        ("__key__", "k"),
    ],
)
def test_evaluation(expression: str, value: Any):
    assert FieldMap.parse({"text": expression}, TextSample).evaluate(PARTS) == {"text": value}


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("png", "png: no such part"),
        ("json[captions][5]", r"json\[captions\]\[5\]: IndexError: list index out of range"),
        ("json[captions][x]", "invalid literal for int"),
        ("json[s][0]", r"ValueError: \[0\] of a str"),
        ("json[missing]", "KeyError: 'missing'"),
        ("png,json[missing]", r"png: no such part; json\[missing\]: KeyError"),
    ],
)
def test_a_field_without_value_says_why(expression: str, reason: str):
    mapping = FieldMap.parse({"text": expression}, TextSample)
    with pytest.raises(DecodingError, match=rf"field 'text' has no value: .*{reason}.*the sample has jpg, json, list"):
        mapping.evaluate(PARTS)
