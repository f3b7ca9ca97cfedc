"""Asking the kernel to forget files, and whether it did."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

CAN_DROP = hasattr(os, "posix_fadvise")


def drop(paths: Iterable[str]) -> None:
    """Ask the kernel to drop files from the page cache.

    It is a request: pages that another process has mapped stay, and so do those of some file systems.
    """
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # what was not written yet cannot be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def cached_share(places: Iterable[tuple[str, int]]) -> float | None:
    """Share of (file, offset) places whose byte is in memory, without reading what is not.

    None: the kernel or the file system does not tell, or there is no place.
    """
    flag = getattr(os, "RWF_NOWAIT", None)
    if flag is None:
        return None
    cached = asked = 0
    buffer = bytearray(1)
    for path, offset in places:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.preadv(descriptor, [buffer], offset, flag)
            cached += 1
        except OSError as error:
            if error.errno != errno.EAGAIN:
                return None
        finally:
            os.close(descriptor)
        asked += 1
    return cached / asked if asked else None
