"""Copies on disk: nothing damaged is believed."""

from __future__ import annotations

from pathlib import Path

import pytest
from cached_blocks import BLOCK, PLENTY, SIZE, content, copies, fetch

from energon_grain.storage.block_cache import BlockCache


def damage(folder: Path, data: bytes, block: int, wrong: bytes) -> None:
    """Write over the beginning of a block's bytes on disk."""
    (path,) = copies(folder)
    at = path.read_bytes().index(data[block * BLOCK : block * BLOCK + 64])
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(wrong)


@pytest.mark.parametrize("wrong", [b"!", bytes(4096)])
def test_a_damaged_block_is_fetched_again(
    cache: BlockCache, folder: Path, caplog: pytest.LogCaptureFixture, wrong: bytes
) -> None:
    data = content("a")
    fetch(cache.open("a", b"1", SIZE), data, 0, 11)
    damage(folder, data, 3, wrong)
    for other in range(2):
        cached = BlockCache(folder, limit_bytes=PLENTY, block_bytes=BLOCK).open("a", b"1", SIZE)
        assert cached.read(0, 3 * BLOCK) == data[: 3 * BLOCK]
        assert fetch(cached, data, 0, 11) == ([] if other else [3])
        assert cached.read(0, SIZE) == data
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        "block 3 of a is damaged in the block cache"
    ]


def test_each_block_is_verified_once_by_each_process(cache: BlockCache, folder: Path) -> None:
    data = content("a")
    fetch(cache.open("a", b"1", SIZE), data, 0, 11)
    other = BlockCache(folder, limit_bytes=PLENTY, block_bytes=BLOCK)
    assert other.open("a", b"1", SIZE).read(3 * BLOCK, 4 * BLOCK) == data[3 * BLOCK : 4 * BLOCK]
    damage(folder, data, 3, b"!")
    other.close()  # what was verified is known beyond the file's handle
    assert other.open("a", b"1", SIZE).missing(3, 4) == []
    assert BlockCache(folder, limit_bytes=PLENTY, block_bytes=BLOCK).open("a", b"1", SIZE).missing(3, 4) == [3]


def test_a_file_without_its_header_is_made_anew(cache: BlockCache, folder: Path) -> None:
    data = content("a")
    for header in (b"", bytes(4096)):  # as a power cut may leave it
        fetch(cache.open("a", b"1", SIZE), data, 0, 11)
        (path,) = copies(folder)
        path.write_bytes(header)
        cache.close()
        cached = cache.open("a", b"1", SIZE)
        assert cached.missing(0, 11) == list(range(11))
        assert fetch(cached, data, 0, 11) == list(range(11))
        assert cached.read(0, SIZE) == data
