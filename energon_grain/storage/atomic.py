"""Files that appear whole or not at all: write under a temporary name, flush to disk, rename."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Generator
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
