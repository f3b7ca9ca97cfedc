# SPDX-License-Identifier: Apache-2.0
"""Atomic writes (to a temporary name, flushed, renamed), and locks for writers.

A lock is held while a process or thread writes; killed processes hold none. It is released explicitly, not by closing
its file: a child forked by another thread inherits the file and would hold the lock for its lifetime. On file systems
without locks, nothing is locked. Files and locks in folders that others may write to are never opened through a
symbolic link, which could lead anywhere.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import BinaryIO

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Generator[BinaryIO]:
    """Open a file for writing that replaces `path` only if the block ends without an error.

    The temporary file is in the folder of `path` (a rename is atomic only within one file system) and is removed on any
    error. The new file keeps the mode of the one it replaces. Raises OSError.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with naming_when_full(path), open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            os.chmod(temporary, path.stat().st_mode & 0o7777)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def atomic_write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to `path` atomically."""
    with atomic_write(path) as file:
        file.write(data)


def atomic_write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to `path` as UTF-8, atomically."""
    atomic_write_bytes(path, text.encode())


@contextlib.contextmanager
def naming_when_full(path: str | os.PathLike[str]) -> Generator[None]:
    """Add the path to errors of a full disk: those of `write` name no file."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL and error.filename is None:
            error.filename = os.fspath(path)
        raise


@contextlib.contextmanager
def explaining_writes(
    folder: str | os.PathLike[str], *, full: str | Callable[[], str], read_only: str
) -> Generator[None]:
    """Add a note to errors of a full disk or a read-only folder: how to fix it.

    Args:
        folder: The folder to write into.
        full: Advice for a full disk; the note begins with the free space. Or a function that returns it.
        read_only: Advice for a read-only folder.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL:
            free = ""
            with contextlib.suppress(OSError):
                free = f"{shutil.disk_usage(folder).free / 1e6:,.0f} MB are free on the disk of {os.fspath(folder)}; "
            error.add_note(f"{free}{full if isinstance(full, str) else full()}")
        elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            error.add_note(read_only)
        raise


def is_writable(folder: Path) -> bool:
    """Whether files can be created in a folder; creates it if it is missing. Leaves nothing behind, even if killed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # without a name, if the system supports that
            return True
    except OSError:
        return False


def remove_temporaries(folder: Path, *patterns: str) -> None:
    """Remove files and folders that killed runs left; only call this while no other process can be writing them."""
    for pattern in patterns:
        for path in folder.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def remove_unused(folder: Path, unused_s: float) -> None:
    """Remove entries of a folder whose modification time is too old; using an entry again updates that time."""
    with contextlib.suppress(OSError):  # another process may do the same
        for path in folder.iterdir():
            if time.time() - path.stat().st_mtime > unused_s:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut, if the file system supports it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def open_unlinked(path: str | os.PathLike[str], flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """Open a file and return its descriptor. Raises OSError if it is a symbolic link, or cannot be opened."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)


@contextlib.contextmanager
def locked(file: BinaryIO | int, how: int = fcntl.LOCK_EX) -> Generator[bool]:
    """Hold the lock of an open file, across processes; waits for it. Yields whether it was acquired."""
    acquired = False
    with contextlib.suppress(OSError):
        fcntl.flock(file, how)
        acquired = True
    try:
        yield acquired
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


@contextlib.contextmanager
def _locked_at(descriptor: int, how: int) -> Generator[bool]:
    try:
        with locked(descriptor, how) as acquired:
            yield acquired
    finally:
        os.close(descriptor)


def locked_at(path: str | os.PathLike[str]) -> contextlib.AbstractContextManager[bool]:
    """Hold the exclusive lock of the file at a path, which is created if it is missing. See `locked`."""
    return _locked_at(open_unlinked(path), fcntl.LOCK_EX)


def writing_in(folder: Path) -> contextlib.AbstractContextManager[bool]:
    """Announce that temporary files are being written in a folder; any number of processes and threads may do so.

    The lock is on the folder itself, and leaves no file.
    """
    return _locked_at(os.open(folder, os.O_RDONLY), fcntl.LOCK_SH)


def exclusive_in(folder: Path) -> contextlib.AbstractContextManager[bool]:
    """Yields whether no one is `writing_in` a folder, and blocks writers meanwhile; False if locks are unsupported."""
    return _locked_at(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)


def sweep(folder: Path, *patterns: str) -> None:
    """Remove files that killed runs left in a folder, by patterns; nothing while another one is `writing_in` it."""
    with exclusive_in(folder) as is_exclusive:
        if is_exclusive:
            remove_temporaries(folder, *patterns)
