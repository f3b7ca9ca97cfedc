"""Selections against plain lists."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

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
    check(Selection(total, start=start, stop=stop, excluded=excluded), kept)


def check(selection: Selection, kept: list[int]) -> None:
    """A selection, and its copy in another process, are the list of raw ranks."""
    for each in (selection, pickle.loads(pickle.dumps(selection))):
        assert len(each) == len(kept)
        assert each.to_raw(np.arange(len(kept))).tolist() == kept
        for first, stop in ((0, len(kept)), (len(kept) // 3, len(kept) // 2 + 1), (1, 0)):
            run = each.raw_run(first, stop)
            expected = kept[first:stop]
            assert (run is not None) is (not expected or expected[-1] - expected[0] == len(expected) - 1)
            assert run is None or expected == [*range(run.start, run.stop)]


@given(st.integers(1, 700), st.integers(0, 100), st.data())
def test_a_bitmap_is_the_list_of_kept_ranks(total: int, percent: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, total - 1))
    stop = data.draw(st.integers(start + 1, total))
    excluded = data.draw(st.sets(st.integers(0, total - 1), max_size=3))
    ranks = [rank for rank in range(start, stop) if rank not in excluded]
    keep = np.random.default_rng(data.draw(st.integers(0, 99))).random(len(ranks)) * 100 < percent
    assume(keep.any())
    before = Selection(total, start=start, stop=stop, excluded=list(excluded))
    selection = before.where(keep, {"expression": "x"})
    check(selection, [rank for rank, kept in zip(ranks, keep.tolist(), strict=True) if kept])
    assert (selection.condition, before.condition) == ({"expression": "x"}, None)
    assert before.where(keep, {}).digest == selection.digest
    if not keep.all():
        assert before.where(~keep, {}).digest != selection.digest
    again = np.arange(len(selection)) % 2 == 0
    check(selection.where(again, {}), selection.to_raw(np.flatnonzero(again)).tolist())


def test_a_bitmap_holds_one_and_a_half_bits_a_sample() -> None:
    selection = Selection(10**6).where(np.arange(10**6) % 3 == 0, {})
    arrays = [getattr(selection, name) for name in Selection.__slots__]
    assert sum(each.nbytes for each in arrays if isinstance(each, np.ndarray)) * 8 <= 1.6 * 10**6
    assert len(pickle.dumps(selection)) * 8 <= 1.01 * 10**6


def test_the_whole_is_the_default() -> None:
    selection = Selection(5)
    assert len(selection) == 5
    assert selection.to_raw(np.array([[4, 0]])).tolist() == [[4, 0]]
    assert repr(selection) == "Selection(5, start=0, stop=5, samples=5)"


@pytest.mark.parametrize(
    ("start", "stop", "excluded"), [(-1, 3, []), (0, 6, []), (4, 3, []), (0, 5, [5]), (0, 5, [-1]), (0, 5, [2, 9])]
)
def test_what_does_not_exist_cannot_be_selected(start: int, stop: int, excluded: list[int]) -> None:
    with pytest.raises(ConfigError, match="5 samples"):
        Selection(5, start=start, stop=stop, excluded=excluded)
