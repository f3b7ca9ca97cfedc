"""A loader that reads nothing: how many accelerators DLIO itself emulates on a machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader


class NoDataLoader(BaseDataLoader):
    """Returns one constant batch again and again."""

    def __init__(self, format_type: Any, dataset_type: Any, epoch_number: int) -> None:
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.PYTORCH)

    def read(self) -> None:
        """Make the batch."""
        self._batch = torch.zeros(self.batch_size, 1)

    def next(self) -> Iterator[Any]:
        """Yield the batches of one epoch."""
        super().next()
        train = self.dataset_type is DatasetType.TRAIN
        for _ in range(self._args.training_steps if train else self._args.eval_steps):
            yield self._batch
        self.epoch_number += 1

    def finalize(self) -> None:
        """Nothing is open."""
