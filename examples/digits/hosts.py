"""Continue a saved run on any number of hosts without training, to compare the global batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from digits import DigitEncoder, GlobalBatch, sample_digests, train_dataset

from energon_grain import WorkerConfig, get_savable_loader


def resumed_on_hosts(dataset: Path, restore: Callable[[Any], None], hosts: int, steps: int) -> list[GlobalBatch]:
    """Return the global batches of the next `steps` steps, merged from the batches of `hosts` loaders of the core.

    Each host is a separate loader with its own rank, which `restore` sets to the saved state. In a real run each host
    is a separate process.
    """
    batches: list[GlobalBatch] = [set() for _ in range(steps)]
    for rank in range(hosts):
        loader = get_savable_loader(
            train_dataset(dataset, DigitEncoder(augment=True), WorkerConfig(rank=rank, world_size=hosts))
        )
        restore(loader)
        for batch, local in zip(batches, loader, strict=False):
            batch |= sample_digests(local)
        loader.close()
    return batches
