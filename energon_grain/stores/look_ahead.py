# SPDX-License-Identifier: Apache-2.0
"""Fetching the bytes of coming samples from object stores, in requests of megabytes, many at a time.

A chunk of samples takes small pieces from dozens of places. Positions are known long before, though: those of some
hundred megabytes together take long runs of bytes, and these are fetched while the ones before are read.
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
from energon_grain.sources.source import Source
from energon_grain.storage.cancellation import Cancellation, Cancelled, cancelled_by
from energon_grain.storage.remote import RemoteFiles
from energon_grain.stream.clock import Clock
from energon_grain.stream.index_map import Draws
from energon_grain.stream.observer import Outlet

Int64Array = npt.NDArray[np.int64]
_Range = tuple[RemoteFiles, str, int, int]  # path, first byte, one past the last
_LOOK_SECONDS = 0.2
_STRETCH = 1.5
"""A step may be this much larger with what lies between samples."""
_FEW_DRAWS = 16
_UNCUT_DRAWS = 256


class LookAhead:
    """Fetches the bytes of coming draws, in the order of need: into the block cache, or into memory if there is none.

    A failure is not reported: reading the bytes will meet it again.

    Attributes:
        step_bytes: How much to fetch at a time: what is being read and what is being fetched are two such steps.
        outlet: Where the time that threads waited for it is reported.
    """

    def __init__(self, sources: Sequence[Source], *, in_process: bool, outlet: Outlet) -> None:
        self._sources: dict[int, RemoteSource] = {}
        limits: list[int] = []
        for leaf, source in enumerate(sources):
            if not isinstance(source, RemoteSource):
                continue
            kept = [files.ahead_bytes for files in source.remote_files if in_process or files.keeps_on_disk]
            if kept:
                self._sources[leaf] = source
                limits += kept
        self._in_process = in_process
        self.step_bytes = min(limits, default=0) // 2
        if self.step_bytes == 0:
            self._sources = {}
        self._threads: ThreadPoolExecutor | None = None
        self._in_vain = False
        self._over = Cancellation()
        self.outlet = outlet

    def __bool__(self) -> bool:
        """Whether there is anything to fetch."""
        return bool(self._sources) and not self._in_vain

    def fetch(self, draws: Draws) -> Prefetched:
        """Begin to fetch what draws take, or the first of them if with what lies between it would be too much."""
        draws = draws[: _well_cut(draws)]
        ranges, (place, span) = self._ranges(draws)
        while (
            len(draws) > _FEW_DRAWS
            and (size_bytes := sum(stop - start for *_, start, stop in ranges)) > _STRETCH * self.step_bytes
        ):
            draws = draws[: max(_FEW_DRAWS, len(draws) * self.step_bytes // size_bytes)]
            ranges, (place, span) = self._ranges(draws)
        wanted = np.full(len(ranges), len(draws), np.int64)
        np.minimum.at(wanted, span, place)
        rank = np.full(len(ranges), -1, np.int64)
        futures: list[Future[None]] = []
        for number in np.argsort(wanted, kind="stable").tolist():
            files, path, start, stop = ranges[number]
            if not files.is_kept(path, start, stop):
                rank[number] = len(futures)
                futures.append(self._submit(files, path, start, stop))
        needed = np.zeros(len(draws), np.int64)
        if futures:
            np.maximum.at(needed, place, rank[span] + 1)
        return Prefetched(self, futures, np.maximum.accumulate(needed))

    def _ranges(self, draws: Draws) -> tuple[list[_Range], tuple[Int64Array, Int64Array]]:
        """What to fetch; and for each piece of a sample which draw takes it and in which range it lies."""
        ranges: list[_Range] = []
        places_of, spans_of = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        asked = [(leaf, places, own) for leaf, places, own in draws.by_leaf() if leaf in self._sources]
        files = self._sources[asked[0][0]].remote_files if asked else ()
        for (_, places, _), extents in zip(asked, side_by_side(self._extents, asked, files), strict=True):
            for each in extents:
                if not (self._in_process or each.files.keeps_on_disk):
                    continue
                spans = each.spans
                places_of.append(places[each.owner])
                spans_of.append(spans.span + len(ranges))
                runs = zip(spans.file.tolist(), spans.start.tolist(), spans.stop.tolist(), strict=True)
                ranges.extend((each.files, each.paths[int(file)], int(start), int(stop)) for file, start, stop in runs)
        return ranges, (np.concatenate(places_of), np.concatenate(spans_of))

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
        except RuntimeError:  # closed meanwhile, or the interpreter ends
            future: Future[None] = Future()
            future.cancel()
            return future

    def _fetch(self, files: RemoteFiles, path: str, start: int, stop: int) -> None:
        if self._over.is_set() or self._in_vain:
            return
        with cancelled_by(self._over):
            if not files.keep(path, start, stop):
                self._in_vain = True  # what is not kept is fetched again by whoever reads it

    def wait_for(self, future: Future[None]) -> None:
        """Wait for a request, failed or not. Raises Cancelled if this was closed meanwhile."""
        while not self._over.is_set() and not self._in_vain:
            with suppress(TimeoutError, CancelledError, EnergonGrainError, OSError):
                future.result(_LOOK_SECONDS)
            if future.done():
                return
        if self._over.is_set():
            raise Cancelled

    def close(self) -> None:
        """Begin no further request, and give up those under way."""
        self._over.set()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _well_cut(draws: Draws) -> int:
    """Where to end a step, in its second half: where its samples form the fewest runs in relation to their number.

    In a block shuffle that is where windows end; a little later there would be single samples of the next ones.
    """
    count = len(draws)
    if count < _UNCUT_DRAWS or draws.items is not None:  # planned items take samples from everywhere
        return count
    samples = (draws.leaf.astype(np.int64) << 40) + draws.index
    order = np.argsort(samples, kind="stable")
    neighbours = np.flatnonzero(np.diff(samples[order]) == 1)
    # A pair of neighbours is one run less as soon as both are in.
    paired = np.sort(np.maximum(order[neighbours], order[neighbours + 1]))
    lengths = np.arange(count // 2, count + 1)
    runs = lengths - np.searchsorted(paired, lengths, side="left")
    return int(lengths[len(lengths) - 1 - np.argmin((runs / lengths)[::-1])])


class Prefetched:
    """What is being fetched for some draws.

    Args:
        futures: In the order of need.
        needed: (n,) how many of them the draws up to each one need.
    """

    def __init__(self, ahead: LookAhead, futures: list[Future[None]], needed: Int64Array) -> None:
        self._ahead = ahead
        self._futures = futures
        self._needed = needed
        self._done = 0

    def __len__(self) -> int:
        """How many draws it is for."""
        return len(self._needed)

    def until(self, stop: int) -> PrefetchedChunk:
        """When the bytes of the first `stop` draws are there."""
        return PrefetchedChunk(self, int(self._needed[stop - 1]) if stop else 0)

    def wait(self, count: int) -> None:
        """Wait for the first futures."""
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
    """When the bytes of a chunk are there. In another process: at once.

    Attributes:
        coming: What they are a part of; None: nothing is awaited.
        count: How many of its requests.
    """

    prefetched: Prefetched | None
    count: int

    def wait(self) -> None:
        """Wait until they are there, or cannot be had. Raises Cancelled if nobody wants them any more."""
        if self.prefetched is not None:
            self.prefetched.wait(self.count)

    def __reduce__(self) -> tuple[type[PrefetchedChunk], tuple[None, int]]:
        return PrefetchedChunk, (None, 0)
