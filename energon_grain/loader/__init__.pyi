"""The public names and where they live: the one list of them, read by type checkers and, lazily, at run time."""

from .data_source import EnergonDataSource as EnergonDataSource
from .device import DeviceLoader as DeviceLoader, to_device as to_device
from .iter_dataset import BatchIterDataset as BatchIterDataset
from .iterator import (
    SavableDataLoader as SavableDataLoader,
    get_loader as get_loader,
    get_savable_loader as get_savable_loader,
)
from .map_dataset import BatchMapDataset as BatchMapDataset
from .orbax_handler import (
    EnergonCheckpointHandler as EnergonCheckpointHandler,
    EnergonCheckpointRestore as EnergonCheckpointRestore,
    EnergonCheckpointSave as EnergonCheckpointSave,
)

__all__: list[str]
