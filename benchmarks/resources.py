"""What a process holds, by /proc, and what a measurement shall find in memory. Standard library only."""

from __future__ import annotations

import os
import resource
import tempfile
from pathlib import Path

_CHUNK = bytes(4 << 20)
CACHE = Path(os.environ.get("ENERGON_BENCH_CACHE") or Path(__file__).resolve().parent.parent / ".bench")
"""Where data sets are kept."""


def resident_mb() -> float:
    """Resident memory of this process in MiB (VmRSS)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no VmRSS line")


def open_files() -> int:
    """File descriptors that this process holds, without the one that counts them."""
    return len(os.listdir("/proc/self/fd")) - 1


def warm(folder: Path) -> None:
    """Read every file of a folder once, before each measurement: some kernels drop pages that rest for a minute."""
    buffer = bytearray(1 << 22)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def claim_memory(size_bytes: int) -> None:
    """Use free memory as page cache for a moment, just before a measurement; the folder of temporary files has room.

    Else the measurement may pay for memory that a virtual machine gave back to its host: such a machine tells the host
    within seconds which memory is free, and each page costs a fault of the host when it is next used. Measured on one:
    2.4 core-s for each GB written into the page cache, against 0.25 for memory in use of late.
    """
    with tempfile.TemporaryFile() as file:
        for start in range(0, size_bytes, len(_CHUNK)):
            os.pwrite(file.fileno(), _CHUNK, start)


def processor_s(*, own: bool = True) -> float:
    """Seconds of processors that this process took, and its children that ended; `own=False`: these alone."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN) if own else (resource.RUSAGE_CHILDREN,)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, who))
