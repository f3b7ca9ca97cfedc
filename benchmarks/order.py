"""Costs without data: the draws of an order, the state of a loader, and the packers over lengths."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ours
from benchmarks.child import serve
from benchmarks.token_packing import BUFFER, CAPACITY, LENGTHS
from energon_grain import WorkerConfig, get_train_dataset
from energon_grain.datasets.lowering import compile_dataset
from energon_grain.planning import packers as packing

_CHUNK = 1 << 16


def order(folder: str, metadataset: str, batches: int, positions: int = 1_000_000) -> dict[str, Any]:
    """Measure the seconds for drawing `positions` positions in chunks, and the bytes of state after some batches."""
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


def efficiency(lengths: str, packer: str, keep_rest: bool) -> dict[str, Any]:
    """Measure the filled share of all packs, and microseconds per sample. Buffers are filled and packed repeatedly."""
    sizes: list[int] = LENGTHS[lengths]().tolist()
    pack = getattr(packing, packer)
    remaining = iter(range(len(sizes)))
    buffer: list[int] = []
    packs: list[list[int]] = []
    started = time.perf_counter()
    while True:
        buffer += islice(remaining, BUFFER - len(buffer))
        if not buffer:
            break
        over = len(buffer) < BUFFER
        packed = pack(buffer, length=sizes.__getitem__, capacity=CAPACITY, keep_rest=keep_rest and not over)
        packs += packed
        buffer = packed.rest
    elapsed = time.perf_counter() - started
    if sorted(index for group in packs for index in group) != list(range(len(sizes))):
        raise RuntimeError(f"{packer} lost samples")
    return {
        "efficiency": packing.packing_efficiency(packs, length=sizes.__getitem__, capacity=CAPACITY),
        "us_per_sample": elapsed / len(sizes) * 1e6,
        "packs": len(packs),
    }


if __name__ == "__main__":
    serve(order=order, efficiency=efficiency)
