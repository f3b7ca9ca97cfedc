# SPDX-License-Identifier: Apache-2.0
"""The unit of work: a run of positions that are read and encoded together, its size, and cutting positions into such.

No chunk takes long: `close`, Ctrl-C and the first batch wait for whole ones. Draws are made for tens of thousands of
positions at once, reads are bounded in bytes.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.stream.clock import Work
from energon_grain.stream.index_map import Draws, Sources
from energon_grain.stream.look_ahead import LookAhead, Prefetched, PrefetchedChunk
from energon_grain.stream.passes import Share
from energon_grain.stream.places import Places
from energon_grain.stream.spec import StreamSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNumbers:
    """How the batches of a host are numbered as long as nothing is dropped: for making them beside their samples.

    Attributes:
        origin: Local position at which some batch begins.
        item: Global item at which the step of that batch begins.
        global_batch: G, items of a step.
        base: Item 0 of the pass among the items of all passes.
        pass_number: As it counts for random numbers.
        pads: Whether batches have a mask.
    """

    origin: int
    item: int
    global_batch: int
    host: int
    hosts: int
    base: int
    pass_number: int
    pads: bool

    def of(self, first: int) -> tuple[int, int]:
        """(item that keys random numbers, step in the pass) of the batch that begins at a local position."""
        step = (self.item + (first - self.origin) * self.hosts) // self.global_batch
        return self.base + first * self.hosts + self.host, step


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunk:
    """What to read and encode.

    Attributes:
        number: 0, 1, 2, … in the order of positions.
        groups: Places of the chunk, all of them in order, cut where batches end unless something is dropped; empty
            where nothing is known of batches.
        draws: One item a position.
        size_bytes: What reading it takes, known from the index.
        first: Local position of the first one.
        batch_size: Of the host's batches; 0 where positions do not tell which batch a sample belongs to.
        numbers: Of the batches; None: they are not wanted.
        arrival: Of what is fetched ahead; None: nothing is.
    """

    number: int
    draws: Draws
    size_bytes: int
    groups: tuple[range, ...] = ()
    first: int = 0
    batch_size: int = 0
    numbers: BatchNumbers | None = None
    prefetched: PrefetchedChunk | None = None

    def whole_batches(self) -> Iterator[range]:
        """Places of the batches that lie in this chunk as a whole."""
        return (group for group in self.groups if len(group) == self.batch_size)

    def batches_of(self, places: npt.NDArray[np.intp]) -> Callable[[int], int] | None:
        """Number of the batch of each of some places, if no sample is dropped; None: nobody can tell."""
        if not self.batch_size:
            return None
        return lambda place: (self.first + int(places[place])) // self.batch_size


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MadeBatch:
    """A batch that was made where its samples were; it stands at the place of its first one, None at the others'."""

    batch: Any
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoded:
    """A chunk, done.

    Attributes:
        outcomes: One entry a position: the encoded sample, or the `Dropped` in its stead; `PartialItem` where some of a
            pack's samples were dropped; or, where nothing was, a `MadeBatch` and None for all of its samples.
        restore_keys: One a position.
        drops: How many of the outcomes are `Dropped` or `PartialItem`.
        size_bytes: Estimate of the memory that the outcomes hold.
        made: Whether there are made batches.
        work: What making it took; None: nobody took the time.
    """

    outcomes: list[Any]
    restore_keys: list[tuple[Any, ...]]
    drops: int
    size_bytes: int
    made: bool = False
    work: Work | None = None


MAX_CHUNK = 8_192
"""Samples that are read at once, of few leaves."""
SAMPLES_OF_A_LEAF = 16
"""Samples that are read at once, of many leaves for each of them: a call for each costs as much as these take."""
CHUNK_SECONDS = 0.1
"""A chunk is cut so that it takes about this long at most (slow hooks, large pictures)."""
LEAF_SECONDS = 1e-4
"""So much longer for each leaf: with fewer samples of each a chunk of many leaves hardly ends sooner."""
CHUNK_BYTES = 16 << 20
"""A chunk is cut so that its samples hold about this much memory: smaller ones cost numpy calls, larger ones caches."""
_BATCH_STRETCH = 4
"""A chunk may be this much larger than its bounds where it takes that to hold a whole batch."""


