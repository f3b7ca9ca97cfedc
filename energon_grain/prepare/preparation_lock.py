"""One `prepare` at a time on a dataset."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path

from energon_grain.errors import RefusedError


@contextlib.contextmanager
def preparation_lock(folder: Path) -> Generator[None]:
    """Hold the lock of a `.nv-meta` folder.

    The lock is on the folder itself and goes with the process, so it leaves no file and a killed `prepare` blocks
    nobody. File systems without locks are passed over.

    Raises:
        RefusedError: Another process prepares the dataset right now.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RefusedError(
                f"{folder.parent}: another process is preparing this dataset. Wait for it, or end it."
            ) from None
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)
