"""Real processes that gloo connects: together they make what one makes, on any number of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch_rank_programs as programs
from torch_ranks import on_ranks

from energon_grain_torch import StateError, WorkerConfig

MakeDataset = Callable[..., Path]
KINDS = ["everything", "packs"]


@pytest.fixture(scope="module")
def path(text_dataset: MakeDataset) -> Path:
    return text_dataset(97, broken={2, 9, 40})


def alone(path: Path, kind: str, count: int, **options: Any) -> list[list[str]]:
    with programs.open_loader(path, kind, **options) as loader:
        return [sorted(step) for step in programs.steps(loader, count)]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_share_the_batches_of_one(path: Path, ranks: int) -> None:
    found = on_ranks(ranks, programs.read, path, KINDS)
    for kind in KINDS:
        assert programs.together([rank[kind] for rank in found]) == alone(path, kind, 8)


@pytest.mark.parametrize(("before", "workers", "after"), [(4, 1, 2), (1, 0, 3), (2, 2, 4)])
def test_states_are_restored_on_other_numbers_of_ranks(path: Path, before: int, workers: int, after: int) -> None:
    saved = on_ranks(before, programs.save, path, workers, KINDS)
    states = {kind: json.loads(saved[0][kind][0]) for kind in KINDS}
    lists = {kind: [json.loads(rank[kind][1]) for rank in saved] for kind in KINDS}
    restored = on_ranks(after, programs.restore, path, states, lists)
    for kind in KINDS:
        assert {rank[kind][0] for rank in (saved[0], saved[-1])} == {saved[0][kind][0]}
        expected = programs.together([rank[kind][2] for rank in saved])
        assert expected == alone(path, kind, 7)[3:]
        for run in range(3):
            assert programs.together([rank[kind][run] for rank in restored]) == expected
        with programs.open_loader(path, kind) as loader:  # on one, without torch.distributed
            loader.restore_state_global(states[kind])
            assert [sorted(step) for step in programs.steps(loader, 4)] == expected
            loader.restore_state_global(lists[kind])
            assert [sorted(step) for step in programs.steps(loader, 4)] == expected


def test_replicas_of_a_data_rank_read_the_same(path: Path) -> None:
    found = on_ranks(4, programs.replicas, path)
    assert [entry[:4] for entry in found] == [
        (0, 2, 0, False),
        (0, 2, 1, False),
        (1, 2, 2, True),
        (1, 2, 3, False),
    ]
    batches = [entry[4] for entry in found]
    assert batches[0] == batches[1]
    assert batches[2] == batches[3]
    assert programs.together([batches[0], batches[2]]) == alone(path, "everything", 3)


@pytest.mark.parametrize("last_batch", ["pad", "drop"])
def test_packed_passes_end_together(path: Path, last_batch: str) -> None:
    found = on_ranks(2, programs.packed_passes, path, last_batch)
    config = WorkerConfig(0, 1)
    with programs.open_loader(path, "packs", config, repeat=False, last_batch=last_batch) as loader:
        for number in range(2):
            expected = [sorted(programs.rows(batch)) for batch in loader]
            made = programs.together([rank[number] for rank in found])
            assert 0 < len(made) <= len(expected)
            # "drop" ends with the first rank that has no full batch, "pad" when all ranks have nothing left.
            assert made == (expected if last_batch == "pad" else expected[: len(made)])


def test_what_several_ranks_may_not_do(path: Path) -> None:
    for wrong_rank, no_state, nothing, steps in on_ranks(2, programs.refusals, path):
        assert wrong_rank == "src_rank=5: expected 0 to 1, there are 2 processes"
        assert no_state.startswith("this host has no state to restore")
        assert nothing.startswith("this host has no state to restore")
        assert "not saved at the same step" in steps


def test_ranks_without_a_process_group(path: Path) -> None:
    with programs.open_loader(path, "everything", WorkerConfig(0, 2)) as loader:
        with pytest.raises(StateError, match=r"only by the processes of an initialised `torch.distributed`"):
            loader.save_state_global()
        with pytest.raises(StateError, match=r"only by the processes of an initialised `torch.distributed`"):
            loader.state_dict()
        with pytest.raises(StateError, match=r"src_rank=1: only the processes of an initialised `torch.distributed`"):
            loader.restore_state_global(loader.save_state_rank(), src_rank=1)
        loader.restore_state_rank(loader.save_state_rank())
