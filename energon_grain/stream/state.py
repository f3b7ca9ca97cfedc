"""States of lanes as short texts: one codec for whatever operators hold.

A state is nested tuples of integers, and so is a *reference*, from which an item can be made again. What they look like
an operator says once, by a *form*. The rest is done here for all of them: writing, reading, refusing what cannot be
one, and finding the samples that something is made of.

Written are small non-negative integers, those of the form in order, and a position as its difference from the one of
the same feed before it: samples that a lane holds lie close together, so each takes one or two bytes.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from energon_grain.errors import StateError

Position = tuple[int, int]
"""(number of a feed, position in its stream)."""
Form = Any
"""One of the classes below, or a tuple of forms, for a tuple of as many values."""
_TOO_LARGE = 1 << 63
_POSITIONS = 1 << 62


@dataclass(frozen=True, slots=True)
class Number:
    """A number, 0 or more; below `end`, where there is one."""

    end: int = _TOO_LARGE


@dataclass(frozen=True, slots=True)
class Place:
    """A position in the stream of a feed."""

    feed: int


@dataclass(frozen=True, slots=True)
class Many:
    """A tuple of any length, all of one form."""

    each: Form


@dataclass(frozen=True, slots=True)
class OneOf:
    """(number of a form, value of that form)."""

    forms: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Marked:
    """(number, value, tuple that is hardly ever anything but empty), which takes no room where it is empty."""

    value: Form
    rare: Many


@dataclass(frozen=True, slots=True)
class Same:
    """What is often the same several times in a row, among all values under its key. Its samples are read later."""

    key: int
    form: Form


class _Writer:
    def __init__(self) -> None:
        self.values: list[int] = []
        self._last: dict[int, int] = {}
        self._same: dict[int, Any] = {}

    def write(self, form: Form, value: Any) -> None:
        match form:
            case Place(feed=feed):
                difference = value - self._last.get(feed, 0)
                self._last[feed] = value
                self.values.append(2 * difference if difference >= 0 else -2 * difference - 1)
            case Number():
                self.values.append(value)
            case tuple():
                for part, entry in zip(form, value, strict=True):
                    self.write(part, entry)
            case Many(each=each):
                self.values.append(len(value))
                for entry in value:
                    self.write(each, entry)
            case OneOf(forms=forms):
                number, entry = value
                self.values.append(number)
                self.write(forms[number], entry)
            case Marked():
                number, entry, rare = value
                self.values.append(2 * number + bool(rare))
                self.write(form.value, entry)
                if rare:
                    self.write(form.rare, rare)
            case Same(key=key):
                new = key not in self._same or self._same[key] != value
                self._same[key] = value
                self.values.append(int(new))
                if new:
                    self.write(form.form, value)
            case _:
                raise AssertionError(form)


class _Reader:
    def __init__(self, values: list[int]) -> None:
        self.at = 0
        self._values = values
        self._last: dict[int, int] = {}
        self._same: dict[int, Any] = {}

    def _next(self) -> int:
        if self.at >= len(self._values):
            raise StateError("a saved state of lanes ends too early: it belongs to another graph, or is damaged")
        self.at += 1
        return self._values[self.at - 1]

    def read(self, form: Form) -> Any:
        match form:
            case Place(feed=feed):
                code = self._next()
                position = self._last.get(feed, 0) + (-((code + 1) // 2) if code & 1 else code // 2)
                if position < 0:
                    raise StateError("a saved state of lanes goes back behind the first sample: it is damaged")
                self._last[feed] = _below(position, _POSITIONS)
                return position
            case Number(end=end):
                return _below(self._next(), end)
            case tuple():
                return tuple([self.read(part) for part in form])
            case Many(each=each):
                return tuple([self.read(each) for _ in range(self._next())])
            case OneOf(forms=forms):
                number = _below(self._next(), len(forms))
                return number, self.read(forms[number])
            case Marked():
                number, rare = divmod(self._next(), 2)
                return number, self.read(form.value), self.read(form.rare) if rare else ()
            case Same(key=key):
                if self._next():
                    self._same[key] = self.read(form.form)
                if key not in self._same:
                    raise StateError(
                        "a saved state of lanes refers to nothing: it belongs to another graph, or is damaged"
                    )
                return self._same[key]
            case _:
                raise AssertionError(form)


def _below(value: int, end: int) -> int:
    if value >= end:
        raise StateError(f"a saved state has number {value} of {end}: it belongs to another graph, or is damaged")
    return value


def encode(form: Form, value: Any) -> list[int]:
    """A value of a form as integers, 0 or more, if it is one."""
    writer = _Writer()
    writer.write(form, value)
    return writer.values


def decode(form: Form, values: list[int]) -> Any:
    """The value that `encode` made integers of.

    Raises:
        StateError: There is no such value of this form.
    """
    reader = _Reader(values)
    value = reader.read(form)
    if reader.at != len(values):
        raise StateError("a saved state of lanes is too long: it belongs to another graph, or is damaged")
    return value


def check(form: Form, value: Any) -> None:
    """Refuse what is no value of a form.

    Raises:
        ValueError, TypeError, LookupError, StateError: It is none.
    """
    values = encode(form, value)
    if any(type(each) is not int or not 0 <= each < _TOO_LARGE for each in values):
        raise ValueError("a number in it is out of range")
    if decode(form, values) != value:
        raise ValueError("it has another shape")


def positions(form: Form, value: Any) -> Iterator[Position]:
    """The samples that a value is made of, each as often as it is there; those of `Same` left out."""
    match form:
        case Place(feed=feed):
            yield feed, value
        case tuple():
            for part, entry in zip(form, value, strict=True):
                yield from positions(part, entry)
        case Many(each=each):
            for entry in value:
                yield from positions(each, entry)
        case OneOf(forms=forms):
            yield from positions(forms[value[0]], value[1])
        case Marked():
            yield from positions(form.value, value[1])
        case _:
            return


def encode_lanes(form: Form, states: Iterable[Any]) -> list[int]:
    """States of lanes as integers: for each lane how many follow, and those."""
    values: list[int] = []
    for state in states:
        own = encode(form, state)
        values.append(len(own))
        values += own
    return values


def pack_integers(values: list[int]) -> str:
    """Non-negative integers as base64 of LEB128: seven bits a byte, the lowest first, one byte for values under 128."""
    data = bytearray()
    for value in values:
        while value >= 0x80:
            data.append(value & 0x7F | 0x80)
            value >>= 7
        data.append(value)
    return base64.b64encode(bytes(data)).decode()


def unpack_integers(text: str) -> list[int]:
    """The integers that `pack_integers` made a text of.

    Raises:
        StateError: `text` is not such a text.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise StateError(f"a saved state holds {text[:40]!r} where packed integers are meant: {error}") from error
    values: list[int] = []
    value, shift = 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            values.append(value)
            value, shift = 0, 0
    if shift:
        raise StateError(f"a saved state holds packed integers that end in the middle of one: {text[-40:]!r}")
    return values
