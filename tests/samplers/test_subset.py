"""Selections against plain lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from energon_grain.errors import ConfigError, EmptyDatasetError
from energon_grain.samplers.subset import Selection


@given(st.integers(1, 40), st.data())
def test_a_selection_is_the_list_of_kept_ranks(total: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    excluded = data.draw(st.lists(st.integers(0, total - 1)))
    kept = [rank for rank in range(start, stop) if rank not in excluded]
    if not kept:
        with pytest.raises(EmptyDatasetError, match="is empty"):
            Selection(total, start=start, stop=stop, excluded=excluded)
        return
    selection = Selection(total, start=start, stop=stop, excluded=excluded)
    assert len(selection) == len(kept)
    assert selection.to_raw(np.arange(len(kept))).tolist() == kept
    back = selection.from_raw(np.arange(total))
    assert back.tolist() == [kept.index(rank) if rank in kept else -1 for rank in range(total)]


def test_the_whole_is_the_default() -> None:
    selection = Selection(5)
    assert len(selection) == 5
    assert selection.to_raw(np.array([[4, 0]])).tolist() == [[4, 0]]
    assert repr(selection) == "Selection(5, start=0, stop=5, excluded=0 samples)"


@pytest.mark.parametrize(
    ("start", "stop", "excluded"), [(-1, 3, []), (0, 6, []), (4, 3, []), (0, 5, [5]), (0, 5, [-1]), (0, 5, [2, 9])]
)
def test_what_does_not_exist_cannot_be_selected(start: int, stop: int, excluded: list[int]) -> None:
    with pytest.raises(ConfigError, match="5 samples"):
        Selection(5, start=start, stop=stop, excluded=excluded)
