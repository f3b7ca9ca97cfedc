# SPDX-License-Identifier: Apache-2.0
"""Memory when samples are made in bulk: the garbage collector is paused, and what is held may be limited.

Making thousands of samples at once looks like a leak to the collector: it runs every 700 objects, finds nothing, and
takes a sixth of the time of a chunk of texts. It is paused while the objects of a chunk are made, and restored right
after. If several threads do so in turn, it still runs about once a second: the rest of the program makes objects too.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, cast

from energon_grain.transforms.batching import kind_of


class MemoryHolder(Protocol):
    """Memory that a budget may limit (`energon_grain.memory_budget`)."""

    holder: str  # its kind in statistics, such as "caches"

    def held_bytes(self) -> int: ...

    def allow(self, size_bytes: int) -> None:
        """Hold at most this much from now on, and give back the rest. Called in any thread."""


holders: weakref.WeakSet[MemoryHolder] = weakref.WeakSet()
"""All holders of this process."""

CHUNK_BYTES = 16 << 20
"""A chunk is cut so that its samples hold about this much memory. Less costs numpy calls, more costs CPU caches."""


class LookAheadMemory:
    """Limits what loaders make ahead: each owner by its own limit, and all of them by a budget, if there is one."""

    budget: Callable[[object, float, float], bool] | None = None
    chunk_bytes: int = CHUNK_BYTES
    step_bytes: int = 1 << 62  # prefetched at a time from object stores

    def fits(self, owner: object, size_bytes: float, limit_bytes: int, beside_bytes: float) -> bool:
        """Whether an owner that holds something may hold this much. Raises ConfigError if the budget is too small.

        `beside_bytes` count in the budget too: copies while entries are made, and entries just taken.
        """
        return size_bytes <= limit_bytes and (self.budget is None or self.budget(owner, size_bytes, beside_bytes))


look_ahead = LookAheadMemory()
_lock = threading.Lock()
_pausing = 0
_was_enabled = False
_since = 0.0
_not_before = 0.0

LONGEST_SECONDS = 0.5
"""Threads do not join a pause that has lasted longer than this."""
REST_SECONDS = 0.02
"""Minimum time between such a long pause and the next pause."""


@contextmanager
def paused_collection() -> Generator[None]:
    """Pause automatic garbage collection. Several threads may do so at the same time; the last one resumes it."""
    global _pausing, _was_enabled, _since, _not_before
    with _lock:
        now = time.monotonic()
        if _pausing == 0:
            _since = now
        joined = now - _since < LONGEST_SECONDS and now >= _not_before
        if joined and _pausing == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pausing += joined
    try:
        yield
    finally:
        with _lock:
            _pausing -= joined
            if joined and _pausing == 0:
                now = time.monotonic()
                _not_before = now + REST_SECONDS if now - _since >= LONGEST_SECONDS else 0.0
                if _was_enabled:
                    gc.enable()


def _resume_in_child() -> None:
    """In a forked child, the threads that paused the collection do not exist."""
    global _lock, _pausing
    _lock = threading.Lock()
    if _pausing and _was_enabled:
        gc.enable()
    _pausing = 0


os.register_at_fork(after_in_child=_resume_in_child)


def approximate_bytes(value: Any) -> int:
    """Approximate memory of a sample's arrays, bytes and strings. Other objects count as 0."""
    if kind_of(type(value)) is not None:
        try:
            return value.nbytes
        except RuntimeError:  # sparse torch tensors
            return 0
    if isinstance(value, (bytes, bytearray, memoryview, str)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(approximate_bytes, cast("Mapping[Any, Any]", value).values()))
    if isinstance(value, (list, tuple)):
        return sum(map(approximate_bytes, cast("list[Any]", value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value) if field.name[:2] != "__")
        return sum(approximate_bytes(getattr(value, name)) for name in names)
    return 0
