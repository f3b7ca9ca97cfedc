"""Refusing datasets in which two samples have the same key."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from energon_grain.errors import DuplicateKeyError
from energon_grain.formats.columnar_build import DuplicateKeys


def test_both_places_are_named() -> None:
    duplicates = DuplicateKeys()
    duplicates.add(1, [(b"b", "x.tar", "y.tar")])
    duplicates.add(2, [(b"c", "y.tar", "y.tar"), (b"\xff", "x.tar", "z.tar")])
    with pytest.raises(DuplicateKeyError) as caught:
        duplicates.refuse()
    assert str(caught.value).startswith("3 samples have the key of another one: ")
    assert r"'b' in x.tar and in y.tar; 'c' in y.tar twice; '\\xff' in x.tar and in z.tar" in str(caught.value)


def test_a_few_of_many_are_looked_up() -> None:
    asked: list[int] = []

    def examples() -> Iterator[tuple[bytes, str, str]]:
        for number in range(60):
            asked.append(number)
            yield b"%d" % number, "x", "y"

    duplicates = DuplicateKeys()
    duplicates.add(60, examples())
    duplicates.add(40, examples())
    with pytest.raises(DuplicateKeyError, match=r"100 samples .* and 95 more"):
        duplicates.refuse()
    assert asked == list(range(5))


def test_none_pass() -> None:
    DuplicateKeys().refuse()
