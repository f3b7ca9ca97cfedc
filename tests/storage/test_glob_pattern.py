"""Shell patterns as regular expressions; what they match is tested by those of split parts."""

from __future__ import annotations

import re

from hypothesis import given, strategies as st

from energon_grain.storage.glob_pattern import folders_of_glob, glob_to_regex


@given(st.text("ab/.*?[]!{}&~|^\\", max_size=8))
def test_globs_are_always_regular_expressions(glob: str) -> None:
    re.compile(glob_to_regex(glob))


@given(st.lists(st.sampled_from("ab.+()|^$/"), min_size=1).map("".join))
def test_plain_text_matches_itself_only(text: str) -> None:
    pattern = re.compile(glob_to_regex(text))
    assert pattern.fullmatch(text)
    assert not pattern.fullmatch(f"{text}a")


PIECES = ["a", "b", "/", "*", "**", "**/", "?", "[ab]", "[!a]", "[a/]", ".", "c"]


@given(st.lists(st.sampled_from(PIECES)).map("".join), st.lists(st.sampled_from(["a", "b", "ab", ".c"]), min_size=1))
def test_what_matches_lies_in_folders_that_may_hold_it(glob: str, steps: list[str]) -> None:
    if re.fullmatch(glob_to_regex(glob), "/".join(steps)):
        may_hold = re.compile(folders_of_glob(glob)).fullmatch
        assert all(may_hold("/".join(steps[:depth]) + "/") for depth in range(1, len(steps)))
