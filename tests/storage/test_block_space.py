"""The space of a block cache: what goes when it is full, and disks that are full before."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from cached_blocks import BLOCK, PLENTY, SIZE, Process, allocated, content, copies, fetch

from energon_grain.errors import ConfigError
from energon_grain.storage import block_space
from energon_grain.storage.block_cache import BlockCache


def test_the_least_recently_used_objects_go(folder: Path) -> None:
    cache = BlockCache(folder, limit_bytes=550_000, block_bytes=BLOCK)  # room for five of 98,304
    for number in range(5):
        fetch(cache.open(str(number), b"1", SIZE), content(str(number)), 0, 11)
        os.utime(copies(folder)[-1], (number, number))
    assert allocated(folder) > 450_000
    again = BlockCache(folder, limit_bytes=550_000, block_bytes=BLOCK)
    assert again.open("0", b"1", SIZE).read(0, 5) == content("0")[:5]  # used again, so that the others are older
    fetch(cache.open("new", b"1", SIZE), content("new"), 0, 11)
    assert allocated(folder) <= 550_000
    again = BlockCache(folder, limit_bytes=550_000, block_bytes=BLOCK)
    names = ("0", "1", "2", "3", "4", "new")
    there = [name for name in names if not again.open(name, b"1", SIZE).missing(0, 11)]
    assert there in (["0", "2", "3", "4", "new"], ["0", "3", "4", "new"])  # how much space goes lies with the disk


def test_a_reader_of_an_evicted_object_finds_it_missing_and_can_go_on(folder: Path) -> None:
    cache = BlockCache(folder, limit_bytes=250_000, block_bytes=BLOCK)
    data = content("a")
    cached = cache.open("a", b"1", SIZE)
    fetch(cached, data, 0, 11)
    assert cached.read(0, SIZE) == data
    other = BlockCache(folder, limit_bytes=250_000, block_bytes=BLOCK)
    for name in "bcd":
        fetch(other.open(name, b"1", SIZE), content(name), 0, 11)
    assert cached.read(0, SIZE) is None
    with cached.claim([3]) as claim:
        assert claim.blocks == [3]
        assert claim.put(3, data[3 * BLOCK : 4 * BLOCK])
    assert cached.read(3 * BLOCK, 4 * BLOCK) == data[3 * BLOCK : 4 * BLOCK]
    assert fetch(cached, data, 0, 11) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]
    assert cached.read(0, SIZE) == data
    assert allocated(folder) <= 250_000


def test_an_object_of_which_blocks_are_being_fetched_stays(folder: Path) -> None:
    cache = BlockCache(folder, limit_bytes=250_000, block_bytes=BLOCK)
    cached, data = cache.open("a", b"1", SIZE), content("a")
    fetch(cached, data, 0, 5)
    with cached.claim([5, 6]) as claim:
        for name in "bcde":
            fetch(cache.open(name, b"1", SIZE), content(name), 0, 11)
        assert claim.put(5, data[5 * BLOCK : 7 * BLOCK])
    assert cached.read(0, 7 * BLOCK) == data[: 7 * BLOCK]


def test_what_does_not_fit_is_not_kept_and_the_limit_holds(folder: Path) -> None:
    limit = 8192 + 4 * BLOCK + 16384
    cache = BlockCache(folder, limit_bytes=limit, block_bytes=BLOCK)
    cached, data = cache.open("a", b"1", SIZE), content("a")
    with cached.claim(range(11)) as claim:
        kept = [claim.put(block, data[slice(*cached.version.extent(block, block + 1))]) for block in range(11)]
    assert kept == [True] * 4 + [False] * 7
    assert cached.read(0, 4 * BLOCK) == data[: 4 * BLOCK]
    assert allocated(folder) <= limit
    small = BlockCache(folder / "small", limit_bytes=100, block_bytes=BLOCK).open("a", b"1", SIZE)
    with small.claim([1, 2]) as claim:
        assert claim.blocks == [1, 2]
        assert not claim.put(1, data[BLOCK : 2 * BLOCK])
    assert small.missing(0, 3) == [0, 1, 2]
    assert small.wait([1], timeout_seconds=0)


PUT_MANY = """
rng = np.random.default_rng(os.getpid())
say("ready"); hear()
for turn in range(150):
    name = str(rng.integers(0, 12))
    data, cached = content(name), cache.open(name, b"1", SIZE)
    with cached.claim(range(11)) as claim:
        for block in claim.blocks:
            start, end = cached.version.extent(block, block + 1)
            claim.put(block, data[start:end])
            found = cached.read(start, end)
            assert found in (None, data[start:end])
