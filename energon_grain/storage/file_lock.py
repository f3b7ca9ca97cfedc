"""Locks on whole files and folders, for as long as a process or thread writes there. Killed processes hold none.

A lock is dropped by name and not by closing its file: a child that another thread forked meanwhile has the file too,
and would hold the lock as long as it lives. File systems without locks are passed over. Files and locks in folders that
others may write to are never opened through a link, which could lead anywhere.
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
def locked(file: BinaryIO | int, how: int = fcntl.LOCK_EX) -> Generator[bool]:
    """Hold the lock of an open file, here and in other processes; waits for it, and says whether it was had."""
    had = False
    with contextlib.suppress(OSError):
        fcntl.flock(file, how)
        had = True
    try:
        yield had
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


@contextlib.contextmanager
def _locked_at(descriptor: int, how: int) -> Generator[bool]:
    try:
        with locked(descriptor, how) as had:
            yield had
    finally:
        os.close(descriptor)


def locked_at(path: str | os.PathLike[str]) -> contextlib.AbstractContextManager[bool]:
    """Be the only one that holds the lock of the file at a path, which is made if there is none. See `locked`."""
    return _locked_at(open_unlinked(path), fcntl.LOCK_EX)


def writing_in(folder: Path) -> contextlib.AbstractContextManager[bool]:
    """Say that temporaries are being written in a folder; any number of processes and threads may at once.

    The lock is on the folder itself, and leaves no file.
    """
    return _locked_at(os.open(folder, os.O_RDONLY), fcntl.LOCK_SH)


def alone_in(folder: Path) -> contextlib.AbstractContextManager[bool]:
    """Say whether nobody is `writing_in` a folder, and let nobody begin meanwhile; False where locks cannot tell."""
    return _locked_at(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)


def sweep(folder: Path, *patterns: str) -> None:
    """Remove what killed runs were writing in a folder, by patterns; nothing while somebody is `writing_in` it."""
    with alone_in(folder) as alone:
        if alone:
            remove_temporaries(folder, *patterns)
