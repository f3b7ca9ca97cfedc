"""Blends of what filters, groups, packs and generates: each lane goes on where it was, with what it holds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from amended_runs import write_data
from amended_trees import GraphRun, check, history

from energon_grain.errors import AmendmentError

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


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_with_packs_and_groups(data: Path, seed: int) -> None:
    """Packs, groups, a filter, a plain leaf, and a nested blend with a pack in it."""
    tree = [["a", 3], ["b", 1], [[["c", 2], ["d", 1]], 2], ["e", 2]]
    kinds = {"b": "filter", "c": "pack", "e": "group"}
    choices = random.Random(seed + 1000)
    run = GraphRun(data, tree, kinds)
    history(random.Random(seed), run, iter(lambda: choices.choice([1, 2, 3, 4]), None), list("abcde"), LAST)
    check(run, LAST)
    alone = GraphRun(data, tree, kinds)
    history(random.Random(seed), alone, iter(lambda: 1, None), list("abcde"), LAST)
    assert list(map(sorted, run.log)) == list(map(sorted, alone.log))


@pytest.mark.parametrize("kinds", [{}, {"b": "filter"}])
def test_held_samples_are_delivered_or_dropped(data: Path, kinds: dict[str, str]) -> None:
    run = GraphRun(data, [["a", 2], ["b", 2], ["c", 1]], kinds, "pack")
    run.start()
    run.step(6)
    state = run.state()
    run.amend(remove=["b"])
    begin = len(run.log)
    run.step(LAST)
    delivered = [use for step in run.log[begin:] for use in step if use[0] == "b"]
    assert delivered
    run.close()
    check(run, 1)
    run.start(state)
    run.amend(remove=["b"], held="drop")
    begin = len(run.log)
    run.step(LAST)
    dropped = run.log[begin:]
    counted = run.loaders[0].stats().dropped["path/b/train//0"]
    assert sum(count for reason, count in counted.items() if "amend" in reason) == len(delivered)
    assert "b" not in {name for step in dropped for name, *_ in step}
    run.tree = [["a", 2], ["c", 1]]
    with pytest.raises(AmendmentError, match=r"lanes hold samples .*of path/b/train//0.*held='drop'"):
        run.start(state, on_change="amend")
    (data / "b").rename(data / "gone")
    try:
        run.start(state, on_change="amend", held="drop")
        begin = len(run.log)
        run.step(LAST)
        assert run.log[begin:] == dropped
    finally:
        (data / "gone").rename(data / "b")
    run.close()


def test_a_removed_pack_keeps_what_it_holds(data: Path) -> None:
    """Its data may be gone meanwhile; when it comes back, it goes on with the samples that it held."""
    run = GraphRun(data, [["a", 2], ["b", 2], ["c", 1]], {"b": "pack", "c": "group"})
    run.start()
    run.step(6)
    run.tree = [["a", 1]]
    run.start(run.state(), on_change="amend")
    run.step(5)
    run.start(run.state())
    run.step(5)
    assert {name for step in run.log[6:] for name, *_ in step} == {"a"}
    run.tree = [["b", 1], ["c", 1], ["a", 1]]
    run.start(run.state(), on_change="amend")
    run.step(LAST)
    run.close()
    check(run, 1)
