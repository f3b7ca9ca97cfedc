# SPDX-License-Identifier: Apache-2.0
"""The unit of work, a chunk: positions that are read and encoded together. Also its size, and cutting into chunks.

Chunks are short, because `close`, Ctrl-C and the first batch wait for whole chunks. Draws are made for tens of
thousands of positions at once; reads are limited in bytes.
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
from energon_grain.stream.memory import look_ahead
from energon_grain.stream.passes import Share
from energon_grain.stream.places import Places
from energon_grain.stream.spec import StreamSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNumbers:
    """How the batches of a host are numbered while nothing is dropped. Used to make batches where their samples are.

    Attributes:
        origin: Local position at which some batch begins.
        item: Global item at which the step of that batch begins.
        global_batch: G, items of a step.
        base: Number of the first item of the pass among the items of all passes.
        pass_number: Number of the pass, for random numbers.
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


_SAMPLE_BYTES = 512
"""Memory of a sample's objects: the least that a sample takes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunk:
    """Samples to read and encode.

    Attributes:
        number: 0, 1, 2, … in the order of positions.
        groups: Index ranges of the chunk, in order, cut where batches end unless something is dropped. Empty if the
            batches are unknown.
        draws: One item per position.
        size_bytes: Bytes to read, known from the index.
        first: Local position of the first item.
        batch_size: Batch size of the host; 0 if positions do not determine the batch of a sample.
        numbers: Numbers of the batches; None: batches are not made with the chunk.
        prefetched: Handle of the prefetched bytes; None: nothing is prefetched.
    """

    number: int
    draws: Draws
    size_bytes: int
    groups: tuple[range, ...] = ()
    first: int = 0
    batch_size: int = 0
    numbers: BatchNumbers | None = None
    prefetched: PrefetchedChunk | None = None

    @property
    def held_bytes(self) -> int:
        """Estimated memory of its samples before decoding, with their objects."""
        return max(self.size_bytes, _SAMPLE_BYTES * len(self.draws.leaf))

    def whole_batches(self) -> Iterator[range]:
        """Index ranges of the batches that are completely in this chunk."""
        return (group for group in self.groups if len(group) == self.batch_size)

    def batches_of(self, places: npt.NDArray[np.intp]) -> Callable[[int], int] | None:
        """Function from index to batch number, valid if no sample is dropped; None: the batches are unknown."""
        if not self.batch_size:
            return None
        return lambda place: (self.first + int(places[place])) // self.batch_size


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MadeBatch:
    """A batch that was made where its samples are. It takes the place of its first sample; the others become None."""

    batch: Any
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoded:
    """An encoded chunk.

    Attributes:
        outcomes: One entry per position: the encoded sample, `Dropped`, or `PartialItem` if some samples of a pack were
            dropped. If nothing was dropped, also a `MadeBatch` followed by None for its other samples.
        restore_keys: One per position.
        drops: Number of outcomes that are `Dropped` or `PartialItem`.
        size_bytes: Estimated memory of the outcomes.
        made: Whether outcomes contain made batches.
        work: Measured work; None: not measured.
        hooks_s: Time that the hooks on samples took.
    """

    outcomes: list[Any]
    restore_keys: list[tuple[Any, ...]]
    drops: int
    size_bytes: int
    made: bool = False
    work: Work | None = None
    hooks_s: float = 0.0


MAX_CHUNK = 8_192
"""Samples read at once if the dataset has few leaves."""
SAMPLES_OF_A_LEAF = 16
"""Samples per leaf read at once if there are many leaves: the call for a leaf costs as much as this many samples."""
CHUNK_SECONDS = 0.1
"""A chunk is cut to take at most about this long."""
HOOK_SECONDS = 0.01
"""Slow hooks take at most about this long, times the number of threads, if a chunk has more than a batch: the other
threads wait while one begins or ends a chunk, for about 1 ms."""
_SLOW_SECONDS = 1e-4
LEAF_SECONDS = 1e-4
"""Extra time per leaf: with fewer samples per leaf, a chunk of many leaves is hardly faster."""
_BATCH_STRETCH = 4
"""A chunk may exceed its limits by this factor in order to hold a whole batch."""
_REMEMBERED = 0.95
"""Weight of the times of earlier chunks, relative to the next one: the times of some samples differ by far."""


class ChunkPace:
    """Adapts the chunk size to the time that chunks take. It affects speed only, never the results.

    Args:
        first: Size of the first chunks: one batch, so the first batch waits for nothing else. Later chunks are at least
            this large, if they take at most four times the time limit of a chunk.

    Attributes:
        samples: Current maximum number of samples of a chunk.
        in_order: The same if a slow sample delays the others of its chunk.
        size_bytes: Current maximum number of bytes to read for a chunk, so that it holds `chunk_bytes` when decoded.
        depth: Current maximum number of chunks that are read ahead; see `OrderedWorkers`.
        budget_bytes: Limit on the memory of samples that are read ahead.
        threads: Number of threads that take chunks.
    """

    def __init__(self, first: int, leaves: int = 1) -> None:
        self._most = max(MAX_CHUNK, SAMPLES_OF_A_LEAF * leaves)
        self._seconds = CHUNK_SECONDS + LEAF_SECONDS * (leaves - 1)
        self._batch = self.samples = min(first, self._most)
        self.in_order = self._most
        self.size_bytes = look_ahead.chunk_bytes
        self.depth, self.threads = 4, 1
        self.budget_bytes = 1 << 62
        self._sample_bytes = 1.0
        self._recent = 0.0, 0.0, 0.0

    @property
    def ahead(self) -> int:
        """Current maximum number of samples that are read ahead."""
        return min(self.depth * self.samples, int(self.budget_bytes / self._sample_bytes))

    def timed(self, run: Callable[[Chunk], Encoded]) -> Callable[[Chunk], Encoded]:
        """`run`, wrapped to learn from the time of each call. The time starts when prefetched bytes have arrived."""

        def measure(chunk: Chunk) -> Encoded:
            if chunk.prefetched is not None:
                chunk.prefetched.wait()
            start = time.perf_counter()
            encoded = run(chunk)
            self.learn(chunk, encoded, time.perf_counter() - start)
            return encoded

        return measure

    def learn(self, chunk: Chunk, encoded: Encoded, seconds: float) -> None:
        """Adapt to the time that encoding a chunk took."""
        now = len(chunk.draws), max(seconds, 1e-6), encoded.hooks_s
        samples, whole_s, hooks_s = self._recent = tuple(
            _REMEMBERED * before + more for before, more in zip(self._recent, now, strict=True)
        )
        fitting = int(self._seconds * max(samples / whole_s, now[0] / now[1]))  # slow samples shrink it, but slowly
        if fitting < self._batch <= _BATCH_STRETCH * fitting:
            fitting = self._batch  # a batch of images is decoded into one array, and its hooks run in the same worker
        self.samples = max(1, min(self._most, 2 * self.samples, fitting))
        waits = self.threads > 1 and hooks_s > _SLOW_SECONDS * samples
        self.in_order = max(self._batch, int(samples * HOOK_SECONDS * self.threads / hooks_s)) if waits else self._most
        self._sample_bytes = max(_SAMPLE_BYTES, encoded.size_bytes / max(1, len(chunk.draws.leaf)))
        most, read = look_ahead.chunk_bytes, max(1, chunk.size_bytes)
        self.size_bytes = most * read // max(encoded.size_bytes, read)


MAX_PLAN, _SIZES_DRAWN = 32_768, 8
"""Positions drawn at once; plans that share these if prefetches are short, as drawing a few costs as much as many."""


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
    """Chunks of one host's positions, from local position `first` to the end of the pass (or endless).

    Args:
        spec: The compiled dataset.
        sources: The sources of its leaves.
        share: This host's share.
        pass_number: Number of the pass.
        first: Local position of the first chunk.
        batch_size: Batch size of the host.
        pace: Limits on the size of a chunk.
        numbers: Called for each chunk: how its batches are numbered; None: do not make batches with it.
        origin: Local position at which some batch begins.
        ahead: Prefetches bytes from object stores.
        work: Assigns items to hosts; None: hosts take turns.
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
            until = min(max(fits, begin + 1), begin + min(pace.samples, pace.in_order), len(draws))
            # End at the end of a batch, unless that leaves the chunk empty.
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
        totals: (n + 1,) bytes to read for the items before each one.
        prefetched: Prefetched bytes of the draws.
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
    """The plans of a pass. The first plan is small, so the first batch waits for nothing else."""
    known = local_end(spec, share, pass_number) if work is None else work.end
    end = 1 << 62 if known is None else known
    size, drawn_at_once = pace.samples, 0
    bound = MAX_PLAN if work is None else max(size, MAX_PLAN // share.hosts)  # `work` inspects the items of all hosts
    while first < end:
        begin, until = first, min(first + max(size, drawn_at_once), end)
        positions = share.to_global(np.arange(begin, until))
        positions = positions if work is None else work.positions(work.items(positions))
        drawn = spec.order.draw(positions, pass_number)
        before = np.concatenate([[0], np.cumsum(sources.sizes(drawn))])
        stop = min(first + size, until)
        while first < stop <= until:
            draws, totals = drawn[first - begin : stop - begin], before[first - begin : stop - begin + 1]
            # Fewer items if packs are large: the limit counts samples.
            most = max(1, bound * len(draws) // max(1, len(draws.leaf)))
            prefetched = None
            if ahead:
                fitting = int(np.searchsorted(totals, totals[0] + ahead.step_bytes, side="right")) - 1
                prefetched = ahead.fetch(draws[: max(1, fitting)])
                draws, totals = draws[: len(prefetched)], totals[: len(prefetched) + 1]
            yield _Plan(first=first, draws=draws, totals=totals - totals[0], prefetched=prefetched)
            size = min(2 * len(draws), most) if len(draws) < stop - first else most if ahead else min(size * 4, most)
            first += len(draws)
            stop = min(first + size, end)
        drawn_at_once = min(_SIZES_DRAWN * size, bound) if ahead else 0


def _one_plan_ahead(plans: Iterator[_Plan]) -> Iterator[_Plan]:
    """The same plans, each requested before the previous one is used."""
    before = next(plans, None)
    while before is not None:
        after = next(plans, None)
        yield before
        before = after


def _groups(first: int, stop: int, batch_size: int) -> tuple[range, ...]:
    """Positions first, …, stop - 1 as ranges relative to `first`, cut at multiples of the batch size."""
    cuts = [first, *range(first + batch_size - first % batch_size, stop, batch_size), stop]
    return tuple(range(begin - first, end - first) for begin, end in itertools.pairwise(cuts))


def local_end(spec: StreamSpec, share: Share, pass_number: int) -> int | None:
    """Positions of this host in a pass; None: endless."""
    length = spec.length(pass_number)
    return None if length is None else share.first_at(length)
