"""The block cache: what is put comes back, for the object and the version it was put for."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from cached_blocks import BLOCK, PLENTY, SIZE, content, fetch

from energon_grain.errors import ConfigError
from energon_grain.storage.block_cache import BlockCache


def test_what_was_put_comes_back(cache: BlockCache) -> None:
    data = content("a")
    cached = cache.open("a", b"1", SIZE)
    assert cached.read(0, 1) is None
    assert cached.read(5, 5) == b""
    assert fetch(cached, data, 2, 5) == [2, 3, 4]
    assert cached.missing(0, 11) == [0, 1, 5, 6, 7, 8, 9, 10]
    assert cached.read(2 * BLOCK + 3, 5 * BLOCK) == data[2 * BLOCK + 3 : 5 * BLOCK]
    assert cached.read(2 * BLOCK - 1, 3 * BLOCK) is None
    assert cached.read(5 * BLOCK - 1, 5 * BLOCK + 1) is None
    assert fetch(cached, data, 0, 11) == [0, 1, 5, 6, 7, 8, 9, 10]
    assert cached.read(0, SIZE) == data


def test_versions_and_sizes_and_caches_of_other_blocks_are_apart(cache: BlockCache, folder: Path) -> None:
    fetch(cache.open("a", b"1", SIZE), content("a"), 0, 11)
    assert cache.open("a", b"2", SIZE).read(0, 1) is None
    assert cache.open("a", b"1", SIZE - 1).read(0, 1) is None
    other = BlockCache(folder, limit_bytes=PLENTY, block_bytes=4096)
    assert other.open("a", b"1", SIZE).read(0, 1) is None
    again = pickle.loads(pickle.dumps(cache))
    assert again.open("a", b"1", SIZE).read(0, SIZE) == content("a")


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot make the block cache"):
        BlockCache(tmp_path / "file", limit_bytes=1)
    with pytest.raises(ConfigError, match="multiple of 4096"):
        BlockCache(tmp_path / "cache", limit_bytes=1, block_bytes=1000)
    with pytest.raises(ConfigError, match="needs space"):
        BlockCache(tmp_path / "cache", limit_bytes=0)
