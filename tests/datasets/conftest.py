"""What tests of the cache pool share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slow_stores import SlowStore

from energon_grain import FileStoreCachePool


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SlowStore]:
    folder = tmp_path / "store"
    folder.mkdir()
    for number in range(8):
        (folder / f"{number}.txt").write_text(f"file {number}")
    (folder / "large.txt").write_text("x" * 1000)
    store = SlowStore(folder)
    yield store
    store.may_read.set()


@pytest.fixture
def make_pool(tmp_path: Path) -> Iterator[Callable[..., FileStoreCachePool]]:
    pools: list[FileStoreCachePool] = []

    def pool(**options: Any) -> FileStoreCachePool:
        pools.append(FileStoreCachePool(parent_cache_dir=tmp_path / "cache", **options))
        return pools[-1]

    yield pool
    for each in pools:
        each.close()
