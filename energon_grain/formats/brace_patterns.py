r"""Braces in names as the package `braceexpand` expands them: `shard_{000..007}.tar`, `{train,val}/{a..c}`, nested too.

    {3..11..2}        numbers from one to the other, both included, in steps; they may fall and be negative
    {08..11}          a zero in front pads all to the width of the longer
    {a..e}            letters
    {x,y{1..2},}      one after the other, the empty text too
    {x} \{ \, \\      neither a range nor a list, or escaped: as it is

A pattern of forty characters can stand for more names than a disk holds, so that its names are counted before they are
made, and names that are there can be compared with the pattern without making any.
"""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Set
from dataclasses import dataclass

MOST_NAMES = 1_000_000
"""Names that patterns may stand for where their number is not known."""
_MOST_DEPTH = 100
_UNCOUNTED = 10**18
_NUMBERS = re.compile(r"^(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?$")
_LETTERS = re.compile(r"^([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d+))?$")
_ALPHABET = string.ascii_uppercase + string.ascii_lowercase
_ESCAPED = re.compile(r"\\(.)")
_DIGITS = re.compile(r"-?[0-9]+")


@dataclass(frozen=True, slots=True)
class _Numbers:
    values: range
    format: str
    count: int


@dataclass(frozen=True, slots=True)
class _Choice:
    options: tuple[_Sequence, ...]


@dataclass(frozen=True, slots=True)
class _Sequence:
    items: tuple[str | _Numbers | _Choice | _Sequence, ...]


_Item = str | _Numbers | _Choice | _Sequence


