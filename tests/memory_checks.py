"""Checks of the memory budget that fork, or depend on what their process holds. Each runs in a process of its own.

python tests/memory_checks.py NAME [FOLDER] runs one and prints its result as JSON; `found` does so for a test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from patience import PATIENCE_S

from energon_grain import use_memory
from energon_grain.formats.mapped_files import map_file, mapped_bytes, release_mapped
from energon_grain.memory_budget import allocator
from energon_grain.memory_budget.budget import MemoryBudget, join_budget
from energon_grain.memory_budget.measure import measure
from energon_grain.stream.memory import holders, look_ahead

MIB = 1 << 20
OWN = ("LOCAL_WORLD_SIZE", "ENERGON_GRAIN_MEMORY", "ENERGON_GRAIN_MEMORY_LEDGER")
"""Variables that give a program a budget, or a part of one."""


def environment(**variables: str) -> dict[str, str]:
    """The environment of a program: this one, without a budget, and with `variables`."""
    return {name: value for name, value in os.environ.items() if name not in OWN} | variables


def found(name: str, *arguments: object) -> dict[str, Any]:
    """Run a check in a process of its own, and return its result."""
    program = [sys.executable, __file__, name, *map(str, arguments)]
    return json.loads(subprocess.check_output(program, env=environment(), text=True, timeout=PATIENCE_S))


def budget() -> MemoryBudget:
    """The budget of this process."""
    joined = join_budget()
    assert joined is not None
    return joined


def forked() -> dict[str, Any]:
    """Rows of the budget, as a forked child sees them, and when it has ended."""
    use_memory("1GiB")
    before = budget()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, b"%d" % len(budget().ledger.alive()))
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        in_child = int(file.read())
    os.waitpid(child, 0)
    return {"in_child": in_child, "after": len(before.ledger.alive())}


def replaced() -> dict[str, Any]:
    """A budget, a second one, and none."""
    use_memory("1GiB")
    first = budget()
    use_memory("2GiB")
    same, budget_bytes = budget() is first, first.use().budget_bytes
    first.update()
    kept = [allocator._kept_bytes]
    use_memory(None)
    kept.append(allocator._kept_bytes)
    return {
        "kept": kept,
        "same": same,
        "budget": budget_bytes,
        "lifted": join_budget() is None and look_ahead.budget is None,
    }


class Cache:
    """A holder that takes what it is allowed."""

    holder = "caches"

    def __init__(self) -> None:
        self.data: list[bytearray] = []
        self.allowed = 0

    def held_bytes(self) -> int:
        return sum(map(len, self.data))

    def allow(self, size_bytes: int) -> None:
        self.allowed = size_bytes
        while self.held_bytes() > size_bytes:
            self.data.pop()

    def fill(self) -> None:
        while self.held_bytes() + 4 * MIB < self.allowed:
            self.data.append(bytearray(os.urandom(4096)) * 1024)


def given_back() -> dict[str, Any]:
    """A cache that fills the budget, and then the program takes 120 MiB of it. All sizes are in bytes."""
    cache = Cache()
    holders.add(cache)
    use_memory(measure().total + 200 * MIB)
    limit = budget()
    until = time.monotonic() + PATIENCE_S / 2
    updates = 0
    while updates < 40 or (cache.held_bytes() <= 80 * MIB and time.monotonic() < until):
        limit.update()
        cache.fill()
        updates += 1
    before = cache.held_bytes()
    own = bytearray(os.urandom(4096)) * 256 * 120
    for _ in range(10):
        limit.update()
    after, total, use = cache.held_bytes(), measure().total, limit.use()
    return {
        "before": before,
        "after": after,
        "own": len(own),
        "total": total,
        "budget": limit.ledger.budget_bytes,
        "used": use.used_bytes,
        "held": {each.name: each.held_bytes for each in use.holders},
    }


def mapped(folder: str) -> dict[str, Any]:
    """Pages of a mapped file: in bytes, before and after they are given back; and the sums of what was read."""
    path = Path(folder) / "index"
    path.write_bytes(os.urandom(4096) * (64 * MIB // 4096))
    with open(path, "rb") as file:
        mapping = map_file(file.fileno())
    sums, pages = [], []
    for _ in range(2):
        sums.append(int(np.frombuffer(mapping, np.uint8).sum(dtype=np.int64)))
        pages.append(_file_bytes())
        release_mapped()
        pages.append(_file_bytes())
    return {"mapped": mapped_bytes(), "sums": sums, "pages": pages}


def _file_bytes() -> int:
    sizes = measure()
    return sizes.files + sizes.shared  # in a file system in memory, they count as shared


if __name__ == "__main__":
    checks = {check.__name__: check for check in (forked, replaced, given_back, mapped)}
    print(json.dumps(checks[sys.argv[1]](*sys.argv[2:])))
