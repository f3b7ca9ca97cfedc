"""Collecting garbage at regular distances."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any, ClassVar

from energon_grain.datasets.dataset import SavableDataset, check_size
from energon_grain.datasets.mapping import MapDataset
from energon_grain.stream.worker_config import WorkerConfig


@dataclass(frozen=True, slots=True, init=False)
class GcDataset(MapDataset):
    """The items of a dataset, with a full garbage collection after every `every_n_iter` of them.

    It happens where the items are made, by themselves in each process that makes some. It helps hooks whose objects
    refer to each other in circles and hold much memory; loaders by themselves leave no such circles. Making samples
    pauses the automatic collector for about half a second at most; this one is not automatic and runs nevertheless.

    Args:
        dataset: What is passed on.
        worker_config: Default: that of the dataset.
        every_n_iter: Items from one collection to the next.
        freeze: Accepted for compatibility: `gc.freeze` is about the whole process, in which other loaders live too.
            Call it before the training loop, where it shortens every collection.

    Raises:
        ConfigError: `every_n_iter` is not a positive number.
    """

    _watches: ClassVar[bool] = True

    def __init__(
        self,
        dataset: SavableDataset,
        *,
        worker_config: WorkerConfig | None = None,
        every_n_iter: int = 10,
        freeze: bool = True,
    ) -> None:
        del freeze
        check_size(self, "every_n_iter", every_n_iter, "items")
        MapDataset.__init__(
            self, dataset, _Collect(every_n_iter), hook="gc", worker_config=worker_config or dataset.worker_config
        )


@dataclass(slots=True)
class _Collect:
    """Hands items on and counts them."""

    every: int
    passed: int = 0

    def __call__(self, item: Any) -> Any:
        self.passed += 1
        if self.passed >= self.every:
            self.passed = 0
            gc.collect()
        return item
