"""Lanes of a leaf that pass over excluded samples, against lists of what each lane draws."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pytest

from energon_grain.amendments import holes as holes_module
from energon_grain.amendments.holes import NEVER, Holes, can_close
from energon_grain.errors import AmendmentError, ConfigError
from energon_grain.samplers.leaf_order import LeafOrder, LeafTable

LANES = 6


def order(form: str, n: int, passes: int = 1) -> LeafOrder:
    if form == "sequential":
        return LeafOrder(n=n, key=9, shuffle=False)
    if form == "full":
        return LeafOrder(n=n, key=9, passes=passes)
    starts = np.array([0, 3, 4, 9, 17, n]) if form == "stored" else None
    return LeafOrder(n=n, key=9, block=4, window=2, passes=passes, starts=starts)


def drawn_by_lanes(leaf: LeafOrder, exclusions: list[tuple[set[int], list[int]]], draws: int) -> list[list[int]]:
    """Rounds of each lane, one by one: at its draw number `begins[lane]` a lane begins to leave samples out."""
    drawn, _ = LeafTable([leaf], LANES).draw(0, np.arange(20 * draws * LANES))
    found: list[list[int]] = []
    for lane in range(LANES):
        taken: list[int] = []
        child = lane
        while len(taken) < draws:
            gone = any(drawn[child] in samples and len(taken) >= begins[lane] for samples, begins in exclusions)
            if not gone:
                taken.append(child // LANES)
            child += LANES
        found.append(taken)
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("form", "passes"), [("sequential", 1), ("full", 1), ("full", 3), ("blocks", 1), ("blocks", 2), ("stored", 2)]
)
def test_lanes_go_on_with_the_next_sample(form: str, passes: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(holes_module, "_HOLES_AT_ONCE", rng.choice([1, 20, 1 << 15]))
    n = rng.choice([23, 41])
    leaf = order(form, n, passes)
    left, begins = list(range(n)), [0] * LANES
    exclusions: list[tuple[set[int], list[int]]] = []
    for _ in range(rng.randrange(1, 5)):
        gone = set(rng.sample(left, rng.randrange(1, 6)))
        left = [each for each in left if each not in gone]
        begins = [begin + rng.randrange(0, 20) for begin in begins]
        exclusions.append((gone, begins))
    draws = 90
    expected = np.array(drawn_by_lanes(leaf, exclusions, draws))
    arrays: Any = [(np.array(sorted(samples)), np.array(begins)) for samples, begins in exclusions]
    found = Holes(leaf, LANES, arrays)
    child, below = found.route(np.arange(draws * LANES))
    assert not child.any()
    assert np.array_equal(below.reshape(draws, LANES) // LANES, expected.T)
    assert np.array_equal(below % LANES, np.arange(draws * LANES) % LANES)
    for _ in range(20):  # any part, in any order, from a copy that has counted nothing
        fresh = pickle.loads(pickle.dumps(found))
        some = np.array(rng.sample(range(draws * LANES), rng.randrange(0, 30)), np.int64)
        assert np.array_equal(fresh.route(some)[1], below[some])
    all_below = np.arange(int(below.max()) + 1)
    undone = found.position_of(np.zeros(len(all_below), np.int32), all_below)
    assert np.array_equal(undone[below], np.arange(draws * LANES))
    holes = np.setdiff1d(np.arange(int(expected.min(axis=0)[-1]) * LANES), below)
    assert (undone[holes] == NEVER).all()
    assert len(holes) > 0


def test_what_cannot_be_closed() -> None:
    ordered, samples = LeafOrder(n=8, key=1, shuffle=False), np.array([2, 3])
    assert can_close(ordered, 4, samples)
    with pytest.raises(AmendmentError, match="one of the 4 lanes gets only"):
        can_close(ordered, 4, np.array([2, 6]))
    assert can_close(ordered, 3, np.array([2, 6]))
    assert can_close(LeafOrder(n=8, key=1), 4, np.array([2, 6]))
    assert not can_close(LeafOrder(n=8, key=1, replacement=True), 4, samples)
    assert not can_close(LeafOrder(n=8, key=1, block=2, runs=True), 4, samples)


@pytest.mark.parametrize("form", ["full", "blocks"])
def test_few_samples_are_left(form: str) -> None:
    leaf = order(form, 41)
    found = Holes(leaf, LANES, [(np.arange(3, 41), np.full(LANES, 7))])
    _, below = found.route(np.arange(30 * LANES))
    index, epoch = LeafTable([leaf], LANES).draw(0, below)
    late = np.arange(30 * LANES) >= 7 * LANES
    assert set(index[late].tolist()) == {0, 1, 2}
    assert len(set(zip(index.tolist(), epoch.tolist(), strict=True))) == 30 * LANES


def test_with_replacement_there_are_no_holes() -> None:
    leaf = LeafOrder(n=8, key=1, replacement=True)
    with pytest.raises(ConfigError, match="replacement"):
        Holes(leaf, 4, [(np.array([1]), np.zeros(4, np.int64))]).route(np.arange(4))
