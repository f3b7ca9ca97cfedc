"""Read what a process uses from /proc, and prepare memory for a measurement. Standard library only."""

from __future__ import annotations

import os
import resource
import tempfile
from pathlib import Path

_CHUNK = bytes(4 << 20)
CACHE = Path(os.environ.get("ENERGON_BENCH_CACHE") or Path(__file__).resolve().parent.parent / ".bench")
"""The folder of the datasets."""


def resident_mb() -> float:
    """Return the resident memory of this process in MiB (VmRSS)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no VmRSS line")


def open_files() -> int:
    """Return the number of open file descriptors of this process, without the one used for counting."""
    return len(os.listdir("/proc/self/fd")) - 1


def warm(folder: Path) -> None:
    """Read every file of a folder once, before each measurement: some kernels drop pages unused for a minute."""
    buffer = bytearray(1 << 22)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def claim_memory(size_bytes: int) -> None:
    """Use free memory as page cache for a moment, just before a measurement, through a temporary file.

    Without this, a measurement may pay for memory that a virtual machine has returned to its host: such a machine
    reports free memory to the host within seconds, and each page costs a fault on the host when it is next used.
    Measured on one machine: 2.4 core-seconds per GB written into the page cache, against 0.25 for recently used memory.
    """
    with tempfile.TemporaryFile() as file:
        for start in range(0, size_bytes, len(_CHUNK)):
            os.pwrite(file.fileno(), _CHUNK, start)


def processor_s(*, own: bool = True) -> float:
    """Return the processor seconds of this process and its finished children; with `own=False`, of these alone."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN) if own else (resource.RUSAGE_CHILDREN,)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, who))
