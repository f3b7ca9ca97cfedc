# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all (written under a temporary name, flushed, renamed), and locks on who writes.

A lock is held for as long as a process or thread writes; killed processes hold none. It is dropped by name and not by
closing its file: a child that another thread forked meanwhile has the file too, and would hold the lock as long as it
lives. File systems without locks are passed over. Files and locks in folders that others may write to are never opened
through a link, which could lead anywhere.
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

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Generator[BinaryIO]:
    """Open a file for writing that takes the place of `path` only when the block ends without an error.

    The temporary file lies in the folder of `path` (a rename is atomic only inside one file system) and is removed on
    any error. The new file keeps the mode of the one that it replaces. Raises OSError.
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
    """Put `data` at `path`, whole or not at all."""
    with atomic_write(path) as file:
        file.write(data)


def atomic_write_text(path: str | os.PathLike[str], text: str) -> None:
    """Put `text`, encoded as UTF-8, at `path`, whole or not at all."""
    atomic_write_bytes(path, text.encode())


@contextlib.contextmanager
def naming_when_full(path: str | os.PathLike[str]) -> Generator[None]:
    """Let errors that say that there is no room say where: those of `write` name no file."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM and error.filename is None:
            error.filename = os.fspath(path)
        raise


@contextlib.contextmanager
def explaining_writes(
    folder: str | os.PathLike[str], *, full: str | Callable[[], str], read_only: str
) -> Generator[None]:
    """Add a note to errors of a disk that is full, or of a folder that cannot be written: what to do about it.

    Args:
        folder: What is written into.
        full: The way out where the disk is full; the note begins with how much is free. Or a function that gives it.
        read_only: The way out where the folder cannot be written.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            free = ""
            with contextlib.suppress(OSError):
                free = f"{shutil.disk_usage(folder).free / 1e6:,.0f} MB are free on the disk of {os.fspath(folder)}; "
            error.add_note(f"{free}{full if isinstance(full, str) else full()}")
        elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            error.add_note(read_only)
        raise


def is_writable(folder: Path) -> bool:
    """Whether files can be made in a folder, which is made if it is missing. Leaves nothing behind, even if killed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # without a name, where the system can do that
            return True
    except OSError:
        return False


def remove_temporaries(folder: Path, *patterns: str) -> None:
    """Remove files and folders that killed runs were writing; to be called where nobody else can be writing them."""
    for pattern in patterns:
        for path in folder.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def remove_unused(folder: Path, unused_s: float) -> None:
    """Remove what lies in a folder with an older time of modification; who uses it again gives it another one."""
    with contextlib.suppress(OSError):  # others may do the same
        for path in folder.iterdir():
            if time.time() - path.stat().st_mtime > unused_s:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


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
