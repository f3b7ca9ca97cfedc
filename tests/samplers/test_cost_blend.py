"""Blends by cost: shares at every prefix, and that windows, anchors and restarts change nothing."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

from energon_grain.errors import ConfigError
from energon_grain.samplers import cost_blend
from energon_grain.samplers.cost_blend import CostBlend
from energon_grain.samplers.fold import Carry, Fold, flat, unflat

Costs = npt.NDArray[np.int64]


def repeated(costs: Costs, positions: Costs) -> Costs:
    return costs[positions % len(costs)]


def blend(weights: list[int], costs: list[Costs], key: int = 1, **segments: list[tuple[int, list[int]]]) -> CostBlend:
    return CostBlend(segments.get("segments", [(0, weights)]), [partial(repeated, each) for each in costs], key=key)


def zipf(n: int, seed: int) -> Costs:
    return np.minimum(np.random.default_rng(seed).zipf(1.2, n), 32768).astype(np.int64)


def lognormal(n: int, seed: int) -> Costs:
    return np.clip(np.random.default_rng(seed).lognormal(6.2, 1.1, n), 16, 8192).astype(np.int64)


def constant(n: int, seed: int) -> Costs:
    del seed
    return np.full(n, 7, np.int64)


def two_sizes(n: int, seed: int) -> Costs:
    return np.random.default_rng(seed).choice([1, 100], n).astype(np.int64)


def off_shares(weights: list[int], costs: list[Costs], made: CostBlend, items: int, *, largest: int = 0) -> float:
    """How far any child is off its share at any prefix, in parts of the largest item: until then, or the one given."""
    labels, positions = made.route(np.arange(items))
    paid = np.zeros(items, np.int64)
    for child, each in enumerate(costs):
        mine = labels == child
        assert np.array_equal(positions[mine], np.arange(np.count_nonzero(mine)))  # ascending, without gaps
        paid[mine] = repeated(each, positions[mine])
    bounds, total = np.maximum(np.maximum.accumulate(paid), largest), np.cumsum(paid)
    whole = sum(weights)
    off = [
        np.abs(np.cumsum(np.where(labels == child, paid, 0)) * whole - weight * total)
        for child, weight in enumerate(weights)
    ]
    return float((np.max(off, axis=0) / (bounds * whole)).max())


@pytest.mark.parametrize("law", [zipf, lognormal, constant, two_sizes])
@pytest.mark.parametrize(
    "weights",
    [[1], [5, 3, 2], [1] * 10, [50, *[1] * 50], [1, 1, 2, 3, 5, 8, 13, 21, 34, 55], [2, 45, 21, 22, 55, 39, 58, 45]],
)
def test_no_child_is_further_from_its_share_than_the_largest_item(
    law: Callable[[int, int], Costs], weights: list[int]
) -> None:
    costs = [law(2000 + 100 * child, child) for child in range(len(weights))]
    assert off_shares(weights, costs, blend(weights, costs), 30_000) <= 1


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.integers(1, 1000), min_size=1, max_size=14),
    key=st.integers(0, 2**64 - 1),
    costs=st.lists(st.integers(1, 50), min_size=1, max_size=20),
)
def test_and_hardly_further_for_any_weights_and_costs(weights: list[int], key: int, costs: list[int]) -> None:
    each = [np.roll(np.array(costs, np.int64), child) for child in range(len(weights))]
    # See there. Before the first large item comes, those until then can be much smaller.
    assert off_shares(weights, each, blend(weights, each, key), 3000, largest=max(costs)) <= 1.01


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_windows_restarts_and_the_order_of_questions_change_nothing(data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any))
    costs = [np.array([*data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=9)), 5]) for _ in weights]
    segments = [(0, [weight or 1 for weight in weights]), (data.draw(st.integers(1, 900)), weights)]
    expected = blend([], costs, segments=segments).route(np.arange(2000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost_blend, "_WINDOW", data.draw(st.integers(1, 500)))
        patch.setattr(cost_blend, "_OF_A_CHILD", 1)
        other = blend([], costs, segments=segments)
        asked = np.array(data.draw(st.lists(st.integers(0, 1999), min_size=1, max_size=20)))
        assert all(np.array_equal(each[asked], made) for each, made in zip(expected, other.route(asked), strict=True))
        begin = data.draw(st.integers(0, 1999))
        carry = other.anchor(begin)
        restored = pickle.loads(pickle.dumps(other))
        restored.remember(carry)
        assert restored.anchor(carry[0]) == carry  # that of `begin` may have been given up
        behind = np.arange(carry[0], 2000)
        assert all(
            np.array_equal(each[behind], made) for each, made in zip(expected, restored.route(behind), strict=True)
        )


def test_a_segment_begins_new_shares_and_a_child_of_weight_0_pauses() -> None:
    costs = [constant(10, 0), two_sizes(1000, 1)]
    labels, positions = blend([], costs, segments=[(0, [1, 1]), (100, [0, 1]), (150, [9, 1])]).route(np.arange(5000))
    assert (labels[100:150] == 1).all()
    behind, at = labels[150:], positions[150:]
    paid = [repeated(costs[child], at[behind == child]).sum() for child in (0, 1)]
    assert abs(paid[0] - 9 * paid[1]) <= 10 * 100
    assert positions[labels == 0].tolist() == list(range(np.count_nonzero(labels == 0)))


def test_a_child_that_costs_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_blend, "_NOTHING", 5000)
    with pytest.raises(ConfigError, match=r"cost nothing, one after the other.*`where`"):
        blend([1, 1], [constant(10, 0), np.zeros(10, np.int64)])


def test_products_beyond_64_bits_are_exact() -> None:
    weights = [2**30 - 1, 2**30 + 1]
    costs = [two_sizes(500, 0) << 35, two_sizes(500, 1) << 35]
    small = [each >> 35 for each in costs]
    assert np.array_equal(
        blend(weights, costs).route(np.arange(3000))[0], blend(weights, small).route(np.arange(3000))[0]
    )


def squares(carry: Carry) -> tuple[list[int], Carry]:
    """Windows of growing length."""
    position, number = carry
    return [number] * (number + 1), (position + number + 1, number + 1)


def test_a_fold_gives_the_same_plans_however_it_is_asked() -> None:
    fold: Fold[list[int]] = Fold((0, 0), squares)
    expected = [number for number in range(200) for _ in range(number + 1)]
    for position in np.random.default_rng(0).integers(0, len(expected), 300).tolist():
        start, stop, plan = fold.plan_at(position)
        assert plan[position - start] == expected[position]
        assert fold.anchor(position)[0] == start
        assert stop == start + len(plan)


def test_a_fold_goes_on_from_a_carry_and_holds_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_grain.samplers.fold._PAST", 40)
    made: list[int] = []

    def counted(carry: Carry) -> tuple[None, Carry]:
        made.append(carry[0])
        return None, (carry[0] + 1,)

    fold = Fold((0,), counted)
    fold.remember((1_000_000,))
    assert fold.plan_at(1_000_010)[:2] == (1_000_010, 1_000_011)
    assert len(made) == 11
    fold = Fold((0,), counted)
    for position in range(1000):
        fold.anchor(position)
    made.clear()
    fold.plan_at(500)
    assert len(made) <= 100  # from a carry before it, though only some are kept
    assert len(fold._carries) <= 50


@given(st.lists(st.lists(st.integers(0, 2**62), min_size=1, max_size=5).map(tuple)))
def test_carries_as_one_list_and_back(carries: list[Carry]) -> None:
    assert unflat(flat(carries)) == carries


@pytest.mark.parametrize("numbers", [[0], [2, 1], [1, 5, 3, 1, 1]])
def test_what_are_no_carries(numbers: list[int]) -> None:
    with pytest.raises(ValueError, match="no whole carries"):
        unflat(numbers)
