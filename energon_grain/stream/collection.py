"""Keeping the garbage collector out of bulk construction.

Making thousands of samples at once looks to the collector like a leak: it runs every 700 objects, finds nothing, and
takes a sixth of the time of a chunk of texts. It is paused while a chunk's objects are made, and as it was right after.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager

_lock = threading.Lock()
_pausing = 0
_was_enabled = False


@contextmanager
def paused_collection() -> Generator[None]:
    """Pause automatic garbage collection; several threads may do so at once, and the last one resumes it."""
    global _pausing, _was_enabled
    with _lock:
        if _pausing == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pausing += 1
    try:
        yield
    finally:
        with _lock:
            _pausing -= 1
            if _pausing == 0 and _was_enabled:
                gc.enable()
