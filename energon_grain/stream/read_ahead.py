"""Fetching what lies in object stores ahead of need: in requests of megabytes, many at a time.

A chunk of samples takes small pieces from dozens of places. Positions are known long before, though: those of some
hundred megabytes together take long runs of bytes, and these are fetched while the ones before are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from energon_grain.errors import EnergonGrainError
from energon_grain.sources.source import Source
from energon_grain.storage.remote_files import RemoteFiles
from energon_grain.storage.spans import Spans
from energon_grain.stream.draws import Draws

_LOOK_SECONDS = 0.2


@runtime_checkable
class FetchedAhead(Protocol):
    """A source whose bytes may lie in an object store."""

    @property
    def remote_files(self) -> RemoteFiles | None:
        """What reads them; None: they lie on this machine."""
        ...

    def extents(self, indices: npt.NDArray[np.int64]) -> tuple[Spans, npt.NDArray[np.int64], Sequence[str]]:
        """Long runs of bytes that hold samples, the sample that each range belongs to, and names of the objects.

        Raises:
            ReadError: The store cannot be reached.
        """
        ...


class ReadAhead:
    """Fetches the bytes of coming draws, in the order of need: into the block cache, or into memory if there is none.

    Where that fails nothing is said: whoever reads the bytes will meet the failure.

    Args:
        sources: Of all leaves.
        in_process: Whether it is this process that reads.

    Attributes:
        step_bytes: How much to fetch at a time: what is being read, what is being fetched and what lies between samples
            of either are within what the settings allow.
    """

    def __init__(self, sources: Sequence[Source], *, in_process: bool) -> None:
        self._sources: dict[int, tuple[FetchedAhead, RemoteFiles]] = {}
        for leaf, source in enumerate(sources):
            if not isinstance(source, FetchedAhead):
                continue
            files = source.remote_files
            if files is not None and (in_process or files.keeps_on_disk):
                self._sources[leaf] = source, files
        limits = [files.ahead_bytes for _, files in self._sources.values()]
        self.step_bytes = min(limits, default=0) // 3
        if self.step_bytes == 0:
            self._sources = {}
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False

    def __bool__(self) -> bool:
        """Whether there is anything to fetch."""
        return bool(self._sources) and not self._closed

    def fetch(self, draws: Draws) -> Coming:
        """Begin to fetch what draws take."""
        ranges: list[tuple[RemoteFiles, str, int, int]] = []
        first, rows = [np.empty(0, np.int64)], [(np.empty(0, np.int64), np.empty(0, np.int64))]
        for leaf, places in draws.by_leaf():
            found = self._sources.get(leaf)
            if found is None:
                continue
            source, files = found
            try:
                spans, owner, paths = source.extents(draws.index[places])
            except (EnergonGrainError, OSError):
                continue
            wanted = np.full(len(spans.file), len(draws), np.int64)
            np.minimum.at(wanted, spans.span, places[owner])
            first.append(wanted)
            rows.append((places[owner], spans.span + len(ranges)))
            runs = zip(spans.file.tolist(), spans.start.tolist(), spans.stop.tolist(), strict=True)
            ranges.extend((files, paths[int(file)], int(start), int(stop)) for file, start, stop in runs)
        order = np.argsort(np.concatenate(first), kind="stable")
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        needed = np.zeros(len(draws), np.int64)
        for place, span in rows:
            np.maximum.at(needed, place, rank[span] + 1)
        futures = [self._submit(*ranges[number]) for number in order.tolist()]
        return Coming(self, futures, np.maximum.accumulate(needed))

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
        if not self._closed and not files.keep(path, start, stop):
            self._closed = True  # what is not kept is fetched again by whoever reads it

    @property
    def closed(self) -> bool:
        """Whether nothing is fetched any more."""
        return self._closed

    def close(self) -> None:
        """Begin no further request, and let nobody wait for those under way."""
        self._closed = True
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


class Coming:
    """What is being fetched for some draws.

    Args:
        ahead: Who fetches.
        futures: In the order of need.
        needed: (n,) how many of them the draws up to each one need.
    """

    def __init__(self, ahead: ReadAhead, futures: list[Future[None]], needed: npt.NDArray[np.int64]) -> None:
        self._ahead = ahead
        self._futures = futures
        self._needed = needed
        self._done = 0

    def until(self, stop: int) -> Arrival:
        """When the bytes of the first `stop` draws are there."""
        return Arrival(self, int(self._needed[stop - 1]) if stop else 0)

    def wait(self, count: int) -> None:
        """Wait for the first futures."""
        while self._done < count and not self._ahead.closed:
            done = self._done
            with suppress(TimeoutError, CancelledError, EnergonGrainError, OSError):
                self._futures[done].result(_LOOK_SECONDS)
            if self._futures[done].done():
                self._done = max(self._done, done + 1)


@dataclass(frozen=True, slots=True)
class Arrival:
    """When the bytes of a chunk are there. In another process: at once.

    Attributes:
        coming: What they are a part of; None: nothing is awaited.
        count: How many of its requests.
    """

    coming: Coming | None
    count: int

    def wait(self) -> None:
        """Wait until they are there, or cannot be had."""
        if self.coming is not None:
            self.coming.wait(self.count)

    def __reduce__(self) -> tuple[type[Arrival], tuple[None, int]]:
        return Arrival, (None, 0)
