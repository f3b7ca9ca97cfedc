"""Amendments below shuffles and epochs: at the next window, with everything else where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from amended_graphs import HISTORIES, Dropping, Fleet, GraphRun, Marking, both, write_data

from energon_grain import (
    BlendDataset,
    BlendEpochizedDataset,
    EpochizeDataset,
    PackingDataset,
    RepeatDataset,
    ShuffleBufferDataset,
)
from energon_grain.errors import AmendmentError

WINDOW = 50


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_data(root)
    return root


def shuffled(pairs: list[Any]) -> Any:
    return ShuffleBufferDataset(BlendDataset(*pairs), WINDOW)


def in_epochs(pairs: list[Any]) -> Any:
    return EpochizeDataset(BlendDataset(*pairs), 12 * 7)


def packed_of_shuffled(pairs: list[Any]) -> Any:
    return PackingDataset(shuffled(pairs), 5, lambda samples: [samples[:2], samples[2:]], uses_of_pack)


def packed_of_epochs(pairs: list[Any]) -> Any:
    graph = RepeatDataset(BlendEpochizedDataset(*pairs))
    return PackingDataset(graph, 5, lambda samples: [samples[:2], samples[2:]], uses_of_pack)


def uses_of_pack(samples: list[Any]) -> list[Any]:
    return [sample.text for sample in samples]


@pytest.mark.parametrize("seed", range(HISTORIES))
@pytest.mark.parametrize(("encoder", "live_on"), [(Marking, 4), (Dropping, 1)])
@pytest.mark.parametrize("build", [shuffled, in_epochs])
def test_random_histories(data: Path, build: Any, encoder: type[Marking], live_on: int, seed: int) -> None:
    both(data, seed, build, {"a": 3, "b": 1}, encoder=encoder, choices=[1, 2, 5], last=40, live_on=live_on)


@pytest.mark.parametrize("seed", range(HISTORIES))
@pytest.mark.parametrize("build", [packed_of_shuffled, packed_of_epochs])
def test_lanes_that_hold_samples_above(data: Path, build: Any, seed: int) -> None:
    both(data, seed, build, {"a": 3, "b": 1}, encoder=Dropping, choices=[1, 2], last=60, live_on=1, removing=False)


def test_hosts_agree_on_a_window(data: Path) -> None:
    """Lanes that dropped samples are ahead by different numbers, on hosts that run side by side."""
    fleet = Fleet(3)
    run = GraphRun(data, shuffled, {"a": 3, "b": 1}, Dropping, hosts=3)
    run.any_host = fleet.any_host
    run.start()
    run.step(20)
    change = {"weights": {"a": 1, "b": 1, "c": 4}, "note": "more c"}
    fleet.each(lambda host: run.loaders[host].amend(add={"c": run.leaf("c")}, **change))
    run.step(30)
    alone = GraphRun(data, shuffled, {"a": 3, "b": 1}, Dropping)
    alone.start()
    alone.step(20)
    alone.amend(add={"c": alone.leaf("c")}, **change)
    alone.step(30)
    assert list(map(sorted, run.log)) == list(map(sorted, alone.log))
    assert run.state()["amendments"] == alone.state()["amendments"]
    run.close()
    alone.close()


def test_hosts_that_cannot_agree(data: Path) -> None:
    run = GraphRun(data, shuffled, {"a": 3, "b": 1}, Dropping, hosts=2)
    run.start()
    run.step(5)
    with pytest.raises(AmendmentError, match=r"how far the lanes of all hosts have read.*any_host"):
        run.amend(weights={"a": 1, "b": 1})
    state = run.state()
    run.weights = {"a": 1, "b": 1}
    run.start(state, on_change="amend")
    assert len({str(loader.amendments) for loader in run.loaders}) == 1
    run.close()


def test_where_it_takes_effect(data: Path) -> None:
    run = GraphRun(data, shuffled, {"a": 3, "b": 1})
    run.start()
    run.step(3)  # 36 of the first 50
    run.amend(weights={"a": 0, "b": 1})
    (change,) = run.loaders[0].amendments
    assert (change.step, change.item, change.from_step, change.from_epoch) == (3, 36, 4, None)
    run.step(4)
    assert "a" in {name for name, *_ in run.log[3]}
    assert {name for name, *_ in run.log[4][2:] + run.log[5]} == {"b"}
    expected = [[(name, number, epoch) for name, _, number, epoch in step] for step in run.log]
    state = run.state()
    run.start(state)
    for step in (1, 4, 6):
        found = [(Path(each.dataset).name, int(each.key[1:]), each.epoch) for each in run.loaders[0].which(step)]
        assert found == expected[step]
    run.close()


def test_a_removed_dataset_whose_samples_are_still_to_come(data: Path) -> None:
    run = GraphRun(data, shuffled, {"a": 3, "b": 1})
    run.start()
    run.step(3)
    state = run.state()
    run.weights = {"a": 1}
    with pytest.raises(AmendmentError, match=r"b.*until the change takes effect, with step 4.*amend\(remove="):
        run.start(state, on_change="amend")
    run.weights = {"a": 3, "b": 1}
    run.start(state)
    run.amend(remove=["b"])
    run.step(2)
    run.weights, state = {"a": 1}, run.state()
    run.start(state, on_change="amend")
    run.step(5)
    assert {name for step in run.log[5:] for name, *_ in step} == {"a"}
    run.close()
