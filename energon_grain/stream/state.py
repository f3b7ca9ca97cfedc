# SPDX-License-Identifier: Apache-2.0
"""States of lanes as short strings: one codec for all operators.

A state is nested tuples of integers, and so is a *reference*, from which an item can be made again. An operator
declares their structure once, as a *form*. This module does everything else for all operators: writing, reading,
rejecting invalid values, and finding the samples that a value refers to.

The encoding is a list of small non-negative integers, in the order of the form. A position is written as its difference
from the previous one of the same feed: samples of a lane are close together, so each takes one or two bytes.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from energon_grain.errors import StateError

Position = tuple[int, int]
"""(number of a feed, position in its stream)."""
Form = Any
"""One of the classes below, or a tuple of forms for a tuple of values."""
_LIMIT = 1 << 63
_POSITIONS = 1 << 62


@dataclass(frozen=True, slots=True)
class Number:
    """A number, 0 or more, and below `end`."""

    end: int = _LIMIT


@dataclass(frozen=True, slots=True)
class Rounds(Number):
    """How many rounds of a feed a lane took, in the pass given by the number before it."""

    feed: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """A position in the stream of a feed."""

    feed: int


@dataclass(frozen=True, slots=True)
class ListOf:
    """A tuple of any length, with entries of the same form."""

    each: Form


@dataclass(frozen=True, slots=True)
class OneOf:
    """(number of a form, value of that form)."""

    forms: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class WithExtra:
    """(number, value, tuple that is rarely not empty). The tuple takes no space if it is empty."""

    value: Form
    rare: ListOf


@dataclass(frozen=True, slots=True)
class Same:
    """A value that often repeats the previous value under its key. Its samples are read later."""

    key: int
    form: Form


@dataclass(frozen=True, slots=True)
class Deferred:
    """A value whose samples the operator reads later, when it needs them."""

    form: Form


_Write = Callable[[Any, list[int], dict[int, int], dict[int, Any]], None]
"""Appends a value to integers. Also receives the last position of each feed, and the last value under each key."""
_Read = Callable[["_Integers"], Any]


class Codec:
    """Writes and reads the values of one form.

    The work for each part of the form is prepared once, because states of lanes are written after every step.
    """

    def __init__(self, form: Form) -> None:
        self._form = form

    @cached_property
    def _write(self) -> _Write:
        return _writer(self._form)

    @cached_property
    def _read(self) -> _Read:
        return _reader(self._form)

    def encode(self, value: Any) -> list[int]:
        """A value as integers, 0 or more, if it matches the form."""
        integers: list[int] = []
        self._write(value, integers, {}, {})
        return integers

    def decode(self, integers: list[int]) -> Any:
        """The value of integers from `encode`. Raises StateError if they encode no value of this form."""
        given = _Integers(integers)
        value = self._read(given)
        if given.at != len(integers):
            raise StateError("a saved state of lanes is too long: it belongs to another graph, or is damaged")
        return value

    def check(self, value: Any) -> None:
        """Reject a value that does not match the form. Raises ValueError, TypeError, LookupError or StateError."""
        integers = self.encode(value)
        if any(type(each) is not int or not 0 <= each < _LIMIT for each in integers):
            raise ValueError("a number in it is out of range")
        if self.decode(integers) != value:
            raise ValueError("it has a different structure")


def _writer(form: Form) -> _Write:
    """A function that writes values of a form."""
    match form:
        case Place(feed=feed):

            def place(value: Any, integers: list[int], last: dict[int, int], same: dict[int, Any]) -> None:
                difference = value - last.get(feed, 0)
                last[feed] = value
                integers.append(2 * difference if difference >= 0 else -2 * difference - 1)

            return place
        case Number():
            return lambda value, integers, last, same: integers.append(value)
        case tuple():
            return _row_writer(form)
        case ListOf(each=each):
            return _many_writer(each)
        case OneOf(forms=forms):
            return _choice_writer(forms)
        case WithExtra():
            marked, marks = _writer(form.value), _writer(form.rare)

            def mark(value: Any, integers: list[int], last: dict[int, int], same: dict[int, Any]) -> None:
                number, entry, rare = value
                integers.append(2 * number + bool(rare))
                marked(entry, integers, last, same)
                if rare:
                    marks(rare, integers, last, same)

            return mark
        case Same(key=key):
            again = _writer(form.form)

            def repeated(value: Any, integers: list[int], last: dict[int, int], same: dict[int, Any]) -> None:
                new = key not in same or same[key] != value
                same[key] = value
                integers.append(int(new))
                if new:
                    again(value, integers, last, same)

            return repeated
        case Deferred():
            return _writer(form.form)
        case _:
            raise AssertionError(form)


def _row_writer(forms: tuple[Form, ...]) -> _Write:
    parts = [_writer(part) for part in forms]

    def row(value: Any, integers: list[int], last: dict[int, int], same: dict[int, Any]) -> None:
        for part, entry in zip(parts, value, strict=True):
            part(entry, integers, last, same)

    return row


def _many_writer(each: Form) -> _Write:
    if isinstance(each, Place):  # the contents of buffers
        feed = each.feed

        def places(value: Any, integers: list[int], last: dict[int, int], same: dict[int, Any]) -> None:
            integers.append(len(value))
            before = last.get(feed, 0)
            for entry in value:
                difference, before = entry - before, entry
                integers.append(2 * difference if difference >= 0 else -2 * difference - 1)
            last[feed] = before

        return places
    one = _writer(each)

    def many(value: Any, integers: list[int], last: dict[int, int], same: dict[int, Any]) -> None:
        integers.append(len(value))
        for entry in value:
            one(entry, integers, last, same)

    return many


def _choice_writer(forms: tuple[Form, ...]) -> _Write:
    choices = [_writer(each) for each in forms]

    def choice(value: Any, integers: list[int], last: dict[int, int], same: dict[int, Any]) -> None:
        number, entry = value
        integers.append(number)
        choices[number](entry, integers, last, same)

    return choice


class _Integers:
    """Integers being read, with the last position of each feed, and the last value under each key."""

    __slots__ = ("at", "last", "same", "values")

    def __init__(self, values: list[int]) -> None:
        self.at = 0
        self.values = values
        self.last: dict[int, int] = {}
        self.same: dict[int, Any] = {}

    def next(self) -> int:
        """The next integer."""
        at = self.at
        if at >= len(self.values):
            raise StateError("a saved state of lanes ends too early: it belongs to another graph, or is damaged")
        self.at = at + 1
        return self.values[at]

    def place(self, feed: int) -> int:
        """The next position of a feed."""
        code = self.next()
        position = self.last.get(feed, 0) + (-((code + 1) // 2) if code & 1 else code // 2)
        if position < 0:
            raise StateError("a saved state of lanes has a position before the first sample: it is damaged")
        self.last[feed] = _below(position, _POSITIONS)
        return position

    def places(self, feed: int) -> tuple[int, ...]:
        """The next positions of a feed, preceded by their number."""
        count = self.next()
        codes = self.values[self.at : self.at + count]
        if len(codes) < count:
            raise StateError("a saved state of lanes ends too early: it belongs to another graph, or is damaged")
        self.at += count
        differences = [-((code + 1) >> 1) if code & 1 else code >> 1 for code in codes]
        found = tuple(accumulate(differences, initial=self.last.get(feed, 0)))
        if min(found) < 0:
            raise StateError("a saved state of lanes has a position before the first sample: it is damaged")
        self.last[feed] = found[-1]
        _below(max(found), _POSITIONS)
        return found[1:]

    def repeated(self, key: int, read: _Read) -> Any:
        """The next value under a key."""
        if self.next():
            self.same[key] = read(self)
        if key not in self.same:
            raise StateError("a saved state of lanes repeats no value: it belongs to another graph, or is damaged")
        return self.same[key]


def _reader(form: Form) -> _Read:
    """A function that reads values of a form."""
    match form:
        case Place(feed=feed):
            return lambda given: given.place(feed)
        case Number(end=end):
            return lambda given: _below(given.next(), end)
        case tuple():
            return _row_reader(form)
        case ListOf(each=each):
            return _many_reader(each)
        case OneOf(forms=forms):
            choices = [_reader(each) for each in forms]
            return lambda given: (number := _below(given.next(), len(choices)), choices[number](given))
        case WithExtra():
            value, rare = _reader(form.value), _reader(form.rare)

            def marked(given: _Integers) -> Any:
                number, more = divmod(given.next(), 2)
                return number, value(given), rare(given) if more else ()

            return marked
        case Same(key=key):
            again = _reader(form.form)
            return lambda given: given.repeated(key, again)
        case Deferred():
            return _reader(form.form)
        case _:
            raise AssertionError(form)


def _row_reader(forms: tuple[Form, ...]) -> _Read:
    parts = [_reader(part) for part in forms]
    return lambda given: tuple([part(given) for part in parts])


def _many_reader(each: Form) -> _Read:
    if isinstance(each, Place):
        feed = each.feed
        return lambda given: given.places(feed)
    one = _reader(each)
    return lambda given: tuple([one(given) for _ in range(given.next())])


def _below(value: int, end: int) -> int:
    if value >= end:
        raise StateError(f"a saved state has number {value} of {end}: it belongs to another graph, or is damaged")
    return value


def walk(form: Form, value: Any, *, later: bool = False) -> Iterator[tuple[Place | Rounds, Any]]:
    """Every position in a value, and every (pass, rounds taken in it), with its form.

    Contents of `Same` and `Deferred` are read later: they are skipped unless `later` is set.
    """
    match form:
        case Place():
            yield form, value
        case (Number(), Rounds() as rounds):
            yield rounds, value
        case tuple():
            for part, entry in zip(form, value, strict=True):
                yield from walk(part, entry, later=later)
        case ListOf(each=each):
            for entry in value:
                yield from walk(each, entry, later=later)
        case OneOf(forms=forms):
            yield from walk(forms[value[0]], value[1], later=later)
        case WithExtra():
            yield from walk(form.value, value[1], later=later)
        case Same() | Deferred() if later:
            yield from walk(form.form, value, later=later)
        case _:
            return


def positions(form: Form, value: Any) -> Iterator[Position]:
    """The samples that a value refers to, each as often as it occurs, except those of `Same` and `Deferred`."""
    return ((place.feed, at) for place, at in walk(form, value) if isinstance(place, Place))


class LaneStates:
    """The states of a host's lanes as one string: for each lane, the number of its integers, and the integers.

    A step changes some lanes. States that are the same objects as last time are not encoded again.
    """

    def __init__(self, form: Form) -> None:
        self._codec = Codec(form)
        self._last: tuple[tuple[Any, ...], list[bytes], str] = ((), [], "")

    def text(self, states: tuple[Any, ...]) -> str:
        """The states of all lanes as a string."""
        before, parts, text = self._last
        if states is before:
            return text
        if len(before) == len(states):
            pairs = zip(states, before, parts, strict=True)
            parts = [part if state is old else self._packed(state) for state, old, part in pairs]
        else:
            parts = [self._packed(state) for state in states]
        text = _text(b"".join(parts))
        self._last = states, parts, text
        return text

    def _packed(self, state: Any) -> bytes:
        integers = self._codec.encode(state)
        return _packed([len(integers), *integers])


def pack_integers(values: list[int]) -> str:
    """Non-negative integers as base64 of LEB128: seven bits per byte, lowest first, one byte for values below 128."""
    return _text(_packed(values))


def _text(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


def _packed(values: list[int]) -> bytes:
    data = bytearray()
    append = data.append
    for value in values:
        while value >= 0x80:
            append(value & 0x7F | 0x80)
            value >>= 7
        append(value)
    return bytes(data)


def unpack_integers(text: str) -> list[int]:
    """Decode the result of `pack_integers`. Raises StateError if `text` is invalid."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise StateError(f"a saved state has {text[:40]!r} where packed integers are expected: {error}") from error
    values: list[int] = []
    value, shift = 0, 0
    for byte in data:
        if byte < 0x80 and not shift:
            values.append(byte)
            continue
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            values.append(value)
            value, shift = 0, 0
    if shift:
        raise StateError(f"a saved state has packed integers that end in the middle of one: {text[-40:]!r}")
    return values