say("done")
"""


def test_the_limit_holds_over_all_processes(folder: Path) -> None:
    limit = 400_000
    most = 0
    with Process(PUT_MANY, folder, limit) as one, Process(PUT_MANY, folder, limit) as other:
        for process in (one, other):
            assert process.line() == "ready"
        one.go()
        other.go()
        done = threading.Event()
        space = BlockCache(folder, limit_bytes=limit, block_bytes=BLOCK).space

        def watch() -> None:
            nonlocal most
            while not done.is_set():
                with space.lock():
                    most = max(most, allocated(folder))
                done.wait(0.002)

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            assert [one.line(), other.line()] == ["done", "done"]
        finally:
            done.set()
            watching.join()
    assert 300_000 < most <= limit


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = BlockCache(folder, limit_bytes=PLENTY, block_bytes=BLOCK)
    cached, data = cache.open("a", b"1", SIZE), content("a")
    fetch(cached, data, 0, 2)
    monkeypatch.setattr(block_space.os, "posix_fallocate", full_disk)
    with cached.claim(range(2, 11)) as claim:
        assert not any(
            claim.put(block, data[slice(*cached.version.extent(block, block + 1))]) for block in claim.blocks
        )
    assert cached.read(0, 2 * BLOCK) == data[: 2 * BLOCK]
    assert len(cache.open("b", b"1", SIZE).claim([0]).blocks) == 1
    assert ["No space left" in record.getMessage() for record in caplog.records] == [True]


def test_copies_make_room_on_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = BlockCache(folder, limit_bytes=PLENTY, block_bytes=BLOCK)
    for name in "abcdef":
        fetch(cache.open(name, b"1", SIZE), content(name), 0, 11)
    room = allocated(folder) - 50_000
    allocate = os.posix_fallocate

    def small_disk(descriptor: int, start: int, size: int) -> None:
        if allocated(folder) + size > room:
            full_disk()
        allocate(descriptor, start, size)

    monkeypatch.setattr(block_space.os, "posix_fallocate", small_disk)
    assert fetch(cache.open("g", b"1", SIZE), content("g"), 0, 4) == [0, 1, 2, 3]
    assert 3 <= len(copies(folder)) <= 6


def test_nothing_is_written_through_a_link(folder: Path, tmp_path: Path) -> None:
    """Others may have written to a shared cache folder: `usage`, or a copy, that leads to a file of the user's."""
    own = tmp_path / "own"
    own.write_text("precious")
    cache = BlockCache(folder, limit_bytes=PLENTY, block_bytes=BLOCK)
    fetch(cache.open("a", b"1", SIZE), content("a"), 0, 11)
    (copy,) = copies(folder)
    copy.unlink()
    copy.symlink_to(own)
    cached = BlockCache(folder, limit_bytes=PLENTY, block_bytes=BLOCK).open("a", b"1", SIZE)
    with cached.claim([0]) as claim:
        claim.put(0, content("a")[:BLOCK])
    assert own.read_text() == "precious"
    (folder / "usage").unlink()
    (folder / "usage").symlink_to(own)
    with pytest.raises(ConfigError, match="cannot make the block cache"):
        BlockCache(folder, limit_bytes=PLENTY, block_bytes=BLOCK)
    assert own.read_text() == "precious"
