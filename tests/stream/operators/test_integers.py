"""Lane states as small integers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from energon_grain import StateError
from energon_grain.stream.operators.integers import IntegerReader, IntegerWriter

entries = st.lists(
    st.tuples(st.just("integer"), st.integers(0, 2**62))
    | st.tuples(st.just("position"), st.integers(0, 3), st.integers(0, 2**61))
)


def written(values: list[Any]) -> list[int]:
    writer = IntegerWriter()
    for kind, *arguments in values:
        getattr(writer, kind)(*arguments)
    return writer.values


@given(entries)
def test_what_is_written_is_read(values: list[Any]) -> None:
    integers = written(values)
    assert all(value >= 0 for value in integers)
    assert len(integers) == len(values)
    reader = IntegerReader(integers)
    for kind, *arguments in values:
        assert getattr(reader, kind)(*arguments[:-1]) == arguments[-1]
    reader.end()


def test_neighbours_cost_little() -> None:
    """Differences are taken within each feed by itself."""
    values = [("position", feed, 10**12 * feed + place) for place in range(100) for feed in (1, 2)]
    assert max(written(values)[2:]) == 2
    assert written([("position", 0, 5), ("position", 0, 3), ("position", 0, 3)]) == [10, 3, 0]


def test_states_that_are_cut_or_too_long() -> None:
    reader = IntegerReader([7])
    with pytest.raises(StateError, match="too long"):
        reader.end()
    assert reader.integer() == 7
    reader.end()
    with pytest.raises(StateError, match="ends too early"):
        reader.integer()
    with pytest.raises(StateError, match="ends too early"):
        reader.position(0)
