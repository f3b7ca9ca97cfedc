"""The Grain exposure: data sources, datasets, checkpointable iterators, device placement.

* `get_loader`, `get_savable_loader`: whole batches, with threads and state; a `grain.DatasetIterator`, where Grain is
  installed. Of what stands here they alone and `EnergonDataSource` do without the extra `jax`.
* `BatchMapDataset`, `BatchIterDataset`: the same batches as elements of a Grain pipeline.
* `EnergonDataSource`: single samples by index, for pipelines of your own.
* `to_device`: batches as global `jax.Array`s, copied ahead of use.
* `EnergonCheckpointSave`, `EnergonCheckpointRestore`: arguments for Orbax's `CheckpointManager`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from energon_grain.loader.data_source import EnergonDataSource
    from energon_grain.loader.device import DeviceLoader, to_device
    from energon_grain.loader.iter_dataset import BatchIterDataset
    from energon_grain.loader.iterator import SavableDataLoader, get_loader, get_savable_loader
    from energon_grain.loader.map_dataset import BatchMapDataset
    from energon_grain.loader.orbax_handler import (
        EnergonCheckpointHandler,
        EnergonCheckpointRestore,
        EnergonCheckpointSave,
    )

__all__ = [
    "BatchIterDataset",
    "BatchMapDataset",
    "DeviceLoader",
    "EnergonCheckpointHandler",
    "EnergonCheckpointRestore",
    "EnergonCheckpointSave",
    "EnergonDataSource",
    "SavableDataLoader",
    "get_loader",
    "get_savable_loader",
    "to_device",
]

_HOMES = {
    "BatchIterDataset": "iter_dataset",
    "BatchMapDataset": "map_dataset",
    "DeviceLoader": "device",
    "EnergonCheckpointHandler": "orbax_handler",
    "EnergonCheckpointRestore": "orbax_handler",
    "EnergonCheckpointSave": "orbax_handler",
    "EnergonDataSource": "data_source",
    "SavableDataLoader": "iterator",
    "get_loader": "iterator",
    "get_savable_loader": "iterator",
    "to_device": "device",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'energon_grain.loader' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"energon_grain.loader.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
