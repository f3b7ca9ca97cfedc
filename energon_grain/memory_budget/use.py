# SPDX-License-Identifier: Apache-2.0
"""Who holds the memory of a process tree."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldMemory:
    """The memory of one kind of holder, in all processes of the tree.

    Attributes:
        name: "look-ahead" (reserved for samples and batches made ahead, of a closed loader until Python
            collects it), "caches" (decoded groups of tables and others), "buffers"
            (memory kept for reuse), "indices" (mapped files), "workers" (the rest of other processes), or "interpreter"
            (the rest of this one: Python, libraries, the program, and work in progress).
        held_bytes: Its memory. Estimated, except the last two, which are the measured rest.
    """

    name: str
    held_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryUse:
    """The memory of a process tree under a budget.

    Attributes:
        budget_bytes: The budget of this process and the processes below it.
        used_bytes: Sum of their PSS at the last measurement.
        most_bytes: Maximum of `used_bytes` at any measurement.
        minimum_bytes: The smallest budget that would do, as far as is known by now.
        processes: Number of processes.
        holders: Their memory by kind. The sum is about `used_bytes`, and more while results of worker processes are not
            read yet.
    """

    budget_bytes: int
    used_bytes: int
    most_bytes: int
    minimum_bytes: int
    processes: int
    holders: tuple[HeldMemory, ...]