class ChunkPace:
    """Learns the size of chunks from the time that the last one took. It changes speed alone, never what is made.

    Args:
        first: Size of the first chunks, a batch: small, so that the first one does not wait for more than itself. They
            are no smaller later, where that many take at most four times as long as a chunk may.

    Attributes:
        samples: What a chunk may hold at most now.
        size_bytes: What it may take to read at most now, so that it holds `CHUNK_BYTES` once it is decoded.
    """

    def __init__(self, first: int, leaves: int = 1) -> None:
        self._most = max(MAX_CHUNK, SAMPLES_OF_A_LEAF * leaves)
        self._seconds = CHUNK_SECONDS + LEAF_SECONDS * (leaves - 1)
        self._batch = self.samples = min(first, self._most)
        self.size_bytes = CHUNK_BYTES

    def timed(self, run: Callable[[Chunk], Encoded]) -> Callable[[Chunk], Encoded]:
        """`run`, with each call's time learnt from. It begins when what is fetched ahead is there."""

        def measure(chunk: Chunk) -> Encoded:
            if chunk.prefetched is not None:
                chunk.prefetched.wait()
            start = time.perf_counter()
            encoded = run(chunk)
            self.learn(chunk, encoded, time.perf_counter() - start)
            return encoded

        return measure

    def learn(self, chunk: Chunk, encoded: Encoded, seconds: float) -> None:
        """Take in that encoding a chunk took so long."""
        fitting = int(len(chunk.draws) * self._seconds / max(seconds, 1e-6))
        if fitting < self._batch <= _BATCH_STRETCH * fitting:
            fitting = self._batch  # pictures of a batch are decoded into one array, and its hooks run where they are
        self.samples = max(1, min(self._most, 2 * self.samples, fitting))
        self.size_bytes = CHUNK_BYTES * max(1, chunk.size_bytes) // max(1, encoded.size_bytes, chunk.size_bytes)


MAX_PLAN = 32_768
"""Positions that are drawn at once."""


def plan_chunks(
    spec: StreamSpec,
    sources: Sources,
    share: Share,
    *,
    pass_number: int,
    first: int,
    batch_size: int,
    pace: ChunkPace,
    numbers: Callable[[], BatchNumbers | None] = lambda: None,
    origin: int = 0,
    ahead: LookAhead | None = None,
    work: Places | None = None,
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
        work: Says which items the host gets; None: one of each so many.
    """
    number = 0
    plans = _plans(spec, sources, share, pass_number, first, pace, ahead, work)
    padded = None if work is None else work.whole_until
    for plan in plans if ahead is None else _one_plan_ahead(plans):
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
                numbers=numbers() if padded is None or first + until <= padded else None,
                prefetched=None if plan.prefetched is None else plan.prefetched.until(until),
            )
            number += 1
            begin = until


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Plan:
    """Draws of consecutive positions.

    Attributes:
        totals: (n + 1,) bytes that reading the items before each one takes.
        coming: What is fetched ahead of them.
    """

    first: int
    draws: Draws
    totals: npt.NDArray[np.int64]
    prefetched: Prefetched | None


def _plans(
    spec: StreamSpec,
    sources: Sources,
    share: Share,
    pass_number: int,
    first: int,
    pace: ChunkPace,
    ahead: LookAhead | None,
    work: Places | None,
) -> Iterator[_Plan]:
    """The first is small, so that the first batch does not wait for more than itself."""
    end = local_end(spec, share, pass_number) if work is None else work.end
    size = pace.samples
    bound = MAX_PLAN if work is None else max(size, MAX_PLAN // share.hosts)  # where all hosts' items are looked at
    while end is None or first < end:
        stop = first + size if end is None else min(first + size, end)
        positions = share.to_global(np.arange(first, stop))
        if work is not None:
            positions = work.positions(work.items(positions))
        draws = spec.order.draw(positions, pass_number)
        totals = np.concatenate([[0], np.cumsum(sources.sizes(draws))])
        # Of large packs fewer: it is samples that are bounded.
        most = max(1, bound * len(draws) // max(1, len(draws.leaf)))
        prefetched = None
        if ahead:
            prefetched = ahead.fetch(draws[: max(1, int(np.searchsorted(totals, ahead.step_bytes, side="right")) - 1)])
            draws, totals = draws[: len(prefetched)], totals[: len(prefetched) + 1]
        yield _Plan(first=first, draws=draws, totals=totals, prefetched=prefetched)
        first += len(draws)
        size = most if ahead else min(size * 4, most)


def _one_plan_ahead(plans: Iterator[_Plan]) -> Iterator[_Plan]:
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
