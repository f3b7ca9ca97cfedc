"""Pieces of an object that were fetched, put together again."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from energon_grain.storage.cached_object import CachedObject


@dataclass(slots=True)
class FetchedPieces:
    """What was fetched of one object, by where it begins."""

    starts: list[int] = field(default_factory=list[int])
    data: list[bytes] = field(default_factory=list[bytes])

    def add(self, fetched: Iterable[tuple[int, bytes]]) -> None:
        """Take further pieces."""
        pieces = sorted([*zip(self.starts, self.data, strict=True), *fetched])
        self.starts, self.data = [start for start, _ in pieces], [data for _, data in pieces]

    def at(self, start: int, stop: int) -> memoryview | None:
        """The bytes from `start` on, as far as one piece has them, up to `stop`; None: it has none."""
        place = bisect_right(self.starts, start) - 1
        if place < 0 or start >= self.starts[place] + len(self.data[place]):
            return None
        begin = self.starts[place]
        return memoryview(self.data[place])[start - begin : stop - begin]

    def following(self, start: int, stop: int) -> int:
        """Where the first piece behind `start` begins, `stop` at most."""
        place = bisect_right(self.starts, start)
        return min(self.starts[place], stop) if place < len(self.starts) else stop


def assembled(cached: CachedObject | None, pieces: FetchedPieces, start: int, stop: int) -> bytes | None:
    """Bytes [start, stop) from what was fetched and what is cached; None where something is missing."""
    parts: list[bytes | memoryview] = []
    at = start
    while at < stop:
        part: bytes | memoryview | None = pieces.at(at, stop)
        if part is None and cached is not None:
            part = cached.read(at, pieces.following(at, stop))
        if part is None:
            return None
        parts.append(part)
        at += len(part)
    return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
