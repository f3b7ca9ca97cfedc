"""Keeping freed memory: only seen from outside, in page faults of a process of its own."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from energon_grain.stream.memory import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
    keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
np.ones(6 << 20, np.uint8)
before = faults()
for _ in range(20):
    held = [np.ones(6 << 20, np.uint8) for _ in range(3)]
    del held
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="tunes glibc's allocator")
def test_freed_blocks_are_used_again_without_new_pages() -> None:
    def faults(keep: str, **environment: str) -> int:
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM, keep], capture_output=True, text=True, check=True, env=environment or None
        )
        return int(run.stdout)

    assert faults("keep") < 8_000
    assert faults("leave") > 3 * faults("keep")
