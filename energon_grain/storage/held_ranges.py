"""Ranges of objects in memory, for as long as there is room: what is fetched ahead where no blocks are kept on disk."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Ranges:
    """Of one object: ascending, without overlaps."""

    starts: list[int] = field(default_factory=list[int])
    data: list[bytes] = field(default_factory=list[bytes])


_all: weakref.WeakSet[HeldRanges] = weakref.WeakSet()


class HeldRanges:
    """What was fetched last. Thread-safe; in a forked child nothing is held.

    Args:
        limit_bytes: Beyond this the oldest ranges go.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._held: dict[str, _Ranges] = {}
        self._order: deque[tuple[str, int]] = deque()
        self._size_bytes = 0
        self._lock = threading.Lock()

    def add(self, name: str, start: int, data: bytes) -> None:
        """Hold the bytes of an object from `start` on, as far as they are not held already."""
        with self._lock:
            ranges = self._held.setdefault(name, _Ranges())
            for begin, end in _gaps(ranges, start, start + len(data)):
                place = bisect_left(ranges.starts, begin)
                ranges.starts.insert(place, begin)
                ranges.data.insert(place, data[begin - start : end - start])
                self._order.append((name, begin))
                self._size_bytes += end - begin
            while self._size_bytes > self._limit_bytes and len(self._order) > 1:
                self._drop(*self._order.popleft())

    def missing(self, name: str, start: int, stop: int) -> list[tuple[int, int]]:
        """The parts of bytes [start, stop) that are not held."""
        with self._lock:
            return _gaps(self._held.get(name, _Ranges()), start, stop)

    def read(self, name: str, start: int, stop: int) -> bytes | None:
        """Bytes [start, stop), or None where they are not all held."""
        if start >= stop:
            return b""
        with self._lock:
            ranges = self._held.get(name)
            if ranges is None:
                return None
            parts: list[bytes | memoryview] = []
            at, place = start, bisect_right(ranges.starts, start) - 1
            while at < stop:
                if place < 0 or place >= len(ranges.starts):
                    return None
                begin, data = ranges.starts[place], ranges.data[place]
                if not begin <= at < begin + len(data):
                    return None
                parts.append(memoryview(data)[at - begin : stop - begin])
                at, place = begin + len(data), place + 1
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def discard(self, prefix: str) -> None:
        """Hold nothing of what has a name that begins so."""
        with self._lock:
            for name in [name for name in self._held if name.startswith(prefix)]:
                self._size_bytes -= sum(map(len, self._held.pop(name).data))
            self._order = deque(entry for entry in self._order if entry[0] in self._held)

    def _drop(self, name: str, start: int) -> None:
        ranges = self._held[name]
        place = bisect_left(ranges.starts, start)
        del ranges.starts[place]
        self._size_bytes -= len(ranges.data.pop(place))
        if not ranges.starts:
            del self._held[name]


def _gaps(ranges: _Ranges, start: int, stop: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    at = start
    for place in range(max(0, bisect_right(ranges.starts, start) - 1), len(ranges.starts)):
        begin, end = ranges.starts[place], ranges.starts[place] + len(ranges.data[place])
        if begin >= stop:
            break
        if begin > at:
            found.append((at, begin))
        at = max(at, end)
    if at < stop:
        found.append((at, stop))
    return found


@functools.cache
def held_ranges(limit_bytes: int) -> HeldRanges:
    """What all readers of this process hold together."""
    return HeldRanges(limit_bytes)


def _after_fork() -> None:
    for held in tuple(_all):
        held._begin()  # whoever held the lock is not there


os.register_at_fork(after_in_child=_after_fork)
