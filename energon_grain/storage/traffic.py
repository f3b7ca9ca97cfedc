# SPDX-License-Identifier: Apache-2.0
"""Counters of all storage requests and reads of this process; they never decrease."""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass, field
from typing import Self

from energon_grain.storage.cores import reset_after_fork

_MOST_FILES = 1024
OTHER_FILES = ""
"""Key of the sum of all files without their own entry."""


@dataclass(slots=True)
class Traffic:
    """Counters. Two of them are subtracted and added field by field.

    Attributes:
        requests: All requests to object stores.
        repeated: Requests that followed a failed one, or one without a first byte yet.
        sent_twice: The latter alone.
        bytes_read: Bytes received from object stores.
        found: Ranges of objects that were available when needed: in the cache on disk, or prefetched.
        missed: Ranges that readers waited for.
        fetched_again_bytes: Bytes of pages that were fetched before, and evicted from the cache on disk or not kept.
        not_kept_bytes: Bytes that did not fit into the cache.
        rereads: Retries of reads of local files.
        paused_s: Seconds that threads paused before retries.
        lost_s: Seconds of requests to object stores before their last attempt: failed attempts and pauses.
        files: (seconds, reads) of objects, and of local files while they are slower than memory.
    """

    requests: int = 0
    repeated: int = 0
    sent_twice: int = 0
    bytes_read: int = 0
    found: int = 0
    missed: int = 0
    fetched_again_bytes: int = 0
    not_kept_bytes: int = 0
    rereads: int = 0
    paused_s: float = 0.0
    lost_s: float = 0.0
    files: dict[str, tuple[float, int]] = field(default_factory=dict[str, tuple[float, int]])

    def __add__(self, other: Self) -> Self:
        files = dict(self.files)
        for path, (seconds, reads) in other.files.items():
            before = files.get(path, (0.0, 0))
            files[path] = before[0] + seconds, before[1] + reads
        return self._joined(other, 1, files)

    def __sub__(self, before: Self) -> Self:
        files: dict[str, tuple[float, int]] = {}
        for path, (seconds, reads) in self.files.items():
            then = before.files.get(path, (0.0, 0))
            if reads > then[1]:
                files[path] = seconds - then[0], reads - then[1]
        return self._joined(before, -1, files)

    def _joined(self, other: Self, sign: int, files: dict[str, tuple[float, int]]) -> Self:
        numbers = {name: getattr(self, name) + sign * getattr(other, name) for name in _NUMBERS}
        return type(self)(**numbers, files=files)

    def slowest_files(self, count: int) -> Self:
        """The same, with only the slowest files; the others are summed up in one entry."""
        if len(self.files) <= count:
            return self
        ranked = sorted(self.files.items(), key=lambda entry: (entry[0] != OTHER_FILES, entry[1]), reverse=True)
        others = [times for _, times in ranked[count:]]
        kept = dict(ranked[:count])
        kept[OTHER_FILES] = sum(seconds for seconds, _ in others), sum(reads for _, reads in others)
        return dataclasses.replace(self, files=kept)


_NUMBERS = tuple(each.name for each in dataclasses.fields(Traffic) if each.name != "files")
_here = Traffic()
_counting = reset_after_fork(threading.RLock())  # a signal handler may call `traffic`


def count(**more: float) -> None:
    """Increase counters of this process, by name."""
    with _counting:
        for name, number in more.items():
            setattr(_here, name, getattr(_here, name) + number)


def count_read(path: str, seconds: float) -> None:
    """Count a read of a file or object, and its duration."""
    global _here
    with _counting:
        before = _here.files.get(path, (0.0, 0))
        _here.files[path] = before[0] + seconds, before[1] + 1
        if len(_here.files) > _MOST_FILES:
            _here = _here.slowest_files(_MOST_FILES // 2)


def traffic() -> Traffic:
    """A snapshot of the counters of this process."""
    with _counting:
        return dataclasses.replace(_here, files=dict(_here.files))
