"""Selections against plain lists, and subsets as they are written."""

from __future__ import annotations

import itertools
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from energon_grain.errors import ConfigError, EmptyDatasetError
from energon_grain.samplers.subset import Selection, Subset


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


percents = st.tuples(st.integers(0, 1000), st.integers(0, 1000)).filter(lambda pair: pair[0] < pair[1])


def written(pair: tuple[int, int]) -> list[str]:
    return [f"{value / 10:.1f}%" for value in pair]


def test_ranges_compose_from_the_inside() -> None:
    assert Subset.parse(["20%", "80%"]).resolve(55) == (11, 44)
    leaf = Subset.parse({"range": [10, 30]})
    inside = leaf.within(Subset.parse(["20%", "80%"]))
    assert inside.resolve(55) == (14, 26)
    outer = Subset.parse(["25%", "75%"]).within(Subset.parse(["0%", "50%"]))
    assert leaf.within(Subset.parse(["20%", "80%"]).within(outer)).resolve(55) == (17, 20)
    assert Subset.parse([10, "end"]).resolve(55) == (10, 55)


@given(st.integers(1, 10_000), st.lists(percents, min_size=1, max_size=4), st.data())
def test_composition_takes_shares_of_what_is_left(
    total: int, levels: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Naively: cut an interval level by level, innermost first, and round at the end."""
    absolute = data.draw(st.none() | st.tuples(st.integers(0, total - 1), st.integers(1, total)))
    if absolute is not None and absolute[0] >= absolute[1]:
        absolute = (absolute[1] - 1, absolute[1])
    start, stop = map(Fraction, absolute or (0, total))
    first = start
    subset = Subset() if absolute is None else Subset.parse(list(absolute))
    for level in levels:
        length = stop - start
        start, stop = start + length * Fraction(level[0], 1000), start + length * Fraction(level[1], 1000)
    outer = Subset()
    for level in reversed(levels):
        outer = Subset.parse(written(level)).within(outer)
    combined = subset.within(outer)
    assert combined.resolve(total) == (first + int(start - first), first + int(stop - first))


@given(percents, percents, percents)
def test_composition_is_associative(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]) -> None:
    inner, middle, outer = (Subset.parse(written(pair)) for pair in (a, b, c))
    assert inner.within(middle).within(outer) == inner.within(middle.within(outer))


@given(st.integers(1, 100_000), st.lists(st.integers(1, 999), min_size=1, max_size=5, unique=True))
def test_neighbouring_shares_leave_no_gap(total: int, cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), 1000]
    ranges = [Subset.parse(written(pair)).resolve(total) for pair in itertools.pairwise(bounds)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == total
    assert all(left[1] == right[0] for left, right in itertools.pairwise(ranges))


@pytest.mark.parametrize(
    "value",
    [
        [0, "50%"],
        ["50%", "end"],
        ["50%", 10],
        [5],
        [1, 2, 3],
        "10%",
        5,
        None,
        {"rang": [1, 2]},
        {"range": [1, 2], "more": 1},
        [3, 3],
        [5, 2],
        [-1, 2],
        ["50%", "50%"],
        ["60%", "50%"],
        ["0%", "101%"],
        ["-1%", "50%"],
        ["1/3%", "50%"],
        ["x%", "50%"],
        [0.5, 1],
        [True, 2],
        ["end", "end"],
        [1, "last"],
    ],
)
def test_what_is_no_range_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="subset"):
        Subset.parse(value)


def test_an_absolute_range_is_only_for_a_single_dataset() -> None:
    with pytest.raises(ConfigError, match="percentages"):
        Subset.parse(["0%", "50%"]).within(Subset.parse([0, 10]))


def test_a_range_beyond_the_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="only 20 samples"):
        Subset.parse([10, 21]).resolve(20)
    with pytest.raises(ConfigError, match="only 20 samples"):
        Subset.parse([21, "end"]).resolve(20)


def test_shares_are_exact() -> None:
    assert Subset.parse(["0%", "29%"]).resolve(100) == (0, 29)


@given(percents, percents)
def test_different_subsets_read_differently(a: tuple[int, int], b: tuple[int, int]) -> None:
    inner, outer = Subset.parse(written(a)), Subset.parse(written(b))
    assert (str(inner) == str(outer)) == (inner == outer)
    assert (str(inner.within(outer)) == str(inner)) == (inner.within(outer) == inner)


def test_subsets_read_like_what_was_written() -> None:
    assert str(Subset.parse([10, "end"])) == "[10, end]"
    assert str(Subset.parse(["12.5%", "80%"])) == "[12.5%, 80%]"
    assert str(Subset.parse([10, 30]).within(Subset.parse(["20%", "80%"]))) == "[20%, 80%] of [10, 30]"
