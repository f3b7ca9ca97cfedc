from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from measured_figures import BALANCED, rate, runs, stages

from energon_grain.measurement.advice import advise
from energon_grain.measurement.figures import StorageFigures

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


def test_blocks_that_would_have_no_effect_are_not_suggested() -> None:
    """With 1,000 samples and 48 lanes, blocks of more than 20 are a full shuffle."""
    assert "max_samples_per_sequence=20 or more" in said(storage=cold(1000), largest_block=20)
    assert "max_samples_per_sequence" not in said(storage=cold(1000), largest_block=1)


@pytest.mark.parametrize(
    ("samples_per_s", "every"), [(213, "150 ms"), (3210, "10 ms"), (1e6, "0.032 ms"), (10, "3,200 ms")]
)
def test_the_time_of_a_batch_has_no_exponent(samples_per_s: float, every: str) -> None:
    assert f"comes every {every}" in advise(replace(BALANCED, pipeline=runs(w4=samples_per_s)))[-1]


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
