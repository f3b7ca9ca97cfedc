"""Trainers that save by protocols: PyTorch's distributed checkpoints, torchdata, and the Grain loader's states."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch_rank_programs as programs
from torch.distributed.checkpoint.stateful import Stateful
from torch_encoders import told
from torch_ranks import on_ranks

from energon_grain import SavableDataset
from energon_grain_torch import StateError, get_savable_loader

MakeDataset = Callable[..., Path]
Train = Callable[..., SavableDataset]


@pytest.fixture(scope="module")
def path(text_dataset: MakeDataset) -> Path:
    return text_dataset(97, broken={2, 9, 40})


def test_the_protocol(train: Train) -> None:
    with get_savable_loader(train(num_workers=1)) as loader:
        assert isinstance(loader, Stateful)
        for _ in range(5):
            next(loader)
        state = loader.state_dict()
        assert state == json.loads(json.dumps(state))
        assert len(json.dumps(state)) < 4096
        expected = [told(next(loader)) for _ in range(3)]
        loader.load_state_dict(state)
        assert [told(next(loader)) for _ in range(3)] == expected
    with get_savable_loader(train()) as other:
        other.load_state_dict(state)
        assert [told(next(other)) for _ in range(3)] == expected


def test_a_file_of_torch_save(train: Train, tmp_path: Path) -> None:
    with get_savable_loader(train()) as loader:
        next(loader)
        torch.save({"data": loader.state_dict(), "step": 1}, tmp_path / "checkpoint.pt")
        expected = told(next(loader))
    with get_savable_loader(train()) as loader:
        loader.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True)["data"])
        assert told(next(loader)) == expected


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"energon_grain": "{"},
        {"energon_grain": 5},
        {"energon_grain": "{}"},
        {"energon_grain": "[" * 100_000},
        {"x": 1},
    ],
)
def test_what_is_no_state(train: Train, state: Any) -> None:
    with get_savable_loader(train()) as loader:
        with pytest.raises(StateError):
            loader.load_state_dict(state)
        assert told(next(loader))


def test_a_damaged_state_is_found(train: Train) -> None:
    with get_savable_loader(train()) as loader:
        for _ in range(3):
            next(loader)
        text = loader.state_dict()["energon_grain"]
        assert '"item": 12,' in text
        with pytest.raises(StateError, match="its 'check' is"):
            loader.load_state_dict({"energon_grain": text.replace('"item": 12,', '"item": 16,')})
        loader.load_state_dict({"energon_grain": text})


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")
def test_distributed_checkpoints(path: Path, tmp_path: Path) -> None:
    saved = on_ranks(2, programs.save_checkpoint, path, tmp_path)
    assert all(size < 4096 for _, size in saved)
    expected = programs.together([rows for rows, _ in saved])
    loaded = on_ranks(3, programs.load_checkpoint, path, tmp_path)
    assert programs.together(loaded) == expected
    with programs.open_loader(path, "packs") as loader:
        dcp.load({"loader": loader}, checkpoint_id=str(tmp_path))
        assert [sorted(step) for step in programs.steps(loader, 3)] == expected


def test_torchdata(train: Train) -> None:
    nodes = pytest.importorskip("torchdata.nodes", reason="torchdata is not installed")
    stateful = pytest.importorskip("torchdata.stateful_dataloader.stateful")

    def node_of(loader: Any) -> Any:
        assert isinstance(loader, stateful.Stateful)
        return nodes.Loader(nodes.Prefetcher(nodes.IterableWrapper(loader), prefetch_factor=2))

    with get_savable_loader(train()) as loader:
        node = node_of(loader)
        batches = iter(node)
        for _ in range(4):
            next(batches)
        state = node.state_dict()
        expected = [told(next(batches)) for _ in range(3)]
    with get_savable_loader(train()) as loader:
        node = node_of(loader)
        node.load_state_dict(state)
        batches = iter(node)
        assert [told(next(batches)) for _ in range(3)] == expected
    with get_savable_loader(train()) as loader:
        assert [told(next(loader)) for _ in range(7)][4:] == expected
