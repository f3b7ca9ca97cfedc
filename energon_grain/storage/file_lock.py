"""A lock on a whole file, for as long as one process or thread brings something up to date."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Generator
from typing import BinaryIO


@contextlib.contextmanager
def locked(file: BinaryIO) -> Generator[None]:
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
