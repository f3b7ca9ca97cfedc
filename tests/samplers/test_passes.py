"""Concatenation and limits against lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from energon_grain.errors import ConfigError
from energon_grain.samplers.passes import Concat, Limit


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_concat_is_the_list_of_its_children(lengths: list[int]) -> None:
    concat = Concat(lengths)
    expected = [
        (number, turn * length + place)
        for turn in range(3)
        for number, length in enumerate(lengths)
        for place in range(length)
    ]
    child, below = concat.route(np.arange(3 * concat.length))
    assert list(zip(child.tolist(), below.tolist(), strict=True)) == expected


@given(st.integers(1, 9), st.integers(1, 9))
def test_a_limit_keeps_the_first_of_each_pass(limit: int, length: int) -> None:
    limited = Limit(limit, length)
    expected = [turn * length + place for turn in range(3) for place in range(min(limit, length))]
    child, below = limited.route(np.arange(len(expected)))
    assert below.tolist() == expected
    assert not child.any()
    assert limited.limit == min(limit, length)


def test_large_positions() -> None:
    child, below = Concat([2**40, 2**41]).route(np.array([3 * 2**40 * 1_000 + 2**40, 2**61]))
    assert child.tolist() == [1, 1]
    assert below.tolist() == [2**41 * 1_000, 2**61 // (3 * 2**40) * 2**41 + 2**61 % (3 * 2**40) - 2**40]


def test_impossible_lengths_are_refused() -> None:
    for lengths in ([], [3, 0]):
        with pytest.raises(ConfigError, match="at least 1"):
            Concat(lengths)
    for limit, length in ((0, 3), (3, 0)):
        with pytest.raises(ConfigError, match="at least 1"):
            Limit(limit, length)
