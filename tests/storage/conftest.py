"""What tests of the block cache share: an empty one, and its folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from cached_blocks import BLOCK, PLENTY

from energon_grain.storage.block_cache import BlockCache


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(folder: Path) -> BlockCache:
    return BlockCache(folder, limit_bytes=PLENTY, block_bytes=BLOCK)
