# SPDX-License-Identifier: Apache-2.0
"""Prefetch the bytes of upcoming samples from object stores, in parallel requests of megabytes.

A chunk of samples needs small pieces from dozens of places. But positions are known long in advance: together, those of
some hundred megabytes form long runs of bytes. These are fetched while earlier ones are read. If fewer samples form
ranges of useful size, a step has only an eighth of what was fetched before, so that a short run fetches little that it
does not use.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from energon_grain.errors import EnergonGrainError
from energon_grain.sources.remote_runs import RemoteExtents, RemoteSource, side_by_side
from energon_grain.sources.rows import SelectedSource
from energon_grain.sources.source import Source
from energon_grain.storage.cancellation import Cancellation, Cancelled, cancelled_by
from energon_grain.storage.remote import RemoteFiles
from energon_grain.stream.clock import Clock
from energon_grain.stream.index_map import Draws
from energon_grain.stream.memory import look_ahead
from energon_grain.stream.observer import Outlet

Int64Array = npt.NDArray[np.int64]
_Range = tuple[RemoteFiles, str, int, int]  # path, first byte, one past the last
_POLL_SECONDS = 0.2
_MAX_GAP_FACTOR = 1.5
"""Maximum factor by which gaps between samples may enlarge a step."""
_FIRST_STEP_BYTES = 24 << 20
_STEP_SHARE = 8
"""A short step has one in this many of the bytes that were fetched before. Two steps are fetched and not yet used."""
_TRIAL_BYTES = 96 << 20
_TRIAL_RANGE_BYTES = 64 << 10
_LEAST_RANGE_BYTES = 1 << 20
"""Minimum mean size of the ranges of a short step, at first and later. With dozens of requests under way, the latency
of one equals about 100 KiB, so the first bytes may take twice the time. Later ones take hardly more."""
_FEW_DRAWS = 16
_UNCUT_DRAWS = 256


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """Draws and their bytes.

    Attributes:
        ranges: The ranges to fetch.
        place: (n,) the draw of each piece of a sample.
        span: (n,) its range.
    """

    draws: Draws
    ranges: list[_Range]
    place: Int64Array
    span: Int64Array

    @property
    def size_bytes(self) -> int:
        return sum(stop - start for *_, start, stop in self.ranges)


class LookAhead:
    """Prefetches the bytes of upcoming draws, in the order of need: into the block cache, or into memory without one.

    Errors are not reported: reading the bytes will raise them again.

    Attributes:
        outlet: Receives the time that threads waited for prefetched bytes.
    """

    def __init__(self, sources: Sequence[Source], *, in_process: bool, outlet: Outlet) -> None:
        self._sources: dict[int, RemoteSource] = {}
        limits: list[int] = []
        for leaf, source in enumerate(sources):
            if not isinstance(source, SelectedSource | RemoteSource):
                continue
            kept = [files for files in source.remote_files if in_process or files.caches_on_disk]
            if kept:
                self._sources[leaf] = source
                limits += [files.settings.ahead_bytes if in_process else files.ahead_bytes for files in kept]
        self._in_process = in_process
        self._most_bytes = self._step_bytes = min(limits, default=0) // 2
        self._ready_bytes = 0
        if self._most_bytes == 0:
            self._sources = {}
        self._fetched_bytes = 0
        self._check_at_bytes = 0
        self._is_short = False
        self._threads: ThreadPoolExecutor | None = None
        self._not_cached = False
        self._cancellation = Cancellation()
        self.outlet = outlet

    def __bool__(self) -> bool:
        """Whether there is anything to prefetch."""
        return bool(self._sources) and not self._not_cached

    @property
    def step_bytes(self) -> int:
        """Bytes per step; at any time one step is read and one is prefetched. Bytes that are cached take no memory."""
        return min(self._step_bytes, max(look_ahead.step_bytes, self._ready_bytes))

    def fetch(self, draws: Draws) -> Prefetched:
        """Start to prefetch the bytes of draws, or of the first of them if all with their gaps are too much."""
        step = self._step(draws)
        draws, ranges = step.draws, step.ranges
        self._fetched_bytes += step.size_bytes
        self._step_bytes = min(self._most_bytes, 2 * self._short_bytes) if self._is_short else self._most_bytes
        wanted = np.full(len(ranges), len(draws), np.int64)
        np.minimum.at(wanted, step.span, step.place)
        rank = np.full(len(ranges), -1, np.int64)
        futures: list[Future[None]] = []
        for number in np.argsort(wanted, kind="stable").tolist():
            files, path, start, stop = ranges[number]
            if not files.is_prefetched(path, start, stop):
                rank[number] = len(futures)
                futures.append(self._submit(files, path, start, stop))
        self._ready_bytes = 0 if futures else 2 * step.size_bytes
        needed = np.zeros(len(draws), np.int64)
        if futures:
            np.maximum.at(needed, step.place, rank[step.span] + 1)
        return Prefetched(self, futures, np.maximum.accumulate(needed))

    @property
    def _short_bytes(self) -> int:
        return min(self._most_bytes, max(_FIRST_STEP_BYTES, self._fetched_bytes // _STEP_SHARE))

    def _step(self, draws: Draws) -> _Step:
        """The next step: a short one, unless its requests would be small, which is checked from time to time."""
        trial = self._fetched_bytes < _TRIAL_BYTES
        if self._is_short or self._fetched_bytes >= self._check_at_bytes:
            step = self._step_of(draws, self._short_bytes)
            self._check_at_bytes = 2 * self._fetched_bytes
            least_bytes = _TRIAL_RANGE_BYTES if trial else _LEAST_RANGE_BYTES
            self._is_short = step.size_bytes >= least_bytes * len(step.ranges)
            if self._is_short or len(step.draws) == len(draws):
                return step
        return self._step_of(draws, self._most_bytes)

    def _step_of(self, draws: Draws, most_bytes: int) -> _Step:
        """The first draws whose ranges have about this many bytes."""
        draws = draws[: _well_cut(draws)]
        step = _Step(draws, *self._ranges(draws))
        while len(draws) > _FEW_DRAWS and step.size_bytes > _MAX_GAP_FACTOR * most_bytes:
            draws = draws[: max(_FEW_DRAWS, len(draws) * most_bytes // step.size_bytes)]
            draws = draws[: _well_cut(draws)]
            step = _Step(draws, *self._ranges(draws))
        return step

    def _ranges(self, draws: Draws) -> tuple[list[_Range], Int64Array, Int64Array]:
        """The ranges to fetch; and for each piece of a sample, its draw and its range."""
        ranges: list[_Range] = []
        places_of, spans_of = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        asked = [(leaf, places, own) for leaf, places, own in draws.by_leaf() if leaf in self._sources]
        files = self._sources[asked[0][0]].remote_files if asked else ()
        for (_, places, _), extents in zip(asked, side_by_side(self._extents, asked, files), strict=True):
            for each in extents:
                if not (self._in_process or each.files.caches_on_disk):
                    continue
                spans = each.spans
                places_of.append(places[each.owner])
                spans_of.append(spans.span + len(ranges))
                runs = zip(spans.file.tolist(), spans.start.tolist(), spans.stop.tolist(), strict=True)
                ranges.extend((each.files, each.paths[int(file)], int(start), int(stop)) for file, start, stop in runs)
        return ranges, np.concatenate(places_of), np.concatenate(spans_of)

    def _extents(self, asked: tuple[int, npt.NDArray[np.intp], Draws]) -> list[RemoteExtents]:
        try:
            return self._sources[asked[0]].extents(asked[2].index)
        except (EnergonGrainError, OSError):
            return []

    def _submit(self, files: RemoteFiles, path: str, start: int, stop: int) -> Future[None]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(
                files.settings.requests_in_flight, thread_name_prefix="energon-grain-read-ahead"
            )
        try:
            return self._threads.submit(self._fetch, files, path, start, stop)
        except RuntimeError:  # closed meanwhile, or at interpreter exit
            future: Future[None] = Future()
            future.cancel()
            return future

    def _fetch(self, files: RemoteFiles, path: str, start: int, stop: int) -> None:
        if self._cancellation.is_set() or self._not_cached:
            return
        with cancelled_by(self._cancellation):
            if not files.prefetch(path, start, stop, in_process=self._in_process):
                self._not_cached = True  # bytes that are not cached are fetched again by the reader

    def wait_for(self, future: Future[None]) -> None:
        """Wait for a request, failed or not. Raises Cancelled if `close` was called meanwhile."""
        while not self._cancellation.is_set() and not self._not_cached:
            with suppress(TimeoutError, CancelledError, EnergonGrainError, OSError):
                future.result(_POLL_SECONDS)
            if future.done():
                return
        if self._cancellation.is_set():
            raise Cancelled

    def close(self) -> None:
        """Start no further request, and cancel those in flight."""
        self._cancellation.set()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _well_cut(draws: Draws) -> int:
    """The length of a step, at least half: where its samples form the fewest runs in relation to their number.

    In a block shuffle, windows end there; a slightly longer step would include single samples of the next ones.
    """
    count = len(draws)
    if count < _UNCUT_DRAWS or draws.items is not None:  # planned items use samples from everywhere
        return count
    samples = (draws.leaf.astype(np.int64) << 40) + draws.index
    order = np.argsort(samples, kind="stable")
    neighbours = np.flatnonzero(np.diff(samples[order]) == 1)
    # A pair of neighbours reduces the number of runs by one as soon as both are included.
    paired = np.sort(np.maximum(order[neighbours], order[neighbours + 1]))
    lengths = np.arange(count // 2, count + 1)
    runs = lengths - np.searchsorted(paired, lengths, side="left")
    return int(lengths[len(lengths) - 1 - np.argmin((runs / lengths)[::-1])])


class Prefetched:
    """A prefetch of the bytes of some draws.

    Args:
        futures: Requests in the order of need.
        needed: (n,) the number of them that the draws up to each one need.
    """

    def __init__(self, ahead: LookAhead, futures: list[Future[None]], needed: Int64Array) -> None:
        self._ahead = ahead
        self._futures = futures
        self._needed = needed
        self._done = 0

    def __len__(self) -> int:
        """Number of draws."""
        return len(self._needed)

    def until(self, stop: int) -> PrefetchedChunk:
        """A handle to wait for the bytes of the first `stop` draws."""
        return PrefetchedChunk(self, int(self._needed[stop - 1]) if stop else 0)

    def wait(self, count: int) -> None:
        """Wait for the first `count` requests."""
        if count <= self._done:
            return
        outlet = self._ahead.outlet
        clock = Clock(runs=outlet.timed)
        for future in self._futures[self._done : count]:
            self._ahead.wait_for(future)
        self._done = max(self._done, count)
        clock.lap("storage", "fetch", 0)
        outlet.report_other(clock)


@dataclass(frozen=True, slots=True)
class PrefetchedChunk:
    """A handle to wait for the bytes of a chunk. In another process it does not wait.

    Attributes:
        prefetched: The prefetch; None: nothing to wait for.
        count: Number of its requests to wait for.
    """

    prefetched: Prefetched | None
    count: int

    def wait(self) -> None:
        """Wait until the bytes have arrived or failed. Raises Cancelled if they are no longer needed."""
        if self.prefetched is not None:
            self.prefetched.wait(self.count)

    def __reduce__(self) -> tuple[type[PrefetchedChunk], tuple[None, int]]:
        return PrefetchedChunk, (None, 0)
