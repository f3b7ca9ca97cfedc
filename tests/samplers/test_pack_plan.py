"""Plans of packs from costs: every sample once, nothing over its capacity, and as full as sorting all at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from energon_grain.samplers.pack_plan import CARRIED, PATIENCE, OversizeSample, WindowPacks, fill, plan_packs
from energon_grain.transforms.packing import best_fit_decreasing

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
