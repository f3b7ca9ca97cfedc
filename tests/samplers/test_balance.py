"""Dividing the items of steps into parts of equal counts and costs."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, strategies as st

from energon_grain import Balance, ConfigError
from energon_grain.samplers.balance import divide

RNG = np.random.default_rng(7)
LAWS: dict[str, Callable[[int], np.ndarray]] = {
    "log-normal": lambda n: np.clip(RNG.lognormal(6.2, 1.1, n), 16, 8192).astype(np.int64),
    "uniform": lambda n: RNG.integers(1, 4097, n),
    "Zipf": lambda n: np.minimum(RNG.zipf(1.2, n), 32768).astype(np.int64),
}


def loads(costs: np.ndarray, divided: np.ndarray) -> np.ndarray:
    """(steps, parts) what each part costs."""
    return costs[np.arange(len(costs))[:, None, None], divided].sum(axis=2)


def bound(costs: np.ndarray, parts: int) -> np.ndarray:
    """(steps,) what the largest part costs at least, however the items are divided.

    Of the largest (k - 1) · parts + j items, some j parts hold j · k or more (pigeons and their holes), and the
    smallest items beside them. k = 1, j = parts is the mean; k = j = 1 the largest item with the smallest others.
    """
    size = costs.shape[1] // parts
    falling = -np.sort(-costs, axis=1)
    before = np.concatenate([np.zeros((len(costs), 1), np.int64), np.cumsum(falling, axis=1)], axis=1)
    least = before[:, -1] / parts
    j = np.arange(1, parts + 1)
    for k in range(1, size + 1):
        stop, others = (k - 1) * parts + j, j * (size - k)
        held = before[:, stop] - before[:, stop - j * k] + before[:, -1:] - before[:, costs.shape[1] - others]
        least = np.maximum(least, np.where(stop <= costs.shape[1] - others, held / j, 0).max(axis=1))
    return least


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


@given(st.lists(st.integers(0, 40), min_size=8, max_size=8), st.sampled_from([2, 4]))
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
    assert best(frozenset(range(len(costs)))) <= found <= best(frozenset(range(len(costs)))) * 1.2 + 2


@pytest.mark.parametrize(("parts", "size"), [(64, 8), (16, 8), (64, 32), (256, 4)])
@pytest.mark.parametrize("law", LAWS)
def test_the_largest_part_is_within_three_hundredths_of_what_is_possible(law: str, parts: int, size: int) -> None:
    costs = LAWS[law](20 * parts * size).reshape(20, -1)
    largest = loads(costs, divide(costs, parts)).max(axis=1)
    # At 64 parts of 8, Zipf's few giants and what hardly fits beside them leave no division near the bound.
    assert (largest / bound(costs, parts)).mean() < (1.06 if (law, parts, size) == ("Zipf", 64, 8) else 1.03)


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
