"""Copies of samples that a generator goes on to write into."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, fields
from typing import Any

import pytest

from energon_grain import Sample, TextSample
from energon_grain.stream.hooks import apart

BASE: Any = {"__key__": "a", "__restore_key__": ()}


@dataclass
class Open(Sample):
    x: Any = None


@dataclass(slots=True)
class Counted:
    x: Any
    y: Any = 1
    derived: Any = field(init=False, default=3)

    def __post_init__(self) -> None:
        raise AssertionError("copies are not made anew")


@dataclass(frozen=True, slots=True)
class Frozen:
    x: Any
    y: Any = 2


@dataclass(slots=True)
class OwnWay:
    x: Any
    y: Any = 2

    def __copy__(self) -> OwnWay:
        return OwnWay("copied")


class Slot(TextSample):
    __slots__ = ("beside",)
    beside: int


def counted() -> Counted:
    made = Counted.__new__(Counted)
    made.x, made.y, made.derived = [1], 2, 4
    return made


def beside() -> Slot:
    made = Slot(**BASE, text="x")
    made.beside = 5
    return made


@pytest.mark.parametrize(
    "value", [TextSample(**BASE, text="x"), Open(**BASE, x=[1]), counted(), Frozen([1]), beside(), {"x": [1]}], ids=str
)
def test_fields_are_the_same_and_apart(value: Any) -> None:
    made = apart(value)
    assert made is not value
    assert type(made) is type(value)
    if isinstance(value, dict):
        assert made == value
        assert made["x"] is value["x"]
        return
    for each in fields(value):
        assert getattr(made, each.name) is getattr(value, each.name)
    assert getattr(made, "beside", None) == getattr(value, "beside", None)
    if not isinstance(value, Frozen):
        name = fields(value)[-1].name
        setattr(value, name, "new")
        assert getattr(made, name) != "new"


def test_what_a_class_says_of_its_copies_holds() -> None:
    assert apart(OwnWay("x")).x == "copied"


def test_what_is_not_set_stays_so() -> None:
    value = Counted.__new__(Counted)
    value.x = 1
    made = apart(value)
    assert made.x == 1
    assert not hasattr(made, "y")


def test_attributes_beside_the_fields_are_kept() -> None:
    value = Open(**BASE)
    value.note = "here"  # type: ignore[attr-defined]
    assert apart(value).note == copy.copy(value).note == "here"  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [3, "text", None, [1], Frozen])
def test_other_values_are_handed_on(value: Any) -> None:
    assert apart(value) is value
