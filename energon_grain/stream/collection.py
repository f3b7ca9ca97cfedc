"""Keeping the garbage collector out of bulk construction.

Making thousands of samples at once looks to the collector like a leak: it runs every 700 objects, finds nothing, and
takes a sixth of the time of a chunk of texts. It is paused while a chunk's objects are made, and as it was right after.
Where several threads take turns at that it runs nevertheless, at least about once a second: the rest of the program
makes objects too.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

_lock = threading.Lock()
_pausing = 0
_was_enabled = False
_since = 0.0
_not_before = 0.0

LONGEST_SECONDS = 0.5
"""Nobody joins a pause that has lasted for longer."""
REST_SECONDS = 0.02
"""After such a long pause there is none for this time."""


@contextmanager
def paused_collection() -> Generator[None]:
    """Pause automatic garbage collection; several threads may do so at once, and the last one resumes it."""
    global _pausing, _was_enabled, _since, _not_before
    with _lock:
        now = time.monotonic()
        if _pausing == 0:
            _since = now
        joined = now - _since < LONGEST_SECONDS and now >= _not_before
        if joined and _pausing == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pausing += joined
    try:
        yield
    finally:
        with _lock:
            _pausing -= joined
            if joined and _pausing == 0:
                now = time.monotonic()
                _not_before = now + REST_SECONDS if now - _since >= LONGEST_SECONDS else 0.0
                if _was_enabled:
                    gc.enable()


def _resume_in_child() -> None:
    """In a forked child, the threads that had paused it do not exist."""
    global _lock, _pausing
    _lock = threading.Lock()
    if _pausing and _was_enabled:
        gc.enable()
    _pausing = 0


os.register_at_fork(after_in_child=_resume_in_child)
