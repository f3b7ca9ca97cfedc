"""Trainers, PyTorch's `DataLoader` and Grain: they read once for replicas, or name what does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from replica_loaders import Tokens, alone, dataset_of, of_torch, on_replicas, rows

import energon_grain_torch
from energon_grain import ConfigError, WorkerConfig
from energon_grain_torch.trainers.checks import check_ranks, rows_of_ranks


@pytest.fixture(scope="module")
def path(text_dataset: Callable[..., Path]) -> Path:
    return text_dataset(97)


def test_grain_reads_once(path: Path) -> None:
    pytest.importorskip("grain")
    from energon_grain.loader import BatchIterDataset

    def read(config: WorkerConfig, encoder: Tokens) -> Any:
        dataset = BatchIterDataset(dataset_of(path, config, encoder)).map(rows)
        batches = iter(dataset)
        found = [next(batches) for _ in range(5)]
        state = batches.get_state()
        found += [next(batches) for _ in range(5)]
        batches.set_state(state)
        return found + [next(batches) for _ in range(5)]

    expected = alone(path, 10)
    assert on_replicas(read) == ([expected + expected[5:]] * 2, 1)

    def below_processes(config: WorkerConfig, encoder: Tokens) -> str:
        dataset = BatchIterDataset(dataset_of(path, config, encoder))
        with pytest.raises(ConfigError) as caught:
            dataset.set_slice(slice(0, None, 2))  # as `mp_prefetch` does in its processes
        return str(caught.value)

    found, decoded = on_replicas(below_processes)
    assert "use it without them, and WorkerConfig(num_workers=…), or let each process read with" in found[0]
    assert decoded == 0


def test_access_by_number_is_refused(path: Path) -> None:
    pytest.importorskip("grain")
    from energon_grain.loader import BatchMapDataset

    def open_one(config: WorkerConfig, encoder: Tokens) -> str:
        with pytest.raises(ConfigError) as caught:
            BatchMapDataset(dataset_of(path, config, encoder))
        return str(caught.value)

    for message in on_replicas(open_one)[0]:
        assert message == (
            "BatchMapDataset reads in each process, but the WorkerConfig of the dataset has replicas (0, 1), of which "
            "one reads: use BatchIterDataset or get_savable_loader, or let each process read with "
            "WorkerConfig(rank=0, world_size=1)"
        )


def test_a_data_loader_is_refused(path: Path) -> None:
    def read(config: WorkerConfig, encoder: Tokens) -> str:
        loader = torch.utils.data.DataLoader(of_torch(path, config, encoder), batch_size=None)
        with pytest.raises(ConfigError, match=r"as a DataLoader does, reads in each process.*use get_savable_loader"):
            next(iter(loader))
        return "refused"

    assert on_replicas(read, energon_grain_torch.WorkerConfig) == (["refused"] * 2, 0)


def test_accelerate_reads_once(path: Path) -> None:
    pytest.importorskip("accelerate")
    from energon_grain_torch.trainers.accelerate import prepare

    def accelerator(parallelism: Any) -> Any:
        return SimpleNamespace(
            num_processes=2,
            parallelism_config=parallelism,
            device=torch.device("cpu"),
            register_for_checkpointing=lambda prepared: None,
        )

    def read(config: WorkerConfig, encoder: Tokens) -> Any:
        prepared = prepare(accelerator(SimpleNamespace(data_parallel_size=1)), of_torch(path, config, encoder))
        found = [rows(batch) for _, batch in zip(range(4), prepared, strict=False)]
        prepared.close()
        return found

    assert on_replicas(read, energon_grain_torch.WorkerConfig) == ([alone(path, 4)] * 2, 1)

    def refused(config: WorkerConfig, encoder: Tokens) -> str:
        with pytest.raises(ConfigError) as caught:
            prepare(accelerator(None), of_torch(path, config, encoder))
        return str(caught.value)

    for message in on_replicas(refused, energon_grain_torch.WorkerConfig)[0]:
        assert "has 1 data ranks of 2 replicas and 2 processes train with data parallelism" in message
        assert "make the dataset after the `Accelerator`" in message


def test_evaluation_counts_the_rows_of_replicas_once() -> None:
    rows = torch.arange(16).reshape(8, 2)  # four processes, two rows each
    assert rows_of_ranks(rows, [0, 0, 1, 1]).tolist() == [[0, 1], [2, 3], [8, 9], [10, 11]]
    assert rows_of_ranks(rows, [1, 0, 1, 0]).tolist() == [[4, 5], [6, 7], [0, 1], [2, 3]]
    assert rows_of_ranks(rows, []) is rows


def test_replicas_of_the_right_number_are_accepted() -> None:
    for processes in (2, None):
        check_ranks(WorkerConfig(rank=0, world_size=4, replicas=[[0, 1], [2, 3]]), processes, "")
