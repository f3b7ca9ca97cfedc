# SPDX-License-Identifier: Apache-2.0
"""Memory when samples are made in bulk: the garbage collector is paused, and freed memory is reused.

Making thousands of samples at once looks like a leak to the collector: it runs every 700 objects, finds nothing, and
takes a sixth of the time of a chunk of texts. It is paused while the objects of a chunk are made, and restored right
after. If several threads do so in turn, it still runs at least about once a second, because the rest of the program
makes objects too.

By default, glibc returns large blocks to the system as soon as they are freed, and requests new ones a moment later.
Every page of a new block is then faulted in and zeroed again. For images and blobs of 100 KB this costs as much as
reading or decoding them: keeping the blocks doubles the rate of 100 KB samples.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
import platform
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from energon_grain.transforms.batching import kind_of

ENVIRONMENT = "ENERGON_GRAIN_KEEP_MEMORY"
"""Set it to 0 to leave the allocator unchanged."""

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_MMAP_THRESHOLD_BYTES = 32 << 20  # the upper limit of glibc
_KEPT_BYTES = 256 << 20
_GROWTH_BYTES = 4 << 20

_done = False


def keep_freed_memory() -> None:
    """Set the C library, once per process, to keep up to 256 MiB of freed memory for reuse.

    Does nothing if the C library is not glibc, if the environment already tunes it (`MALLOC_TRIM_THRESHOLD_`,
    `MALLOC_MMAP_THRESHOLD_`, `GLIBC_TUNABLES`) or if `ENERGON_GRAIN_KEEP_MEMORY=0`. Other allocators (jemalloc,
    tcmalloc) that replace malloc are not affected.
    """
    global _done
    if _done:
        return
    _done = True
    tuned = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
    if os.environ.get(ENVIRONMENT) == "0" or any(name in os.environ for name in tuned):
        return
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_M_TOP_PAD, _GROWTH_BYTES)


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
        return sum(approximate_bytes(entry) for entry in cast("Mapping[Any, Any]", value).values())
    if isinstance(value, (list, tuple)):
        entries = cast("list[Any]", value)
        return sum(approximate_bytes(entry) for entry in entries)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value) if field.name[:2] != "__")
        return sum(approximate_bytes(getattr(value, name)) for name in names)
    return 0
