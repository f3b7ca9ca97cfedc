# SPDX-License-Identifier: Apache-2.0
"""Memory that the C library keeps after it was freed.

By default, glibc returns large blocks to the system as soon as they are freed, and requests new ones a moment later.
Every page of a new block is then faulted in and zeroed again. For images and blobs of 100 KB this costs as much as
reading or decoding them: keeping the blocks doubles the rate of 100 KB samples.

Under a memory budget it keeps less.
"""

from __future__ import annotations

import ctypes
import os
import platform
from contextlib import suppress
from functools import cache
from typing import Any

ENVIRONMENT = "ENERGON_GRAIN_KEEP_MEMORY"
"""Set it to 0 to leave the allocator unchanged."""

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_MMAP_THRESHOLD_BYTES = 32 << 20  # the upper limit of glibc
_KEPT_BYTES = 256 << 20
_GROWTH_BYTES = 4 << 20
_LEAST_KEPT_BYTES = 16 << 20

_done = False
_kept_bytes = 0  # as set by `keep_little_memory`


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
    libc = _libc()
    if libc is None or _is_tuned():
        return
    mallopt = libc.mallopt
    mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_M_TOP_PAD, _GROWTH_BYTES)


def _is_tuned() -> bool:
    """Whether the environment tunes the allocator, or asks to leave it unchanged."""
    tuned = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
    return os.environ.get(ENVIRONMENT) == "0" or any(name in os.environ for name in tuned)


@cache
def _libc() -> Any:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None


def keep_little_memory(size_bytes: int) -> None:
    """Set glibc to return freed memory above this size (16 to 256 MiB), unless the environment tunes it."""
    global _kept_bytes
    keep_freed_memory()
    libc, kept_bytes = _libc(), max(_LEAST_KEPT_BYTES, min(_KEPT_BYTES, size_bytes))
    if libc is not None and kept_bytes != _kept_bytes and not _is_tuned():  # setting it takes the lock of the allocator
        libc.mallopt(_M_TRIM_THRESHOLD, kept_bytes)
        _kept_bytes = kept_bytes


def trim() -> None:
    """Return freed memory to the system, if the C library is glibc."""
    libc = _libc()
    if libc is not None:
        with suppress(AttributeError):
            libc.malloc_trim(0)
