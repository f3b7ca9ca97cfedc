"""Samples that are excluded in runs whose blends are nested, whose datasets move, and whose lanes filter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from amended_runs import SIZES, write_data
from amended_trees import GraphRun

from energon_grain.errors import AmendmentError

GONE = ["000002", "000005", "000007"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_data(root)
    return root


@pytest.fixture
def run(data: Path) -> Iterator[GraphRun]:
    run = GraphRun(data, [["a", 3], [[["b", 1], ["c", 2]], 2]])
    run.start()
    run.step(6)
    yield run
    run.close()


def keys(run: GraphRun, name: str, begin: int) -> list[str]:
    return [f"{int(key):06d}" for step in run.log[begin:] for dataset, _, key in step if dataset == name]


def test_exclude_in_nested_blends_that_grow(run: GraphRun) -> None:
    """The numbers of leaves are then not in document order."""
    run.amend(exclude={"c": GONE})
    begin = len(run.log)
    run.step(10)
    for tree in (
        [["a", 3], [[["b", 1], ["c", 2]], 2], ["d", 2]],
        [["a", 3], [[["b", 1], ["c", 2], ["e", 1]], 2], ["d", 2]],
    ):
        run.tree = tree
        run.start(run.state(), on_change="amend")
        run.step(5)
    later = len(run.log)
    run.amend(exclude={"d": GONE})
    run.step(60)
    run.start(run.state())
    run.step(10)
    assert not set(keys(run, "c", begin)) & set(GONE)
    assert not set(keys(run, "d", later)) & set(GONE)
    assert min(len(keys(run, name, later)) for name in "cd") > 60
    for other in "abe":
        assert set(keys(run, other, later)) & set(GONE), other
    excluded = [dict(each.excluded) for each in run.loaders[0].amendments]
    assert excluded == [{"path/c/train//0": 3}, {}, {}, {"path/d/train//0": 3}]


def test_dropped_samples_of_leaves_that_are_not_in_document_order(data: Path) -> None:
    """Below a concatenation, lanes cannot pass over excluded samples."""
    run = GraphRun(data, [["a", 3], [[["b", 1]], 2], ["c", 4]], {"c": "twice"})
    run.start()
    run.step(4)
    run.tree = [["a", 3], [[["b", 1], ["d", 1]], 2], ["c", 4]]
    run.start(run.state(), on_change="amend")
    run.step(4)
    run.amend(exclude={"c": GONE})
    begin = len(run.log)
    run.step(50)
    run.start(run.state())
    run.step(10)
    assert not set(keys(run, "c", begin)) & set(GONE)
    assert len(keys(run, "c", begin)) > 60
    for other in ("a", "b", "d", "e2"):
        assert set(keys(run, other, begin)) & set(GONE), other
    run.close()


def test_a_condition_on_a_dataset_that_is_removed_and_added_again(
    run: GraphRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the dataset is removed, its columns are not there to evaluate the condition."""
    monkeypatch.setattr("energon_grain.amendments.exclusions.LONG_TEXT", 0)
    run.amend(exclude={"c": "bytes >= 155"})
    begin = len(run.log)
    run.step(10)
    first = run.tree
    for tree in ([["a", 3], [[["b", 1]], 2]], first):
        run.tree = tree
        run.start(run.state(), on_change="amend")
        run.step(3)
        run.start(run.state())
        run.step(3)
    run.step(60)
    (count,) = run.loaders[0].amendments[0].excluded.values()
    drawn = keys(run, "c", begin)
    assert len(drawn) > 60
    assert 0 < count == SIZES["c"] - len(set(drawn))


def test_exclude_and_change_the_mixture_in_one_call(run: GraphRun) -> None:
    run.amend(add={"d": run.leaf("d", 0)}, weights={"b": 1, "c": 1, "d": 3}, exclude={"d": GONE, "c": GONE})
    begin = len(run.log)
    run.step(40)
    run.tree = [["a", 3], [[["b", 1], ["c", 1], ["d", 3]], 2]]
    for name in "cd":
        assert not set(keys(run, name, begin)) & set(GONE)
        assert len(keys(run, name, begin)) > 30
    assert len(run.loaders[0].amendments) == 1


def test_a_dataset_with_excluded_samples_cannot_move(run: GraphRun) -> None:
    run.amend(exclude={"a": GONE})
    with pytest.raises(AmendmentError, match="moves to another blend cannot be excluded: leave it where it is"):
        run.amend(add={"a": "a"}, weights={"b": 1, "c": 1, "a": 2})
    run.step(5)
    run.tree = [[[["a", 1], ["b", 1], ["c", 2]], 1]]
    with pytest.raises(AmendmentError, match="moves to another blend cannot be excluded: leave it where it is"):
        run.start(run.state(), on_change="amend")


def test_no_samples_of_a_dataset_that_moved_can_be_excluded(run: GraphRun) -> None:
    run.amend(add={"a": "a"}, weights={"b": 1, "c": 1, "a": 2})
    run.step(5)
    with pytest.raises(AmendmentError, match="moves to another blend cannot be excluded: leave it where it is"):
        run.amend(exclude={"a": GONE})
    run.step(5)
    run.amend(exclude={"b": GONE})  # others can
    begin = len(run.log)
    run.step(40)
    assert not set(keys(run, "b", begin)) & set(GONE)
    assert set(keys(run, "a", begin)) & set(GONE)


@pytest.mark.parametrize("kind", ["filter", "pack", "group"])
def test_no_samples_can_be_excluded_below_a_blend_of_items(data: Path, kind: str) -> None:
    run = GraphRun(data, [["a", 2], ["b", 1]], {"b": kind})
    run.start()
    run.step(4)
    before = run.state()
    for name in "ab":
        with pytest.raises(AmendmentError, match=r"datasets below a blend .* filter, group or pack; move these steps"):
            run.amend(exclude={name: GONE})
    run.step(4)
    after = run.log[-4:]
    del run.log[-4:]
    run.start(before)
    run.step(4)
    assert run.log[-4:] == after
    run.close()
