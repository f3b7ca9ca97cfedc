# SPDX-License-Identifier: Apache-2.0
"""The memory of processes, as Linux counts it.

The unit is PSS, the proportional set size: every page that a process has touched, divided by the number of processes
that map it. The sum over a process tree counts each page once, so libraries and forked pages are not counted for every
worker. A memory cgroup charges the same pages, and in addition those of files that were read without a mapping. These
do not count here: the kernel drops them before it ends a process. Files in memory that no process has mapped yet
(results of worker processes) are charged too. `budget.py` adds them: two workers that read ahead without a budget were
charged 562 MiB, with a PSS of 290 MiB.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

_KIB = 1024


class Measured(NamedTuple):
    """PSS of a process, in bytes.

    Attributes:
        total: All of it.
        files: Pages of mapped files: libraries and indices.
        shared: Pages of memory files (memfd) and shared memory.
        elsewhere: The part of other processes in pages that this one maps too. It counts here when they end.
    """

    total: int = 0
    files: int = 0
    shared: int = 0
    elsewhere: int = 0


def measurable() -> bool:
    """Whether this system reports PSS."""
    return os.path.exists("/proc/self/smaps_rollup")


def measure(pid: int | str = "self") -> Measured:
    """PSS of a process, in 1 to 5 ms; zeros if it has ended, or belongs to another user."""
    found: dict[bytes, int] = {}
    with suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        for line in file:
            if line.startswith((b"Pss", b"Rss")):
                name, _, rest = line.partition(b":")
                found[name] = int(rest.split()[0]) * _KIB
    total, most = found.get(b"Pss", 0), found.get(b"Rss", 0)
    return Measured(total, found.get(b"Pss_File", 0), found.get(b"Pss_Shmem", 0), max(0, most - total))


def started(pid: int) -> int:
    """The start time of a process in clock ticks since boot; 0: there is none, or it has ended."""
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
        return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
    return 0


def descendants(pid: int) -> list[int]:
    """All processes below one, parents first."""
    found = [pid]
    for parent in found:
        found += _children(parent)
    return found[1:]


def _children(pid: int) -> Iterable[int]:
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                yield from map(int, file.read().split())
