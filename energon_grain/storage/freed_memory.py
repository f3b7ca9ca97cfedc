"""Keeping the memory of samples that were let go of, so that the next ones are made in warm pages.

By default glibc gives large blocks back to the system as soon as they are freed and asks for new ones a moment later.
Every page of a new block is then faulted in and zeroed anew, which for pictures and blobs of 100 KB costs as much as
reading or decoding them: with blocks kept, 100 KB samples come at twice the rate.
"""

from __future__ import annotations

import ctypes
import os
import platform

ENVIRONMENT = "ENERGON_GRAIN_KEEP_MEMORY"
"""Set it to 0 to leave the allocator alone."""

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_MMAP_THRESHOLD_BYTES = 32 << 20  # glibc's own upper bound
_KEPT_BYTES = 256 << 20
_GROWTH_BYTES = 4 << 20

_done = False


def keep_freed_memory() -> None:
    """Tell the C library, once a process, to keep up to 256 MiB of freed memory for reuse.

    Does nothing where the C library is not glibc, where the environment already tunes it (`MALLOC_TRIM_THRESHOLD_`,
    `MALLOC_MMAP_THRESHOLD_`, `GLIBC_TUNABLES`) or where `ENERGON_GRAIN_KEEP_MEMORY=0`. Other allocators (jemalloc,
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
