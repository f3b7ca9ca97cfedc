from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

from energon_grain.errors import ConfigError
from energon_grain.samplers.subset import Subset, combine_subsets

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
    subset = None if absolute is None else Subset.parse(list(absolute))
    for level in levels:
        length = stop - start
        start, stop = start + length * Fraction(level[0], 1000), start + length * Fraction(level[1], 1000)
    outer = None
    for level in reversed(levels):
        outer = combine_subsets(Subset.parse(written(level)), outer)
    combined = combine_subsets(subset, outer)
    assert combined is not None
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
    with pytest.raises(ConfigError, match="percentages"):
        combine_subsets(None, Subset.parse([0, 10]))


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
