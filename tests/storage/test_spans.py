"""Coalescing ranges into spans: nothing is lost, nothing grows without bound, large ranges are not copied."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings, strategies as st

from energon_grain.storage.byte_store import MAX_SPAN_BYTES, Spans, coalesce

Range = tuple[int, int, int]

small_ranges = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 400), st.integers(0, 60)), max_size=40)
wide_ranges = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 40 << 20), st.integers(0, 3 << 20)), min_size=1, max_size=30
)


def spans_of(ranges: list[Range], gap: int, solo: int) -> Spans:
    file, start, size = (np.array([r[i] for r in ranges], np.int64) for i in range(3))
    return coalesce(file, start, size, merge_gap_bytes=gap, solo_bytes=solo)


@given(ranges=small_ranges, gap=st.integers(0, 50), solo=st.integers(1, 80))
@example(ranges=[(0, 0, 100), (0, 2, 3), (0, 60, 10)], gap=0, solo=1 << 20)  # the third begins inside the first
def test_every_range_lies_in_its_span(ranges: list[Range], gap: int, solo: int) -> None:
    spans = spans_of(ranges, gap, solo)
    for place, (file, start, size) in enumerate(ranges):
        span = int(spans.span[place])
        assert spans.file[span] == file
        assert spans.start[span] + spans.offset[place] == start
        assert start + size <= spans.stop[span]


@given(ranges=small_ranges, gap=st.integers(0, 50), solo=st.integers(1, 80))
def test_spans_cover_nothing_but_ranges_and_small_gaps(ranges: list[Range], gap: int, solo: int) -> None:
    spans = spans_of(ranges, gap, solo)
    for span in range(len(spans.start)):
        mine = sorted(ranges[i][1:] for i in np.flatnonzero(spans.span == span))
        assert mine, "a span without a range"
        assert spans.start[span] == mine[0][0]
        assert spans.stop[span] == max(start + size for start, size in mine)
        reached = mine[0][0]
        for start, size in mine:
            assert start - reached <= gap
            reached = max(reached, start + size)


@given(ranges=small_ranges, gap=st.integers(0, 50), solo=st.integers(1, 80))
def test_large_ranges_are_alone(ranges: list[Range], gap: int, solo: int) -> None:
    spans = spans_of(ranges, gap, solo)
    for place, (_, _, size) in enumerate(ranges):
        if size >= solo:
            assert np.count_nonzero(spans.span == spans.span[place]) == 1
            assert spans.stop[spans.span[place]] - spans.start[spans.span[place]] == size


@settings(max_examples=60)
@given(ranges=wide_ranges)
def test_spans_are_bounded(ranges: list[Range]) -> None:
    """A span never crosses a multiple of 8 MiB, but for the range that it ends with."""
    spans = spans_of(ranges, 1 << 30, 4 << 20)
    largest = max(size for _, _, size in ranges)
    assert (spans.stop - spans.start).max() <= MAX_SPAN_BYTES + largest


@given(ranges=small_ranges)
def test_spans_come_in_the_order_of_the_files(ranges: list[Range]) -> None:
    spans = spans_of(ranges, 8, 64)
    order = list(zip(spans.file.tolist(), spans.start.tolist(), strict=True))
    assert order == sorted(order)


def test_the_example_of_the_docstring() -> None:
    spans = spans_of([(0, 0, 10), (0, 12, 5), (0, 500, 5)], 4, 1 << 20)
    assert spans.start.tolist() == [0, 500]
    assert spans.stop.tolist() == [17, 505]
    assert spans.span.tolist() == [0, 0, 1]
    assert spans.offset.tolist() == [0, 12, 0]


def test_nothing_asked_for() -> None:
    spans = spans_of([], 4, 16)
    assert [len(column) for column in (spans.file, spans.start, spans.stop, spans.span, spans.offset)] == [0] * 5
