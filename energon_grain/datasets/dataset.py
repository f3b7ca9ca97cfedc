"""The base of all dataset nodes.

A node describes; it holds no file, thread or position. Iterating over one runs a `Stream` for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from energon_grain.datasets.worker_config import WorkerConfig


@dataclass(frozen=True, kw_only=True, slots=True, weakref_slot=True)
class SavableDataset:
    """Base of dataset nodes.

    `for batch in dataset` runs one pass (for ever, where the dataset is endless) in this process without any backend;
    each `iter` starts from the beginning. `get_loader` and `get_savable_loader` add threads and state.

    Attributes:
        worker_config: The host that this description is for.
    """

    worker_config: WorkerConfig

    def __iter__(self) -> Iterator[Any]:
        from energon_grain.stream.run import Stream

        stream = Stream.of(self, num_workers=0)
        try:
            yield from stream
        finally:
            stream.close()

    def __bool__(self) -> bool:
        # A description is there, however many steps it has; without this, `if dataset:` would open it to count them.
        return True

    def __len__(self) -> int:
        """Steps per host of one pass; of one pass over the data where the dataset is endless."""
        from energon_grain.stream.run import steps_per_epoch

        return steps_per_epoch(self)
