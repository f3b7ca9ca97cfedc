"""Histories: repeatable, within their limits, and with every kind of event."""

from __future__ import annotations

import math

import pytest

from benchmarks.truth.history import MOST_SHARDS, Rules, draw

RULES = {
    "resume": Rules(),
    "elastic": Rules(other_hosts=True, other_workers=True),
    "mixture": Rules(mixture=True, other_hosts=True),
    "packs": Rules(pack=True),
    "packed mixtures": Rules(pack=True, mixture=True, other_hosts=True),
    "change": Rules(mixture=True, other_weights=True, more_datasets=True),
    "uneven": Rules(mixture=True, even=False),
}


@pytest.mark.parametrize("name", RULES)
def test_histories_keep_the_rules(name: str) -> None:
    rules = RULES[name]
    histories = [draw(seed, rules) for seed in range(100)]
    assert histories == [draw(seed, rules) for seed in range(100)]
    assert len(set(histories)) == 100
    for history in histories:
        worlds = {part.hosts * max(1, part.workers) for part in history.parts}
        assert 2 <= len(history.parts) <= 5
        assert all(history.global_batch % part.hosts == 0 for part in history.parts)
        assert len({part.hosts for part in history.parts}) == 1 or rules.other_hosts
        assert len({part.workers for part in history.parts}) == 1 or rules.other_workers
        moved = len({(part.hosts, part.workers) for part in history.parts}) > 1
        assert moved or not rules.other_workers
        assert history.parts[0].saves
        assert not history.parts[-1].saves
        for part in history.parts:
            assert len(part.weights) == part.datasets
            assert math.isclose(sum(part.weights), 1)
            assert min(part.weights) > 0
            assert list(part.saves) == sorted(part.saves)
            assert not part.saves or part.saves[-1] <= part.steps
        assert history.parts[-1].datasets <= len(history.datasets)
        for dataset in history.datasets:
            assert 50 <= dataset.samples <= 5000
            assert dataset.shards <= MOST_SHARDS
            assert not rules.even or all(dataset.shards % world == 0 for world in worlds)
            assert not rules.even or dataset.samples % dataset.shards == 0


def test_all_kinds_of_events_are_drawn() -> None:
    parts = [part for seed in range(300) for part in draw(seed, RULES["elastic"]).parts]
    assert {part.hosts for part in parts} == set(range(1, 9))
    assert {part.workers for part in parts} == set(range(4))
    assert {part.kill for part in parts} == {"worker", "host", "all", "none"}
    histories = [draw(seed, RULES["change"]) for seed in range(100)]
    assert {len(history.datasets) for history in histories} == set(range(2, 9))
    assert sum(history.parts[0].weights != history.parts[-1].weights for history in histories) > 90
    assert any(history.parts[0].datasets < history.parts[-1].datasets for history in histories)
