# SPDX-License-Identifier: Apache-2.0
"""The public names and their modules. This list is the only one: type checkers read it, and lazy imports use it."""

from .data_source import EnergonDataSource as EnergonDataSource
from .device import DeviceLoader as DeviceLoader, to_device as to_device
from .grain_datasets import BatchIterDataset as BatchIterDataset, BatchMapDataset as BatchMapDataset
from .iterator import (
    SavableDataLoader as SavableDataLoader,
    get_loader as get_loader,
    get_savable_loader as get_savable_loader,
)
from .orbax_handler import (
    EnergonCheckpointHandler as EnergonCheckpointHandler,
    EnergonCheckpointRestore as EnergonCheckpointRestore,
    EnergonCheckpointSave as EnergonCheckpointSave,
)

__all__: list[str]
