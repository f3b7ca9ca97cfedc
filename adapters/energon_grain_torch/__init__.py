"""energon-grain for PyTorch: the names of `energon_grain`, with tensors, `torch.distributed` and `DataLoader` workers.

Order, reading, assembly and state are the core's, so both backends give the same batches and restore each other's
state. Neither grain nor jax is imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import energon_grain
from energon_grain.extras import needed_for

with needed_for("energon_grain_torch"):
    importlib.import_module("torch")

if TYPE_CHECKING:
    from energon_grain import *  # noqa: F403 (the rest of the core's names; those below take the place of some)

from energon_grain_torch import random_generator as random_generator, tensors as tensors
from energon_grain_torch.av import AVData as AVData
from energon_grain_torch.datasets import (
    StreamDataset as StreamDataset,
    get_dataset_from_config as get_dataset_from_config,
    get_train_dataset as get_train_dataset,
    get_val_dataset as get_val_dataset,
    get_val_datasets as get_val_datasets,
)
from energon_grain_torch.decode import SampleDecoder as SampleDecoder
from energon_grain_torch.get_loader import get_loader as get_loader, get_savable_loader as get_savable_loader
from energon_grain_torch.loader import SavableDataLoader as SavableDataLoader
from energon_grain_torch.task_encoder import (
    AugmentTaskEncoder as AugmentTaskEncoder,
    DefaultTaskEncoder as DefaultTaskEncoder,
    TaskEncoder as TaskEncoder,
)
from energon_grain_torch.worker_config import WorkerConfig as WorkerConfig

_OURS = (
    "AVData",
    "AugmentTaskEncoder",
    "DefaultTaskEncoder",
    "SampleDecoder",
    "SavableDataLoader",
    "StreamDataset",
    "TaskEncoder",
    "WorkerConfig",
    "get_dataset_from_config",
    "get_loader",
    "get_savable_loader",
    "get_train_dataset",
    "get_val_dataset",
    "get_val_datasets",
)

__all__ = sorted({*energon_grain.__all__, *_OURS})  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in energon_grain.__all__:
        raise AttributeError(f"module 'energon_grain_torch' has no attribute {name!r}")
    value = globals()[name] = getattr(energon_grain, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
