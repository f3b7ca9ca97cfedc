"""Figures of measurements as tests of what is made of them need them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from energon_grain.measurement.figures import Figures, PipelineRun, ReadRate, StageTime, StorageFigures, StoreFigures


def rate(samples_per_s: float, bytes_per_s: float = 1e9) -> ReadRate:
    return ReadRate(samples_per_s=samples_per_s, bytes_per_s=bytes_per_s, requests_per_s=samples_per_s, seconds=1.0)


def stages(serial: str = "", **microseconds: float) -> tuple[StageTime, ...]:
    total = sum(microseconds.values())
    return tuple(
        StageTime(name=name, microseconds=time, share=time / total, serial=name == serial)
        for name, time in microseconds.items()
    )


def runs(**samples_per_s: float) -> tuple[PipelineRun, ...]:
    """`runs(w0=…, w2=…)`."""
    return tuple(
        PipelineRun(workers=int(name[1:]), samples_per_s=rate, first_batch_s=0.1)
        for name, rate in samples_per_s.items()
    )


BALANCED = Figures(
    path="data",
    batch_size=32,
    worker_type="thread",
    block=None,
    refused_block=None,
    largest_block=1000,
    items=False,
    cores=8,
    memcpy_bytes_per_s=1e10,
    dataset_samples=1000,
    sample_bytes=10_000,
    image_decode=None,
    storage=StorageFigures(
        warm=rate(10_000),
        cold=rate(8_000),
        pread_warm=rate(20_000, 2e9),
        pread_cold=rate(9_000),
        still_cached=0.0,
        request_bytes=10_000,
    ),
    stages=stages(storage=25, decode=30, encode_sample=20, batch=15, rest=10),
    pipeline=runs(w0=4000, w4=7000),
    measured=1000,
    dropped={},
    notes=(),
)


def in_store(
    samples_per_s: float,
    requests_per_s: float,
    *,
    workers: int = 4,
    fetched_bytes: float = 10_000,
    ahead: float = 1.0,
    seconds: float = 2.0,
    first_batch_s: float = 0.1,
    whole_pass: bool = False,
    **changes: Any,
) -> Figures:
    """Of a store of which 100 MB/s can be had by requests that take 50 ms; one thread makes 13,300 samples/s of 10 kB.

    Args:
        samples_per_s: Of the pipeline.
        requests_per_s: Of the pipeline.
        workers: Of its only run.
        fetched_bytes: For a sample.
        ahead: How many times what is delivered came from the store.
        seconds: From the start of the run.
        first_batch_s: Of them, until the first batch.
        whole_pass: Whether all had come then.
        changes: Of all figures.
    """
    storage = StorageFigures(
        warm=rate(9_000),
        cold=rate(500),
        pread_warm=None,
        pread_cold=rate(10_000, 1e8),
        still_cached=None,
        request_bytes=1e5,
        store=StoreFigures(latency_s=0.05, requests_in_flight=32, fetched_bytes=fetched_bytes),
    )
    came = ReadRate(
        samples_per_s=ahead * samples_per_s,
        bytes_per_s=ahead * samples_per_s * fetched_bytes,
        requests_per_s=requests_per_s,
        seconds=seconds,
    )
    run = PipelineRun(
        workers=workers, samples_per_s=samples_per_s, first_batch_s=first_batch_s, fetched=came, whole_pass=whole_pass
    )
    warm = stages(storage=25, decode=30, encode_sample=20, batch=15)
    return replace(replace(BALANCED, storage=storage, pipeline=(run,), stages=warm), **changes)
