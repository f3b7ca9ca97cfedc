"""Dividing the items of steps into parts of equal counts and costs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from benchmarks.balance import LAWS, SHAPES, bound, loads
from energon_grain import Balance, ConfigError
from energon_grain.samplers.balance import divide


@given(
    costs=st.integers(1, 7).flatmap(
        lambda parts: st.tuples(
            st.just(parts),
            st.integers(1, 12).flatmap(
                lambda size: st.lists(
                    st.lists(st.integers(0, 1 << 52), min_size=parts * size, max_size=parts * size),
                    min_size=1,
                    max_size=3,
                )
            ),
        )
    )
)
def test_each_item_once_and_as_many_in_each_part(costs: tuple[int, list[list[int]]]) -> None:
    parts, rows = costs
    found = divide(np.array(rows), parts)
    size = len(rows[0]) // parts
    assert found.shape == (len(rows), parts, size)
    assert (np.sort(found.reshape(len(rows), -1), axis=1) == np.arange(parts * size)).all()
    assert (np.diff(found, axis=2) > 0).all()
    # A step by itself, and beside others.
    assert (np.concatenate([divide(np.array([row]), parts) for row in rows]) == found).all()


@given(st.lists(st.integers(1, 40), min_size=8, max_size=8), st.sampled_from([2, 4]))
def test_hardly_worse_than_the_best_of_all_divisions(costs: list[int], parts: int) -> None:
    size = len(costs) // parts

    def best(left: frozenset[int]) -> int:
        if not left:
            return 0
        first, *others = sorted(left)
        return min(
            max(costs[first] + sum(costs[each] for each in chosen), best(left - {first, *chosen}))
            for chosen in itertools.combinations(others, size - 1)
        )

    found = loads(np.array([costs]), divide(np.array([costs]), parts)).max()
    least = best(frozenset(range(len(costs))))
    assert bound(np.array([costs]), parts)[0] <= least <= found <= least * 1.2 + 2


@pytest.mark.parametrize(("parts", "size"), SHAPES)
@pytest.mark.parametrize("law", LAWS)
def test_the_largest_part_is_within_three_hundredths_of_what_is_possible(law: str, parts: int, size: int) -> None:
    costs = LAWS[law](20 * parts * size).reshape(20, -1)
    largest = loads(costs, divide(costs, parts)).max(axis=1)
    assert (largest / bound(costs, parts)).mean() < 1.03


def test_equal_costs_leave_items_where_they_are() -> None:
    assert (divide(np.full((2, 12), 5), 4) == np.arange(12).reshape(3, 4).T).all()
    assert (divide(np.zeros((1, 12), np.int64), 1) == np.arange(12)).all()


def test_costs_that_hardly_fit_into_64_bits() -> None:
    costs = np.array([[1 << 62, 3, (1 << 62) - 1, 5]])
    assert divide(costs, 2).tolist() in ([[[0, 3], [1, 2]]], [[[0, 1], [2, 3]]], [[[1, 2], [0, 3]]])


def test_what_is_no_balance_is_refused() -> None:
    assert Balance("( tokens )+bytes").by == "tokens + bytes"
    for micro_batches in (0, -1, 1.5, True, "2"):
        with pytest.raises(ConfigError, match=r"micro_batches=.*expected a positive number of parts"):
            Balance("tokens", micro_batches=micro_batches)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="balance"):
        Balance("tokens +")
