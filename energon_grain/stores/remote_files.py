# SPDX-License-Identifier: Apache-2.0
"""Objects of stores as a `ByteStore`: few large parallel requests, and every page fetched once per process.

Ranges are rounded to pages of 256 KiB, which the cache on local disk stores. A cached range costs one `pread`. The
others are fetched in runs, several at a time, cached, and returned to the caller. If another thread is already fetching
a page, the caller waits for it. Without a cache, only the requested bytes are fetched, and prefetched bytes stay in
memory.

The version of an object (its entity tag) is determined at its first use. From then on every response must be of that
version: a change of the object during a run raises an error, and versions are never mixed. Objects of a server without
versions are not cached on disk, and their changes are not noticed.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from energon_grain.errors import MissingObjectError, RangeError, ReadError, StaleIndexError
from energon_grain.storage.cancellation import POLL_SECONDS, is_cancelled
from energon_grain.storage.digests import KnownDigests, ShardDigest
from energon_grain.storage.remote import UNVERSIONED, Fetched, ObjectRange
from energon_grain.storage.settings import DEFAULT_CACHE_SHARE, StorageSettings
from energon_grain.storage.traffic import count
from energon_grain.storage.urls import scheme_of, without_revision
from energon_grain.stores.compared import VerifiedPieces
from energon_grain.stores.held_bytes import HeldRanges, held_ranges
from energon_grain.stores.object_client import ObjectClient, shared_client
from energon_grain.stores.object_error import ObjectError
from energon_grain.stores.object_stores import NOT_NEEDED, Pieces
from energon_grain.stores.page_cache import CachedObject, PageCache, PageWriter

BLOCK_BYTES = 256 << 10
"""Size of a cached page; a gap of this size between two ranges takes less time to fetch than another request."""
_UNLIMITED = 1 << 62
_MAX_REQUEST_FACTOR = 1.25
"""Maximum factor by which a request may exceed the configured size: better than another one for a page or two."""
_REASK_BYTES = 128 << 10
"""Held bytes up to this size are fetched again rather than splitting a request."""
_LEAST_SHARED_BYTES = 256 << 20
"""Minimum size of a cache through which processes share prefetched bytes: in a smaller one, they would evict each
other's, in files of 8 MiB."""
_ROUNDS = 5
"""Number of tries for pages that other threads failed to fetch, or that were evicted; then ranges bypass the cache."""
_ADVICE = "start again, and stop other processes from writing to the dataset"
_marks = itertools.count()
_Range = tuple[int, int, int]  # number of the object, first byte, one past the last
_Pieces = TypeVar("_Pieces", bound=Pieces)


