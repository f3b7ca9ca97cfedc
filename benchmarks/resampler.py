"""Measure what the order of a multi-epoch dataset costs per index, in batches of 1,024, beside Grain's own shuffle.

`python -m benchmarks.resampler` prints a table and exits with 1 if the target is missed. Nothing is read, and only this
package is needed. The programs take turns: each round runs every program once, so a machine that is busy for a moment
affects all of them. A ratio is the median over rounds of a program's time over Grain's time in the same round.

Grain's shuffle is what `MapDataset.shuffle` runs for every index of a batch (`_shuffled_index`: epoch, seed, and the
permutation in C++), in the same list comprehension. Ours is `draw`, which returns two arrays, and the whole of
`__getitems__`, including the `EpochIndex` objects, over a dataset that returns them unchanged.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import grain
import numpy as np
from grain.experimental import index_shuffle

from energon_grain import EpochIndex, MultiEpochDatasetResampler

SAMPLES = 10_000_019
BATCH = 1024
BATCHES = 200
ROUNDS = 15
TARGET = 0.15

Batches = Sequence[list[int]]


class UnchangedIndices:
    """A dataset that returns the indices, so that its batches cost nothing."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: EpochIndex) -> EpochIndex:
        return index

    def __getitems__(self, indices: list[EpochIndex]) -> list[EpochIndex]:
        return indices


def programs(epochs: int) -> dict[str, Callable[[list[int]], Any]]:
    """Return the functions to time, each for one batch; Grain's shuffle is the first."""
    resampled = MultiEpochDatasetResampler(UnchangedIndices(), num_epochs=epochs)
    shuffled: Any = grain.MapDataset.range(SAMPLES).shuffle(seed=42)

    def grains(batch: list[int]) -> list[int]:
        return [shuffled._shuffled_index(index) for index in batch]

    def bare(batch: list[int]) -> list[int]:
        return [index_shuffle(index % SAMPLES, max_index=SAMPLES - 1, seed=42, rounds=4) for index in batch]

    def arrays(batch: list[int]) -> Any:
        return resampled.draw(np.array(batch))

    return {
        "Grain's shuffle": grains,
        "Grain's index_shuffle alone": bare,
        "ours: draw, of arrays": arrays,
        "ours: draw, of lists": resampled.draw,
        "ours: __getitems__, with objects": resampled.__getitems__,
    }


def ns_per_index(program: Callable[[list[int]], Any], batches: Batches) -> float:
    """Return the nanoseconds per index."""
    started = time.perf_counter_ns()
    for batch in batches:
        program(batch)
    return (time.perf_counter_ns() - started) / (len(batches) * BATCH)


def main() -> int:
    """Print the table."""
    epochs = 5
    rng = np.random.default_rng(0)
    starts = rng.integers(0, SAMPLES * epochs - BATCH, BATCHES)
    batches = {
        "in order": [list(range(start, start + BATCH)) for start in starts.tolist()],
        "at random": rng.integers(0, SAMPLES * epochs, (BATCHES, BATCH)).tolist(),
    }
    missed = False
    print(f"{SAMPLES:,} samples, {epochs} epochs, batches of {BATCH:,}, {ROUNDS} rounds of {BATCHES} batches\n")
    print("| indices | program | ns per index | / Grain's shuffle |\n|---|---|---|---|")
    for kind, chosen in batches.items():
        timed = programs(epochs)
        rounds = [{name: ns_per_index(run, chosen) for name, run in timed.items()} for _ in range(ROUNDS)]
        grains = next(iter(timed))
        for name in timed:
            ratio = statistics.median(each[name] / each[grains] for each in rounds)
            missed |= name.startswith("ours") and ratio >= TARGET
            print(f"| {kind} | {name} | {statistics.median(each[name] for each in rounds):.0f} | {ratio:.3f} |")
    print(f"\ntarget: ours below {TARGET}: {'missed' if missed else 'met'}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
