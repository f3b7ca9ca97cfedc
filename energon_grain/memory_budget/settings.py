# SPDX-License-Identifier: Apache-2.0
"""The size of a memory budget, and who shares it."""

from __future__ import annotations

import operator
import os
import re
from dataclasses import dataclass

from energon_grain.errors import ConfigError, public

ENVIRONMENT = "ENERGON_GRAIN_MEMORY"
"""The budget of this process tree, such as `4GiB`, if the program sets none."""
_UNITS = {unit: 1000**power for power, unit in enumerate(("b", "kb", "mb", "gb", "tb"))} | {
    unit: 1024**power for power, unit in enumerate(("", "kib", "mib", "gib", "tib"))
}
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE")
"""Number of processes that a launcher started on this host: torchrun, Open MPI, Intel MPI, Slurm."""


def bytes_of(size: str | int, name: str = "memory") -> int:
    """The number of bytes of a size such as `4GiB`, `500MB` or 4294967296.

    Raises ConfigError if it is no size, or not positive.
    """
    found = None
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?b?)\s*", size, re.IGNORECASE)
        unit = _UNITS.get(match[2].lower()) if match else None
        if match and unit:
            found = int(float(match[1]) * unit)
    elif hasattr(size, "__index__") and not isinstance(size, bool):
        found = operator.index(size)
    if found is None or found < 1:
        raise ConfigError(f"{name}={size!r}: expected a size, such as '4GiB', '500MB', or a number of bytes")
    return found


@public
@dataclass(frozen=True)
class StreamMemory:
    """A memory budget for a process and the processes below it.

    Attributes:
        budget: Maximum memory of the host for all processes that share it, as `4GiB`, `500MB` or a number of bytes.
        processes: Number of processes of this host that share it, such as ranks; each has an equal part, also for its
            own workers. Default: the number that the launcher reports (`LOCAL_WORLD_SIZE` of torchrun, or the variables
            of MPI and Slurm), else 1.

    Raises:
        ConfigError: A value is invalid.
    """

    budget: str | int
    processes: int | None = None

    def __post_init__(self) -> None:
        bytes_of(self.budget)
        if self.processes is not None and self.processes < 1:
            raise ConfigError(f"StreamMemory(processes={self.processes}): expected 1 or more, or None")

    @property
    def own_bytes(self) -> int:
        """The part of this process and the processes below it."""
        return bytes_of(self.budget) // self.parts

    @property
    def parts(self) -> int:
        """The processes of this host that share the budget."""
        return self.processes or _processes_of_host()

    @classmethod
    def of(cls, memory: StreamMemory | str | int) -> StreamMemory:
        """The budget of an argument."""
        return memory if isinstance(memory, StreamMemory) else cls(memory)


def _processes_of_host() -> int:
    for name in _LOCAL_SIZES:
        value = os.environ.get(name, "")
        if value.isdecimal() and int(value):
            return int(value)
    return 1
