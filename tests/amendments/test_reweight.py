"""Weights that follow a loss: many small changes of a running mixture."""

from __future__ import annotations

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
)
from energon_grain.amendments.reweight import quantised
from energon_grain.errors import AmendmentError

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
