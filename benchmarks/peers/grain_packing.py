"""Grain's best fit over a stream of lengths."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.child import serve
from benchmarks.token_packing import CAPACITY, LENGTHS, bins_of_buffer


def efficiency(lengths: str, bins: int | None) -> dict[str, Any]:
    """Return the filled share of all packs; `bins=None`: as many bins as hold the tokens of our buffer.

    Time is not compared, because Grain's packer also copies the tokens.
    """
    import grain.experimental as experimental
    import grain.python as pygrain

    sizes = LENGTHS[lengths]()
    bins = bins or bins_of_buffer(sizes)
    samples = pygrain.MapDataset.source(sizes.tolist()).map(_Tokens())
    iterator = samples.to_iter_dataset(pygrain.ReadOptions(num_threads=0, prefetch_buffer_size=1))
    packs = experimental.BestFitPackIterDataset(iterator, length_struct={"tokens": CAPACITY}, num_packing_bins=bins)
    count = filled = 0
    started = time.perf_counter()
    for pack in packs:
        count += 1
        filled += int(np.count_nonzero(pack["tokens_segment_ids"]))
    if filled != int(sizes.sum()):
        raise RuntimeError(f"the packs contain {filled} tokens, expected {int(sizes.sum())}")
    return {"efficiency": filled / (count * CAPACITY), "packs": count, "bins": bins, "s": time.perf_counter() - started}


class _Tokens:
    def __call__(self, length: int) -> dict[str, Any]:
        return {"tokens": np.ones(length, np.int32)}


if __name__ == "__main__":
    serve(efficiency=efficiency)
