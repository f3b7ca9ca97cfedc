"""What is said of a store: what bounds comes first, and the way out with it."""

from __future__ import annotations

from dataclasses import replace

from measured_figures import in_store, runs, stages

from energon_grain.measurement.advice import StoreBound, advise, advise_on_store, store_bound
from energon_grain.measurement.figures import Figures


def said(figures: Figures) -> str:
    text = advise_on_store(figures)
    assert text is not None
    return text


def test_bandwidth_bounds() -> None:
    text = said(in_store(9_000, 20))
    assert text.startswith("In the first epoch bandwidth bounds: the pipeline fetches at 90%")
    assert "(100 MB/s). Fewer bytes a sample help" in text
    assert text.endswith(
        "Later epochs come out of the cache on disk, as far as it holds them: that gives 9,000 samples/s."
    )
    wasteful = in_store(2_000, 20, fetched_bytes=40_000)
    assert "Of a sample of 10,000 bytes it fetches 40,000" in said(wasteful)
    assert "max_samples_per_sequence=500" in said(wasteful)
    assert "Fewer bytes" in said(replace(wasteful, block=400))
    assert "Fewer bytes" in said(replace(wasteful, refused_block=400))  # there are too few samples for any


def test_latency_bounds() -> None:
    """Pictures of 100 KB, one a request, as a full shuffle of a large dataset reads them."""
    pictures = in_store(100, 100, fetched_bytes=100_000, sample_bytes=100_000, stages=stages(storage=50, decode=900))
    text = said(pictures)
    assert text.startswith("In the first epoch latency bounds: a request takes 50.0 ms and brings 100 KB")
    assert "at 10% of what range requests alone bring. Read runs of neighbours: max_samples_per_sequence=50" in text
    assert "requests_in_flight (now 32) and ahead_bytes" in said(replace(pictures, block=40))
    assert "requests_in_flight" in said(replace(pictures, refused_block=40))
    assert "requests_in_flight" in said(replace(pictures, sample_bytes=8e6))


def test_the_store_is_named_before_what_takes_most_of_a_warm_cache() -> None:
    sentences = advise(in_store(1_000, 100, stages=stages(storage=2, decode=90, batch=8), image_decode="rgb"))
    assert sentences[0].startswith("In the first epoch latency bounds")
    assert sentences[1].startswith("Once the cache is warm, decoding takes 90% of the time")
    assert sentences[2].startswith("In the first epoch, with num_workers=4 a batch of 32 comes every 32 ms")


def test_workers_do_not_make_a_store_faster() -> None:
    bound = in_store(1_000, 100)
    sentences = advise(replace(bound, pipeline=runs(w0=900) + bound.pipeline))
    assert not any("num_workers=0" in sentence for sentence in sentences)
    free = in_store(12_000, 20, ahead=2)
    texts = advise(replace(free, pipeline=runs(w0=11_900) + free.pipeline))
    assert texts[0].startswith("In the first epoch, workers bring nothing here by themselves: num_workers=0")


def test_a_store_that_keeps_up_is_left_alone() -> None:
    assert advise_on_store(in_store(8_000, 5)) is not None
    assert advise_on_store(in_store(8_000, 5, ahead=2)) is None  # it sends more than is used
    assert advise_on_store(in_store(12_000, 20, workers=0)) is None  # the only thread is busy
    quiet = in_store(8_000, 200, fetched_bytes=1_000)  # which four threads share
    assert advise_on_store(quiet) is None
    assert store_bound(in_store(8_000, 400, fetched_bytes=1_000)) is StoreBound.LATENCY  # most of 32 are under way


def test_a_dataset_that_comes_all_at_once_tells_nothing_of_its_store() -> None:
    """90 samples: the whole pass takes hardly longer than the first batch."""
    tiny = in_store(
        1_500,
        200,
        seconds=0.06,
        first_batch_s=0.048,
        whole_pass=True,
        dataset_samples=90,
        stages=stages(storage=1, decode=90, batch=9),
    )
    sentences = advise(tiny)
    assert sentences[0].startswith("The dataset is too small to tell what its store can do: all 90 samples had come")
    assert "after 0.060 s, 0.048 s of it for the first batch" in sentences[0]
    assert "Later epochs come out of the cache" in sentences[0]
    assert not any("comes every" in sentence for sentence in sentences)
    # Where the beginning is a small part of it, or the network is busy, a whole pass tells enough.
    assert store_bound(replace(tiny, pipeline=in_store(1_500, 200, whole_pass=True).pipeline)) is StoreBound.LATENCY
    busy = in_store(6_000, 200, seconds=1.6, first_batch_s=0.5, whole_pass=True)
    assert store_bound(busy) is StoreBound.BANDWIDTH


def test_a_short_run_tells_nothing_of_what_comes_after_its_first_batch() -> None:
    text = said(in_store(1_000, 100, seconds=0.5, first_batch_s=0.3))
    assert "it gives 1,000 samples/s, and one thread could make 13,333 of what is there already" in text
    assert "Of 0.50 s 0.30 s went by before the first batch" in text
    assert "--seconds" in text
    assert store_bound(in_store(9_000, 10, seconds=60, first_batch_s=32)) is StoreBound.BANDWIDTH  # of large samples


def test_waiting_is_told_where_its_reason_is_not_known() -> None:
    text = said(in_store(1_000, 5))
    assert text.startswith("In the first epoch the pipeline waits for the store: it gives 1,000 samples/s")
    assert "at 10% of what range requests alone bring, with 0.2 requests under way on average" in text
    others = in_store(1_000, 5)
    (run,) = others.pipeline
    assert "worker_type='thread' tells" in said(replace(others, pipeline=(replace(run, fetched=None),)))
    fast = replace(run, fetched=None, samples_per_s=8_000)
    assert advise_on_store(replace(others, pipeline=(fast,))) is None


def test_items_are_not_compared_with_samples() -> None:
    assert advise_on_store(in_store(1_000, 5, items=True)) is None
    assert store_bound(in_store(1_000, 100, items=True)) is StoreBound.LATENCY


def test_without_a_cache_there_are_no_later_epochs() -> None:
    figures = in_store(1_000, 100)
    storage = replace(figures.storage, warm=figures.storage.cold)
    assert "Later" not in said(replace(figures, storage=storage))
