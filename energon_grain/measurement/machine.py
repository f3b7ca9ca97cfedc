"""What the machine itself can do."""

from __future__ import annotations

import os
import time

import numpy as np

_COPIED_BYTES = 64 << 20


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memcpy_bytes_per_s(seconds: float = 0.2) -> float:
    """How fast one thread copies memory: the fastest of several copies of 64 MiB, which no cache holds."""
    source = np.ones(_COPIED_BYTES, np.uint8)
    target = np.zeros_like(source)
    fastest_s = float("inf")
    deadline = time.perf_counter() + seconds
    while True:
        begin = time.perf_counter()
        np.copyto(target, source)
        end = time.perf_counter()
        fastest_s = min(fastest_s, end - begin)
        if end >= deadline:
            return _COPIED_BYTES / fastest_s
