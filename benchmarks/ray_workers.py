"""Compare Ray actors on this machine with own worker processes.

`python -m benchmarks.ray_workers [--rounds 3] [--seconds 3]` prints a table: samples per second, the ratio to own
worker processes in the same round, and the CPU time that the process of the loader spends on a chunk. Each measurement
runs in a fresh process, with a Ray of its own. The actors of "far" rows are on this machine, too: results pass through
Ray's object store, but not through a network.

* images: JPEGs of 256 x 256 pixels in batches of 32, as float32 (25 MB) and as uint8 (6 MB), two workers
* waiting: texts, with a hook that waits for 5 ms, eight workers, which reach at most 1,600 samples per second
"""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from benchmarks.child import ask, program
from benchmarks.datasets import build
from benchmarks.resources import CACHE
from benchmarks.steady import steady, weigh_column
from energon_grain import DefaultTaskEncoder, SampleDecoder, WorkerConfig, get_savable_loader, get_train_dataset

Way = Literal["process", "near", "far"]
_STORE_BYTES = 400 << 20
_WAIT_S = 0.005


class Floats(DefaultTaskEncoder):
    """Images as float32."""

    decoder = SampleDecoder(image_decode="rgb")


class Bytes(DefaultTaskEncoder):
    """Images as uint8."""

    decoder = SampleDecoder(image_decode="rgb8")


class Waiting(DefaultTaskEncoder):
    """Waits as for a service."""

    def encode_sample(self, sample: Any) -> Any:
        """Return the sample after 5 ms."""
        time.sleep(_WAIT_S)
        return sample


ENCODERS = {"floats": Floats, "bytes": Bytes, "waiting": Waiting}
FIELDS = {"floats": "image", "bytes": "image", "waiting": "text"}


def throughput(folder: str, way: Way, encoder: str, workers: int, warmup_s: float, seconds: float) -> dict[str, Any]:
    """Measure the rate of a loader with workers of a kind, and `driver_ms`, this process's CPU time per chunk, warm."""
    if way == "process":
        config = WorkerConfig(0, 1, workers, worker_type="process")
        return _measured(folder, encoder, config, lambda: 0, warmup_s, seconds)
    import ray

    from energon_grain.cluster import RayPool

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as session:
        ray.init(
            num_cpus=workers,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=_STORE_BYTES,
            _temp_dir=session,
        )
        try:
            with RayPool(workers, near="auto" if way == "near" else "never") as pool:
                pool.wait(workers)
                config = WorkerConfig(0, 1, workers=pool)
                return _measured(folder, encoder, config, lambda: pool.stats().chunks, warmup_s, seconds)
        finally:
            ray.shutdown()


def _measured(
    folder: str, encoder: str, config: WorkerConfig, chunks: Any, warmup_s: float, seconds: float
) -> dict[str, Any]:
    dataset = get_train_dataset(
        folder,
        worker_config=config,
        batch_size=32,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        task_encoder=ENCODERS[encoder](),
    )
    before: list[float] = []
    first: list[float] = []

    def weigh(batch: Any) -> tuple[int, int]:
        if not first:
            gc.collect()
            first.append(time.perf_counter())
        if not before and time.perf_counter() - first[0] >= warmup_s:
            before[:] = time.process_time(), chunks()
        return weigh_column(getattr(batch, FIELDS[encoder]))

    with get_savable_loader(dataset) as loader:

        def batches() -> Iterator[Any]:
            while True:
                yield from loader

        found = steady(batches, weigh, warmup_s=warmup_s, seconds=seconds)
        made = chunks() - before[1]
        driver_ms = 1e3 * (time.process_time() - before[0]) / made if made else 0.0
    return {**found, "driver_ms": driver_ms}


ROWS: tuple[tuple[str, str, str, int, tuple[Way, ...]], ...] = (
    ("images, float32", "jpeg", "floats", 2, ("process", "near", "far")),
    ("images, uint8", "jpeg", "bytes", 2, ("process", "near", "far")),
    ("waiting hook", "text", "waiting", 8, ("process", "near")),
)


def main(
    rounds: Annotated[int, typer.Option()] = 3,
    seconds: Annotated[float, typer.Option()] = 3.0,
    warmup: Annotated[float, typer.Option()] = 3.0,
    cache: Annotated[Path, typer.Option()] = CACHE,
) -> None:
    """Print the table."""
    build(cache, ("jpeg", "text"))
    print(f"{'work':18} {'workers':8} samples/s  of processes  driver ms/chunk")
    for title, data, encoder, workers, ways in ROWS:
        found: dict[Way, list[dict[str, Any]]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way in ways:
                request = {"folder": str(cache / data), "way": way, "encoder": encoder, "workers": workers}
                answer = ask("ray_workers", "throughput", **request, warmup_s=warmup, seconds=seconds)
                found[way].append(answer)
        for way in ways:
            pairs = zip(found[way], found["process"], strict=True)
            ratio = statistics.median(one["samples_per_s"] / other["samples_per_s"] for one, other in pairs)
            rate = statistics.median(one["samples_per_s"] for one in found[way])
            driver = statistics.median(one["driver_ms"] for one in found[way])
            print(f"{title:18} {way:8} {rate:9,.0f}  {ratio:12.2f}  {driver:15.2f}", flush=True)


if __name__ == "__main__":
    program(main, throughput=throughput)
