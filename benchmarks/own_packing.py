"""Our packers over a stream of lengths, with a buffer like a lane's: fill it, pack, put the rest back."""

from __future__ import annotations

import time
from itertools import islice
from typing import Any

from benchmarks.child import serve
from benchmarks.packed_lengths import BUFFER, LENGTHS
from benchmarks.token_packing import CAPACITY
from energon_grain.transforms import packing


def efficiency(lengths: str, packer: str, keep_rest: bool) -> dict[str, Any]:
    """The filled share of all packs, and microseconds a sample."""
    sizes: list[int] = LENGTHS[lengths]().tolist()
    pack = getattr(packing, packer)
    coming = iter(range(len(sizes)))
    buffer: list[int] = []
    packs: list[list[int]] = []
    started = time.perf_counter()
    while True:
        buffer += islice(coming, BUFFER - len(buffer))
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
    serve(efficiency=efficiency)
