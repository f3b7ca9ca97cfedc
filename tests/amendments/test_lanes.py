"""Blends of what filters, groups, packs and generates: each lane goes on where it was, with what it holds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from amended_graphs import GraphRun, check, history
from amended_runs import write_data

LAST = 45


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_data(root)
    return root


@pytest.mark.parametrize("above", ["", "pack"])
@pytest.mark.parametrize("seed", range(5))
def test_random_histories_with_filters(data: Path, seed: int, above: str) -> None:
    """Filtered and plain leaves, which move between a blend that counts items and one that counts positions."""
    tree = [["a", 3], ["b", 1], [[["c", 2], ["d", 1]], 2]]
    kinds = {"b": "filter", "a": "filter"}
    choices = random.Random(seed + 1000)
    run = GraphRun(data, tree, kinds, above)
    history(random.Random(seed), run, iter(lambda: choices.choice([1, 2, 3, 4]), None), list("abcde"), LAST)
    check(run, LAST)
    alone = GraphRun(data, tree, kinds, above)
    history(random.Random(seed), alone, iter(lambda: 1, None), list("abcde"), LAST)
    assert list(map(sorted, run.log)) == list(map(sorted, alone.log))
