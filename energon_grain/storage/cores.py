# SPDX-License-Identifier: Apache-2.0
"""The number of usable cores, ordered maps over threads, and locks that survive a fork."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def usable_cores() -> int:
    """Number of cores that this process may use: containers and batch systems may allow fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_in_order(
    pool: ThreadPoolExecutor, ahead: int, function: Callable[..., T], arguments: Iterable[tuple[object, ...]]
) -> Iterator[T]:
    """Map in threads, at most `ahead` results ahead of the caller, so that memory is bounded."""
    pending: deque[Future[T]] = deque()
    try:
        for each in arguments:
            pending.append(pool.submit(function, *each))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()


def reset_after_fork(lock: T) -> T:
    """Make a lock free in a forked child, whichever thread held it, as the standard library does with its own locks."""
    held: Any = lock
    os.register_at_fork(after_in_child=held._at_fork_reinit)
    return lock
