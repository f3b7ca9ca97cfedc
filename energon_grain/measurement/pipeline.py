"""Measuring the whole pipeline, as a training loop sees it that takes no time itself."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from energon_grain.datasets.worker_config import WorkerConfig
from energon_grain.measurement.figures import PipelineRun
from energon_grain.stream.run import Stream
from energon_grain.stream.spec import StreamSpec

_WARMING_RUNS = 3
_STILL_WARMING = 1.1


def measure_pipeline(
    spec: StreamSpec,
    config: WorkerConfig,
    workers: Sequence[int],
    seconds: float,
    progress: Callable[[str], None] = lambda label: None,
) -> tuple[PipelineRun, ...]:
    """Run the stream with each number of workers, from its beginning.

    Before that the largest number runs unmeasured, until it is no longer faster than the time before: so that what the
    first one reads is in memory as it will be for the last one.

    Args:
        spec: The compiled dataset.
        config: Workers' type, and what becomes of failing samples.
        workers: Numbers of workers.
        seconds: For each.
        progress: Told what runs.

    Raises:
        EmptyDatasetError: There is no complete batch.
        FatalSampleError: A hook failed as no policy may skip.
    """
    progress("warming up")
    rate = 0.0
    for _ in range(_WARMING_RUNS):
        before, rate = rate, _run(spec, config, max(workers), seconds).samples_per_s
        if rate < _STILL_WARMING * before:
            break
    runs: list[PipelineRun] = []
    for number in sorted(workers):
        progress(f"pipeline, {number} workers")
        runs.append(_run(spec, config, number, seconds))
    return tuple(runs)


def _run(spec: StreamSpec, config: WorkerConfig, workers: int, seconds: float) -> PipelineRun:
    began = time.perf_counter()
    with Stream(spec, dataclasses.replace(config, num_workers=workers)) as stream:
        next(stream)
        first = end = time.perf_counter()
        before = stream.stats()["samples"]
        samples = 0
        while True:
            if next(stream, None) is None:
                iter(stream)  # a finite stream begins its next pass
            now = time.perf_counter()
            # Batches come in bursts, a chunk of them at once. The one that goes beyond the time opened a chunk that
            # will not be delivered, so what counts ends before it.
            late = now - first >= seconds
            if samples == 0 or not late:
                end, samples = now, stream.stats()["samples"] - before
            if late and samples:
                break
    return PipelineRun(workers=workers, samples_per_s=samples / (end - first), first_batch_s=first - began)
