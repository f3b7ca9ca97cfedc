"""The Grain loader and the PyTorch adapter: the same batches, and each goes on where the other was saved."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_rank_programs as programs
from torch_encoders import PackingHooks, SkippingHooks, told
from torch_ranks import on_ranks

import energon_grain
import energon_grain_torch
from energon_grain.testing import make_captioning_dataset

MakeDataset = Callable[..., Path]


@pytest.fixture(scope="module")
def path(text_dataset: MakeDataset) -> Path:
    return text_dataset(97, broken={2, 9, 40})


class Skips(SkippingHooks, energon_grain.TaskEncoder):
    pass


class Packs(PackingHooks, energon_grain.TaskEncoder):
    pass


ENCODERS = {"skips": Skips, "packs": Packs}


def grain_hosts(path: Path, kind: str, hosts: int) -> list[Any]:
    """The loaders of hosts that are no processes of JAX."""
    options = {"library": energon_grain, "encoder": ENCODERS[kind]}
    configs = [energon_grain.WorkerConfig(host, hosts) for host in range(hosts)]
    return [energon_grain.get_loader(programs.dataset_of(path, kind, config, **options)) for config in configs]


def global_steps(loaders: list[Any], count: int) -> list[list[str]]:
    return [sorted(sum((programs.rows(next(loader)) for loader in loaders), [])) for _ in range(count)]


@pytest.mark.parametrize("kind", sorted(ENCODERS))
def test_saved_by_grain_on_four_hosts_restored_by_torch_on_two_ranks(path: Path, kind: str) -> None:
    loaders = grain_hosts(path, kind, 4)
    first = global_steps(loaders, 3)
    states = [json.loads(json.dumps(loader.save_state_rank())) for loader in loaders]
    merged = energon_grain.merge_cursors(states)
    expected = global_steps(loaders, 4)
    for loader in loaders:
        loader.close()
    with programs.open_loader(path, kind) as alone:
        assert global_steps([alone], 7) == first + expected
    restored = on_ranks(2, programs.restore, path, {kind: merged}, {kind: states})
    for run in range(3):
        assert programs.together([rank[kind][run] for rank in restored]) == expected


@pytest.mark.parametrize("kind", sorted(ENCODERS))
def test_saved_by_torch_on_two_ranks_restored_by_grain_on_four_hosts(path: Path, kind: str) -> None:
    saved = on_ranks(2, programs.save, path, 1, [kind])
    expected = programs.together([rank[kind][2] for rank in saved])
    loaders = grain_hosts(path, kind, 4)
    for state in (json.loads(saved[0][kind][0]), [json.loads(rank[kind][1]) for rank in saved]):
        for loader in loaders:
            loader.restore_state_global(state)
        assert global_steps(loaders, 4) == expected
    for loader in loaders:
        loader.close()


def test_batches_are_the_same_bit_for_bit(tmp_path: Path) -> None:
    make_captioning_dataset(tmp_path / "images", n=40, shards=2)

    def batches(library: Any, num_workers: int) -> list[Any]:
        dataset = library.get_train_dataset(
            tmp_path / "images",
            split_part="train",
            worker_config=library.WorkerConfig(0, 1, num_workers),
            batch_size=6,
            shuffle_buffer_size=20,
            max_samples_per_sequence=5,
        )
        with library.get_loader(dataset) as loader:
            found = islice(loader, 6)
            return [(batch.__key__, batch.caption, told(batch.image)[1], batch.__restore_key__) for batch in found]

    assert batches(energon_grain_torch, 2) == batches(energon_grain, 2)


def test_one_dataset_from_its_configuration_has_tensors_too(tmp_path: Path) -> None:
    make_captioning_dataset(tmp_path / "images", n=4, shards=1)
    host = energon_grain_torch.WorkerConfig(0, 1, 0)
    dataset = energon_grain_torch.get_dataset_from_config(tmp_path / "images", training=False, worker_config=host)
    same = energon_grain.get_dataset_from_config(tmp_path / "images", training=False)
    for ours, core in zip(dataset, same, strict=True):
        assert isinstance(ours.image, torch.Tensor)
        assert told(ours.image)[1] == told(core.image)[1]
