"""Weights that follow a loss: many small changes of a running mixture."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from amended_runs import DROPPED, GLOBAL_BATCH, LANES, Packing, Plain, Run, Skipping, write_data

from energon_grain import (
    BatchDataset,
    BlendDataset,
    ConfigError,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    merge_cursors,
)
from energon_grain.amendments import log_file
from energon_grain.amendments.lane_rows import pack_anchors, unpack_anchors
from energon_grain.amendments.reweight import quantised
from energon_grain.errors import AmendmentError, StateError
from energon_grain.loader.checkpoint_file import read_state, write_state

NAMES = "abcd"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_data(root)
    return root


def weights(rng: random.Random) -> dict[str, float]:
    return {name: rng.random() + 0.05 for name in NAMES}


def reweight(run: Run, rng: random.Random, note: str = "") -> None:
    change = weights(rng)
    for loader in run.loaders:
        loader.reweight(change, note=note)


def started(data: Path, encoder: type[Plain] = Plain, hosts: int = 1, **options: Any) -> Run:
    run = Run(data, encoder, dict.fromkeys(NAMES, 1), hosts=hosts, **options)
    run.start()
    return run


def sorted_steps(run: Run) -> list[Any]:
    return list(map(sorted, run.log))


@pytest.mark.parametrize("encoder", [Plain, Skipping, Packing])
def test_the_short_way_is_the_long_one(data: Path, encoder: type[Plain]) -> None:
    """Restoring compiles the whole run again; it must continue with the batches of the run itself."""
    rng = random.Random(1)
    run = started(data, encoder)
    states: list[tuple[int, Any]] = []
    for number in range(12):
        run.step(rng.randrange(0, 4))
        reweight(run, rng) if rng.random() < 0.8 else run.amend(weights=weights(rng))
        states.append((run.steps, run.state()))
        if number % 5 == 4:
            run.step(2)
    run.step(6)
    for step, state in states:
        again = started(data, encoder)
        again.loaders[0].restore_state_rank(state)
        later = [len(each.loaders[0].amendments) for each in (again, run)]
        until = run.loaders[0].amendments[later[0]].step if later[0] < later[1] else run.steps
        again.step(until - step)
        assert again.log == run.log[step:until]
        again.close()
    run.close()


@pytest.mark.parametrize("encoder", [Plain, Skipping])
def test_a_recorded_run_replays_without_losses(data: Path, encoder: type[Plain]) -> None:
    """From the log in the state alone, on any number of hosts; steps before and after."""
    rng = random.Random(2)
    run = started(data, encoder)
    for number in range(15):
        run.step(2)
        reweight(run, rng, f"decision {number}")
    state = run.state()
    run.step(8)
    for hosts in (1, 4) if encoder is Skipping else (1, 2, 3, 4, 6, 12):
        again = started(data, encoder, hosts)
        for loader in again.loaders:
            loader.restore_state_rank(state)
        again.step(8)
        assert sorted_steps(again) == sorted_steps(run)[30:]
        assert [each.note for each in again.loaders[0].amendments] == [f"decision {number}" for number in range(15)]
        if encoder is Plain:
            for step in (3, 11, 29, 30, 34):
                places = [int(place.key) for place in again.loaders[0].which(step)]
                assert sorted(places) == sorted(key for _, _, key, _ in run.log[step])
        again.close()
    run.close()


def test_every_dataset_continues_where_it_is(data: Path) -> None:
    rng = random.Random(3)
    DROPPED.clear()
    run = started(data)
    for _ in range(60):
        run.step(1)
        reweight(run, rng)
    seen = [use for step in run.log for use in step]
    assert len(set(seen)) == len(seen)
    for name in NAMES:
        for lane in range(LANES):
            own = [child for each, child, *_ in seen if each == name and child % LANES == lane]
            assert sorted(own) == list(range(lane, lane + len(own) * LANES, LANES))
    run.close()


@pytest.mark.parametrize(("workers", "kind"), [(2, "thread"), (2, "process")])
def test_workers_change_nothing(data: Path, workers: int, kind: str) -> None:
    def keys(workers: int, kind: str) -> list[Any]:
        rng, found = random.Random(4), []
        dataset = get_train_dataset(
            data / "mixture.yaml",
            batch_size=GLOBAL_BATCH,
            shuffle_buffer_size=8,
            max_samples_per_sequence=4,
            lanes=LANES,
            task_encoder=Plain(),
            worker_config=WorkerConfig(0, 1, workers, worker_type=kind),
        )
        with get_savable_loader(dataset) as loader:
            for _ in range(8):
                found += [next(loader) for _ in range(2)]
                loader.reweight(weights(rng))
                pool = loader.stream._pool
                next(loader)
                assert loader.stream._pool is pool or pool is None  # workers stay
        return found

    started(data).close()
    assert keys(workers, kind) == keys(0, "thread")


def test_a_nested_blend(data: Path) -> None:
    def leaf(name: str) -> Any:
        return get_train_dataset(
            data / name, batch_size=None, shuffle_buffer_size=8, max_samples_per_sequence=4, lanes=LANES, repeat=False
        )

    def loader() -> Any:
        inner = BlendDataset((leaf("b"), 1), (leaf("c"), 2))
        deep = BlendDataset((leaf("d"), 1), (inner, 2))
        return get_savable_loader(BatchDataset(BlendDataset((leaf("a"), 1), (deep, 3)), GLOBAL_BATCH, list))

    first, rng = loader(), random.Random(5)
    for _ in range(8):
        next(first)
        first.reweight({"b": rng.random(), "c": rng.random()})
        next(first)
        first.amend(weights={"b": rng.randrange(1, 9), "c": rng.randrange(10, 20)})
    second = loader()
    second.restore_state_rank(first.save_state_rank())
    one, other = (
        [[(sample.__key__, sample.__sources__[0].dataset_path) for sample in next(each)] for _ in range(20)]
        for each in (first, second)
    )
    assert one == other
    for each in (first, second):
        each.close()


def test_weights_are_16_bits() -> None:
    assert quantised({"a": 0.2, "b": 0.8}) == {"a": 13107, "b": 52428}
    assert quantised({"a": 0, "b": 1e-12, "c": 1}) == {"a": 0, "b": 1, "c": 65535}
    assert quantised({"a": np.float32(1), "b": "1", "c": 1}) == dict.fromkeys("abc", 21845)
    assert set(quantised({str(number): 1 / 7 for number in range(1000)}).values()) == {66}
    for wrong in (float("nan"), -1.0, "many"):
        with pytest.raises(ConfigError, match="weight of 'b'"):
            quantised({"a": 1, "b": wrong})
    with pytest.raises(AmendmentError, match="all weights are 0"):
        quantised({"a": 0})


def test_equal_weights_change_nothing(data: Path) -> None:
    run = started(data)
    (loader,) = run.loaders
    loader.reweight(dict.fromkeys(NAMES, 0.25))
    assert loader.amendments == []
    assert "amendments" not in loader.get_state()
    loader.reweight({"a": 3, "b": 1, "c": 1, "d": 1})
    loader.reweight({"a": 0.6, "b": 0.2, "c": 0.2, "d": 0.2})
    assert len(loader.amendments) == 1
    with pytest.raises(AmendmentError, match=r"weights has no entry for .*d"):
        loader.reweight({"a": 1, "b": 1, "c": 1})
    run.close()


def test_the_state_has_16_bytes_for_a_dataset_and_a_decision(data: Path) -> None:
    rng, run = random.Random(6), started(data)
    (loader,) = run.loaders
    empty = len(json.dumps(loader.save_state_rank()))
    for _ in range(100):
        run.step(1)
        reweight(run, rng)
    assert len(json.dumps(loader.save_state_rank())) - empty <= 16 * len(NAMES) * 100
    run.close()


def long_run(data: Path, encoder: type[Plain] = Plain, decisions: int = 60, hosts: int = 1) -> Run:
    rng, run = random.Random(7), started(data, encoder, hosts)
    for number in range(decisions):
        run.step(number % 3)
        reweight(run, rng, f"decision {number}")
    return run


def restored(data: Path, state: Any, encoder: type[Plain] = Plain, hosts: int = 1) -> Run:
    run = started(data, encoder, hosts)
    for loader in run.loaders:
        loader.restore_state_rank(state)
    return run


@pytest.mark.parametrize("encoder", [Plain, Skipping, Packing])
def test_every_state_has_the_last_changes_and_a_saved_one_all(data: Path, encoder: type[Plain]) -> None:
    run = long_run(data, encoder)
    (loader,) = run.loaders
    short, saved = loader.get_state(), loader.save_state_rank()
    assert [len(state["amendments"]) for state in (short, saved)] == [3, 5]
    again = restored(data, short, encoder)
    middle = again.loaders[0].save_state_rank()
    assert len(middle["amendments"]) == 3
    others = [again, restored(data, saved, encoder), restored(data, middle, encoder)]
    assert [len(each.loaders[0].amendments) for each in others] == [32, 60, 32]
    change = weights(random.Random(8))
    for each in (run, *others):
        each.step(5)
        each.loaders[0].reweight(change)
        each.step(5)
    assert all(each.log == run.log[-10:] for each in others)
    late = [each.loaders[0].save_state_rank() for each in others]
    last = [restored(data, state, encoder) for state in late]
    run.step(3)
    for each in last:
        each.step(3)
        assert each.log == run.log[-3:]
    for each in (run, *others, *last):
        each.close()


def test_a_state_of_states(data: Path) -> None:
    """A run that was restored from a short state knows what was changed since, however long it goes on."""
    run = long_run(data, decisions=40)
    other = restored(data, run.loaders[0].get_state())
    rng = random.Random(9)
    for _ in range(50):
        change = weights(rng)
        for each in (run, other):
            each.step(1)
            each.loaders[0].reweight(change)
    saved = other.loaders[0].save_state_rank()
    assert len(saved["amendments"]) == 6
    third = restored(data, saved)
    for each in (run, other, third):
        each.step(4)
    assert other.log[-4:] == third.log == run.log[-4:]
    step = run.steps - 54
    for each in (other, third):
        assert [place.key for place in each.loaders[0].which(step + 2)] == [
            place.key for place in run.loaders[0].which(step + 2)
        ]
        with pytest.raises(StateError, match="only the last changes of the mixture"):
            each.loaders[0].which(1)
    for each in (run, other, third):
        each.close()


@pytest.mark.parametrize("encoder", [Plain, Skipping, Packing])
@pytest.mark.parametrize("hosts", [2, 4])
def test_short_states_of_all_hosts_are_merged(data: Path, encoder: type[Plain], hosts: int) -> None:
    run = long_run(data, encoder, 50, hosts)
    short = merge_cursors([loader.get_state() for loader in run.loaders])
    saved = run.state()
    own = [loader.get_state() for loader in run.loaders]
    run.step(6)
    for state in (short, saved):
        for count in (1, hosts, 3):
            again = restored(data, state, encoder, count)
            again.step(6)
            assert sorted_steps(again) == sorted_steps(run)[-6:]
            again.close()
    alike = started(data, encoder, hosts)
    for loader, state in zip(alike.loaders, own, strict=True):
        loader.restore_state_rank(state)
    alike.step(6)
    assert alike.log == run.log[-6:]
    alike.close()
    run.close()


def test_many_decisions_stay_small_and_fast(data: Path) -> None:
    run = started(data)
    (loader,) = run.loaders
    rng = random.Random(10)
    for _ in range(300):
        loader.reweight(weights(rng))
        next(loader)
    state = loader.get_state()
    assert len(json.dumps(state["amendments"])) < 4096
    assert loader.get_state()["amendments"] == state["amendments"]
    routers = loader.stream.spec.index_map.routes.router
    again = restored(data, loader.save_state_rank())
    made = again.loaders[0].stream.spec.index_map.routes.router
    assert len(made._segments) < 40 < len(routers._segments)
    assert made._before is None
    assert [place.key for place in again.loaders[0].which(17)] == [place.key for place in loader.which(17)]
    assert made._before is not None
    again.close()
    run.close()


def test_states_of_40_nested_changes(data: Path) -> None:
    def leaf(name: str) -> Any:
        return get_train_dataset(
            data / name, batch_size=None, shuffle_buffer_size=8, max_samples_per_sequence=4, lanes=LANES, repeat=False
        )

    def loader() -> Any:
        inner = BlendDataset((leaf("b"), 1), (leaf("c"), 2))
        outer = BlendDataset((leaf("a"), 1), (inner, 2), per_step=4)
        return get_savable_loader(BatchDataset(outer, GLOBAL_BATCH, list))

    first, rng = loader(), random.Random(11)
    for number in range(60):
        next(first)
        first.reweight({"b": rng.random(), "c": rng.random()})
        if number % 20 == 0:
            first.amend(weights={"b": number + 1, "c": 7})
    loaders = [first]
    for state in (first.get_state(), first.save_state_rank()):
        second = loader()
        second.restore_state_rank(state)
        loaders.append(second)
    found = [[[sample.__key__ for sample in next(each)] for _ in range(30)] for each in loaders]
    assert found[0] == found[1] == found[2]
    for each in loaders:
        each.close()


def test_a_long_log_is_a_file_beside_the_checkpoint(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = long_run(data)
    saved = run.loaders[0].save_state_rank()
    write_state(tmp_path, saved)
    assert read_state(tmp_path) == saved
    assert [path.name for path in tmp_path.iterdir()] == ["energon_grain.json"]
    monkeypatch.setattr(log_file, "MOST_BYTES", 100)
    write_state(tmp_path, saved)
    (beside,) = tmp_path.glob("amendments-*.json")
    assert read_state(tmp_path) == saved
    content = beside.read_text()
    beside.write_text(content.replace("A", "B", 1))
    with pytest.raises(StateError, match=r"amendments-.* is damaged"):
        read_state(tmp_path)
    beside.unlink()
    again = restored(data, read_state(tmp_path))
    again.step(4)
    run.step(4)
    assert again.log == run.log[-4:]
    with pytest.raises(StateError, match="only the last changes of the mixture"):
        again.loaders[0].which(0)
    for each in (run, again):
        each.close()


def loader_log(run: Run, count: int) -> str:
    """The log of a run's first amendments alone."""
    amendments = run.loaders[0].stream.amendments
    parts = {name: getattr(amendments, name)[:count] for name in ("steps", "cuts", "ahead", "digests")}
    few = dataclasses.replace(amendments, **parts)
    mixture = dataclasses.replace(amendments.mixture, segments=amendments.mixture.segments[: count + 1])
    return dataclasses.replace(few, mixture=mixture).texts(run.loaders[0].stream.share, saved=True)[0]


def test_damaged_states(data: Path) -> None:
    run = long_run(data)
    saved = {**run.loaders[0].save_state_rank()}
    del saved["check"]
    log, ahead, anchor, *whole = saved["amendments"]
    rows = unpack_anchors(anchor)
    for texts in (
        [log, ahead, anchor[:-9], *whole],
        [log, ahead, "x" + anchor],
        [log, ahead, pack_anchors(rows[:-1])],
        [log, ahead, pack_anchors(np.concatenate([rows, rows]))],
        [log, ahead],
        [log, ahead, anchor, loader_log(run, 20), ""],
    ):
        again = started(data)
        with pytest.raises(StateError, match="'amendments' are damaged"):
            again.loaders[0].restore_state_rank({**saved, "amendments": texts})
        again.close()
    run.close()
