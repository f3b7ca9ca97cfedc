"""What a process holds: resident memory and open files, read from /proc. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path


def resident_mb() -> float:
    """Resident memory of this process in MiB (VmRSS)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no VmRSS line")


def open_files() -> int:
    """File descriptors that this process holds, without the one that counts them."""
    return len(os.listdir("/proc/self/fd")) - 1
