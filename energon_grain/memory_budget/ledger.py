# SPDX-License-Identifier: Apache-2.0
"""The memory of the processes of a tree, in an anonymous file that all of them map.

The first process makes the file; the others find it by an environment variable that names its descriptor in `/proc`.
It has no name in a file system, so nothing is left when a process is killed. Every process writes its own row and reads
the others. There are no locks after a row is claimed: a row is a few numbers, and one that is half written is corrected
by the next measurement.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError
from energon_grain.memory_budget.measure import descendants, started

ENVIRONMENT = "ENERGON_GRAIN_MEMORY_LEDGER"
"""Path of the file, for the processes below the one that made it."""
KINDS: tuple[str, ...] = ("look-ahead", "caches", "buffers", "indices")
"""Kinds of holders, in the order of the columns of a row."""
_ROWS = 1024
_MAGIC = 0x6D656D6F72790002
_HEAD = np.dtype([("magic", "u8"), ("budget", "i8"), ("parts", "i8"), ("pid", "i8"), ("started", "i8")])
ROW = np.dtype(
    [
        ("pid", "i8"),
        ("started", "i8"),
        ("measured", "i8"),
        ("rest", "i8"),
        ("fixed", "i8"),
        ("floor", "i8"),
        ("known", "i8"),
        ("least", "i8"),
        ("asked", "i8"),
        ("charged", "i8"),
        ("others", "i8"),
        ("held", "i8", (len(KINDS),)),
    ]
)
"""A process: its memory; what is left of it without its holders; the part that no holder can give back, its lower limit
of the last second, and this part as known from all measurements; the minimum and the wanted size of its holders, and
what they are charged for; the memory of processes without a row; and the bytes of its holders by kind."""


class Ledger:
    """The rows of a process tree.

    Attributes:
        path: The file, for the processes below this one.
        root: Process ID of the process that made it.
        own: The row of this process, if it has claimed one.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor, self.path = descriptor, path
        self._memory = mmap.mmap(descriptor, _HEAD.itemsize + _ROWS * ROW.itemsize)
        self._head = np.frombuffer(self._memory, _HEAD, 1)
        self._rows = np.frombuffer(self._memory, ROW, _ROWS, _HEAD.itemsize)
        self.own: npt.NDArray[Any] = self._rows[:0]
        self.root = int(self._head["pid"][0])

    @property
    def budget_bytes(self) -> int:
        """The budget of the tree."""
        return int(self._head["budget"][0])

    @property
    def parts(self) -> int:
        """The trees of this host that divide the budget of the user, such as ranks."""
        return int(self._head["parts"][0])

    def resize(self, budget_bytes: int) -> None:
        """Change the budget, for all processes."""
        self._head["budget"] = budget_bytes

    @classmethod
    def new(cls, budget_bytes: int, parts: int = 1) -> Self:
        """The ledger of a tree that begins with this process."""
        descriptor = os.memfd_create("energon-grain-memory", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _HEAD.itemsize + _ROWS * ROW.itemsize)
        head = np.array([(_MAGIC, budget_bytes, parts, os.getpid(), started(os.getpid()))], _HEAD)
        os.pwrite(descriptor, head.tobytes(), 0)
        return cls(descriptor, f"/proc/{os.getpid()}/fd/{descriptor}")

    @classmethod
    def inherited(cls) -> Self | None:
        """The ledger of the environment; None: there is none, or the process that made it has ended."""
        path = os.environ.get(ENVIRONMENT)
        if not path:
            return None
        with suppress(OSError, ValueError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            found = cls(descriptor, path)
            head = found._head[0]
            if head["magic"] == _MAGIC and head["started"] == started(int(head["pid"])) != 0:
                return found
        return None

    def claim(self) -> None:
        """Take a row for this process. Raises ConfigError if 1,024 processes share the budget."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            free = (number for number in range(_ROWS) if not self._is_alive(number))
            number = next(free, None)
            if number is None:
                raise ConfigError(f"memory: more than {_ROWS} processes share one budget; use a budget for each host")
            self.own = self._rows[number : number + 1]
            self.own[:] = np.zeros(1, ROW)
            self.own["pid"], self.own["started"] = os.getpid(), started(os.getpid())
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _is_alive(self, number: int) -> bool:
        row = self._rows[number]
        return bool(row["pid"]) and started(int(row["pid"])) == row["started"]

    def alive(self) -> npt.NDArray[Any]:
        """A copy of the rows of running processes."""
        used = np.flatnonzero(self._rows["pid"])
        return self._rows[[number for number in used.tolist() if self._is_alive(number)]]

    @property
    def measures_others(self) -> bool:
        """Whether this process measures those without a row: it has the first row."""
        return int(self.own["pid"][0]) == int(self.alive()["pid"][0])

    def others(self) -> list[int]:
        """All processes of the tree without a row."""
        root = self.root if started(self.root) == int(self._head["started"][0]) else os.getpid()
        known = set(self.alive()["pid"].tolist())
        return [pid for pid in (root, *descendants(root)) if pid not in known]

    def leave(self) -> None:
        """Give the row of this process back."""
        self.own["pid"] = 0
        self.own = self._rows[:0]
