# SPDX-License-Identifier: Apache-2.0
"""The names of this backend and of the core. This list is the only one."""

from energon_grain import *  # noqa: F403 (the names below take the place of some)

from .datasets import (
    StreamDataset as StreamDataset,
    get_dataset_from_config as get_dataset_from_config,
    get_train_dataset as get_train_dataset,
    get_val_dataset as get_val_dataset,
    get_val_datasets as get_val_datasets,
)
from .loader import (
    SavableDataLoader as SavableDataLoader,
    get_loader as get_loader,
    get_savable_loader as get_savable_loader,
)
from .task_encoder import (
    AugmentTaskEncoder as AugmentTaskEncoder,
    AVDecoder as AVDecoder,
    AVWebdatasetDecoder as AVWebdatasetDecoder,
    DefaultTaskEncoder as DefaultTaskEncoder,
    SampleDecoder as SampleDecoder,
    TaskEncoder as TaskEncoder,
)
from .worker_config import WorkerConfig as WorkerConfig

__all__: list[str]
