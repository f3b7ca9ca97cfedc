"""Whether requests are still wanted: those of a program that ends, and of a reader that was closed, are given up.

Who closes a reader waits for its threads. A request that stalls, or is tried again and again, would hold that up for
minutes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator

from energon_grain.storage.program_end import program_ends

LOOK_SECONDS = 0.1
"""How often those who wait for a request look whether it is still wanted."""

_of_thread = threading.local()


@contextlib.contextmanager
def wanted_until(over: threading.Event | None) -> Generator[None]:
    """Inside the block, give up the requests of this thread as soon as `over` is set; None: never."""
    before = wanted_for()
    _of_thread.over = over
    try:
        yield
    finally:
        _of_thread.over = before


def wanted_for() -> threading.Event | None:
    """What `wanted_until` was given in this thread, to be handed on to threads that make requests for it."""
    return getattr(_of_thread, "over", None)


def given_up() -> bool:
    """Whether nobody waits any more for what this thread reads."""
    over = wanted_for()
    return program_ends() or (over is not None and over.is_set())


def pause(seconds: float) -> None:
    """Sleep, until nobody waits any more at the latest."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not given_up():
        time.sleep(min(left, LOOK_SECONDS))
