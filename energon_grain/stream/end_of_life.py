"""Closing what an object holds, when nobody has the object any more."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any


def close_with(owner: object, close: Callable[[], object]) -> weakref.finalize[..., Any]:
    """Call `close` once: when the returned object is called, when `owner` is collected, or when the program ends.

    Only in this process: a forked child has copies of what is held, but neither its threads nor its processes, so
    waiting for those would never end.

    Args:
        owner: Whose life counts. `close` must not refer to it.
        close: What ends threads and processes.
    """
    return weakref.finalize(owner, _close_here, close, os.getpid())


def _close_here(close: Callable[[], object], process: int) -> None:
    if os.getpid() == process:
        close()
