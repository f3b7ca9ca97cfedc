"""How many cores there are for threads and processes."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Cores that this process may run on: containers and batch systems give fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
