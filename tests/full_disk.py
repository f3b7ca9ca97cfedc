"""A disk that is full: files may not grow beyond a size."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Generator


@contextlib.contextmanager
def size_limit(size_bytes: int) -> Generator[None]:
    """Let writing beyond a size fail, in this process and in those that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