class RemoteFiles:
    """A `ByteStore` over object stores; paths are URLs.

    With `digests`, the bytes of their objects are verified.
    """

    merge_gap_bytes = 8192
    solo_bytes = 16384
    least_bytes = BLOCK_BYTES

    def __init__(self, settings: StorageSettings, digests: KnownDigests | None = None) -> None:
        self.settings = settings
        self.digests = digests
        self._client = shared_client(settings)
        self._cache = page_cache(settings)
        self.versions = ObjectVersions(self._client, self._cache, digests)
        self._held = held_ranges(settings.ahead_bytes)
        self._mark = f"{next(_marks)} "

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFiles, (self.settings, self.digests)

    def size(self, path: str) -> int:
        return self.versions.of(path).size_bytes

    def version(self, path: str) -> tuple[int, bytes]:
        """Size and generation of an object. See `ByteStore`."""
        version = self.versions.of(path)
        return version.size_bytes, version.generation

    def expect(self, path: str, version: tuple[int, bytes]) -> None:
        """See `ByteStore`: makes no request."""
        known = self.versions.known(path)
        if known is None or (known.size_bytes, known.generation) != version:
            self.versions.expect(path, *version)

    def tails(self, paths: Sequence[str], starts: Sequence[int]) -> list[bytes]:
        """The bytes of each object from `starts[i]` to its end: one request each, in parallel. See `ByteStore`."""
        if _are_listed(paths):
            return self._kept_spans(paths, starts, [self.size(path) for path in paths])
        return self._client.map(lambda tail: self.versions.tail(*tail), list(zip(paths, starts, strict=True)))

    def peek(self, paths: Sequence[str], starts: Sequence[int], size_bytes: int) -> list[bytes]:
        """See `ByteStore`: one small request each, in parallel, bypassing the cache."""
        if _are_listed(paths):
            return self._kept_spans(paths, starts, [start + size_bytes for start in starts])

        def look(at: tuple[str, int]) -> bytes:
            path, start = at
            return self.versions.bytes_of(path, self.versions.of(path), start, start + size_bytes)

        return self._client.map(look, list(zip(paths, starts, strict=True)))

    def read_spans(
        self,
        paths: Sequence[str],
        file: npt.NDArray[np.int64],
        start: npt.NDArray[np.int64],
        stop: npt.NDArray[np.int64],
    ) -> list[bytes]:
        """Read bytes [start[i], stop[i]) of `paths[file[i]]` for every i. Raises ReadError if one is unavailable."""
        numbers: list[int] = file.tolist()
        starts: list[int] = start.tolist()
        stops: list[int] = stop.tolist()
        versions = {number: self.versions.of(paths[number]) for number in dict.fromkeys(numbers)}
        found: list[bytes | None] = []
        cuts: list[int] = [0, *(np.flatnonzero(np.diff(file)) + 1).tolist(), len(numbers)] if numbers else []
        for at, upto in itertools.pairwise(cuts):  # of one object each
            path, version, ends = paths[numbers[at]], versions[numbers[at]], stops[at:upto]
            if (end := max(ends)) > version.size_bytes:
                raise ReadError(
                    f"{path} has {version.size_bytes} bytes, but bytes up to {end} were requested; "
                    "the object was replaced by a shorter one after it was indexed: restore it, or run "
                    "`energon-grain prepare` again"
                )
            found += self._there(path, version, starts[at:upto], ends)
        missed = found.count(None)
        count(found=len(found) - missed, missed=missed)
        ranges: list[_Range] = []
        for _ in range(_ROUNDS):
            if None not in found:
                return found  # type: ignore[return-value]
            ranges = ranges or list(zip(numbers, starts, stops, strict=True))
            self._fetch(paths, versions, ranges, found)
        for place, (number, begin, end) in enumerate(ranges):
            if found[place] is None:  # one of its pages evicts another
                found[place] = self.versions.bytes_of(paths[number], versions[number], begin, end)
        return found  # type: ignore[return-value]

    def _kept_spans(self, paths: Sequence[str], starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        """Bytes for a header check, through the cache: the pages with the first and last samples then work offline."""
        for path, start, stop in zip(paths, starts, stops, strict=True):
            if not start <= stop <= self.size(path):
                raise RangeError(
                    f"{path}: the object ends before byte {max(start, stop)} (it has {self.size(path)} bytes)"
                )
        return self.read_spans(paths, np.arange(len(paths)), np.array(starts), np.array(stops))

    def _there(self, path: str, version: Version, starts: list[int], stops: list[int]) -> list[bytes | None]:
        """The ranges that are cached on disk, or held in memory."""
        held = functools.partial(self._held.read, self._mark + path)
        if version.pages is None:
            return list(map(held, starts, stops))
        found = version.pages.read_each(starts, stops)
        if None in found and self._held.size_bytes:
            for place, data in enumerate(found):
                if data is None:
                    found[place] = self._pieced(version.pages, path, starts[place], stops[place])
        return found

    def _pieced(self, pages: CachedObject, path: str, start: int, stop: int) -> bytes | None:
        """A range of which some pages are cached, and some bytes are held."""
        name = self._mark + path
        data = self._held.read(name, start, stop)
        if data is not None or not (gaps := self._held.missing(name, start, stop)):
            return data
        parts: list[bytes | None] = []
        at = start
        for begin, end in gaps:
            parts += [self._held.read(name, at, begin), pages.read(begin, end)]
            at = end
        parts.append(self._held.read(name, at, stop))
        return None if None in parts else b"".join(parts)  # type: ignore[arg-type]

    @property
    def caches_on_disk(self) -> bool:
        """Whether prefetched bytes are shared by all processes of this machine."""
        return self._cache is not None and self._cache.limit_bytes >= _LEAST_SHARED_BYTES

    @property
    def ahead_bytes(self) -> int:
        ahead_bytes = self.settings.ahead_bytes
        return ahead_bytes if self._cache is None else min(ahead_bytes, self._cache.limit_bytes // 2)

    def is_prefetched(self, path: str, start: int, stop: int) -> bool:
        """Whether bytes [start, stop) are known to be there, so that `prefetch` has nothing to do."""
        version = self.versions.known(path)
        if version is None:
            return False
        stop = min(stop, version.size_bytes)
        if version.pages is not None and version.pages.has_checked(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)):
            return True
        return not self._held.missing(self._mark + path, start, stop)

    def prefetch(self, path: str, start: int, stop: int, *, in_process: bool = True) -> bool:
        """Prefetch bytes [start, stop), except those cached, held or in flight: into the cache, else into memory.

        Args:
            in_process: Bytes that the cache does not keep are held in memory. Otherwise the cache makes space for them.

        Returns:
            Whether they are cached or held.

        Raises:
            ReadError: They cannot be read.
        """
        mark = self._mark  # taken before the version: `close` changes both
        version = self.versions.of(path)
        stop = min(stop, version.size_bytes)
        if version.pages is None:
            self._hold(mark, path, version, [(start, stop)])
            return True
        missing = version.pages.missing(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES))
        if not missing:
            return True
        if in_process and not version.pages.admits(missing):
            extents = [version.extent(page) for page in missing]
            self._hold(mark, path, version, [(max(begin, start), min(end, stop)) for begin, end in extents])
            return True
        return self._cached(mark, path, version, missing, in_process=in_process)

    def _hold(self, mark: str, path: str, version: Version, ranges: list[tuple[int, int]]) -> None:
        """Fetch ranges into memory, unless other threads are fetching them; then wait for those."""
        name = mark + path
        with self._held.fetching(name, ranges, _REASK_BYTES) as (gaps, others):
            for _, begin, end in self._requests([(0, *version.compared(*gap)) for gap in gaps], 0):
                pieces = self.versions.read(path, version, begin, end, list)
                self._held.add(name, begin, pieces)
                if version.pages is not None:
                    version.pages.put_whole(begin, pieces)
            if mark != self._mark:  # closed meanwhile: the bytes would never be used
                self._held.discard(mark)
        for each in others:
            _wait_for(each, path)

    def _cached(self, mark: str, path: str, version: Version, missing: list[int], *, in_process: bool) -> bool:
        """Fetch pages into the cache, or hold those that do not fit; returns whether all are cached or held."""
        assert version.pages is not None
        kept = True
        with version.pages.fetching(missing) as (mine, others):
            for _, begin, end in self._requests([(0, *version.extent(page)) for page in mine], 0):
                writing = functools.partial(
                    PageWriter, version.pages, begin // BLOCK_BYTES, -(-end // BLOCK_BYTES), makes_room=not in_process
                )
                written = self.versions.read(path, version, begin, end, writing)
                if not written.finish():
                    kept = in_process
                    for page, parts in written.refused if in_process else ():
                        self._held.add(mark + path, page * BLOCK_BYTES, parts)
        for each in others:
            _wait_for(each, path)
        return kept

    def close(self) -> None:
        """Forget the versions of objects: the next read determines them again."""
        self.versions.forget()
        mark, self._mark = self._mark, f"{next(_marks)} "
        self._held.discard(mark)

    def _fetch(
        self, paths: Sequence[str], versions: dict[int, Version], ranges: list[_Range], found: list[bytes | None]
    ) -> None:
        """Fetch missing ranges, and wait for those that other threads are fetching until they are cached or failed."""
        fetched = HeldRanges(_UNLIMITED)
        left = [place for place, data in enumerate(found) if data is None]
        wanted = [ranges[place] for place in left]
        in_flight: set[threading.Event] = set()
        kept: set[int] = set()  # objects whose missing pages fit into the cache

        def fetch(request: _Range) -> None:
            number, begin, end = request
            pieces = self.versions.read(paths[number], versions[number], begin, end, list)
            pages = versions[number].pages
            if pages is not None and number not in kept:
                pages.put_whole(begin, pieces)
            elif pages is not None:
                writer = PageWriter(pages, begin // BLOCK_BYTES, -(-end // BLOCK_BYTES))
                for piece in pieces:
                    writer.append(piece)
                writer.finish()
            fetched.add(paths[number], begin, pieces)

        with ExitStack() as claims:
            missing: list[_Range] = []
            for number in dict.fromkeys(number for number, _, _ in wanted):
                version = versions[number]
                if version.pages is not None:
                    pages = _missing_pages(version.pages, (each for each in wanted if each[0] == number))
                    if version.pages.admits(pages):
                        kept.add(number)
                        mine, others = claims.enter_context(version.pages.fetching(pages))
                        missing += [(number, *version.extent(page)) for page in mine]
                        in_flight |= others
            exact = [
                (number, *versions[number].compared(begin, end)) for number, begin, end in wanted if number not in kept
            ]
            self._client.map(fetch, self._requests(missing, 0) + self._requests(exact, BLOCK_BYTES))
        for place, (number, begin, end) in zip(left, wanted, strict=True):
            found[place] = _assembled(versions[number].pages, fetched, paths[number], begin, end)
        for each in in_flight:
            _wait_for(each, paths[wanted[0][0]])

    def _requests(self, ranges: list[_Range], gap_bytes: int) -> list[_Range]:
        """The requests to send: ranges with their gaps, in even parts of about the size of a request."""
        longest = self.settings.request_bytes * _MAX_REQUEST_FACTOR
        requests: list[_Range] = []
        for number, begin, end in _merged(ranges, gap_bytes):
            blocks = -(-(end - begin) // BLOCK_BYTES)
            step = -(-blocks // max(1, math.ceil((end - begin) / longest))) * BLOCK_BYTES
            requests += [(number, at, min(at + step, end)) for at in range(begin, end, step)]
        return requests


def _merged(ranges: Iterable[_Range], gap_bytes: int) -> list[_Range]:
    """Sorted ranges, those of one object merged that have at most this gap."""
    runs: list[_Range] = []
    for number, begin, end in sorted(ranges):
        if runs and runs[-1][0] == number and begin - runs[-1][2] <= gap_bytes:
            runs[-1] = (number, runs[-1][1], max(runs[-1][2], end))
        else:
            runs.append((number, begin, end))
    return runs


def _are_listed(paths: Sequence[str]) -> bool:
    """Whether the version of each object is known without a request: lists of the Hub contain them."""
    return len(paths) > 0 and scheme_of(paths[0]) == "hf"


def _missing_pages(pages: CachedObject, ranges: Iterable[_Range]) -> list[int]:
    missing = (pages.missing(begin // BLOCK_BYTES, -(-end // BLOCK_BYTES)) for _, begin, end in ranges)
    return sorted(set(itertools.chain.from_iterable(missing)))


def _wait_for(fetched: threading.Event, path: str) -> None:
    """Wait for a page that another thread is fetching."""
    while not fetched.wait(POLL_SECONDS):
        if is_cancelled():
            raise ReadError(f"reading {path} failed: {NOT_NEEDED}")


def _assembled(pages: CachedObject | None, fetched: HeldRanges, path: str, start: int, stop: int) -> bytes | None:
    """Bytes [start, stop) from fetched and cached ranges; None if something is missing."""
    parts: list[bytes] = []
    at = start
    while at < stop:
        gaps = fetched.missing(path, at, stop)
        end = stop if not gaps else gaps[0][0] if gaps[0][0] > at else gaps[0][1]
        from_cache = bool(gaps) and gaps[0][0] == at
        part = (None if pages is None else pages.read(at, end)) if from_cache else fetched.read(path, at, end)
        if part is None:
            return None
        parts.append(part)
        at = end
    return parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass(frozen=True, slots=True)
class Version:
    """Version of an object: `generation` changes whenever the object does; without `pages` it is not cached on disk.

    With a `digest`, every received page is compared.
    """

    size_bytes: int
    generation: bytes
    pages: CachedObject | None = field(default=None, compare=False)
    digest: ShardDigest | None = field(default=None, compare=False)

    def extent(self, page: int) -> tuple[int, int]:
        """First byte of a page, and one past the last."""
        return page * BLOCK_BYTES, min((page + 1) * BLOCK_BYTES, self.size_bytes)

    def compared(self, start: int, stop: int) -> tuple[int, int]:
        """The range to request for [start, stop): whole pages if there is a digest of each."""
        if self.digest is None or start >= stop:
            return start, stop
        return start - start % BLOCK_BYTES, self.extent((stop - 1) // BLOCK_BYTES)[1]


class ObjectVersions:
    """The version of each object that a reader uses: its size and its generation."""

    def __init__(self, client: ObjectClient, cache: PageCache | None, digests: KnownDigests | None = None) -> None:
        self._client = client
        self._cache = cache
        self._digests = digests
        self._known: dict[str, Version] = {}

    def read(self, path: str, version: Version, start: int, stop: int, pieces: Callable[[], _Pieces]) -> _Pieces:
        """Read bytes [start, stop) of a version, bypassing the cache, into the receiver that `pieces` returns.

        If there is a digest of the object, its whole pages are compared.

        Raises MissingObjectError, RangeError, ReadError, and StaleIndexError if the object was replaced.
        """
        wrong: list[int] = []

        def begin(generation: bytes, size_bytes: int) -> Pieces:
            if generation != version.generation:
                raise _changed(path, version.generation, generation)
            if size_bytes != version.size_bytes and generation != UNVERSIONED:
                raise ObjectError(
                    f"the response reports a size of {size_bytes} bytes, but an earlier one of the same version "
                    f"reported {version.size_bytes}",
                    temporary=True,
                )
            if version.digest is None:
                return pieces()
            return VerifiedPieces(pieces(), version.digest, start, stop, wrong)

        try:
            found: Any = _there(path, self._client.read(ObjectRange(path, start, stop), begin)).pieces
            return found.pieces if version.digest is not None else found
        except RangeError as error:
            if stop > version.size_bytes:
                raise
            raise StaleIndexError(f"{error}; it was replaced by a shorter one while it was read; {_ADVICE}") from error

    def bytes_of(self, path: str, version: Version, start: int, stop: int) -> bytes:
        """Read bytes [start, stop) of a version, bypassing the cache. Raises as `read` does."""
        first, last = version.compared(start, min(stop, version.size_bytes))
        data = b"".join(self.read(path, version, first, max(last, stop), list))
        return data if len(data) == stop - start else data[start - first : stop - first]

    def known(self, path: str) -> Version | None:
        return self._known.get(path)

    def of(self, path: str) -> Version:
        """Size and generation of an object, determined once. Raises ReadError if it does not exist."""
        known = self._known.get(path)
        if known is not None:
            return known
        found = _there(path, self._client.head(path))
        assert found.size_bytes is not None
        return self.expect(path, found.size_bytes, found.generation)

    def expect(self, path: str, size_bytes: int, generation: bytes) -> Version:
        """Use only this version of an object, without a request. Raises StaleIndexError."""
        digest = None if self._digests is None else self._digests.get(path)
        if digest is not None and digest.size_bytes != size_bytes:
            raise StaleIndexError(
                f"{path}: has {size_bytes} bytes, but had {digest.size_bytes} when it was prepared; upload the shard "
                "again, or prepare the dataset again with --digest"
            )
        pages = None
        if self._cache is not None and generation != UNVERSIONED:
            # Verified pages have separate files, so that unverified ones are never among them.
            kept_as = generation if digest is None else generation + bytes.fromhex(digest.digest)
            pages = self._cache.open(without_revision(path), kept_as, size_bytes)
        version = Version(size_bytes, generation, pages, digest)
        known = self._known.setdefault(path, version)
        if known != version:
            raise _changed(path, known.generation, generation)
        return known

    def tail(self, path: str, start: int) -> bytes:
        """The bytes of an object from `start` to its end, in one request, which also determines its version."""
        # Start one byte earlier: a range that begins at the end of the object is refused.
        wanted = ObjectRange(path, start - 1) if start else ObjectRange(path)
        fetched = _there(path, self._client.read(wanted))
        data = fetched.data or b""
        self.expect(path, start - (start > 0) + len(data), fetched.generation)
        return data[1:] if start else data

    def forget(self) -> None:
        """Determine the version of every object again."""
        self._known.clear()


def _there(path: str, fetched: Fetched | None) -> Fetched:
    if fetched is None:
        raise MissingObjectError(f"{path}: no such object")
    return fetched


def _changed(path: str, old: bytes, new: bytes) -> StaleIndexError:
    then, now = (each.strip(b"\0").decode("ascii", "backslashreplace") for each in (old, new))
    return StaleIndexError(f"{path}: was replaced while it was read (version {then} then, {now} now); {_ADVICE}")


def page_cache(settings: StorageSettings) -> PageCache | None:
    """The cache of this process for these settings; None if disabled. Raises ConfigError."""
    if settings.cache_bytes == 0:
        return None
    return _cache_in(os.path.join(settings.cache_folder, "pages"), settings.cache_bytes)


@functools.cache
def _cache_in(folder: str, limit_bytes: int | None) -> PageCache:
    cache = PageCache(folder, limit_bytes=limit_bytes or sys.maxsize, page_bytes=BLOCK_BYTES)
    if limit_bytes is None:
        cache.limit_bytes = int(shutil.disk_usage(folder).total * DEFAULT_CACHE_SHARE)
    return cache
