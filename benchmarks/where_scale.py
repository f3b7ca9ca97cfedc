"""Measure what a view costs: evaluating `where` over many samples, storing the selection, looking it up, and reading.

    python -m benchmarks.where_scale --samples 1e6,1e7,1e8

Indices and columns are synthetic, without tars; 100 million samples take 10 GB of disk. Seconds and memory are those of
opening a source with `where`, in a process of its own, beyond those of opening it without. Reading is measured on a
small dataset of texts: samples per second of a view that keeps every second sample, relative to the whole dataset, in
turns.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.child import ask, program
from benchmarks.join_scale import make_index
from benchmarks.resources import resident_mb

CONDITIONS = {
    "one column": "tokens >= 16",
    "three columns": "tokens >= 16 and width * height > 65536",
    "all of it": "tokens >= 16 and width * height > 65536 and not (score < 0.3) and tokens % 7 in [1, 2, 3]",
    "long": "log(tokens) + sqrt(width * height) / 10 > 5 and max(width, height) / min(width, height) < 3 and "
    "tokens ** 2 / 1024 + tokens > 100 and ceil(score * 10) not in [1, 2, 3] and abs(width - height) // 3 < 200",
}


def make_columns(root: Path, samples: int) -> None:
    """Attach four columns."""
    from energon_grain import measure_dataset

    rng = np.random.default_rng(1)
    whole = {name: rng.integers(0, 1000, samples, dtype) for name, dtype in (("tokens", "i4"), ("width", "u2"))}
    whole |= {"height": rng.integers(0, 1000, samples, "u2"), "score": rng.random(samples, "f4")}
    measure_dataset(root, attach=whole)


def highest_mb() -> float:
    """Return the peak memory of this process."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def evaluate(root: str, where: str, shuffled: bool) -> dict[str, float]:
    """Open a view, use it, and return its costs."""
    from energon_grain.kinds.tar.source import WebDatasetSource
    from energon_grain.samplers.expression import Expression

    whole = WebDatasetSource(root)
    shards = list(whole.all_shards)
    if shuffled:
        np.random.default_rng(0).shuffle(shards)
        whole = WebDatasetSource(root, shards=shards)
    before, started = resident_mb(), time.perf_counter()
    view = WebDatasetSource(root, shards=shards, where=Expression.parse(where, where="where"))
    seconds = time.perf_counter() - started
    peak = highest_mb() - before
    selection = view._selection
    arrays = [getattr(selection, name) for name in selection.__slots__]
    indices = np.random.default_rng(0).integers(0, len(view), (200, 4096))
    selected = time.perf_counter()
    for each in indices:
        selection.to_raw(each)
    selected = (time.perf_counter() - selected) / indices.size
    copied = time.perf_counter()
    copy = pickle.dumps(view)
    pickle.loads(copy)
    copied = time.perf_counter() - copied
    return {
        "kept": len(view) / len(whole),
        "seconds": seconds,
        "peak_bytes": peak * 2**20 / len(whole),
        "held_bits": sum(each.nbytes for each in arrays if isinstance(each, np.ndarray)) * 8 / len(whole),
        "select_ns": selected * 1e9,
        "pickle_mb": len(copy) / 2**20,
        "copy_ms": copied * 1e3,
    }


def reading(folder: Path, samples: int, rounds: int) -> tuple[float, float]:
    """Return samples per second through the loader, of the whole dataset and of a view."""
    from energon_grain import get_loader, get_train_dataset
    from energon_grain.testing import make_text_dataset

    root = make_text_dataset(folder / "texts", n=samples, shards=20)
    options: dict[str, Any] = {"batch_size": 64, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
    loaders = [
        get_loader(get_train_dataset(root, **options)),
        get_loader(get_train_dataset(root, where="bytes.txt % 2 == 1", **options)),
    ]
    taken = [[], []]
    for _ in range(rounds):
        for loader, times in zip(loaders, taken, strict=True):
            started = time.perf_counter()
            for _ in range(200):
                next(loader)
            times.append(12_800 / (time.perf_counter() - started))
    whole, view = (float(np.median(times)) for times in taken)
    return whole, view


def main(samples: str = "1e6,1e7", scratch: str | None = None) -> None:
    with tempfile.TemporaryDirectory(prefix="where-scale-", dir=scratch) as temporary:
        folder = Path(temporary)
        whole, view = reading(folder, 20_000, 12)
        print(f"reading: {whole:,.0f} samples/s of the whole, {view:,.0f} of a view: {view / whole:.2f}", flush=True)
        print(f"cores: {len(os.sched_getaffinity(0))}")
        for count in map(int, map(float, samples.split(","))):
            root = folder / str(count)
            make_index(root, count, "sorted", 1)
            make_columns(root, count)
            for shuffled in (False, True):
                for name, where in CONDITIONS.items():
                    found = ask("where_scale", "evaluate", root=str(root), where=where, shuffled=shuffled)
                    shown = " ".join(f"{label} {number:.3g}" for label, number in found.items())
                    print(f"{count:>12,} {name:14} {'shuffled' if shuffled else 'in order'}: {shown}", flush=True)
            shutil.rmtree(root)


if __name__ == "__main__":
    program(main, evaluate=evaluate)
