"""What tests of the PyTorch adapter share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from forking import may_fork
from text_training import text_training

from energon_grain import SavableDataset
from energon_grain_torch import WorkerConfig, get_train_dataset


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let all of them start workers."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(may_fork)


@pytest.fixture
def train(text_dataset: Callable[..., Path]) -> Callable[..., SavableDataset]:
    return text_training(text_dataset, get_train_dataset, WorkerConfig, worker_type="dataloader")
