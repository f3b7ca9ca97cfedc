"""Segments of a blend that carry their divisions on, against a walk that adds and compares, round by round."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from energon_grain.errors import StateError
from energon_grain.samplers.blend import Blend, StepBlend, lane_rounds
from energon_grain.samplers.hashing import fold, fold_array
from energon_grain.samplers.share_tree import lane_phases
from energon_grain.samplers.weights import MAX_TOTAL, Smooth, integer_weights

RUN = 4
Changes = list[tuple[Any, list[int]]]


@dataclass
class Node:
    """A node of the share tree in one lane: what is left of its last division, and its parts."""

    low: int
    high: int
    pi: int
    lanes: int
    left: int = 0
    total: int = 1
    rest: int = 0
    lost: int = 0
    parts: list[Node] = field(default_factory=list["Node"])

    def begin(self, weights: list[int], *, smooth: bool) -> None:
        """Take the weights of a segment, with a new phase, or with the place in the last division."""
        middle = (self.low + self.high) // 2 if self.parts else self.high
        total = sum(weights[self.low : self.high])
        fine = (self.rest * self.lanes + self.lost) * 256 // (self.total * self.lanes)
        self.left = sum(weights[self.low : middle])
        self.total = total or (1 << 16 if smooth else 1)
        if smooth:
            self.rest, self.lost = (2 * fine + 1) * self.total // 512, 0
        else:
            self.rest, self.lost = divmod(self.total * self.pi, self.lanes)
        for part in self.parts:
            part.begin(weights, smooth=smooth)

    def next(self) -> int:
        """The child of the next round."""
        self.rest += self.left
        goes_left = self.rest >= self.total
        self.rest -= self.total * goes_left
        return self.parts[not goes_left].next() if self.parts else self.low


def tree(children: int, key: int, segment: int, lane: int, lanes: int) -> Node:
    """The nodes of a segment, numbered level by level."""
    own = fold_array(key, fold("segment"), segment)
    assert isinstance(own, int)
    pi = lane_phases(own, 2 * children - 1, lanes)
    root = Node(0, children, int(pi[0, lane]), lanes)
    waiting, count = [root], 1
    for node in waiting:
        middle = (node.low + node.high) // 2
        if node.high - node.low > 1:
            ends = [(node.low, middle), (middle, node.high)]
            node.parts = [Node(*end, int(pi[count + n, lane]), lanes) for n, end in enumerate(ends)]
            count += 2
            waiting += node.parts
    return root


def walked(changes: Changes, key: int, lane: int, lanes: int, rounds: int) -> list[tuple[list[int], int]]:
    """The labels of each run of a lane, sorted, and how many of its rounds the lane takes."""
    found: list[tuple[list[int], int]] = []
    pending = [
        (int(np.asarray(getattr(start, "rounds", start))[lane]), isinstance(start, Smooth), number, weights)
        for number, (start, weights) in enumerate(changes)
    ]
    at, root = 0, None
    while at < rounds:
        while pending and pending[0][0] <= at:  # at the end of a run, or where an exact segment cut one
            _, smooth, number, weights = pending.pop(0)
            children = len(weights)
            if smooth and root is not None and root.high == children:
                scaled = integer_weights(weights)
                root.begin([MAX_TOTAL // sum(scaled) * weight for weight in scaled], smooth=True)
            else:
                root = tree(children, key, number, lane, lanes)
                root.begin(list(integer_weights(weights)), smooth=False)
        assert root is not None
        labels = [root.next() for _ in range(RUN)]
        children = root.high
        exact = [begin for begin, smooth, _, weights in pending if not smooth or len(weights) != children]
        taken = min([RUN, rounds - at, *(begin - at for begin in exact)])
        if taken < RUN and exact and exact[0] - at == taken:  # smooth ones that have not begun by then never do
            while pending and (pending[0][1] and len(pending[0][3]) == children):
                pending.pop(0)
        found.append((labels, taken))
        at += taken
    return found


def random_changes(rng: np.random.Generator, lanes: int) -> Changes:
    children, at = int(rng.integers(1, 7)), np.zeros(lanes, np.int64)
    changes: Changes = [(at, rng.integers(1, 9, children).tolist())]
    for _ in range(rng.integers(1, 9)):
        at = at + rng.integers(0, int(rng.choice([1, 6, 40])), lanes)
        smooth = rng.random() < 0.7
        if not smooth and rng.random() < 0.5:
            children += 1
        weights = rng.integers(0, int(rng.choice([3, 40000])), children)
        weights[rng.integers(children)] += 1
        changes.append((Smooth(at) if smooth else at, weights.tolist()))
    return changes


@pytest.mark.parametrize("seed", range(60))
def test_against_a_walk(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lanes, key, rounds = int(rng.choice([1, 3, 8])), 77 + seed, 240
    changes = random_changes(rng, lanes)
    blend = Blend(changes, lanes=lanes, key=key)
    child, below = blend.route(np.arange(rounds * lanes))
    for lane in range(lanes):
        own, ranks = child[lane::lanes], below[lane::lanes]
        seen: Counter[int] = Counter()
        for label, rank in zip(own.tolist(), ranks.tolist(), strict=True):
            assert rank == seen[label] * lanes + lane
            seen[label] += 1
        at = 0
        for labels, taken in walked(changes, key, lane, lanes, rounds):
            part = Counter(own[at : at + taken].tolist())
            assert part == Counter(labels) if taken == RUN else part <= Counter(labels)
            at += taken
    assert np.array_equal(np.diff(blend._firsts, axis=0).min(initial=0), 0)  # ascending in every lane


@pytest.mark.parametrize("seed", range(20))
def test_one_by_one_is_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lanes = 6
    changes = random_changes(rng, lanes)
    whole = Blend(changes, lanes=lanes, key=3)
    grown = Blend(changes[:1], lanes=lanes, key=3)
    for start, weights in changes[1:]:
        before, grown = grown, grown.amended(start, weights)
        rounds = np.asarray(getattr(start, "rounds", start))
        assert np.array_equal(grown.counts_at(rounds)[: len(before.counts_at(rounds))], before.counts_at(rounds))
    position = rng.permutation(1500)
    for one, other in zip(whole.route(position), grown.route(position), strict=True):
        assert np.array_equal(one, other)
    assert (whole.starts, whole.weights) == (grown.starts, grown.weights)


@pytest.mark.parametrize("smooth", [True, False])
def test_an_anchor_continues_without_the_segments_before(smooth: bool) -> None:
    rng, lanes = np.random.default_rng(5), 8
    changes: Changes = [(0, [3, 1, 1])]
    for number in range(1, 12):
        at = number * 20 + rng.integers(0, 5, lanes)
        changes.append((Smooth(at) if smooth else at, rng.integers(1, 40000, 3).tolist()))
    whole = Blend(changes, lanes=lanes, key=3)
    anchor = whole.anchor(7)
    rest = Blend([(anchor, changes[7][1]), *changes[8:]], lanes=lanes, key=3)
    assert anchor.number == 7
    position = (np.arange(-3, 200)[:, None] + anchor.rounds) * lanes + np.arange(lanes)
    position = rng.permutation(position.reshape(-1))
    for one, other in zip(whole.route(position), rest.route(position), strict=True):
        assert np.array_equal(one, other)
    again = rest.anchor(9)
    assert np.array_equal(again.rounds, whole.anchor(9).rounds)
    child, below = whole.route(position)
    assert np.array_equal(rest.position_of(child, below), position)
    with pytest.raises(StateError, match="only the last changes of the mixture"):
        rest.position_of(np.zeros(1, np.int32), np.zeros(1, np.int64))
    for back in range(4):
        at = anchor.rounds - back + rng.integers(0, 3, lanes) * (back == 0)
        assert np.array_equal(rest.counts_at(at), whole.counts_at(at))
    with pytest.raises(StateError, match="only the last changes of the mixture"):
        rest.route(np.arange(int(anchor.rounds.min() - 4) * lanes, 400 * lanes))
    known = Blend([(whole.anchor(7, changes[:7]), changes[7][1]), *changes[8:]], lanes=lanes, key=3)
    check_equal(known, whole, 400, rng)


def check_equal(one: Blend, other: Blend, rounds: int, rng: np.random.Generator) -> None:
    position = rng.permutation(rounds * one.lanes)
    for own, expected in zip(one.route(position), other.route(position), strict=True):
        assert np.array_equal(own, expected)
    for number in range(0, rounds, 37):
        at = number + rng.integers(0, 9, one.lanes)
        assert np.array_equal(one.counts_at(at), other.counts_at(at))


def test_a_long_run_keeps_few_tables() -> None:
    rng, lanes = np.random.default_rng(6), 4
    changes: Changes = [(0, [1, 2, 3])]
    grown = Blend(changes, lanes=lanes, key=3)
    for number in range(1, 700):
        at = number * 3 + rng.integers(0, 3, lanes)
        change = Smooth(at) if number % 5 else at, rng.integers(1, 60000, 3).tolist()
        changes.append(change)
        grown = grown.amended(*change)
        assert len(grown._segments) <= 256
    check_equal(grown, Blend(changes, lanes=lanes, key=3), 2200, rng)


def test_no_error_adds_up() -> None:
    """500 decisions of 25,600 items each, as weights that follow a loss do."""
    for key in range(3):
        drift, behind = drift_of(key, smooth=True)
        assert drift <= 30
        assert behind <= 12
    assert drift_of(0, smooth=False)[0] > 300


def drift_of(key: int, *, smooth: bool) -> tuple[float, float]:
    """How far counts are from the sum of all shares at the end; and at most, counted from where weights begin."""
    rng, children, lanes, items = np.random.default_rng(key), 10, 48, 25_600
    ideal, begun, behind = np.zeros(children), np.zeros(children), 0.0
    weights = np.ones(children)
    shares, begin = np.round(weights / weights.sum() * 65535), np.zeros(lanes, np.int64)
    blend = Blend([(0, shares.astype(int).tolist())], lanes=lanes, key=key)
    for number in range(1, 501):
        weights = weights * np.exp(rng.normal(0, 0.05, children))
        rounds, now = lane_rounds(number * items, lanes), np.round(weights / weights.sum() * 65535)
        blend = blend.amended(Smooth(rounds) if smooth else rounds, now.astype(int).tolist())
        anchor = blend.anchor(number)
        ideal += shares / shares.sum() * items
        begun += shares / shares.sum() * (anchor.rounds - begin).sum()
        behind = max(behind, float(np.abs(anchor.counts.sum(axis=1) - begun).max()))
        shares, begin = now, anchor.rounds
    counts = blend.counts_at(lane_rounds(500 * items, lanes)).astype(np.int64)
    return float(np.abs(counts.sum(axis=1) - ideal).max()), behind


def test_a_blend_by_steps() -> None:
    lanes, width = 12, 3
    inner = Blend([(0, [3, 1])], lanes=lanes // width, key=5)
    rounds = np.full(lanes, 10)
    blend = StepBlend(inner, width=width).amended(Smooth(rounds), [1, 60000])
    expected = StepBlend(inner.amended(Smooth(rounds[::width]), [1, 60000]), width=width)
    position = np.arange(600)
    for one, other in zip(blend.route(position), expected.route(position), strict=True):
        assert np.array_equal(one, other)
    child = blend.route(position)[0].reshape(-1, width)
    assert (child == child[:, :1]).all()
    assert blend.anchor(1).rounds.shape == (lanes // width,)
