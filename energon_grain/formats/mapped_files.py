# SPDX-License-Identifier: Apache-2.0
"""Mapped files of this process, whose pages a memory budget may give back.

A page of a mapped file counts as memory of the process from its first use on. Giving pages back costs little: they stay
in the page cache, and the next use maps them again, at about 1 µs per 64 KiB.
"""

from __future__ import annotations

import mmap
import sys
import weakref
from contextlib import suppress

_mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def map_file(descriptor: int) -> mmap.mmap:
    """Map an open file for reading; the mapping outlives the descriptor. Raises as `mmap.mmap`."""
    if sys.version_info >= (3, 13):
        found = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ, trackfd=False)
    else:
        found = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    _mapped.add(found)
    return found


def add_mapped(mapping: mmap.mmap) -> None:
    """Let a budget give back the pages of a mapping that is never written to."""
    _mapped.add(mapping)


def _now() -> tuple[mmap.mmap, ...]:
    while True:
        with suppress(RuntimeError):  # another thread adds one
            return tuple(_mapped)


def mapped_bytes() -> int:
    """Size of all mappings, used or not."""
    total = 0
    for mapping in _now():
        with suppress(ValueError):  # closed
            total += len(mapping)
    return total


def release_mapped() -> None:
    """Give back the pages of all mappings."""
    if hasattr(mmap, "MADV_DONTNEED"):
        for mapping in _now():
            with suppress(ValueError, OSError):  # closed
                mapping.madvise(mmap.MADV_DONTNEED)
