"""The uses of samples by a run, counted one by one from `which`."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from energon_grain import Stream
from energon_grain.stream.extensions import SEEN, WHEN

Found = tuple[int, int, int, int | None, int]
"""Step, host, place in the batch of the host, place in the pack, pass."""


def uses_of(stream: Any, steps: int) -> dict[tuple[str, str, int], list[Found]]:
    """By dataset, key and index: the uses in the first steps, in order."""
    found: dict[tuple[str, str, int], list[Found]] = defaultdict(list)
    skipped = {step for first, count in stream._progress.skipped for step in range(first, first + count)}
    for step in range(steps):
        if step in skipped:
            continue
        places: Counter[int] = Counter()
        records = stream.which(step)
        before = None
        for record in records:
            pack = 0 if record.item != before else pack + 1
            places[record.host] += record.item != before
            before = record.item
            place = step, record.host, places[record.host] - 1, pack, record.epoch
            found[record.dataset, record.key, record.index].append(place)
    return found


def check_uses(stream: Stream, steps: int, *, placed: bool = True, packed: bool = False) -> int:
    """Compare `when` of every sample, and `seen`, with `which` of every step until now. Returns the number of uses."""
    expected = uses_of(stream, steps)
    keys = {(str(leaf.leaf.source.path), key): None for leaf in stream.spec.leaves for key in keys_of_leaf(leaf)}
    total = 0
    for dataset, key in keys:
        uses = [use for use in stream.ask(WHEN, [key], dataset=dataset) if use.exact]
        found: dict[int, list[Found]] = defaultdict(list)
        for use in uses:
            if use.past:
                pack = use.pack if packed else None
                found[use.index].append((use.step, use.host, use.place, pack, use.epoch))
        wanted = {
            index: [(*place[:3], place[3] if packed else None, place[4]) for place in places]
            for (path, other, index), places in expected.items()
            if (path, other) == (dataset, key)
        }
        if not placed:
            found = {index: [(place[0], place[4]) for place in places] for index, places in found.items()}
            wanted = {index: [(place[0], place[4]) for place in places] for index, places in wanted.items()}
        assert {i: sorted(u) for i, u in found.items()} == {i: sorted(u) for i, u in wanted.items()}, (dataset, key)
        total += len(uses)
    check_seen(stream, expected)
    return total


def keys_of_leaf(leaf: Any) -> list[str]:
    import numpy as np

    return leaf.leaf.source.keys(np.arange(len(leaf.leaf.source)))


def check_seen(stream: Stream, expected: dict[tuple[str, str, int], list[Found]]) -> None:
    times: Counter[tuple[str, int]] = Counter()
    for (dataset, _, index), places in expected.items():
        times[dataset, index] += len(places)
    counted: Counter[tuple[str, int]] = Counter()
    for each in stream.ask(SEEN):
        for index, count in enumerate(each.times.tolist()):
            counted[each.dataset, index] += count
    assert +counted == +times and all(count >= 0 for count in counted.values())


def check_replay(stream: Stream, steps: int) -> int:
    """Compare `when` with a replay of all samples with `which` of every step. Returns the number of uses."""
    expected = {name: sorted({place[:3] for place in places}) for name, places in uses_of(stream, steps).items()}
    total = 0
    for dataset in {str(leaf.leaf.source.path): None for leaf in stream.spec.leaves}:
        leaves = [leaf for leaf in stream.spec.leaves if str(leaf.leaf.source.path) == dataset]
        keys = list(dict.fromkeys(key for leaf in leaves for key in keys_of_leaf(leaf)))
        found: dict[tuple[str, str, int], set[tuple[Any, ...]]] = defaultdict(set)
        bounds = {(use.key, use.index, use.position): use.between for use in stream.ask(WHEN, keys, dataset=dataset)}
        for use in stream.ask(WHEN, keys, dataset=dataset, replay=True):
            if use.past:
                assert use.exact
                found[dataset, use.key, use.index].add((use.step, use.host, use.place))
                between = bounds.get((use.key, use.index, use.position))
                if between is not None:
                    assert between[0] <= use.step <= (between[1] if between[1] is not None else use.step)
        wanted = {name: places for name, places in expected.items() if name[0] == dataset}
        assert {name: sorted(places) for name, places in found.items()} == wanted
        total += sum(map(len, wanted.values()))
    return total
