"""Compare the throughput of `num_workers="auto"` after half a minute with the best of a grid of fixed numbers.

`python -m benchmarks.auto_workers [WORKLOAD …] [--settle 30] [--rounds 5] [--seconds 1]` prints a table and exits with
1 if the target is missed. It needs only this package. Each workload limits a loader differently: texts (Python between
the samples), blobs of 100 KB (memory), photographs (parallel decoding), a Python hook (the interpreter lock), and a
store with a latency of 30 ms (waiting).

They are measured alternately in one process. A round runs each of them once in a new loader, with the tuned loader at
both ends, so a temporarily busy machine affects all. Batches prefetched while others ran are consumed first. The best
of a grid is the highest of several medians, which favours it if rates vary.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import contents
from benchmarks.child import program
from benchmarks.datasets import DATA_SETS, DataSet, build
from benchmarks.object_store import BUCKET, bucket_of, own_cache, server_here
from benchmarks.resources import CACHE
from energon_grain import DefaultTaskEncoder, SampleDecoder, WorkerConfig, get_loader, get_train_dataset

TARGET = 0.95
PREFETCH = (1, 2, 4)
LATENCY_S = 0.03
WARM_S = 1.0

DATA_SETS["remote"] = DataSet(
    name="remote", contents=contents.blob, samples=2_000, shards=4, sample_type="CrudeWebdataset"
)


class Plain(DefaultTaskEncoder):
    """No hooks; parts stay bytes."""

    decoder = None


class Photographs(DefaultTaskEncoder):
    """Decoding only."""

    decoder = SampleDecoder(image_decode="rgb8")


class Counting(Plain):
    """About a millisecond of Python per sample."""

    thread_safe = True

    def encode_sample(self, sample: Any) -> Any:
        total = 0
        for number in range(20_000):
            total += number & 3
        sample.text = f"{sample.text[:20]} {total}"
        return sample


@contextlib.contextmanager
def local(folder: Path) -> Iterator[str]:
    """Yield a dataset on this machine."""
    yield str(folder)


@contextlib.contextmanager
def distant(folder: Path) -> Iterator[str]:
    """Yield it in a store with latency, without a cache."""
    with own_cache(0), bucket_of(folder):
        server_here().delay(LATENCY_S)
        yield f"s3://{BUCKET}/{folder.name}"


WORKLOADS: dict[str, tuple[str, type[DefaultTaskEncoder], Callable[[Path], Any]]] = {
    "texts": ("text", Plain, local),
    "blobs": ("blob", Plain, local),
    "photographs": ("jpeg", Photographs, local),
    "python": ("text", Counting, local),
    "store": ("remote", Plain, distant),
}


def open_loader(path: str, encoder: type[DefaultTaskEncoder], workers: Any, prefetch_factor: int = 2) -> Any:
    """Return a loader of one of the workloads."""
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(0, 1, workers),
        batch_size=32,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        task_encoder=encoder(),
    )
    return get_loader(dataset, prefetch_factor=prefetch_factor)


def rate(loader: Any, seconds: float) -> float:
    """Return the samples per second of a loop that does nothing with them."""
    for begun in (False, True):
        before, began = loader.stats()["samples"], time.perf_counter()
        end = began + (seconds if begun else WARM_S)
        while time.perf_counter() < end:
            next(loader)
    return (loader.stats()["samples"] - before) / (time.perf_counter() - began)


def measure(name: str, cache: Path, settle_s: float, rounds: int, seconds: float) -> float:
    """Print a line for a workload, and return its ratio to the best."""
    data, encoder, where = WORKLOADS[name]
    build(cache, [data])
    cores = os.cpu_count() or 1
    with contextlib.ExitStack() as opened:
        path = opened.enter_context(where(cache / data))
        auto = opened.enter_context(open_loader(path, encoder, "auto"))
        end = time.perf_counter() + settle_s
        while time.perf_counter() < end:
            next(auto)
        grid = [
            (workers, factor)
            for workers in sorted({0, 1, 2, 4, 8, 16, cores} & set(range(cores + 1)))
            for factor in (PREFETCH if workers else (1,))
        ]
        rates: dict[Any, list[float]] = {key: [] for key in ["auto", *grid]}
        used: list[int] = []
        for _ in range(rounds):
            rates["auto"].append(rate(auto, seconds))
            for key in grid:
                with open_loader(path, encoder, *key) as loader:
                    rates[key].append(rate(loader, seconds))
            rates["auto"].append(rate(auto, seconds))
            used.append(auto.stream.workers)
    medians = {key: statistics.median(found) for key, found in rates.items()}
    best = max(grid, key=medians.__getitem__)
    ratio = medians["auto"] / medians[best]
    others = ", ".join(f"{workers}/{factor}: {medians[workers, factor]:,.0f}" for workers, factor in grid)
    print(
        f"{name:12} auto {medians['auto']:10,.0f}/s with {statistics.median(used):g} threads = {ratio:.3f} x the best "
        f"({best[0]} workers, {best[1]} ahead); {others}",
        flush=True,
    )
    return ratio


def main(
    workloads: Annotated[list[str] | None, typer.Argument()] = None,
    settle: float = 30.0,
    rounds: int = 5,
    seconds: float = 1.0,
) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    ratios = [measure(name, CACHE, settle, rounds, seconds) for name in workloads or WORKLOADS]
    sys.exit(min(ratios) < TARGET)


if __name__ == "__main__":
    program(main)
