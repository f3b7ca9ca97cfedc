"""One version of one object, as far as its blocks are on local disk, and the right to fetch those that are not."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from energon_grain.storage.block_copy import BlockCopy, ObjectVersion
from energon_grain.storage.block_space import BlockSpace
from energon_grain.storage.given_up import given_up
from energon_grain.storage.range_locks import Pauses, RangeLocks, is_locked

_logger = logging.getLogger("energon_grain")
_TOUCH_SECONDS = 5.0
_ATTEMPTS = 3


class CopyShelf(Protocol):
    """Where copies stand: what an object needs of its cache."""

    space: BlockSpace

    def open_copy(self, of: ObjectVersion, path: str) -> BlockCopy | None:
        """The copy at a path, made if there is none. None: the disk does not allow it."""
        ...


class CachedObject:
    """Blocks of one object. Made by `BlockCache.open`; thread-safe.

    Nothing here raises because of the local disk: what it cannot give is missing, what it cannot take is not kept.

    Attributes:
        version: Which object, and how it is cut into blocks.
    """

    __slots__ = ("__weakref__", "_copy", "_path", "_shelf", "_touch_at", "version")

    def __init__(self, shelf: CopyShelf, version: ObjectVersion, path: str) -> None:
        self.version = version
        self._shelf = shelf
        self._path = path
        self._copy: BlockCopy | None = None
        self._touch_at = 0.0

    def read(self, start: int, stop: int) -> bytes | None:
        """Bytes [start, stop) of the object, or None where a block of theirs is missing.

        Bytes of blocks that this process has verified cost one `pread`. A copy may be evicted at any time: bytes that
        were there a moment ago may be missing now. So what was fetched serves its reader itself, and is not asked for
        here.
        """
        if start >= stop:
            return b""
        copy = self._copy or self._open()
        if copy is None:
            return None
        now = time.monotonic()
        if now >= self._touch_at:
            self._touch(copy, now)
        size = self.version.block_bytes
        first, end = start // size, -(-stop // size)
        if copy.verified.find(0, first, end) >= 0 and any(copy.check(first, end)):
            return None
        data = copy.read(start, stop)
        if data is None:  # emptied to make space, or the disk fails: nothing that was known of these blocks holds
            copy.verified[first:end] = bytes(end - first)
            self._copy = None
        return data

    def missing(self, first: int, stop: int) -> list[int]:
        """Those of the blocks [first, stop) that are absent, or are not what was written. Each is verified once.

        None are missing that this process has verified, though they may have been evicted since: `read` finds that out.
        """
        copy = self._copy or self._open()
        if copy is None:
            return list(range(first, stop))
        if copy.verified.find(0, first, stop) < 0:
            return []
        absent, damaged = copy.check(first, stop)
        return sorted(absent + damaged)

    def has_verified(self, first: int, stop: int) -> bool:
        """Whether this process knows, without looking, that the blocks [first, stop) are there."""
        copy = self._copy
        return copy is not None and copy.verified.find(0, first, stop) < 0

    def claim(self, blocks: Sequence[int]) -> Claim:
        """Take the right to fetch those blocks that are missing and that nobody else is fetching, without waiting.

        Whoever holds claims must not `wait`: fetch, put and release them first, or two would wait for each other.

        Args:
            blocks: Ascending.
        """
        for _ in range(_ATTEMPTS if blocks else 0):
            copy = self._copy or self._open()
            if copy is None:
                break
            try:
                locks = RangeLocks(self._path)
                if copy.is_file(locks.descriptor):
                    taken = [block for run in _runs(blocks) for block in _take(locks, *run)]
                    if os.fstat(locks.descriptor).st_nlink:
                        missing = self._still_missing(copy, locks, taken)
                        return Claim(self.version, self._shelf.space, copy, locks, missing)
                locks.close()
            except FileNotFoundError:
                pass
            except OSError as error:
                self._shelf.space.give_up(error)
                break
            self._copy = None  # evicted since it was opened
        return Claim(self.version, self._shelf.space, None, None, list(blocks))

    def wait(self, blocks: Sequence[int], *, timeout_seconds: float) -> bool:
        """Wait until nobody is fetching any of `blocks`; then they are there, or can be claimed.

        Returns:
            False: somebody still is after `timeout_seconds`. Fetch them past the cache.
        """
        pauses = Pauses(timeout_seconds)
        for first, stop in _runs(blocks):
            while True:
                copy = self._copy or self._open()
                if copy is None or not is_locked(copy.descriptor, first, stop):
                    break
                if given_up() or not pauses.pause():
                    return False
        return True

    def _still_missing(self, copy: BlockCopy, locks: RangeLocks, taken: list[int]) -> list[int]:
        """Give back the blocks that somebody else put in the meantime."""
        missing: list[int] = []
        for first, stop in _runs(taken):
            absent, damaged = copy.check(first, stop)
            if damaged:
                _logger.warning(
                    "block %d of %s is damaged in the block cache (%s), as after a power cut; fetching it again",
                    damaged[0],
                    self.version.name,
                    self._path,
                )
            missing += sorted(absent + damaged)
        for block in set(taken).difference(missing):
            locks.drop(block, block + 1)
        return missing

    def _open(self) -> BlockCopy | None:
        self._copy = copy = self._shelf.open_copy(self.version, self._path)
        self._touch_at = 0.0
        return copy

    def _touch(self, copy: BlockCopy, now: float) -> None:
        """Tell other processes that this copy is in use."""
        self._touch_at = now + _TOUCH_SECONDS
        with contextlib.suppress(OSError):
            os.utime(copy.descriptor)


class Claim:
    """The right to fetch some blocks; ends with `release`, with the `with` block, or with the process. Thread-safe.

    Attributes:
        blocks: Ascending; nobody else fetches them until they are put or released.
    """

    __slots__ = ("_copy", "_guard", "_held", "_locks", "_of", "_puts", "_released", "_space", "blocks")

    def __init__(
        self, of: ObjectVersion, space: BlockSpace, copy: BlockCopy | None, locks: RangeLocks | None, blocks: list[int]
    ) -> None:
        self.blocks = blocks
        self._held = set(blocks)
        self._released = False
        self._puts = 0
        self._guard = threading.Lock()
        self._of = of
        self._space = space
        self._copy = copy
        self._locks = locks

    def put(self, first: int, data: bytes | memoryview) -> bool:
        """Keep the bytes of consecutive claimed blocks, and release these.

        Args:
            first: Number of the first block.
            data: Whole blocks; only the object's last one is shorter.

        Returns:
            False: not kept, because the limit or the disk does not allow it, or the claim was released.

        Raises:
            ValueError: Not whole blocks, or not claimed, or put before.
        """
        stop = first + -(-len(data) // self._of.block_bytes)
        start_bytes, stop_bytes = self._of.extent(first, stop)
        if len(data) != stop_bytes - start_bytes:
            raise ValueError(f"{len(data)} bytes are not blocks {first} to {stop} of {self._of}")
        copy, locks = self._copy, self._locks
        if copy is None or locks is None or locks.descriptor < 0:
            return False
        with self._guard:
            if self._released:
                return False
            if not self._held.issuperset(range(first, stop)):
                raise ValueError(f"blocks {first} to {stop} of {self._of} are not claimed: only {self._held} are")
            self._held.difference_update(range(first, stop))
            self._puts += 1
        try:
            return self._keep(copy, first, stop, data)
        finally:
            with self._guard:
                self._puts -= 1
                locks.drop(first, stop)
                if self._released and self._puts == 0:
                    locks.close()

    def _keep(self, copy: BlockCopy, first: int, stop: int, data: bytes | memoryview) -> bool:
        space = self._space
        if space.closed:
            return False
        try:
            with space.lock():
                if not space.allocate(copy.descriptor, *copy.data_range(first, stop)):
                    return False
            copy.write(first, data)
        except OSError as error:
            space.give_up(error)
            return False
        return True

    def release(self) -> None:
        """Let others fetch what was not put. What other threads are just putting is still put."""
        if self._locks is None or self._locks.descriptor < 0:
            return
        with self._guard:
            self._released = True
            if self._puts == 0:
                self._locks.close()

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _take(locks: RangeLocks, first: int, stop: int) -> list[int]:
    if locks.take(first, stop):
        return list(range(first, stop))
    return [block for block in range(first, stop) if locks.take(block, block + 1)]


def _runs(blocks: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ranges: [3, 4, 5, 9] is [(3, 6), (9, 10)]."""
    runs: list[tuple[int, int]] = []
    for block in blocks:
        if runs and runs[-1][1] == block:
            runs[-1] = (runs[-1][0], block + 1)
        else:
            runs.append((block, block + 1))
    return runs
