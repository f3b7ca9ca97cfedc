"""Datasets that are added to nested blends, removed from them, and moved between them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from amended_runs import write_data
from amended_trees import GraphRun, check, history


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_data(root)
    return root


@pytest.mark.parametrize("kinds", [{}, {"c": "twice"}])
@pytest.mark.parametrize("seed", range(6))
def test_random_histories_of_nested_blends(data: Path, seed: int, kinds: dict[str, str]) -> None:
    tree = [["a", 3], [[["b", 1], ["c", 2]], 2]]
    spare = list("abcd") if kinds else list("abcde")
    choices = random.Random(seed + 1000)
    run = GraphRun(data, tree, kinds)
    history(random.Random(seed), run, iter(lambda: choices.choice([1, 2, 3, 4]), None), spare, 1)
    check(run, 1)
    alone = GraphRun(data, tree, kinds)
    history(random.Random(seed), alone, iter(lambda: 1, None), spare, 1)
    assert list(map(sorted, run.log)) == list(map(sorted, alone.log))


def keys(run: GraphRun, step: int) -> list[tuple[str, int]]:
    return [(Path(each.dataset).name, int(each.key)) for each in run.loaders[0].which(step)]


def test_which_and_restore_keys_across_moves(data: Path) -> None:
    run = GraphRun(data, [["a", 3], [[["b", 1], ["c", 2]], 2], [[["d", 1]], 1]])
    run.start()
    run.step(5)
    for tree in (
        [["a", 1], ["b", 2], [[["c", 2]], 2], [[["d", 1]], 1]],
        [["a", 1], [[["c", 2]], 2], [[["d", 1], ["b", 3]], 1]],
        [["a", 1], [[["c", 2], ["b", 1]], 2], [[["d", 1]], 1]],
    ):
        run.tree = tree
        run.start(run.state(), on_change="amend")
        run.step(4)
    loader = run.loaders[0]
    for step, delivered in enumerate(run.log):
        assert keys(run, step) == [(name, key) for name, _, key in delivered]
    b = [use for step in run.log for use in step if use[0] == "b"]
    assert len({child for _, child, _ in b}) == len(b)
    for name, child, key in b[-3:]:
        assert loader.restore_sample(("sample", 1, child)).text == [(name, child, key)]
    run.close()


def test_a_running_loader_moves_and_adds(data: Path) -> None:
    run = GraphRun(data, [["a", 3], [[["b", 1], ["c", 2]], 2]])
    run.start()
    run.step(7)
    run.amend(add={"a": "a"}, weights={"b": 1, "c": 1, "a": 2})
    run.step(20)
    run.amend(add={"d": run.leaf("d", 0)}, weights={"b": 1, "c": 1, "a": 2, "d": 3})
    run.step(20)
    run.amend(remove=["b"])
    run.step(20)
    check(run, 1)
    assert {name for name, *_ in run.log[-1]} == {"a", "c", "d"}
    assert [sum(each.after.values()) for each in run.loaders[0].amendments] == pytest.approx([1, 1, 1])
    run.close()


def test_equal_datasets_are_counted_anew(data: Path) -> None:
    """One that is added before an equal one has its name in the configuration; the other one stays what it was."""
    run = GraphRun(data, [["a", 1], [[["b", 1]], 1]])
    run.start()
    run.step(5)
    run.tree = [["b+", 1], ["a", 1], [[["b", 1]], 1]]
    run.start(run.state(), on_change="amend")
    run.step(5)
    run.start(run.state())
    run.step(5)
    assert sorted(run.loaders[0].amendments[-1].after.values()) == pytest.approx([1 / 3] * 3)
    added = [use for step in run.log for use in step if use[0] == "b+"]
    assert len(set(added)) == len(added) > 20
    run.log = [[use for use in step if use[0] != "b+"] for step in run.log]
    check(run, 1)
    run.close()


def test_a_combination_is_removed_and_comes_back(data: Path) -> None:
    run = GraphRun(data, [["a", 1], ["c", 2]], {"c": "twice"})
    run.start()
    run.step(6)
    run.tree = [["a", 1]]
    run.start(run.state(), on_change="amend")
    run.step(6)
    assert {name for step in run.log[6:] for name, *_ in step} == {"a"}
    run.start(run.state())
    run.step(2)
    run.tree = [["c", 2], ["a", 1]]
    run.start(run.state(), on_change="amend")
    run.step(40)
    check(run, 1)
    assert {name for name, *_ in run.log[-1]} == {"a", "c"}
    run.close()
