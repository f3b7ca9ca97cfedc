"""Noting what went into each batch, and lines for those who debug."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S
from small_graphs import in_order, number, take
from stream_hosts import MakeDataset, config

from energon_grain import (
    BatchDataset,
    EpochizeDataset,
    FatalSampleError,
    FilterDataset,
    LimitDataset,
    LogSampleDataset,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    SavableDataset,
    Stream,
    WorkerConfig,
    default_get_batch_keys,
    get_train_dataset,
    get_val_dataset,
)


@pytest.fixture
def path(text_dataset: MakeDataset) -> Path:
    return text_dataset(12)


@pytest.fixture
def lines(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    def read() -> list[dict[str, Any]]:
        found = sorted((tmp_path / "logs").glob("*")) if (tmp_path / "logs").exists() else []
        return [json.loads(line) for file in found for line in file.read_text().splitlines()]

    return read


def logging_to(tmp_path: Path, level: int = 1, **options: Any) -> WorkerConfig:
    return config(worker_log_level=level, worker_debug_path=f"{tmp_path}/logs/{{worker_id}}.jsonl", **options)


def train(path: Path, worker_config: WorkerConfig, **options: Any) -> SavableDataset:
    arguments: dict[str, Any] = {"batch_size": 4, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
    return get_train_dataset(path, worker_config=worker_config, **{**arguments, **options})


def test_batches_of_a_training(path: Path, tmp_path: Path, lines: Callable[[], list[dict[str, Any]]]) -> None:
    dataset = train(path, logging_to(tmp_path), repeat=False)
    stream = Stream.of(dataset)
    batches = [list(stream) for _ in range(2)]
    assert lines() == [
        {"t": "yield_batch", "r": 0, "w": 0, "m": "train", "epoch": epoch, "idx": step, "keys": batch.__key__}
        for epoch in range(2)
        for step, batch in enumerate(batches[epoch])
    ]


@pytest.mark.parametrize(("level", "val"), [(0, False), (1, False), (2, True)])
def test_levels(path: Path, tmp_path: Path, lines: Callable[[], list[dict[str, Any]]], level: int, val: bool) -> None:
    list(get_val_dataset(path, split_part="train", batch_size=6, limit=1, worker_config=logging_to(tmp_path, level)))
    assert [(line["m"], line["idx"]) for line in lines()] == ([("val", 0)] if val else [])
    list(train(path, logging_to(tmp_path, level), virtual_epoch_length=2))
    assert sum(line["m"] == "train" for line in lines()) == (2 if level else 0)


@pytest.mark.parametrize("batch_size", [None, 4])
def test_what_comes_out_and_the_state_stay_as_they_are(path: Path, tmp_path: Path, batch_size: int | None) -> None:
    """Also where the log stands above what cuts the stream, or inside a graph that filters and packs."""

    def graphs(config: WorkerConfig) -> list[SavableDataset]:
        def log(dataset: SavableDataset) -> SavableDataset:
            return LogSampleDataset(dataset, "train", config) if config.should_log(1) else dataset

        samples = log(in_order(path, lanes=4))
        packs = PackingDataset(log(FilterDataset(samples, lambda s: number(s) % 3 > 0)), 4, lambda s: [s], keys)
        tops = [log(samples), log(packs), log(RepeatDataset(samples))]
        if batch_size:
            tops = [log(BatchDataset(top, batch_size, list)) for top in tops]
        return [
            log(train(path, config, virtual_epoch_length=5, batch_size=batch_size)),
            *(log(LimitDataset(log(top), 2)) for top in tops),
            *(log(EpochizeDataset(log(top), 7)) for top in tops),
        ]

    for plain, logged in zip(graphs(config()), graphs(logging_to(tmp_path)), strict=True):
        one, other = Stream.of(plain), Stream.of(logged)
        assert [flat(item) for item in take(one, 9)] == [flat(item) for item in take(other, 9)]
        assert one.cursor(with_manifest=True) == other.cursor(with_manifest=True)
        one.restore(other.cursor())


def keys(samples: list[Any]) -> list[str]:
    return [sample.__key__ for sample in samples]


def flat(item: Any) -> Any:
    if isinstance(item, list):
        return [flat(entry) for entry in item]
    return getattr(item, "__key__", item)


def test_samples_by_their_positions(path: Path, tmp_path: Path, lines: Callable[[], list[dict[str, Any]]]) -> None:
    logged = LogSampleDataset(in_order(path), "val", logging_to(tmp_path))
    list(BatchDataset(logged, 4, list))
    assert [(line["idx"], line["keys"]) for line in lines()] == [(n, [f"{n:06d}"]) for n in range(12)]


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_in_workers(path: Path, tmp_path: Path, lines: Callable[[], list[dict[str, Any]]], worker_type: Any) -> None:
    workers = logging_to(tmp_path, num_workers=2, worker_type=worker_type)
    logged = LogSampleDataset(in_order(path), "val", workers)
    with Stream.of(BatchDataset(logged, 4, list, worker_config=workers)) as stream:
        list(stream)
    assert sorted(line["idx"] for line in lines()) == list(range(12))
    assert {line["w"] for line in lines()} <= ({0} if worker_type == "thread" else {1, 2})


def test_a_line_that_cannot_be_written_ends_the_iteration(path: Path, tmp_path: Path) -> None:
    def fails(batch: Any) -> list[str]:
        raise ValueError("no keys here")

    dataset = LogSampleDataset(train(path, config()), "train", logging_to(tmp_path), fails)
    with pytest.raises(FatalSampleError, match="LogSampleDataset cannot log an item: ValueError: no keys here"):
        next(iter(dataset))


def test_other_names_of_samples(path: Path, tmp_path: Path, lines: Callable[[], list[dict[str, Any]]]) -> None:
    batches = BatchDataset(in_order(path), 6, keys)
    list(LogSampleDataset(batches, "val", logging_to(tmp_path), get_keys_fn=lambda batch: batch[:2]))
    list(LogSampleDataset(MapDataset(batches, len), "val", logging_to(tmp_path)))
    assert [line.get("keys") for line in lines()] == [["000000", "000001"], ["000006", "000007"], None, None]


class Keyed:
    def __init__(self, **names: Any) -> None:
        self.__dict__.update(names)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (Keyed(__key__="a"), ["a"]),
        (Keyed(__key__=["a", "b"]), ["a", "b"]),
        (Keyed(__keys__=("a", "b")), ["a", "b"]),
        (Keyed(__key__=[1, 2], __keys__=["a"]), ["a"]),
        ({"__key__": ["a"]}, ["a"]),
        ({"__key__": "a"}, ["a"]),
        ({"__keys__": ["a"]}, ["a"]),
        ({"keys": ["a"]}, ["a"]),
        ([Keyed(__key__="a"), {"__key__": ["b", "c"]}], ["a", "b", "c"]),
        ([Keyed(__key__="a"), 1], None),
        ([], None),
        ({"keys": 3}, None),
        (3, None),
    ],
)
def test_keys_of_a_batch(batch: Any, expected: list[str] | None) -> None:
    assert default_get_batch_keys(batch) == expected


def test_lines_of_one_process(tmp_path: Path) -> None:
    config = WorkerConfig(1, 2, num_workers=3, worker_debug_path=f"{tmp_path}/logs/{{worker_id}}-{{pid}}.jsonl")
    config.worker_log({"a": 1})
    WorkerConfig(1, 2, num_workers=3, worker_debug_path=config.worker_debug_path).worker_log({"b": [2, "é"]})
    (file,) = (tmp_path / "logs").iterdir()
    assert file.name == f"4-{os.getpid()}.jsonl"
    assert [json.loads(line) for line in file.read_text().splitlines()] == [{"a": 1}, {"b": [2, "é"]}]


def test_processes_that_share_a_file_lose_nothing(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from energon_grain.stream.worker_config import WorkerLog, set_worker_number\n"
        "set_worker_number(int(sys.argv[1]))\n"
        "log = WorkerLog(sys.argv[2], rank=0, num_workers=3)\n"
        "for n in range(300):\n"
        "    log.write({'worker': log.worker_id, 'n': n, 'text': 'x' * 20_000})\n"
    )
    path = tmp_path / "shared.jsonl"
    processes = [subprocess.Popen([sys.executable, "-c", program, str(n), str(path)]) for n in range(3)]
    assert [process.wait(PATIENCE_S) for process in processes] == [0, 0, 0]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted((line["worker"], line["n"]) for line in lines) == [(w, n) for w in (1, 2, 3) for n in range(300)]


def test_without_a_file_lines_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "energon_grain.worker"):
        WorkerConfig(0, 1).worker_log({"a": 1})
    assert caplog.messages == ['{"a": 1}']


def test_levels_and_description() -> None:
    config = WorkerConfig(0, 2, 4, worker_log_level=1, data_parallel_group=object())
    assert [config.should_log(level) for level in (0, 1, 2)] == [True, True, False]
    assert config.config() == {"rank": 0, "world_size": 2, "num_workers": 4, "data_parallel_group": 2}
