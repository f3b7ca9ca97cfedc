"""What the loader's tests share: quiet datasets of known keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from text_training import text_training

from energon_grain import SavableDataset, WorkerConfig, get_train_dataset


@pytest.fixture
def train(text_dataset: Callable[..., Path]) -> Callable[..., SavableDataset]:
    return text_training(text_dataset, get_train_dataset, WorkerConfig, worker_type="thread")
