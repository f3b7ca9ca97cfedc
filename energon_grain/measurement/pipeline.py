"""Measuring the whole pipeline, as a training loop sees it that takes no time itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from energon_grain.datasets.worker_config import WorkerConfig
from energon_grain.measurement.figures import PipelineRun, ReadRate
from energon_grain.storage.object_client import ObjectClient, Traffic
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
    client: ObjectClient | None = None,
    fetched_bytes: float = 1.0,
    whole_pass: int = 0,
) -> tuple[PipelineRun, ...]:
    """Run the stream with each number of workers, from its beginning.

    Before that the largest number runs unmeasured, until it is no longer faster than the time before: so that what the
    first one reads is in memory as it will be for the last one. What comes from a store past the cache is as far away
    for the last one as for the first, so nothing is run before; and a run ends with the first pass, after which samples
    are in memory.

    Args:
        spec: The compiled dataset.
        config: Workers' type, and what becomes of failing samples.
        workers: Numbers of workers.
        seconds: For each; of a store twice as long as the second batch took, if that is more.
        progress: Told what runs.
        client: What reads objects past the cache; None: nothing does.
        fetched_bytes: For a sample.
        whole_pass: Samples of a pass over the data.

    Raises:
        EmptyDatasetError: There is no complete batch.
        FatalSampleError: A hook failed as no policy may skip.
    """
    if client is None:
        progress("warming up")
        rate = 0.0
        for _ in range(_WARMING_RUNS):
            before, rate = rate, _run(spec, config, max(workers), seconds).samples_per_s
            if rate < _STILL_WARMING * before:
                break
    runs: list[PipelineRun] = []
    for number in sorted(workers):
        progress(f"pipeline, {number} workers")
        own = config.worker_type == "thread" or number == 0
        runs.append(_run(spec, config, number, seconds, client if own else None, fetched_bytes, whole_pass))
    return tuple(runs)


def _run(
    spec: StreamSpec,
    config: WorkerConfig,
    workers: int,
    seconds: float,
    client: ObjectClient | None = None,
    fetched_bytes: float = 1.0,
    whole_pass: int = 0,
) -> PipelineRun:
    began = time.perf_counter()
    traffic = Traffic() if client is None else replace(client.traffic)
    with Stream(spec, replace(config, num_workers=workers)) as stream:
        next(stream)
        first = end = time.perf_counter()
        before = stream.stats()["samples"]
        samples, passed, limit_s = 0, 0 < whole_pass <= before, seconds
        while not passed:
            if next(stream, None) is None:
                iter(stream)  # a finite stream begins its next pass
            now = time.perf_counter()
            # Batches come in bursts, a chunk of them at once. The one that goes beyond the time opened a chunk that
            # will not be delivered, so what counts ends before it.
            if whole_pass and samples == 0:
                # From a store, hundreds of batches may have been waited for with this one: count them, too.
                limit_s = max(limit_s, 2 * (now - first))
            late = now - first >= limit_s
            if samples == 0 or not late:
                end, samples = now, stream.stats()["samples"] - before
                passed = 0 < whole_pass <= before + samples
            if late and samples:
                break
        fetched = None if client is None else _fetched(client.traffic, traffic, fetched_bytes, end - began)
    from_start = (before + samples) / (end - began)
    samples_per_s = from_start if passed else samples / (end - first)
    if fetched is not None:
        samples_per_s = min(samples_per_s, max(from_start, fetched.samples_per_s))
    return PipelineRun(
        workers=workers,
        samples_per_s=samples_per_s,
        first_batch_s=first - began,
        fetched=fetched,
        whole_pass=passed,
    )


def _fetched(now: Traffic, before: Traffic, fetched_bytes: float, seconds: float) -> ReadRate:
    """What came since, samples that were not delivered yet included."""
    bytes_per_s = (now.bytes_read - before.bytes_read) / seconds
    return ReadRate(
        samples_per_s=bytes_per_s / max(1.0, fetched_bytes),
        bytes_per_s=bytes_per_s,
        requests_per_s=(now.requests - before.requests) / seconds,
        seconds=seconds,
    )
