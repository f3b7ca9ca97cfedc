"""Cutting a host's positions into chunks: draws for tens of thousands of positions at once, reads bounded in bytes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from energon_grain.sources.source import Source
from energon_grain.stream.chunk import BatchNumbers, Chunk
from energon_grain.stream.chunk_pace import ChunkPace
from energon_grain.stream.draws import Draws, draw_sizes
from energon_grain.stream.read_ahead import Coming, ReadAhead
from energon_grain.stream.share import Share
from energon_grain.stream.spec import StreamSpec

MAX_PLAN = 32_768
"""Positions that are drawn at once."""
_BATCH_STRETCH = 4
"""A chunk may be this much larger than its bound where it takes that to hold a whole batch."""


def plan_chunks(
    spec: StreamSpec,
    sources: list[Source],
    share: Share,
    *,
    pass_number: int,
    first: int,
    batch_size: int,
    pace: ChunkPace,
    numbers: Callable[[], BatchNumbers | None] = lambda: None,
    origin: int = 0,
    ahead: ReadAhead | None = None,
) -> Iterator[Chunk]:
    """Chunks of one host's positions from local position `first` to the end of the pass (or for ever).

    Args:
        spec: The compiled dataset.
        sources: Of its leaves.
        share: This host's part.
        pass_number: Of the pass.
        first: Where the first chunk begins.
        batch_size: Of the host's batches.
        pace: How much a chunk may hold.
        numbers: Asked for each chunk whether its batches shall be made with it, and how they are numbered.
        origin: Local position at which some batch begins.
        ahead: Fetches what lies in object stores.
    """
    number = 0
    plans = _plans(spec, sources, share, pass_number, first, pace, ahead)
    for plan in plans if ahead is None else _one_ahead(plans):
        first, draws, totals, begin = plan.first, plan.draws, plan.totals, 0
        while begin < len(draws):
            # As many samples as fit into the bytes of a chunk, at least one.
            fits = int(np.searchsorted(totals, totals[begin] + pace.size_bytes, side="right")) - 1
            batch = min(begin + batch_size, len(draws))
            if totals[batch] - totals[begin] <= _BATCH_STRETCH * pace.size_bytes:
                fits = max(fits, batch)
            until = min(max(fits, begin + 1), begin + pace.samples, len(draws))
            # Chunks end where batches end, where that leaves something.
            whole = until - (first + until - origin) % batch_size
            until = whole if whole > begin else until
            yield Chunk(
                number=number,
                draws=draws[begin:until],
                size_bytes=int(totals[until] - totals[begin]),
                groups=_groups(first + begin - origin, first + until - origin, batch_size),
                first=first + begin,
                batch_size=batch_size,
                numbers=numbers(),
                arrival=None if plan.coming is None else plan.coming.until(until),
            )
            number += 1
            begin = until


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Plan:
    """Draws of consecutive positions.

    Attributes:
        first: Local position of the first one.
        draws: One a position.
        totals: (n + 1,) bytes that reading the draws before each one takes.
        coming: What is fetched ahead of them.
    """

    first: int
    draws: Draws
    totals: npt.NDArray[np.int64]
    coming: Coming | None


def _plans(
    spec: StreamSpec,
    sources: list[Source],
    share: Share,
    pass_number: int,
    first: int,
    pace: ChunkPace,
    ahead: ReadAhead | None,
) -> Iterator[_Plan]:
    """The first is small, so that the first batch does not wait for more than itself."""
    end = local_end(spec, share, pass_number)
    size = pace.samples
    while end is None or first < end:
        stop = first + size if end is None else min(first + size, end)
        draws = spec.order.draw(share.to_global(np.arange(first, stop)), pass_number)
        totals = np.concatenate([[0], np.cumsum(draw_sizes(draws, sources))])
        coming = None
        if ahead:
            coming = ahead.fetch(draws[: max(1, int(np.searchsorted(totals, ahead.step_bytes, side="right")) - 1)])
            draws, totals = draws[: len(coming)], totals[: len(coming) + 1]
        yield _Plan(first=first, draws=draws, totals=totals, coming=coming)
        first += len(draws)
        size = MAX_PLAN if ahead else min(size * 4, MAX_PLAN)


def _one_ahead(plans: Iterator[_Plan]) -> Iterator[_Plan]:
    """The same, each asked for before the one in front of it is used."""
    before = next(plans, None)
    while before is not None:
        after = next(plans, None)
        yield before
        before = after


def _groups(first: int, stop: int, batch_size: int) -> tuple[range, ...]:
    """Positions first, …, stop - 1, counted from `first` on and cut at multiples of the batch size."""
    cuts = [first, *range(first + batch_size - first % batch_size, stop, batch_size), stop]
    return tuple(range(begin - first, end - first) for begin, end in itertools.pairwise(cuts))


def local_end(spec: StreamSpec, share: Share, pass_number: int) -> int | None:
    """Positions that a pass has for this host; None: endless."""
    length = spec.length(pass_number)
    return None if length is None else share.first_at(length)
