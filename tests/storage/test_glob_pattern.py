"""Shell patterns as regular expressions; what they match is tested by those of split parts."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from energon_grain.storage.glob_pattern import glob_to_regex


@given(st.text("ab/.*?[]!{}&~|^\\", max_size=8))
def test_globs_are_always_regular_expressions(glob: str) -> None:
    re.compile(glob_to_regex(glob))


@given(st.lists(st.sampled_from("ab.+()|^$/"), min_size=1).map("".join))
def test_plain_text_matches_itself_only(text: str) -> None:
    pattern = re.compile(glob_to_regex(text))
    assert pattern.fullmatch(text)
    assert not pattern.fullmatch(f"{text}a")
