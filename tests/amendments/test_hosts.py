"""Amendments on several hosts: hosts that differ are named, and what no host can know is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from amended_runs import GLOBAL_BATCH, LANES, write_data
from amended_trees import GraphRun, Named, uses

from energon_grain import BatchDataset, BlendDataset, WorkerConfig, get_savable_loader, get_train_dataset, merge_cursors
from energon_grain.errors import AmendmentError, StateError


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_data(root)
    return root


def test_hosts_that_differ_are_named(data: Path) -> None:
    run = GraphRun(data, [["a", 1], ["b", 1]], hosts=3)
    run.start()
    run.step(2)
    for host, loader in enumerate(run.loaders):
        loader.amend(weights={"a": 1, "b": 2 if host == 1 else 3}, note=f"try {host % 2}")
    run.step(1)
    with pytest.raises(
        StateError, match=r"hosts 0, 2: 1 amendments, the last at step 2 \(try 0\).*\[1, 3\].*hosts 1: "
    ):
        run.state()
    run.start()
    run.step(2)
    run.loaders[2].amend(weights={"a": 1, "b": 2})
    with pytest.raises(StateError, match=r"hosts 0, 1: no amendments; hosts 2: 1 amendments, the last at step 2, with"):
        run.state()
    run.close()


@pytest.mark.parametrize("kinds", [{}, {"b": "filter"}])
def test_live_on_several_hosts_is_what_a_restore_continues(data: Path, kinds: dict[str, str]) -> None:
    def steps(restart: int | None) -> list[Any]:
        run = GraphRun(data, [["a", 1], ["b", 1], [[["c", 1], ["d", 1]], 2]], kinds, "pack", hosts=4)
        run.start()
        run.step(5)
        run.amend(weights={"c": 3, "d": 1})
        run.step(5)
        run.amend(remove=["a"])
        if restart is not None:
            state, run.hosts = run.state(), restart
            run.start(state)
        run.step(10)
        run.close()
        return list(map(sorted, run.log))

    expected = steps(None)
    assert steps(1) == expected
    assert steps(3) == expected


def test_answers_that_one_host_does_not_know(data: Path) -> None:
    run = GraphRun(data, [["a", 1], ["b", 1]], {"b": "filter"}, hosts=2)
    run.start()
    run.step(5)
    run.amend(weights={"a": 1, "b": 4})
    run.step(2)
    with pytest.raises(StateError, match="restore the state of all hosts on one host"):
        run.loaders[0].which(3)
    state, run.hosts = run.state(), 1
    run.start(state)
    for step, delivered in enumerate(run.log):
        found = [(Path(each.dataset).name, int(each.key)) for each in run.loaders[0].which(step)]
        assert sorted(found) == sorted((name, key) for name, _, key in delivered)
    run.close()


def test_choices_for_the_lanes_of_all_hosts(data: Path) -> None:
    def loader(host: int, hosts: int) -> Any:
        config = WorkerConfig(host, hosts, 0)
        leaves = [
            get_train_dataset(
                data / name,
                batch_size=None,
                shuffle_buffer_size=8,
                max_samples_per_sequence=4,
                lanes=LANES,
                repeat=False,
                task_encoder=Named(name, drops=5),
                worker_config=config,
            )
            for name in "ab"
        ]
        blend = BlendDataset((leaves[0], 1), (leaves[1], 1), per_step=2)
        return get_savable_loader(BatchDataset(blend, GLOBAL_BATCH // hosts, uses))

    loaders = [loader(host, 2) for host in range(2)]
    for _ in range(4):
        for each in loaders:
            next(each)
    state = merge_cursors([each.save_state_rank() for each in loaders])
    with pytest.raises(AmendmentError, match="amend the state of all hosts on one host"):
        loaders[0].amend(weights={"a": 1, "b": 3})
    alone = loader(0, 1)
    alone.restore_state_rank(state)
    alone.amend(weights={"a": 1, "b": 3})
    amended = alone.save_state_rank()
    for each in loaders:
        each.restore_state_rank(amended)
    for _ in range(20):
        assert sorted(next(alone)) == sorted(use for each in loaders for use in next(each))
    for each in (*loaders, alone):
        each.close()
