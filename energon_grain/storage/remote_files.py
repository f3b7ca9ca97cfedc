"""Objects of stores as a `ByteStore`: few large requests side by side, and every block fetched once a host.

Ranges are rounded to blocks of 256 KiB, the pages of the cache on local disk. Those that it has cost one `pread`; the
others are fetched in runs, several at a time, kept, and handed to whoever asked. A page that another thread or process
of this machine is fetching is waited for instead.

The first time that an object is asked for, its version (the entity tag) is learnt. From then on every answer
must be of that version: an object that changes under a reader is an error, and never a mixture. Of a server that tells
no versions nothing is kept on disk, and a change is not noticed.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ReadError
from energon_grain.storage.held_ranges import HeldRanges, held_ranges
from energon_grain.storage.object_client import shared_client
from energon_grain.storage.object_stores import UNVERSIONED
from energon_grain.storage.object_versions import ObjectVersions, Version
from energon_grain.storage.page_cache import CachedObject, Claim, PageCache
from energon_grain.storage.settings import DEFAULT_CACHE_SHARE, StorageSettings

BLOCK_BYTES = 256 << 10
_ROUNDS = 4
_UNLIMITED = 1 << 62
_marks = itertools.count()


class RemoteFiles:
    """A `ByteStore` over object stores; paths are URLs.

    Args:
        settings: How stores are reached, and where blocks are kept.

    Attributes:
        settings: As given.
        versions: Of the objects that are read.
    """

    merge_gap_bytes = 8192
    solo_bytes = 16384

    def __init__(self, settings: StorageSettings) -> None:
        self.settings = settings
        self._client = shared_client(settings)
        self._cache = page_cache(settings)
        self.versions = ObjectVersions(self._client)
        self._held = held_ranges(settings.ahead_bytes)
        self._mark = f"{next(_marks)} "

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFiles, (self.settings,)

    def size(self, path: str) -> int:
        """Size of an object in bytes. Raises ReadError when there is none or it cannot be reached."""
        return self.versions.of(path).size_bytes

    def tails(self, paths: Sequence[str], starts: Sequence[int]) -> list[bytes]:
        """The bytes of each object from `starts[i]` to its end: one request each, side by side. See `ByteStore`."""
        asked = list(zip(paths, starts, strict=True))
        return self._client.map(lambda tail: self.versions.tail(*tail), asked)

    def peek(self, paths: Sequence[str], starts: Sequence[int], size_bytes: int) -> list[bytes]:
        """See `ByteStore`: one small request each, side by side, past the cache."""

        def look(at: tuple[str, int]) -> bytes:
            path, start = at
            return self.versions.read(path, self.versions.of(path), start, start + size_bytes)

        return self._client.map(look, list(zip(paths, starts, strict=True)))

    def read_spans(
        self,
        paths: Sequence[str],
        file: npt.NDArray[np.int64],
        start: npt.NDArray[np.int64],
        stop: npt.NDArray[np.int64],
    ) -> list[bytes]:
        """Read bytes [start[i], stop[i]) of `paths[file[i]]` for every i. Raises ReadError when one cannot be had."""
        ranges: list[tuple[int, int, int]] = list(zip(file.tolist(), start.tolist(), stop.tolist(), strict=True))
        versions = {
            number: self.versions.of(paths[number]) for number in dict.fromkeys(number for number, _, _ in ranges)
        }
        for number, _, end in ranges:
            if end > versions[number].size_bytes:
                raise ReadError(
                    f"{paths[number]} has {versions[number].size_bytes} bytes, but bytes up to {end} were asked for; "
                    "the object was replaced by a shorter one after it was indexed: restore it, or run "
                    "`energon-grain prepare` again"
                )
        if self._cache is None or any(version.generation == UNVERSIONED for version in versions.values()):
            return self._held_or_fetched(paths, versions, ranges)
        return self._cached(self._cache, paths, versions, ranges)

    @property
    def keeps_on_disk(self) -> bool:
        """Whether what is fetched ahead of need is there for all processes of this machine."""
        return self._cache is not None

    @property
    def ahead_bytes(self) -> int:
        """How much may be fetched ahead of need."""
        ahead_bytes = self.settings.ahead_bytes
        return ahead_bytes if self._cache is None else min(ahead_bytes, self._cache.limit_bytes // 2)

    def is_kept(self, path: str, start: int, stop: int) -> bool:
        """Whether bytes [start, stop) are known to be there, so that `keep` has nothing to do."""
        version = self.versions.known(path)
        if version is None:
            return False
        stop = min(stop, version.size_bytes)
        if self._cache is None or version.generation == UNVERSIONED:
            return not self._held.missing(self._mark + path, start, stop)
        cached = self._cache.open(path, version.generation, version.size_bytes)
        return cached.has_verified(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES))

    def keep(self, path: str, start: int, stop: int) -> bool:
        """Fetch bytes [start, stop) ahead of need, except what is there or being fetched: into the cache, else memory.

        Returns:
            False: they are not kept.

        Raises:
            ReadError: They cannot be had.
        """
        mark = self._mark  # taken before the version: after `close` both are others
        version = self.versions.of(path)
        stop = min(stop, version.size_bytes)
        if self._cache is None or version.generation == UNVERSIONED:
            for begin, end in self._held.missing(mark + path, start, stop):
                for at in range(begin, end, self.settings.request_bytes):
                    upto = min(at + self.settings.request_bytes, end)
                    self._held.add(mark + path, at, self.versions.read(path, version, at, upto))
            if mark != self._mark:  # closed meanwhile: nobody would ever ask for it
                self._held.discard(mark)
            return True
        cached = self._cache.open(path, version.generation, version.size_bytes)
        missing = cached.missing(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES))
        if not missing:
            return True
        kept = True
        with cached.claim(missing) as claim:
            for first, last in self._runs(claim.pages):
                begin = first * BLOCK_BYTES
                data = self.versions.read(path, version, begin, min(last * BLOCK_BYTES, version.size_bytes))
                kept = claim.put(first, data) and kept
        return kept

    def close(self) -> None:
        """Forget the versions of objects: reading again looks at them anew."""
        self.versions.forget()
        mark, self._mark = self._mark, f"{next(_marks)} "
        self._held.discard(mark)

    def _cached(
        self,
        cache: PageCache,
        paths: Sequence[str],
        versions: dict[int, Version],
        ranges: list[tuple[int, int, int]],
    ) -> list[bytes]:
        """Read ranges of some objects, from the cache as far as it has them."""
        cached = {
            number: cache.open(paths[number], version.generation, version.size_bytes)
            for number, version in versions.items()
        }
        found = [cached[number].read(begin, end) for number, begin, end in ranges]
        if None in found:
            self._fetch_missing(paths, versions, cached, ranges, found)
        return found  # type: ignore[return-value]

    def _fetch_missing(
        self,
        paths: Sequence[str],
        versions: dict[int, Version],
        cached: dict[int, CachedObject],
        ranges: list[tuple[int, int, int]],
        found: list[bytes | None],
    ) -> None:
        """Fill in what the cache did not have."""
        fetched = HeldRanges(_UNLIMITED)
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
                    ask = (
                        page
                        for page in sorted(set(wanted))
                        if fetched.missing(paths[number], page * BLOCK_BYTES, page * BLOCK_BYTES + 1)
                    )
                    claims[number] = stack.enter_context(cached[number].claim(ask))
                self._fetch_claimed(paths, versions, claims, fetched)
            for place in left:
                number, begin, end = ranges[place]
                found[place] = _assembled(cached[number], fetched, paths[number], begin, end)
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
        versions: dict[int, Version],
        claims: dict[int, Claim],
        fetched: HeldRanges,
    ) -> None:
        """Fetch the blocks that nobody else is fetching, and keep them."""
        runs = [(number, *run) for number, claim in claims.items() for run in self._runs(claim.pages)]

        def fetch(run: tuple[int, int, int]) -> None:
            number, first, last = run
            end = min(last * BLOCK_BYTES, versions[number].size_bytes)
            data = self.versions.read(paths[number], versions[number], first * BLOCK_BYTES, end)
            claims[number].put(first, data)
            fetched.add(paths[number], first * BLOCK_BYTES, data)

        self._client.map(fetch, runs)

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
        self, paths: Sequence[str], versions: dict[int, Version], ranges: list[tuple[int, int, int]]
    ) -> list[bytes]:
        found = [self._held.read(self._mark + paths[number], begin, end) for number, begin, end in ranges]
        left = [place for place, data in enumerate(found) if data is None]
        if left:
            rest = self._uncached(paths, versions, [ranges[place] for place in left])
            for place, data in zip(left, rest, strict=True):
                found[place] = data
        return found  # type: ignore[return-value]

    def _uncached(
        self, paths: Sequence[str], versions: dict[int, Version], ranges: list[tuple[int, int, int]]
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

        fetched = HeldRanges(_UNLIMITED)

        def fetch(wanted: tuple[int, int, int]) -> None:
            number, begin, end = wanted
            fetched.add(paths[number], begin, self.versions.read(paths[number], versions[number], begin, end))

        self._client.map(fetch, merged)
        found = [fetched.read(paths[number], begin, end) for number, begin, end in ranges]
        assert None not in found
        return found  # type: ignore[return-value]


def _assembled(cached: CachedObject, fetched: HeldRanges, path: str, start: int, stop: int) -> bytes | None:
    """Bytes [start, stop) from what was fetched and what is cached; None where something is missing."""
    parts: list[bytes] = []
    at = start
    while at < stop:
        gaps = fetched.missing(path, at, stop)
        end = gaps[0][0] if gaps else stop
        if end == at:
            end = gaps[0][1]
            part = cached.read(at, end)
        else:
            part = fetched.read(path, at, end)
        if part is None:
            return None
        parts.append(part)
        at = end
    return parts[0] if len(parts) == 1 else b"".join(parts)


def page_cache(settings: StorageSettings) -> PageCache | None:
    """The cache of this process for these settings; None where they want none.

    Raises:
        ConfigError: Its folder cannot be made.
    """
    if settings.cache_bytes == 0:
        return None
    return _cache_in(os.path.join(settings.cache_folder, "pages"), settings.cache_bytes)


@functools.cache
def _cache_in(folder: str, limit_bytes: int | None) -> PageCache:
    cache = PageCache(folder, limit_bytes=limit_bytes or sys.maxsize, page_bytes=BLOCK_BYTES)
    if limit_bytes is None:
        cache.limit_bytes = int(shutil.disk_usage(folder).total * DEFAULT_CACHE_SHARE)
    return cache
