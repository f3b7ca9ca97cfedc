"""What the ranks of `tests/torch/test_ranks.py` do."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch_encoders import Everything, Packs, Skips, told

import energon_grain_torch
from energon_grain import StateError
from energon_grain_torch import SavableDataLoader, TaskEncoder, WorkerConfig, get_savable_loader

GLOBAL_BATCH = 24
LANES = 12
KINDS: dict[str, tuple[type[TaskEncoder], dict[str, Any]]] = {
    "everything": (Everything, {"max_samples_per_sequence": 4}),
    "skips": (Skips, {"max_samples_per_sequence": 4}),
    "packs": (Packs, {"max_samples_per_sequence": None, "packing_buffer_size": 5}),
}


def ignore(error: Exception, sample: Any, sources: Any = None) -> None:
    """Let broken samples go without a word."""


def dataset_of(
    path: Path, kind: str, config: Any, *, library: Any = energon_grain_torch, encoder: Any = None, **options: Any
) -> Any:
    """One host's part of global batches of one size, whatever the number of hosts."""
    config.global_error_handler = ignore
    own, arguments = KINDS[kind]
    return library.get_train_dataset(
        path,
        worker_config=config,
        batch_size=GLOBAL_BATCH // config.world_size,
        shuffle_buffer_size=20,
        lanes=LANES,
        task_encoder=(encoder or own)(),
        **{**arguments, **options},
    )


def open_loader(path: Path, kind: str, config: WorkerConfig | None = None, **options: Any) -> SavableDataLoader:
    """This rank's part of them."""
    config = config or WorkerConfig.default_worker_config(num_workers=0)
    return get_savable_loader(dataset_of(path, kind, config, **options), multiprocessing_context="fork")


def rows(batch: dict[str, Any]) -> list[str]:
    """Each sample or pack of a batch, padding left out, as texts that can be sorted."""
    columns = [batch[name] for name in ("key", "text", "noise", "own", "seeded") if name in batch]
    valid = batch.get("__valid__", [True] * GLOBAL_BATCH)
    return [repr(told(row)) for *row, real in zip(*columns, valid, strict=False) if real]


def together(ranks: list[list[list[str]]]) -> list[list[str]]:
    """The rows of global batches, of those that each rank has."""
    return [sorted(sum(step, [])) for step in zip(*ranks, strict=True)]


def steps(loader: SavableDataLoader, count: int) -> list[list[str]]:
    return [rows(next(loader)) for _ in range(count)]


def read(path: Path, kinds: list[str]) -> dict[str, list[list[str]]]:
    """This rank's rows of the first steps of each kind."""
    found = {}
    for kind in kinds:
        with open_loader(path, kind) as loader:
            found[kind] = steps(loader, 8)
    return found


def save(path: Path, num_workers: int, kinds: list[str]) -> dict[str, Any]:
    """The states of each kind after three steps, of all ranks and of this one, and what comes behind them."""
    found = {}
    for kind in kinds:
        config = WorkerConfig.default_worker_config(num_workers=num_workers)
        with open_loader(path, kind, config) as loader:
            steps(loader, 3)
            state = loader.save_state_global(dst_rank=config.world_size - 1)
            assert (state is not None) == (dist.get_rank() == config.world_size - 1)
            again = loader.save_state_global(global_dst_rank=0)
            found[kind] = json.dumps(state or again), json.dumps(loader.save_state_rank()), steps(loader, 4)
    return found


def restore(path: Path, states: dict[str, Any], lists: dict[str, Any]) -> dict[str, list[list[list[str]]]]:
    """What comes behind states: with the state on each rank, on the last one alone, and as a list of those of ranks."""
    last = dist.get_world_size() - 1
    found = {}
    for kind in states:
        with open_loader(path, kind) as loader:
            runs = []
            loader.restore_state_global(states[kind])
            runs.append(steps(loader, 4))
            loader.restore_state_global(states[kind] if dist.get_rank() == last else None, src_rank=last)
            runs.append(steps(loader, 4))
            loader.restore_state_global(lists[kind])
            runs.append(steps(loader, 4))
            found[kind] = runs
    return found


def replicas(path: Path) -> tuple[Any, ...]:
    """Two tensor-parallel replicas of two data ranks: ranks 0 and 1 are replicas, 2 and 3 are."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    config = WorkerConfig.default_worker_config(num_workers=1, data_parallel_group=groups[dist.get_rank() % 2])
    with open_loader(path, "everything", config) as loader:
        before = steps(loader, 3)
        state = loader.save_state_global(global_dst_rank=2)
        here = state is not None
        # `src_rank` counts within the group: data rank 1, which only one replica saved to.
        gathered: list[Any] = [None] * 4
        dist.all_gather_object(gathered, state)
        after = steps(loader, 2)
        loader.restore_state_global(gathered[2] if config.rank == 1 else None, src_rank=1)
        assert steps(loader, 2) == after
    return config.rank, config.world_size, config.global_rank(), here, before


def packed_passes(path: Path, last_batch: str) -> list[list[list[str]]]:
    """This rank's rows of two finite passes, whose lengths only the data tells."""
    with open_loader(path, "packs", repeat=False, last_batch=last_batch) as loader:
        return [[rows(batch) for batch in loader] for _ in range(2)]


def refusals(path: Path) -> list[str]:
    """The messages of what several ranks may not do; the same number of collective operations on each."""
    messages = []
    with closing(open_loader(path, "everything")) as loader:
        state = loader.save_state_rank()
        for call in (
            lambda: loader.restore_state_global(state, src_rank=5),
            lambda: loader.restore_state_global(None, src_rank=0),
            lambda: loader.restore_state_global(None),
            lambda: (next(loader) if dist.get_rank() else None, loader.save_state_global(0)),
        ):
            try:
                call()
            except StateError as error:
                messages.append(str(error))
    return messages


def save_checkpoint(path: Path, folder: Path) -> tuple[list[list[str]], int]:
    """Save by `torch.distributed.checkpoint`; what comes behind, and the size of the state."""
    with open_loader(path, "packs") as loader:
        steps(loader, 3)
        size = len(json.dumps(loader.state_dict()))
        dcp.save({"loader": loader}, checkpoint_id=str(folder))
        return steps(loader, 3), size


def load_checkpoint(path: Path, folder: Path) -> list[list[str]]:
    """What comes behind a checkpoint."""
    with open_loader(path, "packs") as loader:
        dcp.load({"loader": loader}, checkpoint_id=str(folder))
        return steps(loader, 3)
