"""Braces: the same names as `braceexpand`, counted before they are made."""

from __future__ import annotations

import braceexpand
import pytest
from hypothesis import example, given, strategies as st

from energon_grain.formats.brace_patterns import BracePattern, expand_braces

PIECES = ["{", "}", ",", "..", "0", "1", "09", "12", "-3", "a", "c", "Z", "\\", "x", "/", "\n", "é"]
PATTERNS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


def theirs(pattern: str) -> list[str] | str:
    try:
        return list(braceexpand.braceexpand(pattern))
    except ValueError as error:
        return str(error)


def ours(pattern: str) -> list[str] | str:
    try:
        read = BracePattern(pattern)
    except ValueError as error:
        return str(error)
    names = read.names()
    assert read.count == len(names)
    return names


@given(PATTERNS)
@example("s_{000..120}.tar")
@example("{9..-11..4}")
@example("{c..A..2},{a..c}")
@example("{01,{2..3},}{x}")
@example("{\\\\\\\\{a,b}}")
def test_names_and_errors_are_those_of_braceexpand(pattern: str) -> None:
    assert ours(pattern) == theirs(pattern)


@given(PATTERNS.filter(lambda pattern: "\\\\" not in pattern), PATTERNS)
def test_names_match_without_being_made(pattern: str, other: str) -> None:
    try:
        read = BracePattern(pattern)
    except ValueError:
        return
    names = read.names()
    assert all(map(read.matches, names))
    assert read.matches(other) == (other in names)
    start = f"{other}/"
    assert read.begins_with(start) == any(name.startswith(start) and name != start for name in names)


@pytest.mark.parametrize(
    "pattern", ["sh-{0..999999999}.tar", "{a,b}" * 40, "{0..9}" * 20_000, f"{'x' * 100_000}{{0..9999}}", "{,}" * 60]
)
def test_what_stands_for_too_many_names_is_refused_before_they_are_made(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"stands for .* names; at most 1,000,000 are made"):
        expand_braces(pattern)


def test_deep_braces_are_refused() -> None:
    assert expand_braces("{" * 50 + "a,b" + "}" * 50) == ["{" * 49 + name + "}" * 49 for name in "ab"]
    with pytest.raises(ValueError, match="nested more than 100 deep"):
        expand_braces("{" * 5000 + "}" * 5000)