class BracePattern:
    """One pattern, taken apart.

    Attributes:
        count: How many names it stands for, equal ones counted again; 10^18 where there are more.
        cost: The same, but long names count for more: none has more characters than the pattern.
    """

    __slots__ = ("_tree", "cost", "count", "text")

    def __init__(self, text: str) -> None:
        """Read the pattern. Raises ValueError if braces are not balanced, or nested more than a hundred deep."""
        self.text = text
        self._tree = _Sequence((text,)) if not _special(text) else _parse(text, 0)
        self.count = _count(self._tree)
        self.cost = self.count * (1 + len(text) // 256)

    def names(self) -> list[str]:
        """All names, in their order."""
        return _names(self._tree)

    def matches(self, name: str) -> bool:
        """Whether it stands for `name`. Takes no longer where there are more names.

        Escaped backslashes are taken for one, while `names` takes away one more for each pair of braces around them.
        """
        return len(name) in _ends(self._tree, name, {0})

    def begins_with(self, start: str) -> bool:
        """Whether one of its names is longer than `start`, which does not end in a digit, and begins with it."""
        return len(start) + 1 in _ends(self._tree, start, {0})

    def __str__(self) -> str:
        """The pattern as messages show it."""
        return repr(self.text if len(self.text) <= 60 else f"{self.text[:57]}…")

    def counted(self) -> str:
        """How many names it stands for, in words."""
        return f"{self.count:,}" if self.count < _UNCOUNTED else "more than 10^18"


def expand_braces(pattern: str, most: int = MOST_NAMES) -> list[str]:
    """The names that a pattern stands for.

    Raises ValueError if braces are not balanced, or it stands for more than `most` names.
    """
    read = BracePattern(pattern)
    if read.cost > most:
        raise ValueError(f"{read} stands for {read.counted()} names; at most {most:,} are made of a pattern")
    return read.names()


def _special(text: str) -> bool:
    return "{" in text or "}" in text or "\\" in text


def _parse(text: str, depth: int) -> _Sequence:
    """Split a text at its outermost braces."""
    if depth > _MOST_DEPTH:
        raise ValueError(f"Braces are nested more than {_MOST_DEPTH} deep")
    items: list[_Item] = []
    start = place = inside = 0
    while place < len(text):
        if text[place] == "\\":
            place += 2
            continue
        if text[place] == "{":
            if inside == 0 and place > start:
                items.append(text[start:place])
                start = place
            inside += 1
        elif text[place] == "}":
            inside -= 1
            if inside == 0:
                items.extend(_expression(text[start + 1 : place], depth + 1))
                start = place + 1
        place += 1
    if inside != 0:
        raise ValueError(f"Unbalanced braces: '{text}'")
    if start < len(text):
        items.append(text[start:])
    return _Sequence(tuple(items))


def _expression(text: str, depth: int) -> tuple[_Item, ...]:
    """What stands between braces."""
    numbers = _NUMBERS.match(text)
    if numbers:
        return (_numbers(numbers[1], numbers[2], numbers[3]),)
    letters = _LETTERS.match(text)
    if letters:
        return (_letters(letters[1], letters[2], letters[3]),)
    cuts = _commas(text)
    if not cuts:
        return "{", _parse(text, depth), "}"
    edges = itertools.pairwise([-1, *cuts, len(text)])
    return (_Choice(tuple(_parse(text[before + 1 : cut], depth) for before, cut in edges)),)


def _commas(text: str) -> list[int]:
    """Places of the commas that are not inside of further braces."""
    places: list[int] = []
    place = inside = 0
    while place < len(text):
        if text[place] == "\\":
            place += 2
            continue
        inside += (text[place] == "{") - (text[place] == "}")
        if text[place] == "," and inside == 0:
            places.append(place)
        place += 1
    return places


def _numbers(first: str, last: str, step: str | None) -> _Numbers:
    padded = any(end.startswith(("0", "-0")) and end not in ("0", "-0") for end in (first, last))
    width = max(len(first), len(last)) if padded else 0
    begin, end, by = int(first), int(last), int(step or 1) or 1
    values = range(begin, end + 1, by) if begin < end else range(begin, end - 1, -by)
    return _Numbers(values, f"%0{width}d", abs(end - begin) // by + 1)


def _letters(first: str, last: str, step: str | None) -> _Choice:
    begin, end, by = _ALPHABET.index(first), _ALPHABET.index(last), int(step or 1) or 1
    chosen = _ALPHABET[begin : end + 1 : by] if begin < end else _ALPHABET[begin : (end or -len(_ALPHABET)) - 1 : -by]
    return _Choice(tuple(_Sequence((letter,)) for letter in chosen))


def _count(item: _Item) -> int:
    if isinstance(item, str):
        return 1
    if isinstance(item, _Numbers):
        return min(item.count, _UNCOUNTED)
    if isinstance(item, _Choice):
        return min(sum(map(_count, item.options)), _UNCOUNTED)
    count = 1
    for each in item.items:
        count = min(count * _count(each), _UNCOUNTED)
    return count


def _names(item: _Item) -> list[str]:
    if isinstance(item, str):
        return [item]
    if isinstance(item, _Numbers):
        return [item.format % number for number in item.values]
    if isinstance(item, _Choice):
        return [name for option in item.options for name in _names(option)]
    names = map("".join, itertools.product(*map(_names, item.items)))
    return [_unescaped(name) if "\\" in name else name for name in names]


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(r"\1", text)


def _ends(item: _Item, text: str, starts: Set[int]) -> Set[int]:
    """Where a name that begins at one of `starts` of a text can end; one place behind the text: it goes on."""
    beyond = len(text) + 1
    ends = {start for start in starts if start == beyond}
    here = starts - ends
    if not here:
        return ends
    if isinstance(item, str):
        item = _unescaped(item)
        ends.update(start + len(item) for start in here if text.startswith(item, start))
        if any(len(text) - start < len(item) and item.startswith(text[start:]) for start in here):
            ends.add(beyond)
    elif isinstance(item, _Numbers):
        for start in here:
            digits = _DIGITS.match(text, start)
            if start == len(text):
                ends.add(beyond)
            elif digits is not None:
                tried = ((end, text[start:end]) for end in range(start + 1, digits.end() + 1))
                ends.update(end for end, number in tried if number != "-" and _is_one_of(number, item))
    elif isinstance(item, _Choice):
        for option in item.options:
            ends |= _ends(option, text, here)
    else:
        at: Set[int] = here
        for each in item.items:
            at = _ends(each, text, at)
        ends |= at
    return ends


def _is_one_of(number: str, numbers: _Numbers) -> bool:
    return int(number) in numbers.values and numbers.format % int(number) == number
