"""Folds over positions: windows, anchors and restarts change nothing; blends by cost, and plans of packs."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from forking import may_fork
from hypothesis import given, settings, strategies as st
from patience import PATIENCE_S

from energon_grain.errors import ConfigError
from energon_grain.planning import cost_blend
from energon_grain.planning.cost_blend import CostBlend
from energon_grain.planning.pack_plan import CARRIED, PATIENCE, OversizeSample, WindowPacks, fill, plan_packs
from energon_grain.planning.packers import best_fit_decreasing
from energon_grain.samplers.fold import Carry, Fold, SavedCarries, flat, unflat

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
        restored.remember(carry, begin, SavedCarries([]))
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
    with pytest.raises(ConfigError, match=r"consecutive samples of one dataset cost nothing.*`where`"):
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
    with pytest.raises(ValueError, match="do not form complete carries"):
        unflat(numbers)


WINDOW = 4


def sums() -> Fold[int]:
    """Of windows of four positions: the plan is the sum of all windows before, and so is the carry."""

    def advance(carry: Carry) -> tuple[int, Carry]:
        position, total = carry
        return total, (position + WINDOW, total + position)

    return Fold((0, 0), advance)


def carry_at(position: int) -> Carry:
    first = position // WINDOW * WINDOW
    return first, sum(range(0, first, WINDOW))


@pytest.mark.parametrize("ahead", [0, 40, 3_000, 60_000, 200_000])
def test_an_anchor_is_that_of_its_window_however_far_others_were_planned(ahead: int) -> None:
    fold = sums()
    for position in range(0, 200, 7):
        fold.plan_at(position + ahead)
        assert fold.anchor(position) == carry_at(position)


def test_anchors_long_past_lie_before_and_are_right() -> None:
    fold = sums()
    for position in range(0, 40_000, 50):
        fold.anchor(position)
    for position in np.random.default_rng(0).integers(0, 40_000, 50).tolist():
        found = fold.anchor(position)
        assert found == carry_at(found[0])
        assert position - 40_000 // 100 < found[0] <= position


def test_plans_are_the_same_in_any_order_and_from_a_carry_of_another_process() -> None:
    fold, other = sums(), sums()
    other.remember(fold.anchor(9_000))
    for position in np.random.default_rng(1).integers(9_000, 40_000, 200).tolist():
        first, end, plan = other.plan_at(position)
        assert (first, plan) == carry_at(position)
        assert (first, end, plan) == fold.plan_at(position)


@may_fork
def test_a_forked_child_does_not_wait_for_a_thread_that_plans_in_its_parent() -> None:
    planning, done = threading.Event(), threading.Event()

    def advance(carry: Carry) -> tuple[int, Carry]:
        planning.set()
        done.wait(PATIENCE_S)
        return 0, (carry[0] + WINDOW,)

    fold = Fold((0,), advance)
    thread = threading.Thread(target=fold.plan_at, args=(0,))
    thread.start()
    planning.wait(PATIENCE_S)
    child = os.fork()
    if not child:
        signal.alarm(10)
        os._exit(7 if fold.anchor(0) == (0,) else 8)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


_RULES = st.sampled_from(["split", "drop", "alone"])


def parts_of(plan: WindowPacks, sample: int) -> list[tuple[int, int, int]]:
    """(first unit, stop, pack) of each part of a sample, in order."""
    at = np.flatnonzero(plan.members == sample)
    packs = np.searchsorted(plan.cuts, at, side="right") - 1
    return sorted(zip(plan.starts[at].tolist(), plan.stops[at].tolist(), packs.tolist(), strict=True))


@st.composite
def windows(draw: st.DrawFn) -> tuple[Any, tuple[int, ...]]:
    capacities = tuple(draw(st.lists(st.integers(1, 60), min_size=1, max_size=3)))
    rows = draw(st.lists(st.tuples(*(st.integers(0, 2 * limit) for limit in capacities)), max_size=60))
    return np.array(rows, np.int64).reshape(-1, len(capacities)).T, capacities


@given(window=windows(), oversize=_RULES, key=st.integers(0, 5), last=st.booleans(), patient=st.integers(0, 60))
def test_every_sample_is_somewhere_and_no_pack_is_over(
    window: Any, oversize: Any, key: int, last: bool, patient: int
) -> None:
    costs, capacities = window
    if oversize == "split":
        costs = np.minimum(costs, [[2 * capacities[0]], *([limit] for limit in capacities[1:])])
    limits = np.array(capacities)[:, None]
    large = set(np.flatnonzero((costs > limits).any(axis=0)).tolist())
    plan = plan_packs(costs, capacities, key=key, oversize=oversize, patient=patient, last=last)
    rest, dropped = set(plan.rest.tolist()), set(plan.dropped.tolist())
    assert set(plan.members.tolist()) | rest | dropped == set(range(costs.shape[1]))
    assert not set(plan.members.tolist()) & (rest | dropped)
    assert dropped == (large if oversize == "drop" else set())
    assert not rest & large
    assert len(rest) <= min(CARRIED, costs.shape[1] // 4)
    assert not rest or (min(rest) >= patient and not last)
    assert plan.cuts[0] == 0
    assert plan.cuts[-1] == len(plan.members)
    assert (np.diff(plan.cuts) > 0).all()
    for sample in set(plan.members.tolist()):
        parts = parts_of(plan, sample)
        assert len(parts) == 1 or (sample in large and oversize == "split")
        ends = [0, *(stop for _, stop, _ in parts)]
        assert [start for start, _, _ in parts] == ends[:-1]
        assert ends[-1] == costs[0, sample]
    for begin, end in zip(plan.cuts[:-1].tolist(), plan.cuts[1:].tolist(), strict=True):
        members = plan.members[begin:end]
        assert (np.diff(members) > 0).all()
        totals = costs[:, members].sum(axis=1)
        totals[0] = (plan.stops - plan.starts)[begin:end].sum()
        assert (totals <= limits[:, 0]).all() or (oversize == "alone" and set(members.tolist()) <= large)


@given(costs=st.lists(st.integers(1, 50), min_size=1, max_size=80), capacity=st.integers(50, 90))
def test_packs_are_those_of_sorting(costs: list[int], capacity: int) -> None:
    pack_of, packs = fill(np.array([costs]), (capacity,))
    assert packs == len(best_fit_decreasing(costs, length=costs, capacity=capacity))
    assert sorted(set(pack_of.tolist())) == list(range(packs))
    _, bounded = fill(np.array([costs, [1] * len(costs)]), (capacity, 2))
    assert bounded >= max(packs, -(-len(costs) // 2))


def test_the_parts_of_a_sample_lie_in_neighbouring_packs() -> None:
    costs = np.random.default_rng(3).integers(1, 70, 4000)
    costs[::9] = np.random.default_rng(4).integers(100, 1000, len(costs[::9]))
    plan = plan_packs(costs[None], (100,), key=1, oversize="split", last=False)
    others = [set(plan.members[b:e].tolist()) for b, e in zip(plan.cuts[:-1], plan.cuts[1:], strict=True)]
    large = set(np.flatnonzero(costs > 100).tolist())
    first_two = 0
    for sample in large:
        packs = sorted({pack for *_, pack in parts_of(plan, sample)})
        first_two += packs == list(range(packs[0], packs[-1] + 1))
        # What lies between belongs to those that share a pack with it.
        assert all(others[pack] & large for pack in range(packs[0], packs[-1] + 1))
    assert first_two > 0.9 * len(large)


def test_packs_come_in_an_order_of_their_key() -> None:
    costs = np.random.default_rng(0).integers(1, 64, (1, 2000))
    one, two, again = (plan_packs(costs, (64,), key=key, oversize="error", last=False) for key in (1, 2, 1))
    assert np.array_equal(one.members, again.members)
    assert not np.array_equal(one.members, two.members)
    assert np.array_equal(np.sort(one.members), np.sort(two.members))
    largest = np.maximum.reduceat(costs[0][one.members], one.cuts[:-1])
    assert abs(np.corrcoef(np.arange(len(one)), largest)[0, 1]) < 0.15


def test_large_numbers_of_different_costs_are_rounded_up() -> None:
    r = np.random.default_rng(0)
    costs = np.stack([r.integers(0, 1000, 3000), r.integers(0, 10**6, 3000), np.ones(3000, np.int64)])
    pack_of, packs = fill(costs, (4000, 3 * 10**6, 12))
    totals = np.stack([np.bincount(pack_of, row, packs) for row in costs])
    assert (totals <= np.array([[4000], [3 * 10**6], [12]])).all()
    assert packs < 1.15 * max(costs[0].sum() / 4000, costs[1].sum() / (3 * 10**6))


@pytest.mark.parametrize("oversize", ["error", "split"])
def test_what_is_too_large_is_named(oversize: Any) -> None:
    with pytest.raises(OversizeSample) as caught:
        plan_packs(np.array([[1, 2, 3], [1, 9, 9]]), (3, 8), key=0, oversize=oversize, last=True)
    assert (caught.value.sample, caught.value.cost) == (1, 1)


LAWS = {
    "zipf": lambda r, n: np.minimum(r.zipf(1.2, n), 4096),
    "log-normal": lambda r, n: np.clip(r.lognormal(6.2, 1.1, n), 16, 4096).astype(np.int64),
    "uniform": lambda r, n: r.integers(1, 4097, n),
}


@pytest.mark.parametrize("law", LAWS)
def test_windows_fill_packs_as_sorting_all_samples_does(law: str) -> None:
    window, costs = 16_384, LAWS[law](np.random.default_rng(5), 200_000)
    positions, at, packs = np.empty(0, np.int64), 0, 0
    oldest = 0
    while at < len(costs):
        stop = min(len(costs), at + window - len(positions))
        positions = np.concatenate([positions, np.arange(at, stop)])
        patient = int(np.searchsorted(positions, stop - PATIENCE * window))
        last = stop == len(costs)
        plan = plan_packs(costs[positions][None], (4096,), key=at, oversize="error", patient=patient, last=last)
        oldest = max(oldest, stop - int(positions[plan.members].min()))
        packs += len(plan)
        positions, at = positions[plan.rest], stop
    _, together = fill(costs[None], (4096,))
    assert together / packs >= 0.997
    assert oldest <= (PATIENCE + 2) * window
