"""A lock on a whole file, for as long as one process or thread brings something up to date.

Files and locks in folders that others may write to are never opened through a link, which could lead anywhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from typing import BinaryIO


def open_unlinked(path: str | os.PathLike[str], flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """Open a file and return its descriptor. Raises OSError where it is a link, as where it cannot be opened."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)


@contextlib.contextmanager
def locked_at(path: str | os.PathLike[str]) -> Generator[None]:
    """Be the only one that holds the lock of the file at a path, which is made if there is none. See `locked`."""
    descriptor = open_unlinked(path)
    try:
        with locked(descriptor):
            yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(file: BinaryIO | int) -> Generator[None]:
    """Be the only one that holds the lock of an open file, here and in other processes; waits for it.

    The lock is dropped by name and not by closing the file: a child that another thread forked meanwhile has the file
    too, and would hold the lock as long as it lives. A file system without locks is passed over.
    """
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
