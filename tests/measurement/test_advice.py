from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from energon_grain.measurement.advice import advise, suggested_block
from energon_grain.measurement.figures import (
    Figures,
    PipelineRun,
    ReadRate,
    StageTime,
    StorageFigures,
    StoreFigures,
)


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
ALWAYS = "With num_workers=4 a batch of 32 comes every 4.6 ms: loading bounds a training whose step is faster"


def said(**changes: Any) -> str:
    """Everything that is advised but what always is."""
    *sentences, last = advise(replace(BALANCED, **{"pipeline": runs(w4=7000), **changes}))
    assert "comes every" in last
    return "\n".join(sentences)


def test_balanced_figures_need_no_change() -> None:
    assert said() == ""
    assert advise(replace(BALANCED, pipeline=runs(w4=7000)))[0].startswith(ALWAYS)


def cold(samples_per_s: float, **changes: Any) -> StorageFigures:
    return replace(BALANCED.storage, cold=rate(samples_per_s), **changes)


def test_slow_cold_storage_is_read_in_blocks() -> None:
    text = said(storage=cold(1000))
    assert "1,000 samples/s, 10 × fewer" in text
    assert "max_samples_per_sequence=200 or more" in text
    assert "max_samples_per_sequence=200 in place of 20" in said(storage=cold(1000), block=20)
    assert "More workers" in said(storage=cold(1000), block=500)
    assert "only faster storage" in said(storage=cold(1000, request_bytes=1e6))


def test_cold_storage_that_keeps_up_is_left_alone() -> None:
    assert said(storage=cold(1000), pipeline=runs(w4=900)) == ""
    assert said(storage=replace(BALANCED.storage, cold=None)) == ""
    assert said(storage=cold(5000)) == ""  # half of warm


@pytest.mark.parametrize(("sample_bytes", "block"), [(0, 1000), (100, 1000), (1100, 1000), (5000, 300), (2e6, 1)])
def test_suggested_blocks_hold_a_mebibyte(sample_bytes: float, block: int) -> None:
    assert suggested_block(sample_bytes) == block


def in_store(
    fetched_per_s: float, requests_per_s: float, *, fetched_bytes: float = 10_000, **changes: Any
) -> dict[str, Any]:
    """Figures of a store of which 100 MB/s can be had by requests that take 50 ms."""
    storage = StorageFigures(
        warm=rate(9_000),
        cold=rate(500),
        pread_warm=None,
        pread_cold=rate(10_000, 1e8),
        still_cached=None,
        request_bytes=1e5,
        store=StoreFigures(latency_s=0.05, requests_in_flight=32, fetched_bytes=fetched_bytes),
    )
    came = ReadRate(samples_per_s=700, bytes_per_s=fetched_per_s, requests_per_s=requests_per_s, seconds=1.0)
    (run,) = runs(w4=700)
    return {"storage": storage, "pipeline": (replace(run, fetched=came),), **changes}


def test_the_bandwidth_of_a_store_bounds() -> None:
    text = said(**in_store(9e7, 20))
    assert text.startswith("In the first epoch bandwidth bounds: the pipeline fetches at 90%")
    assert "(100 MB/s). Fewer bytes a sample help" in text
    assert text.endswith(
        "Later epochs come out of the cache on disk, as far as it holds them: that gives 9,000 samples/s."
    )
    wasteful = said(**in_store(9e7, 20, fetched_bytes=40_000))
    assert "Of a sample of 10,000 bytes it fetches 40,000" in wasteful
    assert "max_samples_per_sequence=500" in wasteful
    assert "Fewer bytes" in said(**in_store(9e7, 20, fetched_bytes=40_000, block=400))


def test_the_latency_of_a_store_bounds() -> None:
    text = said(**in_store(1e7, 100))
    assert text.startswith("In the first epoch latency bounds: a request takes 50 ms and brings 100 KB")
    assert "at 10% of what range requests alone bring. Read runs of neighbours: max_samples_per_sequence=500" in text
    assert "requests_in_flight (now 32) and ahead_bytes" in said(**in_store(1e7, 100, block=500))
    assert "requests_in_flight" in said(**in_store(1e7, 100, sample_bytes=8e6))


def test_a_store_that_keeps_up_is_left_alone() -> None:
    assert said(**in_store(1e6, 5)) == ""
    (run,) = runs(w4=700)
    assert said(**in_store(9e7, 20) | {"pipeline": (run,)}) == ""  # other processes fetched: nothing is known


def test_a_serial_hook_bounds() -> None:
    slow = stages("encode_sample", storage=10, decode=19, encode_sample=71)
    text = said(stages=slow)
    assert text.startswith("Your encode_sample takes 71% of the time (71 µs a sample)")
    assert "one thread at a time" in text
    assert "thread_safe = True" in text
    assert "worker_type='process'" in text
    assert "thread" not in said(stages=slow, worker_type="process")
    assert "only doing less" in said(stages=stages(storage=10, decode=19, encode_sample=71))


def test_decoding_bounds() -> None:
    slow = stages(storage=10, decode=80, batch=10)
    assert "rgb8" in said(stages=slow, image_decode="torchrgb")
    assert "no larger than the model" in said(stages=slow, image_decode="rgb8")
    assert "part_filter" in said(stages=slow)


def test_batching_bounds() -> None:
    assert said(stages=stages(storage=30, decode=30, batch=40)).startswith("Batching takes 40% of the time")


def test_reading_bounds() -> None:
    slow = stages(storage=60, decode=20, batch=20)
    assert "at 50% of what `pread` alone gives" in said(stages=slow)
    far = replace(BALANCED.storage, pread_warm=rate(1e5, 1e10))
    assert said(stages=slow, storage=far) == ""
    assert "samples are small (1,000 bytes)" in said(stages=slow, storage=far, sample_bytes=1000)
    assert said(stages=slow, storage=replace(BALANCED.storage, pread_warm=None)) == ""


def test_what_is_left_bounds() -> None:
    slow = stages(storage=30, decode=20, rest=50)
    assert "larger batches" in said(stages=slow, batch_size=2)
    assert "little to change" in said(stages=slow)


def test_workers() -> None:
    assert said(pipeline=runs(w0=100, w1=180, w2=350, w4=355)).startswith("num_workers=2 is enough: it gives 350")
    assert "num_workers=0 gives 100" in said(pipeline=runs(w0=100, w1=90, w2=101))
    assert "try more, there are 8 cores" in said(pipeline=runs(w0=100, w4=400))
    assert "try more" not in said(pipeline=runs(w0=100, w8=800))


def test_drops_come_first() -> None:
    first = advise(replace(BALANCED, dropped={"decode: DecodingError": 3}))[0]
    assert first.startswith("Of 1,000 samples some were dropped: decode: DecodingError (3 ×).")
