"""Measure how full planned packs are, and how fast plans are made: `python -m benchmarks.plan_packs [--samples N]`.

Lengths from three distributions, up to the capacity, are packed window by window; the number of packs is compared with
packing all samples at once (best fit decreasing). Printed, for each distribution and window: the filled share of all
packs, packs of all samples at once over packs of windows, and microseconds of one core per pack and per sample. Then
the same with two costs and a limit on the number of samples, and with samples that may be split. With `--chart FILE`,
loaders run over texts of these lengths instead, and a chart of how full their packs are is drawn.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.child import program
from benchmarks.picture import bars, texts
from benchmarks.token_packing import CAPACITY, LAWS
from energon_grain import PackingDataset, PackingPlan, PlannedPackingDataset, get_loader, get_train_dataset
from energon_grain.planning.pack_plan import PATIENCE, Oversize, fill, plan_packs
from energon_grain.planning.packers import best_fit_decreasing

WINDOWS = (1_024, 4_096, 16_384, 65_536)
Costs = npt.NDArray[np.int64]


def planned(costs: Costs, capacities: tuple[int, ...], window: int, oversize: Oversize = "error") -> tuple[int, float]:
    """Pack all samples, window by window; return the number of packs and the processor seconds spent on planning."""
    positions, at, packs = np.empty(0, np.int64), 0, 0
    count = costs.shape[1]
    began = time.process_time()
    while at < count:
        stop = min(count, at + window - len(positions))
        positions = np.concatenate([positions, np.arange(at, stop)])
        patient = int(np.searchsorted(positions, stop - PATIENCE * window))
        last = stop == count
        plan = plan_packs(costs[:, positions], capacities, key=at, oversize=oversize, patient=patient, last=last)
        packs, positions, at = packs + len(plan), positions[plan.rest], stop
    return packs, time.process_time() - began


def table(samples: int) -> None:
    """Print the tables."""
    random = np.random.default_rng(0)
    for law, drawn in LAWS.items():
        lengths = drawn(random, samples)
        short = np.minimum(lengths, CAPACITY)[None]
        began = time.process_time()
        _, together = fill(short, (CAPACITY,))
        took = time.process_time() - began
        full = int(short.sum()) / CAPACITY
        print(f"{law}: {samples:,} samples; all at once {together:,} packs, filled {full / together:.5f}, {took:.1f} s")
        for window in WINDOWS:
            packs, seconds = planned(short, (CAPACITY,), window)
            print(
                f"  window {window:6,}: filled {full / packs:.5f}, {together / packs:.5f} of all at once; "
                f"{1e6 * seconds / packs:.2f} us per pack, {1e6 * seconds / samples:.2f} us per sample"
            )
        packs, seconds = planned(lengths[None], (CAPACITY,), WINDOWS[2], "split")
        share = int(lengths.sum()) / CAPACITY / packs
        print(f"  split: {packs:,} packs, filled {share:.5f}; {1e6 * seconds / packs:.2f} us per pack")
        images = np.minimum(random.geometric(0.4, samples) - 1, 8)
        several = np.stack([short[0], images, np.ones(samples, np.int64)])
        packs, seconds = planned(several, (CAPACITY, 8, 64), WINDOWS[2])
        print(f"  also at most 8 images and 64 samples: {packs:,} packs; {1e6 * seconds / packs:.2f} us per pack")


def in_sample_order(samples: list[Any]) -> list[list[Any]]:
    """End a pack at the first sample that does not fit into it."""
    packs, available = list[list[Any]](), 0
    for sample in samples:
        if len(sample.text) > available:
            packs, available = [*packs, []], CAPACITY
        packs[-1].append(sample)
        available -= len(sample.text)
    return packs


def best_fit_of_buffer(samples: list[Any]) -> list[list[Any]]:
    """Pack the samples of one buffer by best fit."""
    return best_fit_decreasing(samples, length=lambda sample: len(sample.text), capacity=CAPACITY)


def characters(samples: list[Any]) -> int:
    """Return the number of characters in a pack, which is what the benchmark delivers."""
    return sum(len(sample.text) for sample in samples)


def draw(file: str, samples: int) -> None:
    """Run loaders over the samples for about one pass, and draw how full their packs are."""
    filled = dict[str, dict[str, float]]()
    for law, drawn in LAWS.items():
        lengths = np.minimum(drawn(np.random.default_rng(0), samples), CAPACITY)
        with tempfile.TemporaryDirectory() as folder:
            below = get_train_dataset(
                texts(Path(folder), lengths), batch_size=None, shuffle_buffer_size=100, max_samples_per_sequence=100
            )
            variants = {
                "in sample order": PackingDataset(below, 100, in_sample_order, characters),
                "a buffer of 100, best fit": PackingDataset(below, 100, best_fit_of_buffer, characters),
                "PackingPlan": PlannedPackingDataset(below, PackingPlan("bytes.txt", capacity=CAPACITY), characters),
            }
            filled[law] = {}
            for variant, dataset in variants.items():
                with get_loader(dataset) as loader:
                    packs = list(itertools.islice(loader, int(lengths.sum()) // CAPACITY))
                filled[law][variant] = float(np.mean(packs)) / CAPACITY
                print(f"{law:10s} {variant:26s} {len(packs):6,} packs, filled {filled[law][variant]:.4f}", flush=True)
    bars(file, f"How full packs of {CAPACITY:,} tokens are, 1 is full", filled, least=0.5, digits=4)


def main(samples: int = 0, chart: str = "") -> None:
    if chart:
        draw(chart, samples or 30_000)
    else:
        table(samples or 2_000_000)


if __name__ == "__main__":
    program(main)
