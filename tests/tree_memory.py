"""The memory of a process tree, measured from outside: PSS, as `energon_grain.memory_budget` counts it.

It uses `psutil`, so that it does not share mistakes with what it checks. Tests and benchmarks use it.
"""

from __future__ import annotations

import subprocess
import time

import psutil

INTERVAL_S = 0.05


def tree_bytes(process: psutil.Process) -> int:
    """Sum of the PSS of a process and all below it; 0 if it has ended."""
    total = 0
    try:
        for each in [process, *process.children(recursive=True)]:
            try:
                total += each.memory_full_info().pss
            except psutil.Error:
                continue
    except psutil.Error:
        return 0
    return total


def most_bytes(started: subprocess.Popen[str]) -> int:
    """Wait for a process to end. Returns the largest PSS of its tree in bytes, sampled every 50 ms."""
    process, most = psutil.Process(started.pid), 0
    while started.poll() is None:
        most = max(most, tree_bytes(process))
        time.sleep(INTERVAL_S)
    return most
