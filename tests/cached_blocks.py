"""A block cache in use, by this process and by others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from patience import PATIENCE_S

from energon_grain.storage.cached_object import CachedObject

BLOCK = 8192
SIZE = 10 * BLOCK + 777
PLENTY = 1 << 30


def content(name: str, version: bytes = b"", size: int = SIZE) -> bytes:
    return np.random.default_rng([*name.encode(), *version]).bytes(size)


def fetch(cached: CachedObject, data: bytes, first: int, stop: int) -> list[int]:
    """What a reader does; gives the blocks that it had to fetch."""
    fetched: list[int] = []
    while missing := cached.missing(first, stop):
        with cached.claim(missing) as claim:
            for block in claim.blocks:
                start, end = cached.version.extent(block, block + 1)
                if claim.put(block, data[start:end]):
                    fetched.append(block)
        assert cached.wait(missing, timeout_seconds=PATIENCE_S)
    return fetched


def allocated(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in (folder / "objects").glob("*/*"))


def copies(folder: Path) -> list[Path]:
    return sorted((folder / "objects").glob("*/*"), key=lambda path: path.stat().st_mtime)


SCRIPT = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from energon_grain.storage.block_cache import BlockCache

folder, limit = sys.argv[1], int(sys.argv[2])
BLOCK, SIZE = {BLOCK}, {SIZE}
cache = BlockCache(folder, limit_bytes=limit, block_bytes=BLOCK)
def content(name, version=b""):
    return np.random.default_rng([*name.encode(), *version]).bytes(SIZE)
def say(word):
    print(word, flush=True)
def hear():
    sys.stdin.readline()
"""


class Process:
    """A program of its own that uses the cache; `say` and `hear` in it are `line` and `go` here."""

    def __init__(self, source: str, folder: Path, limit_bytes: int = PLENTY) -> None:
        program = SCRIPT.format(BLOCK=BLOCK, SIZE=SIZE) + source
        self.child = subprocess.Popen(
            [sys.executable, "-c", program, os.fspath(folder), str(limit_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.child.stdout is not None
        return self.child.stdout.readline().strip()

    def go(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write("\n")
        self.child.stdin.flush()

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self.child.stdin, self.child.stdout):
            assert pipe is not None
            pipe.close()
