"""Locks on whole files and folders, for as long as a process or thread writes there. Killed processes hold none.

Files and locks in folders that others may write to are never opened through a link, which could lead anywhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from energon_grain.storage.atomic import remove_temporaries


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


@contextlib.contextmanager
def writing_in(folder: Path) -> Generator[None]:
    """Say that temporaries are being written in a folder; any number of processes and threads may at once.

    The lock is on the folder itself, and leaves no file.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


@contextlib.contextmanager
def alone_in(folder: Path) -> Generator[bool]:
    """Say whether nobody is `writing_in` a folder, and let nobody begin meanwhile; False where locks cannot tell."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        alone = False
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = True
        yield alone
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def sweep(folder: Path, *patterns: str) -> None:
    """Remove what killed runs were writing in a folder, by patterns; nothing while somebody is `writing_in` it."""
    with alone_in(folder) as alone:
        if alone:
            remove_temporaries(folder, *patterns)
