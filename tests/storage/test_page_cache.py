"""Pages on a local disk: right or not there, whatever happens to the disk and to the processes that write them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from full_disk import size_limit
from patience import PATIENCE_S

from energon_grain.storage.page_cache import CachedObject, PageCache

PAGE = 8192
SIZE = 10 * PAGE + 77
CONTENT = np.random.default_rng(0).bytes(SIZE)
PLENTY = 1 << 30


def opened(folder: Path, limit_bytes: int = PLENTY, name: str = "a", version: bytes = b"1") -> CachedObject:
    """The object of a process of its own: nothing of it was verified."""
    return PageCache(str(folder), limit_bytes=limit_bytes, page_bytes=PAGE).open(name, version, SIZE)


def keep(cached: CachedObject, *pages: int) -> bool:
    with cached.claim(pages) as claim:
        assert claim.pages == list(pages)
        kept = [claim.put(page, CONTENT[page * PAGE : (page + 1) * PAGE]) for page in pages]
    return all(kept)


def taken_bytes(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


def test_what_was_put_is_read(tmp_path: Path) -> None:
    with opened(tmp_path).claim([2, 3, 4, 10]) as claim:
        assert claim.put(2, CONTENT[2 * PAGE : 5 * PAGE])
        assert claim.put(10, CONTENT[10 * PAGE :])
    for cached in (opened(tmp_path), opened(tmp_path)):
        assert not cached.has_verified(2, 5)
        assert cached.missing(0, 11) == [0, 1, 5, 6, 7, 8, 9]
        assert cached.has_verified(2, 5)
        for start, stop in ((2 * PAGE, 5 * PAGE), (2 * PAGE + 5, 4 * PAGE - 9), (10 * PAGE + 1, SIZE), (7, 7)):
            assert cached.read(start, stop) == CONTENT[start:stop]
        assert cached.read(PAGE, 3 * PAGE) is None
        assert cached.claim([2]).pages == []
    assert opened(tmp_path, version=b"2").missing(2, 5) == [2, 3, 4]
    assert opened(tmp_path, name="b").missing(2, 5) == [2, 3, 4]


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "longer", "link"])
def test_a_damaged_page_is_missing_and_can_be_put_again(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "cache"
    keep(opened(folder), 3)
    (file,) = folder.glob("*/*/*")
    whole = file.read_bytes()
    if damage == "link":
        file.unlink()
        (tmp_path / "elsewhere").write_bytes(whole)
        file.symlink_to(tmp_path / "elsewhere")
    else:
        flipped = whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:]
        file.write_bytes({"flipped": flipped, "cut": whole[:5000], "empty": b"", "longer": whole + b"1"}[damage])
    cached = opened(folder)
    assert cached.read(3 * PAGE, 3 * PAGE + 5) is None
    assert keep(cached, 3)
    assert opened(folder).read(3 * PAGE, 4 * PAGE) == CONTENT[3 * PAGE : 4 * PAGE]
    assert not file.is_symlink()


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    folder, target = tmp_path / "cache", tmp_path / "precious"
    keep(opened(folder), 3)
    (file,) = folder.glob("*/*/*")
    target.write_bytes(b"precious")
    file.with_name("00000004.part").symlink_to(target)
    assert not keep(opened(folder), 4)
    assert target.read_bytes() == b"precious"


def test_a_page_that_another_fetches_is_waited_for(tmp_path: Path) -> None:
    one, other = opened(tmp_path), opened(tmp_path)
    with one.claim([0, 1]) as claim:
        assert other.claim([0, 1, 2]).pages == [2]
        began = time.monotonic()
        other.wait([0], timeout_seconds=0.1)
        assert time.monotonic() - began >= 0.1
        claim.put(0, CONTENT[:PAGE])
    other.wait([0, 1], timeout_seconds=PATIENCE_S)
    assert other.missing(0, 2) == [1]
    assert other.claim([0, 1]).pages == [1]


def test_the_limit_holds_and_the_oldest_go_first(tmp_path: Path) -> None:
    limit = 8 * (PAGE + 4096)
    cached = opened(tmp_path, limit)
    for page in range(10):
        assert keep(cached, page)
        for file in tmp_path.glob("*/*/*"):
            if file.name == "00000000":
                os.utime(file)  # as reading it does, once a minute
            elif file.stat().st_mtime > time.time() - 1000:
                os.utime(file, (1000 + page, 1000 + page))
        assert taken_bytes(tmp_path) <= limit
    missing = opened(tmp_path, limit).missing(0, 10)
    assert missing
    assert missing == list(range(1, 1 + len(missing)))
    assert not keep(opened(tmp_path, PAGE), missing[0])


def test_a_full_disk_keeps_nothing_and_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cached = opened(tmp_path)
    keep(cached, 0)
    with caplog.at_level(logging.WARNING, "energon_grain"), size_limit(5000):
        assert not keep(cached, 1, 2)
        assert not keep(cached, 3)
    assert len(caplog.records) == 1
    assert cached.read(0, PAGE) == CONTENT[:PAGE]
    assert opened(tmp_path).missing(0, 4) == [1, 2, 3]
    assert [file.name for file in tmp_path.glob("*/*/*")] == ["00000000"]


PROGRAM = """
import random, sys
from energon_grain.storage.page_cache import PageCache
folder, content, PAGE, limit = sys.argv[1], open(sys.argv[2], "rb").read(), int(sys.argv[3]), int(sys.argv[4])
SIZE, choose = len(content), random.Random()
cache = PageCache(folder, limit_bytes=limit, page_bytes=PAGE)
print("reads", flush=True)
while True:
    cached = cache.open(f"object {choose.randrange(20)}", b"1", SIZE)
    start = choose.randrange(SIZE)
    stop = choose.randrange(start, SIZE)
    first, end = start // PAGE, -(-stop // PAGE)
    found = cached.read(start, stop)
    assert found in (None, content[start:stop]), "wrong bytes"
    with cached.claim(cached.missing(first, end)) as claim:
        for page in claim.pages:
            claim.put(page, content[page * PAGE : (page + 1) * PAGE])
    cached.wait(range(first, end), timeout_seconds=600)
"""


def test_killed_processes_leave_nothing_wrong_and_nobody_waiting(tmp_path: Path) -> None:
    content, folder, limit = tmp_path / "content", tmp_path / "cache", 120 * (PAGE + 4096)
    content.write_bytes(CONTENT)
    command = [sys.executable, "-c", PROGRAM, str(folder), str(content), str(PAGE), str(limit)]
    running: list[subprocess.Popen[bytes]] = []
    choose = np.random.default_rng(0)
    for number in range(40):
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        if number >= 3:
            process = running.pop(int(choose.integers(len(running))))
            assert process.stdout is not None
            assert process.stdout.readline() == b"reads\n"
            time.sleep(float(choose.uniform(0, 0.05)))
            process.kill()
            assert process.communicate()[1] == b""
    for process in running:
        process.kill()
        assert process.communicate()[1] == b""
    for number in range(20):
        cached = opened(folder, limit, f"object {number}")
        missing = cached.missing(0, 11)
        for page in set(range(11)) - set(missing):
            assert cached.read(page * PAGE, min((page + 1) * PAGE, SIZE)) == CONTENT[page * PAGE : (page + 1) * PAGE]
        assert keep(cached, *missing)
    assert taken_bytes(folder) <= limit
