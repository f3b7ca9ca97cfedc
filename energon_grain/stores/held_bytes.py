# SPDX-License-Identifier: Apache-2.0
"""Bytes of objects that are held in memory until their last planned use, within a limit.

The look-ahead asks for the bytes of each step before the step is read (`fetching`). Bytes that are held, or in flight,
are not fetched again, and move to the end of the line: those that no recent step needed are dropped first. This is
Belady's rule (A study of replacement algorithms, IBM Systems Journal 5(2), 1966) as far as the plan reaches.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

from energon_grain.storage.cores import reset_after_fork
from energon_grain.stores.held_memory import limited

_holding = reset_after_fork(threading.Lock())
"""Lock of all held ranges; held for microseconds."""
_Gap = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _InFlight:
    start: int
    stop: int
    arrived: threading.Event
    process: int

    def overlaps(self, start: int, stop: int) -> bool:
        return self.start < stop and self.stop > start


class HeldRanges:
    """Ranges of objects in memory, up to a limit; the least recently planned are dropped first. Thread-safe.

    Attributes:
        limit_bytes: Maximum size of the held bytes, except that a single range may be larger. It may be changed.
        size_bytes: Their size.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._held: dict[str, list[tuple[int, memoryview]]] = {}  # by start, without overlaps
        self._order: dict[tuple[str, int], None] = {}
        self._in_flight: dict[str, list[_InFlight]] = {}

    def add(self, name: str, start: int, pieces: Iterable[bytes | memoryview]) -> None:
        """Add the bytes of an object from `start` on, in consecutive pieces, except those already held."""
        with _holding:
            ranges = self._held.setdefault(name, [])
            for piece in pieces:
                data = memoryview(piece)
                for begin, end in _gaps(ranges, start, start + len(data)):
                    ranges.insert(bisect_left(ranges, begin, key=_start), (begin, data[begin - start : end - start]))
                    self._order[name, begin] = None
                    self.size_bytes += end - begin
                start += len(data)
            self._drop_oldest()

    def missing(self, name: str, start: int, stop: int) -> list[_Gap]:
        """The parts of bytes [start, stop) that are not held. The others are held longer."""
        with _holding:
            ranges = self._held.get(name, [])
            for begin, data in _overlapping(ranges, start, stop):
                if begin + len(data) > start:
                    del self._order[name, begin]
                    self._order[name, begin] = None
            return _gaps(ranges, start, stop)

    @contextlib.contextmanager
    def fetching(
        self, name: str, ranges: Iterable[_Gap], merge_gap_bytes: int = 0
    ) -> Generator[tuple[list[_Gap], set[threading.Event]]]:
        """Yield the missing parts of ranges that this thread must fetch and `add` inside the block, and events.

        Missing parts at most `merge_gap_bytes` apart are one.

        The events are set when other threads have fetched the other parts, or failed. Wait for them after the block.
        """
        process, mine = os.getpid(), threading.Event()  # another process after a fork: nothing is in flight
        with _holding:
            flying = self._in_flight.setdefault(name, [])
            others = [each for each in flying if each.process == process]
            held = self._held.get(name, [])
            wanted = _merged((gap for start, stop in ranges for gap in _gaps(held, start, stop)), merge_gap_bytes)
            claimed = [_InFlight(*part, mine, process) for gap in wanted for part in _not_in_flight(others, *gap)]
            events = {
                each.arrived for each in others for start, stop in wanted if each.start < stop and each.stop > start
            }
            flying += claimed
        try:
            yield [(each.start, each.stop) for each in claimed], events
        finally:
            with _holding:
                for each in claimed:
                    flying.remove(each)
                if not flying and self._in_flight.get(name) is flying:
                    del self._in_flight[name]
            mine.set()

    def read(self, name: str, start: int, stop: int) -> bytes | None:
        """Bytes [start, stop), or None if they are not all held."""
        parts: list[memoryview] = []
        at = start
        with _holding:
            for begin, data in _overlapping(self._held.get(name, []), start, stop):
                if begin > at:
                    return None
                if part := data[at - begin : stop - begin]:
                    parts.append(part)
                    at += len(part)
        if at < stop:
            return None
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def discard(self, prefix: str) -> None:
        """Drop all objects whose names begin with a prefix."""
        with _holding:
            for name in [name for name in self._held if name.startswith(prefix)]:
                for begin, data in self._held.pop(name):
                    self.size_bytes -= len(data)
                    del self._order[name, begin]

    def _drop_oldest(self) -> None:
        while self.size_bytes > self.limit_bytes and len(self._order) > 1:
            name, start = next(iter(self._order))
            del self._order[name, start]
            ranges = self._held[name]
            self.size_bytes -= len(ranges.pop(bisect_left(ranges, start, key=_start))[1])
            if not ranges:
                del self._held[name]


def _merged(gaps: Iterable[_Gap], gap_bytes: int) -> list[_Gap]:
    found: list[_Gap] = []
    for start, stop in sorted(gaps):
        if found and start - found[-1][1] <= gap_bytes:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((start, stop))
    return found


def _not_in_flight(flights: Iterable[_InFlight], start: int, stop: int) -> Iterator[_Gap]:
    for each in sorted(flights, key=lambda flight: flight.start):
        if each.overlaps(start, stop):
            if each.start > start:
                yield start, each.start
            start = each.stop
    if start < stop:
        yield start, stop


def _start(held: tuple[int, memoryview]) -> int:
    return held[0]


def _overlapping(ranges: list[tuple[int, memoryview]], start: int, stop: int) -> list[tuple[int, memoryview]]:
    """The held ranges in [start, stop); the first one may end before it."""
    first = max(0, bisect_right(ranges, start, key=_start) - 1)
    return ranges[first : bisect_left(ranges, stop, key=_start)]


def _gaps(ranges: list[tuple[int, memoryview]], start: int, stop: int) -> list[_Gap]:
    found: list[_Gap] = []
    at = start
    for begin, data in _overlapping(ranges, start, stop):
        if begin > at:
            found.append((at, begin))
        at = max(at, begin + len(data))
    if at < stop:
        found.append((at, stop))
    return found


@functools.cache
def held_ranges(limit_bytes: int) -> HeldRanges:
    """The ranges held by all readers of this process with this limit."""
    return limited(HeldRanges(limit_bytes))
