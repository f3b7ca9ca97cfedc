"""What an order costs when no data is read: draws, and the state of a loader."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ours
from benchmarks.child import serve
from energon_grain import WorkerConfig, get_train_dataset
from energon_grain.datasets.lowering import compile_dataset

_CHUNK = 1 << 16


def order(folder: str, metadataset: str, batches: int, positions: int = 1_000_000) -> dict[str, Any]:
    """Seconds for the draws of `positions` positions in chunks, and bytes of state after some batches."""
    path = str(Path(folder, metadataset))
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=32,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
    )
    index_map = compile_dataset(dataset).order
    started = time.perf_counter()
    for start in range(0, positions, _CHUNK):
        index_map.draw(np.arange(start, min(start + _CHUNK, positions)), 0)
    draws_s = time.perf_counter() - started
    loader = ours.build_loader(path, "plain", 0, savable=True)
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return {"draws_s": draws_s, "state_bytes": ours.state_bytes(ours.save(loader))}


if __name__ == "__main__":
    serve(order=order)
