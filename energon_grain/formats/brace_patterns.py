# SPDX-License-Identifier: Apache-2.0
r"""Expands braces in names like the package `braceexpand`: `shard_{000..007}.tar`, `{train,val}/{a..c}`, also nested.

    {3..11..2}        numbers in a range, both ends included, in steps; descending and negative ones too
    {08..11}          a leading zero pads all numbers to the width of the longer end
    {a..e}            letters
    {x,y{1..2},}      alternatives, in order, including the empty text
    {x} \{ \, \\      neither a range nor a list, or escaped: unchanged

A pattern of forty characters can expand to more names than fit on a disk, so names are counted before they are created.
"""

from __future__ import annotations

import itertools
import math
import re
import string
from collections.abc import Callable
from dataclasses import dataclass

from energon_grain.errors import ConfigError

MAX_NAMES = 1_000_000
"""Maximum number of names for patterns if the number of files is unknown."""
_MAX_DEPTH = 100
_UNCOUNTED = 10**18
_NUMBERS = re.compile(r"^(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?$")
_LETTERS = re.compile(r"^([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d+))?$")
_ALPHABET = string.ascii_uppercase + string.ascii_lowercase
_ESCAPED = re.compile(r"\\(.)")


class TooManyNamesError(ConfigError):
    """A pattern expands to too many names; `description` describes how many."""

    def __init__(self, description: str, most: int) -> None:
        super().__init__(f"{description}; the limit is {most:,}; use a narrower pattern")
        self.description = description


def expand_braces(pattern: str, most: int = MAX_NAMES) -> list[str]:
    """The names that a pattern expands to. Long names count several times, since no name is longer than its pattern.

    Raises ConfigError if braces are not balanced, or nested more than a hundred deep, and TooManyNamesError.
    """
    if not any(sign in pattern for sign in "{}\\"):
        return [pattern]
    read = _sequence(pattern, 0)
    if read.count * (1 + len(pattern) // 256) > most:
        shown = repr(pattern if len(pattern) <= 60 else f"{pattern[:57]}…")
        counted = f"{read.count:,}" if read.count < _UNCOUNTED else "more than 10^18"
        raise TooManyNamesError(f"{shown} expands to {counted} names", most)
    return read.names()


@dataclass(frozen=True, slots=True)
class _Texts:
    """The expansion of a piece of a pattern: the number of texts, and a function that creates them in order."""

    count: int
    names: Callable[[], list[str]]


def _sequence(text: str, depth: int) -> _Texts:
    """Parse a text into its outermost braces and the text between them."""
    if depth > _MAX_DEPTH:
        raise ConfigError(f"Braces are nested more than {_MAX_DEPTH} deep")
    items: list[_Texts] = []
    start = inside = 0
    for place, sign in _signs(text):
        if sign == "{":
            if inside == 0:
                items.append(_plain(text[start:place]))
                start = place
            inside += 1
        elif sign == "}":
            inside -= 1
            if inside == 0:
                items.append(_expression(text[start + 1 : place], depth + 1))
                start = place + 1
    if inside != 0:
        raise ConfigError(f"Unbalanced braces: '{text}'")
    items.append(_plain(text[start:]))

    def names() -> list[str]:
        return [_ESCAPED.sub(r"\1", "".join(each)) for each in itertools.product(*(item.names() for item in items))]

    return _Texts(min(math.prod(item.count for item in items), _UNCOUNTED), names)


def _expression(text: str, depth: int) -> _Texts:
    """Parse the text inside braces."""
    numbers, letters = _NUMBERS.match(text), _LETTERS.match(text)
    if numbers:
        return _numbers(numbers[1], numbers[2], int(numbers[3] or 1) or 1)
    if letters:
        begin, end, by = _ALPHABET.index(letters[1]), _ALPHABET.index(letters[2]), int(letters[3] or 1) or 1
        last = end + 1 if begin < end else (end or -len(_ALPHABET)) - 1
        chosen = [*_ALPHABET[begin : last : by if begin < end else -by]]
        return _Texts(len(chosen), lambda: chosen)
    inside, cuts = 0, [-1]
    for place, sign in _signs(text):
        inside += (sign == "{") - (sign == "}")
        if sign == "," and inside == 0:
            cuts.append(place)
    if len(cuts) == 1:
        read = _sequence(text, depth)
        return _Texts(read.count, lambda: [f"{{{name}}}" for name in read.names()])
    options = [_sequence(text[before + 1 : cut], depth) for before, cut in itertools.pairwise([*cuts, len(text)])]
    count = min(sum(option.count for option in options), _UNCOUNTED)
    return _Texts(count, lambda: [name for option in options for name in option.names()])


def _numbers(first: str, last: str, by: int) -> _Texts:
    padded = any(end.startswith(("0", "-0")) and end not in ("0", "-0") for end in (first, last))
    width = max(len(first), len(last)) if padded else 0
    begin, end = int(first), int(last)
    values = range(begin, end + 1, by) if begin < end else range(begin, end - 1, -by)
    return _Texts(min(abs(end - begin) // by + 1, _UNCOUNTED), lambda: [f"%0{width}d" % value for value in values])


def _plain(text: str) -> _Texts:
    return _Texts(1, lambda: [text])


def _signs(text: str) -> list[tuple[int, str]]:
    """Positions of signs that are not escaped."""
    return [(found.start(), found[0]) for found in re.finditer(r"\\.?|[{},]", text, re.DOTALL) if found[0][0] != "\\"]
