"""Objects of stores as a `ByteStore`: few large requests side by side, and every block fetched once a host.

Ranges are rounded to blocks of 256 KiB. Blocks that the cache on local disk has cost one `pread`; the others are
fetched in runs, several at a time, kept, and handed to whoever asked. A block that another thread or process of this
machine is fetching is waited for instead.

The first time that an object is asked for, its version (entity tag or generation) is learnt. From then on every answer
must be of that version: an object that changes under a reader is an error, and never a mixture. Of a server that tells
no versions nothing is kept on disk, and a change is not noticed.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import MissingObjectError, RangeError, ReadError, StaleIndexError
from energon_grain.storage.block_cache import BlockCache
from energon_grain.storage.cached_object import CachedObject, Claim
from energon_grain.storage.held_ranges import HeldRanges
from energon_grain.storage.object_client import ObjectRange, shared_client
from energon_grain.storage.storage_settings import DEFAULT_CACHE_SHARE, StorageSettings
from energon_grain.storage.tensorstore_objects import UNVERSIONED, Fetched

BLOCK_BYTES = 256 << 10
_ROUNDS = 4
_SIZE_IN_MESSAGE = re.compile(r"(?:total size |value of size |<ActualObjectSize>)(\d+)")
_NO_OBJECT_BYTES = 1 << 61


@dataclass(frozen=True, slots=True)
class _Version:
    """What is known of an object."""

    size_bytes: int
    generation: bytes


@dataclass(slots=True)
class _Pieces:
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


class RemoteFiles:
    """A `ByteStore` over object stores; paths are URLs.

    Args:
        settings: How stores are reached, and where blocks are kept.
    """

    merge_gap_bytes = 8192
    solo_bytes = 16384

    def __init__(self, settings: StorageSettings) -> None:
        self.settings = settings
        self._client = shared_client(settings)
        self._cache = block_cache(settings)
        self._versions: dict[str, _Version] = {}
        self._held = HeldRanges(settings.ahead_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFiles, (self.settings,)

    def size(self, path: str) -> int:
        """Size of an object in bytes. Raises ReadError when there is none or it cannot be reached."""
        return self.version(path).size_bytes

    def tails(self, paths: Sequence[str], starts: Sequence[int]) -> list[bytes]:
        """The bytes of each object from `starts[i]` to its end: one request each, side by side. See `ByteStore`."""
        asked = list(zip(paths, starts, strict=True))
        return self._client.map(lambda tail: self._tail(*tail), asked)

    def _tail(self, path: str, start: int) -> bytes:
        if start == 0:
            fetched = _there(path, self._client.read(ObjectRange(path)))
        else:
            # From one byte before: a range that begins where the object ends is refused.
            fetched = _there(path, self._client.read(ObjectRange(path, start - 1)))
        data = b"" if fetched.data is None else fetched.data
        self._learn(path, _Version(start - (start > 0) + len(data), fetched.generation))
        return data[1:] if start else data

    def read_spans(
        self,
        paths: Sequence[str],
        file: npt.NDArray[np.int64],
        start: npt.NDArray[np.int64],
        stop: npt.NDArray[np.int64],
    ) -> list[bytes]:
        """Read bytes [start[i], stop[i]) of `paths[file[i]]` for every i. Raises ReadError when one cannot be had."""
        ranges: list[tuple[int, int, int]] = list(zip(file.tolist(), start.tolist(), stop.tolist(), strict=True))
        versions = {number: self.version(paths[number]) for number in dict.fromkeys(number for number, _, _ in ranges)}
        for number, _, end in ranges:
            if end > versions[number].size_bytes:
                raise ReadError(
                    f"{paths[number]} has {versions[number].size_bytes} bytes, but bytes up to {end} were asked for; "
                    "the object was replaced by a shorter one after it was indexed: restore it, or run "
                    "`energon-grain prepare` again"
                )
        if self._cache is None or any(version.generation == UNVERSIONED for version in versions.values()):
            return self._held_or_fetched(paths, versions, ranges)
        cached = {
            number: self._cache.open(paths[number], version.generation, version.size_bytes)
            for number, version in versions.items()
        }
        found = [cached[number].read(begin, end) for number, begin, end in ranges]
        if None in found:
            self._fetch_missing(paths, versions, cached, ranges, found)
        return found  # type: ignore[return-value]

    @property
    def keeps_on_disk(self) -> bool:
        """Whether what is fetched ahead of need is there for all processes of this machine."""
        return self._cache is not None

    @property
    def ahead_bytes(self) -> int:
        """How much may be fetched ahead of need."""
        ahead_bytes = self.settings.ahead_bytes
        return ahead_bytes if self._cache is None else min(ahead_bytes, self._cache.limit_bytes // 2)

    def keep(self, path: str, start: int, stop: int) -> bool:
        """Fetch bytes [start, stop) ahead of need, except what is there or being fetched: into the cache, else memory.

        Returns:
            False: they are not kept.

        Raises:
            ReadError: They cannot be had.
        """
        version = self.version(path)
        stop = min(stop, version.size_bytes)
        if self._cache is None or version.generation == UNVERSIONED:
            for begin, end in self._held.missing(path, start, stop):
                for at in range(begin, end, self.settings.request_bytes):
                    upto = min(at + self.settings.request_bytes, end)
                    self._held.add(path, at, self.read_range(path, version, at, upto))
            return True
        cached = self._cache.open(path, version.generation, version.size_bytes)
        missing = cached.missing(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES))
        if not missing:
            return True
        kept = True
        with cached.claim(missing) as claim:
            for first, last in self._runs(claim.blocks):
                begin = first * BLOCK_BYTES
                data = self.read_range(path, version, begin, min(last * BLOCK_BYTES, version.size_bytes))
                kept = claim.put(first, data) and kept
        return kept

    def close(self) -> None:
        """Forget the versions of objects: reading again looks at them anew."""
        self._versions.clear()
        self._held.clear()

    def _fetch_missing(
        self,
        paths: Sequence[str],
        versions: dict[int, _Version],
        cached: dict[int, CachedObject],
        ranges: list[tuple[int, int, int]],
        found: list[bytes | None],
    ) -> None:
        """Fill in what the cache did not have."""
        pieces = {number: _Pieces() for number in cached}
        for _ in range(_ROUNDS):
            left = [place for place, data in enumerate(found) if data is None]
            blocks: dict[int, list[int]] = {}
            for place in left:
                number, begin, end = ranges[place]
                first, last = begin // BLOCK_BYTES, -(-end // BLOCK_BYTES)
                blocks.setdefault(number, []).extend(cached[number].missing(first, last))
            with ExitStack() as stack:
                claims: dict[int, Claim] = {}
                for number, wanted in blocks.items():
                    had = pieces[number]
                    ask = [block for block in sorted(set(wanted)) if had.at(block * BLOCK_BYTES, 1 << 62) is None]
                    claims[number] = stack.enter_context(cached[number].claim(ask))
                self._fetch_claimed(paths, versions, claims, pieces)
            for place in left:
                number, begin, end = ranges[place]
                found[place] = _assembled(cached[number], pieces[number], begin, end)
            waiting = {ranges[place][0] for place in left if found[place] is None}
            if not waiting:
                return
            for number in waiting:
                cached[number].wait(sorted(set(blocks[number])), timeout_seconds=self.settings.timeout_s)
        left = [place for place, data in enumerate(found) if data is None]
        rest = self._uncached(paths, versions, [ranges[place] for place in left])
        for place, data in zip(left, rest, strict=True):
            found[place] = data

    def _fetch_claimed(
        self,
        paths: Sequence[str],
        versions: dict[int, _Version],
        claims: dict[int, Claim],
        pieces: dict[int, _Pieces],
    ) -> None:
        """Fetch the blocks that nobody else is fetching, and keep them."""
        runs = [(number, *run) for number, claim in claims.items() for run in self._runs(claim.blocks)]

        def fetch(run: tuple[int, int, int]) -> bytes:
            number, first, last = run
            end = min(last * BLOCK_BYTES, versions[number].size_bytes)
            data = self.read_range(paths[number], versions[number], first * BLOCK_BYTES, end)
            claims[number].put(first, data)
            return data

        fetched = self._client.map(fetch, runs)
        for number in claims:
            own = [
                (first * BLOCK_BYTES, data) for (of, first, _), data in zip(runs, fetched, strict=True) if of == number
            ]
            pieces[number].add(own)

    def _runs(self, blocks: Sequence[int]) -> list[tuple[int, int]]:
        """Ascending blocks as ranges [first, last), none of more bytes than a request may have."""
        longest = max(1, self.settings.request_bytes // BLOCK_BYTES)
        runs: list[tuple[int, int]] = []
        for block in blocks:
            if runs and runs[-1][1] == block and block - runs[-1][0] < longest:
                runs[-1] = (runs[-1][0], block + 1)
            else:
                runs.append((block, block + 1))
        return runs

    def _held_or_fetched(
        self, paths: Sequence[str], versions: dict[int, _Version], ranges: list[tuple[int, int, int]]
    ) -> list[bytes]:
        found = [self._held.read(paths[number], begin, end) for number, begin, end in ranges]
        left = [place for place, data in enumerate(found) if data is None]
        if left:
            rest = self._uncached(paths, versions, [ranges[place] for place in left])
            for place, data in zip(left, rest, strict=True):
                found[place] = data
        return found  # type: ignore[return-value]

    def _uncached(
        self, paths: Sequence[str], versions: dict[int, _Version], ranges: list[tuple[int, int, int]]
    ) -> list[bytes]:
        """Read ranges in requests that take in neighbours, past the cache."""
        merged: list[tuple[int, int, int]] = []
        for number, begin, end in sorted(ranges):
            if merged and merged[-1][0] == number:
                _, start, stop = merged[-1]
                if begin - stop <= BLOCK_BYTES and max(stop, end) - start <= self.settings.request_bytes:
                    merged[-1] = (number, start, max(stop, end))
                    continue
            step = self.settings.request_bytes
            merged += [(number, at, min(at + step, end)) for at in range(begin, end, step)]

        def fetch(wanted: tuple[int, int, int]) -> bytes:
            number, begin, end = wanted
            return self.read_range(paths[number], versions[number], begin, end)

        pieces: dict[int, _Pieces] = {number: _Pieces() for number in versions}
        fetched = self._client.map(fetch, merged)
        for number, own in pieces.items():
            own.add((begin, data) for (of, begin, _), data in zip(merged, fetched, strict=True) if of == number)
        found = [_assembled(None, pieces[number], begin, end) for number, begin, end in ranges]
        assert None not in found
        return found  # type: ignore[return-value]

    def read_range(self, path: str, version: _Version, start: int, stop: int) -> bytes:
        """Read bytes [start, stop) of a version, past the cache. Raises StaleIndexError if it is gone."""
        fetched = _there(path, self._client.read(ObjectRange(path, start, stop)))
        if fetched.generation != version.generation:
            raise _changed(path, version.generation, fetched.generation)
        return b"" if fetched.data is None else fetched.data

    def version(self, path: str) -> _Version:
        """Size and generation of an object, learnt once. Raises ReadError when there is none."""
        known = self._versions.get(path)
        return self._learn(path, self._measured(path)) if known is None else known

    def expect(self, path: str, size_bytes: int, generation: bytes) -> None:
        """Read an object in this version only, which somebody else learnt: nothing is asked.

        Raises:
            StaleIndexError: It has been read in another version.
        """
        self._learn(path, _Version(size_bytes, generation))

    def _learn(self, path: str, version: _Version) -> _Version:
        known = self._versions.setdefault(path, version)
        if known != version:
            raise _changed(path, known.generation, version.generation)
        return known

    def _measured(self, path: str) -> _Version:
        """Size and version of an object. TensorStore has no request for that.

        A read far behind the end is refused with a message in which most stores give the size; it is believed only
        where the last byte is found there. Else the end is searched for.
        """
        try:
            _there(path, self._client.read(ObjectRange(path, _NO_OBJECT_BYTES, _NO_OBJECT_BYTES + 1)))
        except RangeError as error:
            told = _SIZE_IN_MESSAGE.search(str(error))
            if told is not None:
                size = int(told[1])
                try:
                    last = _there(path, self._client.read(ObjectRange(path, max(size - 1, 0) if size else None)))
                except RangeError:
                    last = None
                if last is not None and len(last.data or b"") == min(size, 1):
                    return _Version(size, last.generation)
        low, high = 0, _NO_OBJECT_BYTES  # the size is at least `low` and below `high`
        probe = 1 << 20
        while high - low > 1:
            if self._reaches(path, probe):
                low = probe
            else:
                high = probe
            probe = min(low * 4, high - 1) if high == _NO_OBJECT_BYTES else (low + high) // 2
            probe = max(probe, low + 1)
        last = _there(path, self._client.read(ObjectRange(path, low - 1) if low else ObjectRange(path)))
        return _Version(low, last.generation)

    def _reaches(self, path: str, size: int) -> bool:
        """Whether an object has at least so many bytes."""
        try:
            _there(path, self._client.read(ObjectRange(path, size - 1, size)))
        except RangeError:
            return False
        return True


def _assembled(cached: CachedObject | None, pieces: _Pieces, start: int, stop: int) -> bytes | None:
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


def _there(path: str, fetched: Fetched | None) -> Fetched:
    if fetched is None:
        raise MissingObjectError(f"{path}: there is no such object")
    return fetched


def _changed(path: str, old: bytes, new: bytes) -> StaleIndexError:
    return StaleIndexError(
        f"{path}: was replaced while it was read (version {_shown(old)} then, {_shown(new)} now); begin anew, and let "
        "nothing write to a dataset that is being read"
    )


def _shown(generation: bytes) -> str:
    return generation.strip(b"\0").decode("ascii", "backslashreplace")


def block_cache(settings: StorageSettings) -> BlockCache | None:
    """The cache of this process for these settings; None where they want none.

    Raises:
        ConfigError: Its folder cannot be made.
    """
    if settings.cache_bytes == 0:
        return None
    return _cache_in(os.path.join(settings.cache_folder, "blocks"), settings.cache_bytes)


@functools.cache
def _cache_in(folder: str, limit_bytes: int | None) -> BlockCache:
    if limit_bytes is None:
        os.makedirs(folder, exist_ok=True)
        limit_bytes = int(shutil.disk_usage(folder).total * DEFAULT_CACHE_SHARE)
    return BlockCache(folder, limit_bytes=limit_bytes, block_bytes=BLOCK_BYTES)
