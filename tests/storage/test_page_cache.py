"""Pages and copies of small files on a local disk: right or not there, whatever happens, and never old ones."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PYTHONPATH
from filelock import FileLock
from full_disk import size_limit
from object_server import Bucket, Fault
from patience import PATIENCE_S

from energon_grain import StorageSettings, StoreSettings
from energon_grain.errors import ConfigError, ReadError
from energon_grain.storage.remote import ObjectRange
from energon_grain.storage.traffic import traffic
from energon_grain.stores.mirror import Mirror
from energon_grain.stores.object_client import ObjectClient
from energon_grain.stores.page_cache import CachedObject, PageCache, PageWriter
from energon_grain.stores.remote_files import RemoteFiles

PAGE = 8192
SIZE = 10 * PAGE + 77
CONTENT = np.random.default_rng(0).bytes(SIZE)
PLENTY = 1 << 30


def opened(folder: Path, limit_bytes: int = PLENTY, name: str = "a", version: bytes = b"1") -> CachedObject:
    """The object of a process of its own: it has checked nothing. Files are of three pages."""
    return PageCache(str(folder), limit_bytes=limit_bytes, page_bytes=PAGE, stretch_pages=3).open(name, version, SIZE)


def keep(cached: CachedObject, *pages: int) -> bool:
    with cached.fetching(pages) as (mine, others):
        assert (mine, others) == (list(pages), set())
        kept = [cached.put(page, memoryview(CONTENT)[page * PAGE :][:PAGE]) for page in pages]
    return all(kept)


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*"), key=lambda path: path.name[-6:])


def taken_bytes(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


def test_what_was_put_is_read(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with first.fetching([2, 3, 4, 10]) as (mine, _):
        assert mine == [2, 3, 4, 10]
        assert first.put(2, memoryview(CONTENT)[2 * PAGE : 5 * PAGE])
        assert first.put(10, memoryview(CONTENT)[10 * PAGE :])
    for cached in (opened(tmp_path), opened(tmp_path)):
        assert not cached.has_checked(2, 5)
        assert cached.missing(0, 11) == [0, 1, 5, 6, 7, 8, 9]
        assert cached.has_checked(2, 5)
        for start, stop in ((2 * PAGE, 5 * PAGE), (2 * PAGE + 5, 4 * PAGE - 9), (10 * PAGE + 1, SIZE), (7, 7)):
            assert cached.read(start, stop) == CONTENT[start:stop]
        assert cached.read(PAGE, 3 * PAGE) is None
        with cached.fetching([2]) as (mine, _):
            assert mine == []
    assert opened(tmp_path, version=b"2").missing(2, 5) == [2, 3, 4]
    assert opened(tmp_path, name="b").missing(2, 5) == [2, 3, 4]


@pytest.mark.parametrize("damage", ["flipped", "cut", "header", "empty", "longer", "link"])
def test_a_damaged_page_is_missing_and_can_be_put_again(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "cache"
    keep(opened(folder), 3)
    (file,) = files_in(folder)
    whole = file.read_bytes()
    if damage == "link":
        file.unlink()
        (tmp_path / "elsewhere").write_bytes(whole)
        file.symlink_to(tmp_path / "elsewhere")
    else:
        at = 0 if damage == "header" else 5000
        flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        found = {"cut": whole[:5000], "empty": b"", "longer": whole + b"1"}.get(damage, flipped)
        file.write_bytes(found)
    cached = opened(folder)
    if damage != "longer":  # whose pages are right
        assert cached.read(3 * PAGE, 3 * PAGE + 5) is None
        assert keep(cached, 3)
    assert opened(folder).read(3 * PAGE, 4 * PAGE) == CONTENT[3 * PAGE : 4 * PAGE]
    assert not file.is_symlink()
    if damage == "link":
        assert (tmp_path / "elsewhere").read_bytes() == whole


def test_a_file_that_is_cut_is_not_filled_up_under_its_readers(tmp_path: Path) -> None:
    reader = opened(tmp_path)
    keep(reader, 0)
    assert reader.read(0, PAGE) == CONTENT[:PAGE]
    os.truncate(files_in(tmp_path)[0], 4096)
    assert keep(opened(tmp_path), 2)
    assert reader.read(0, PAGE) is None
    assert reader.read(2 * PAGE, 3 * PAGE) == CONTENT[2 * PAGE : 3 * PAGE]


def test_what_is_evicted_stays_right_for_those_who_have_it_open(tmp_path: Path) -> None:
    reader = opened(tmp_path)
    keep(reader, 0, 1)
    for file in files_in(tmp_path):
        file.unlink()
    assert keep(opened(tmp_path), 2)
    assert reader.read(0, 2 * PAGE) == CONTENT[: 2 * PAGE]
    assert keep(reader, 2)  # looks at the file, which is another one by now
    assert reader.missing(0, 3) == [0, 1]


def test_a_page_that_the_disk_does_not_give_back_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads fetches what is missing until it is there: what cannot be read must not be said to be there."""
    cached = opened(tmp_path)
    keep(cached, 0, 1)
    pread = os.pread

    def failing(descriptor: int, size_bytes: int, offset: int) -> bytes:
        if offset <= 4096 + 5000 < offset + size_bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(descriptor, size_bytes, offset)

    monkeypatch.setattr(os, "pread", failing)
    assert cached.read(0, PAGE) is None
    assert cached.missing(0, 2) == [0]
    assert cached.read(PAGE, 2 * PAGE) == CONTENT[PAGE : 2 * PAGE]


@pytest.mark.parametrize("reason", [errno.EROFS, errno.EACCES])
def test_a_folder_that_may_only_be_read_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int) -> None:
    keep(opened(tmp_path), 0)
    open_file = os.open

    def reading(path: str, flags: int, *mode: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(reason, os.strerror(reason))
        return open_file(path, flags, *mode)

    monkeypatch.setattr(os, "open", reading)
    cached = opened(tmp_path)
    assert cached.missing(0, 2) == [1]
    assert cached.read(0, PAGE) == CONTENT[:PAGE]
    assert not keep(cached, 1)


def test_a_range_may_lie_in_thousands_of_files(tmp_path: Path) -> None:
    content = np.random.default_rng(1).bytes(3000 * 4096)
    cached = PageCache(str(tmp_path), limit_bytes=PLENTY, page_bytes=4096, stretch_pages=1).open("a", b"", len(content))
    assert cached.put(0, memoryview(content))
    assert cached.read(0, len(content)) == content


@pytest.mark.parametrize("piece_bytes", [5, 100, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 5, SIZE])
def test_pages_are_kept_once_the_whole_answer_was_checked(tmp_path: Path, piece_bytes: int) -> None:
    cached = opened(tmp_path)
    writer = PageWriter(cached, 2, 11)
    for start in range(2 * PAGE, SIZE, piece_bytes):
        writer.append(CONTENT[start : start + piece_bytes])
        assert opened(tmp_path).missing(0, 11) == list(range(11))
        assert cached.missing(0, 11) == list(range(11))
    assert taken_bytes(tmp_path) > 6 * PAGE or piece_bytes == SIZE  # they wait on the disk, not in memory
    assert writer.finish()
    assert opened(tmp_path).missing(0, 11) == [0, 1]
    assert cached.read(2 * PAGE, SIZE) == CONTENT[2 * PAGE :]


@pytest.mark.parametrize("piece_bytes", [100, PAGE, 5 * PAGE])
def test_bytes_behind_the_last_page_are_refused(tmp_path: Path, piece_bytes: int) -> None:
    cached = opened(tmp_path)
    writer = PageWriter(cached, 2, 4)
    with pytest.raises(ValueError, match="more than the pages hold"):
        for start in range(2 * PAGE, SIZE, piece_bytes):
            writer.append(CONTENT[start : start + piece_bytes])
    assert opened(tmp_path).missing(0, 11) == list(range(11))


def test_an_answer_that_is_cut_keeps_nothing(tmp_path: Path) -> None:
    writer = PageWriter(opened(tmp_path), 2, 6)
    writer.append(CONTENT[2 * PAGE : 5 * PAGE + 7])
    assert not writer.finish()
    assert opened(tmp_path).missing(0, 11) == list(range(11))


def test_a_wrong_answer_does_not_replace_a_page_under_its_readers(tmp_path: Path) -> None:
    """Two processes fetch the same page, and one of them is sent something else."""
    reader, other = opened(tmp_path), opened(tmp_path)
    with other.fetching([3]) as (mine, _):
        assert mine == [3]
        keep(reader, 3)
        assert not other.put(3, bytes(PAGE))
    assert reader.read(3 * PAGE, 4 * PAGE) == CONTENT[3 * PAGE : 4 * PAGE]
    assert opened(tmp_path).read(3 * PAGE, 4 * PAGE) == CONTENT[3 * PAGE : 4 * PAGE]
    with other.fetching([3]) as (mine, _):
        assert mine == []


def test_a_page_that_another_thread_fetches_is_waited_for(tmp_path: Path) -> None:
    cached = opened(tmp_path)
    with cached.fetching([0, 1]):
        with cached.fetching([0, 1, 2]) as (mine, others):
            assert mine == [2]
        cached.put(0, memoryview(CONTENT)[:PAGE])
        (event,) = others
        assert not event.is_set()
    assert event.is_set()
    with cached.fetching([0, 1]) as (mine, others):
        assert (mine, others) == ([1], set())


def test_the_limit_holds_and_the_oldest_go_first(tmp_path: Path) -> None:
    limit = 10 * PAGE
    earlier = PageCache(str(tmp_path), limit_bytes=limit, page_bytes=PAGE, stretch_pages=3).open("a", b"1", SIZE)
    assert keep(earlier, *range(6))
    for number, file in enumerate(files_in(tmp_path)):
        os.utime(file, (1000 + number, 1000 + number))
    later = opened(tmp_path, limit, "b")
    for page in range(3):
        assert keep(later, page)
        assert taken_bytes(tmp_path) <= limit
    assert later.missing(0, 3) == []
    assert opened(tmp_path, limit).missing(0, 6) == [0, 1, 2]
    assert not keep(opened(tmp_path, PAGE - 1), 0)


@pytest.mark.parametrize("other", [False, True])
def test_what_is_in_use_is_not_evicted(tmp_path: Path, other: bool) -> None:
    """Of this process by its open objects, of others by the times of their files."""
    limit = 8 * PAGE
    earlier = opened(tmp_path, limit)
    assert keep(earlier, *range(6))
    cache = PageCache(str(tmp_path), limit_bytes=limit, page_bytes=PAGE, stretch_pages=3)
    mine = cache.open("b" if other else "a", b"1", SIZE)
    if not other:
        for file in files_in(tmp_path):
            os.utime(file, (1000, 1000))
    assert not mine.admits([6, 7])
    assert not keep(mine, 6, 7)
    assert opened(tmp_path, limit).missing(0, 6) == []
    writer = PageWriter(mine, 6, 8, makes_room=True)
    writer.append(CONTENT[6 * PAGE : 8 * PAGE])
    assert writer.finish()
    assert len(opened(tmp_path, limit).missing(0, 6)) >= 3
    assert taken_bytes(tmp_path) <= limit


def test_a_full_cache_refuses_pages_for_three_minutes_after_the_last_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, one that a killed process has filled."""
    assert keep(opened(tmp_path, 8 * PAGE, "killed"), *range(6))
    cached = opened(tmp_path, 8 * PAGE)
    now_s, clock_s = time.time(), time.monotonic()
    for later_s, kept in ((0, False), (120, False), (181, True)):
        monkeypatch.setattr(time, "time", lambda later_s=later_s: now_s + later_s)
        monkeypatch.setattr(time, "monotonic", lambda later_s=later_s: clock_s + later_s)
        assert keep(cached, 0, 1, 2) == kept
    assert taken_bytes(tmp_path) <= 8 * PAGE


def test_bytes_that_do_not_fit_are_counted_from_their_second_fetch_on(tmp_path: Path) -> None:
    before = traffic()
    for cached in (opened(tmp_path, 2 * PAGE), opened(tmp_path)):
        for start, stop in ((0, 3 * PAGE), (4 * PAGE + 7, 4 * PAGE + 9), (4 * PAGE + 9, 4 * PAGE + 14)):
            cached.put_whole(start, [CONTENT[start:stop]])
        assert (traffic() - before).fetched_again_bytes == 5
        before = traffic()
    cached = opened(tmp_path / "small", 2 * PAGE)
    for _ in range(3):
        cached.put_whole(0, [CONTENT[: 3 * PAGE + 5]])
    assert (traffic() - before).fetched_again_bytes == 2 * (3 * PAGE + 5)


def test_refused_pages_are_handed_back(tmp_path: Path) -> None:
    cached = opened(tmp_path, 3 * PAGE)
    writer = PageWriter(cached, 0, 4)
    writer.append(CONTENT[: 4 * PAGE])
    assert not writer.finish()
    held = {page: b"".join(parts) for page, parts in writer.refused}
    for page, data in held.items():
        assert data == CONTENT[page * PAGE :][: len(data)]
    kept = set(range(4)) - set(cached.missing(0, 4))
    assert kept | {page + at for page, data in held.items() for at in range(-(-len(data) // PAGE))} == set(range(4))


@pytest.mark.parametrize(("start", "stop", "kept"), [(5, 3 * PAGE + 5, [1, 2]), (0, PAGE, [0]), (5, PAGE + 5, [])])
def test_of_a_range_whole_pages_are_kept(tmp_path: Path, start: int, stop: int, kept: list[int]) -> None:
    cached = opened(tmp_path)
    cached.put_whole(start, [CONTENT[at : min(at + 7777, stop)] for at in range(start, stop, 7777)])
    assert cached.missing(0, 5) == [page for page in range(5) if page not in kept]
    for page in kept:
        assert cached.read(page * PAGE, (page + 1) * PAGE) == CONTENT[page * PAGE :][:PAGE]


def test_the_last_page_is_whole_where_the_object_ends(tmp_path: Path) -> None:
    cached, last = opened(tmp_path), SIZE // PAGE
    cached.put_whole(last * PAGE - 9, [CONTENT[last * PAGE - 9 :]])
    assert cached.missing(last - 1, last + 1) == [last - 1]
    assert cached.read(last * PAGE, SIZE) == CONTENT[last * PAGE :]


def test_who_writes_while_another_process_evicts_passes_the_limit_by_a_twentieth(tmp_path: Path) -> None:
    """Refused pages are not fetched ahead any more, so a moment's contention may refuse none."""
    limit = 100 * PAGE
    content = memoryview(bytes(200 * PAGE))
    cache = PageCache(str(tmp_path), limit_bytes=limit, page_bytes=PAGE, stretch_pages=10)
    cached = cache.open("a", b"1", len(content))
    cached.put(0, content[:PAGE])
    with FileLock(tmp_path / "evict.lock"):
        kept = [cached.put(page, content[page * PAGE :][:PAGE]) for page in range(1, 200)]
    assert all(kept[:50])
    assert limit // 2 < taken_bytes(tmp_path) <= limit * 1.05
    assert not kept[-1]
    assert cached.put(199, content[199 * PAGE :])
    assert taken_bytes(tmp_path) <= limit


def test_what_another_process_evicted_is_not_taken_to_be_there_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = opened(tmp_path)
    keep(cached, 0, 1, 3)
    files_in(tmp_path)[0].unlink()
    assert cached.has_checked(0, 2)
    later_s = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later_s)
    assert not cached.has_checked(0, 2)
    assert cached.has_checked(3, 4)
    assert not cached.has_checked(4, 5)


def test_a_full_disk_keeps_nothing_and_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cached = opened(tmp_path)
    keep(cached, 0)
    with caplog.at_level(logging.WARNING, "energon_grain"), size_limit(5000):
        assert not keep(cached, 1, 2)
        assert not keep(cached, 3)
    assert len(caplog.records) == 1
    assert "a smaller `cache_bytes`" in caplog.text
    assert cached.read(0, PAGE) == CONTENT[:PAGE]
    assert opened(tmp_path).missing(0, 4) == [1, 2, 3]


PROGRAM = """
import os, random, signal, sys, time
from energon_grain.stores.page_cache import PageCache

folder, content, PAGE, limit = sys.argv[1], open(sys.argv[2], "rb").read(), int(sys.argv[3]), int(sys.argv[4])
SIZE, choose = len(content), random.Random(0)


def read_and_write(seed):
    choose = random.Random(seed)
    cache = PageCache(folder, limit_bytes=limit, page_bytes=PAGE, stretch_pages=3)
    while True:
        cached = cache.open(f"object {choose.randrange(20)}", b"1", SIZE)
        start = choose.randrange(SIZE)
        stop = choose.randrange(start, SIZE)
        if cached.read(start, stop) not in (None, content[start:stop]):
            print("wrong bytes", flush=True)
        with cached.fetching(cached.missing(start // PAGE, -(-stop // PAGE))) as (mine, others):
            assert not others
            for page in mine:
                cached.put(page, memoryview(content)[page * PAGE :][:PAGE])


def kill(child):
    os.kill(child, signal.SIGKILL)
    if os.waitpid(child, 0)[1] != signal.SIGKILL:
        print("ended by itself", flush=True)


def damage():
    for shelf in os.scandir(folder):
        for file in os.scandir(shelf) if shelf.is_dir() else ():
            how = choose.randrange(6)
            if how == 0:
                os.truncate(file, choose.randrange(file.stat().st_size + 1))
            elif how == 1:
                with open(file, "r+b") as opened:
                    opened.seek(choose.randrange(file.stat().st_size + 1))
                    opened.write(bytes(4096) if choose.randrange(2) else choose.randbytes(300))


running = []
for number in range(104):
    if number % 20 == 0:  # only what no process has checked may be damaged
        for child in running:
            kill(child)
        running = []
        if number:
            damage()
    child = os.fork()
    if child == 0:
        read_and_write(number)
    running.append(child)
    if len(running) > 3:
        time.sleep(choose.uniform(0, 0.1))
        kill(running.pop(choose.randrange(len(running))))
for child in running:
    kill(child)
print("done")
"""


def test_a_hundred_killed_processes_leave_nothing_wrong_and_nobody_waiting(tmp_path: Path) -> None:
    content, folder, limit = tmp_path / "content", tmp_path / "cache", 120 * PAGE
    content.write_bytes(CONTENT)
    command = [sys.executable, "-c", PROGRAM, str(folder), str(content), str(PAGE), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.stdout, done.stderr) == ("done\n", "")
    for number in range(20):
        cached = opened(folder, limit, f"object {number}")
        missing = cached.missing(0, 11)
        for file in files_in(folder):  # those of killed processes count as in use for three minutes
            os.utime(file, (time.time() - 181, time.time() - 181))
        for page in set(range(11)) - set(missing):
            assert cached.read(page * PAGE, min((page + 1) * PAGE, SIZE)) == CONTENT[page * PAGE : (page + 1) * PAGE]
        assert keep(cached, *missing)
    assert taken_bytes(folder) <= limit


FREEING = """
import resource, sys
import numpy as np
from energon_grain.memory_budget.allocator import keep_freed_memory
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
            [sys.executable, "-c", FREEING, keep], capture_output=True, text=True, check=True, env=environment or None
        )
        return int(run.stdout)

    assert faults("keep") < 8_000
    assert faults("leave") > 3 * faults("keep")


MakeMirror = Callable[[str], Mirror]


@pytest.fixture
def mirror_of(tmp_path: Path) -> MakeMirror:
    quick = StorageSettings(attempts=2, first_pause_s=0.01, longest_pause_s=0.01, cache_dir=str(tmp_path / "objects"))
    return lambda url: Mirror(url, ObjectClient(quick))


def files(mirror: Mirror) -> dict[str, bytes]:
    """The mirrored files, without the mirror's own notes."""
    found = (path for path in mirror.folder.rglob("*") if path.is_file())
    named = {path.relative_to(mirror.folder).as_posix(): path.read_bytes() for path in found}
    return {name: data for name, data in named.items() if not name.startswith(".mirror.")}


def test_a_second_look_transfers_only_what_changed(bucket: Bucket, mirror_of: MakeMirror) -> None:
    for name in ("a", "sub/b", "gone"):
        bucket.put(f"set/{name}", name.encode() * 1000)
    mirror = mirror_of(f"{bucket.url}/set/")
    names = ["a", "sub/b", "gone", "never"]
    assert mirror.refresh(names) == {"a": True, "sub/b": True, "gone": True}
    written = (mirror.folder / ".mirror.json").stat().st_ino
    assert mirror.refresh(names) == {"a": False, "sub/b": False, "gone": False}
    assert (mirror.folder / ".mirror.json").stat().st_ino == written  # nothing is, so that a full disk does not matter
    bucket.put("set/sub/b", b"new")
    bucket.delete("set/gone")
    bucket.server.reset()
    assert mirror_of(f"{bucket.url}/set").refresh(names) == {"a": False, "sub/b": True}
    assert files(mirror) == {"a": b"a" * 1000, "sub/b": b"new"}
    statuses = {request.path.partition("?")[0]: request.status for request in bucket.server.requests("set/")}
    assert {path.rpartition("set/")[2]: status for path, status in statuses.items()} == {
        "a": 304,
        "sub/b": 200,
        "gone": 404,
        "never": 404,
    }


def test_a_copy_that_was_removed_is_made_again(bucket: Bucket, mirror_of: MakeMirror) -> None:
    bucket.put("set/a", b"text")
    mirror = mirror_of(f"{bucket.url}/set")
    mirror.refresh(["a"])
    (mirror.folder / "a").unlink()
    assert mirror.refresh(["a"]) == {"a": True}
    (mirror.folder / ".mirror.json").write_text("{broken")
    assert mirror.refresh(["a"]) == {"a": False}  # it is read again, and is the same
    assert files(mirror) == {"a": b"text"}


@pytest.mark.parametrize("damage", [b"\0" * 4, b"tExt", b""])
def test_a_copy_that_was_damaged_is_made_again(bucket: Bucket, mirror_of: MakeMirror, damage: bytes) -> None:
    bucket.put("set/a", b"text")
    mirror = mirror_of(f"{bucket.url}/set")
    mirror.refresh(["a"])
    (mirror.folder / "a").write_bytes(damage)
    assert mirror.refresh(["a"]) == {"a": True}
    assert files(mirror) == {"a": b"text"}
    bucket.server.reset()
    mirror.refresh(["a"])
    assert [request.status for request in bucket.server.requests("set/a")] == [304]


def test_nothing_is_written_through_a_link(bucket: Bucket, mirror_of: MakeMirror, tmp_path: Path) -> None:
    """Others may have written to a shared cache folder: `.mirror.lock` -> a file of the user's."""
    bucket.put("set/a", b"text")
    mirror = mirror_of(f"{bucket.url}/set")
    own = tmp_path / "own"
    own.write_text("precious")
    mirror.folder.mkdir(parents=True)
    (mirror.folder / ".mirror.lock").symlink_to(own)
    with pytest.raises(ConfigError, match="cannot be mirrored in"), mirror.locked():
        pass
    (mirror.folder / ".mirror.lock").unlink()
    for name in (".mirror.json", "a"):
        (mirror.folder / name).symlink_to(own)
    with mirror.locked():
        assert mirror.refresh(["a"]) == {"a": True}
    assert own.read_text() == "precious"
    (mirror.folder / ".mirror.json").unlink()
    (mirror.folder / ".mirror.json").symlink_to("/dev/zero")
    with mirror.locked():
        assert mirror.refresh(["a"]) == {"a": False}
    assert files(mirror) == {"a": b"text"}


def test_an_object_without_bytes_is_a_file_without_bytes(bucket: Bucket, mirror_of: MakeMirror) -> None:
    bucket.put("set/empty", b"")
    mirror = mirror_of(f"{bucket.url}/set")
    assert mirror.refresh(["empty"]) == {"empty": True}
    assert files(mirror) == {"empty": b""}


def test_what_was_copied_before_a_failure_is_not_copied_again(bucket: Bucket, mirror_of: MakeMirror) -> None:
    for name in "ab":
        bucket.put(f"set/{name}", b"text")
    mirror = mirror_of(f"{bucket.url}/set")
    mirror.refresh(["a"])
    bucket.server.inject(Fault("status", times=None, match="set/b"))
    with pytest.raises(ReadError, match=rf"reading {bucket.url}/set/b failed"):
        mirror.refresh(["a", "b"])
    assert files(mirror) == {"a": b"text"}
    bucket.server.reset()
    assert mirror.refresh(["a", "b"]) == {"a": False, "b": True}


def test_two_places_never_share_a_folder(mirror_of: MakeMirror) -> None:
    steps = ["a", "a/b", "a/b//b", "./a/b", "../a/b", "a%2Fb", "%/a/b", "a b", ".", "..", "ä", "A", "...", "a?b", "a:b"]
    urls = [f"{scheme}://{step}" for scheme in ("s3", "gs") for step in [*steps, "\u4e00" * 300, "\u4e00" * 299 + "x"]]
    mirrors = [mirror_of(url) for url in urls]
    assert len({os.path.normpath(mirror.folder) for mirror in mirrors}) == len(urls)
    above = mirror_of("s3://bucket").folder.parent
    assert all(Path(os.path.normpath(mirror.folder)).parent == above for mirror in mirrors)
    for mirror in mirrors:
        with mirror.locked():  # its folder can be made
            pass


def test_one_name_for_two_places_has_two_folders_and_two_names_for_one_place_have_one(tmp_path: Path) -> None:
    def folder(url: str, **stores: str) -> Path:
        named = {f"{name}://set": StoreSettings(location=location) for name, location in stores.items()}
        return Mirror(url, ObjectClient(StorageSettings(cache_dir=str(tmp_path), stores=named))).folder

    assert folder("data://set/a", data="s3://one/set") != folder("data://set/a", data="s3://two/set")
    assert folder("data://set/a", data="http://one/set") != folder("data://set/a", data="http://two/set")
    assert folder("data://set/a", data="s3://one/set") == folder("s3://one/set/a")
    assert folder("data://set/a b", data="http://one/set") == folder("http://one/set/a%20b")


def test_columns_are_on_the_disk_before_they_appear(
    bucket: Bucket, mirror_of: MakeMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def noted(file: Any) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}"))
        sync(file)

    monkeypatch.setattr(os, "fsync", noted)
    for name in "ab":
        bucket.put(f"set/columns/{name}", b"text")
    mirror = mirror_of(f"{bucket.url}/set")
    mirror.copy_folder("columns", {"a": 4, "b": 4})
    temporary = str(mirror.folder / ".columns.tmp")
    assert synced == [f"{temporary}/a", f"{temporary}/b", temporary, str(mirror.folder)]


def test_a_folder_of_known_sizes_is_copied_whole(bucket: Bucket, mirror_of: MakeMirror) -> None:
    contents = {"large": os.urandom(20 << 20), "small": b"x", "empty": b""}
    for name, content in contents.items():
        bucket.put(f"set/columns/{name}", content)
    mirror = mirror_of(f"{bucket.url}/set")
    sizes = {name: len(content) for name, content in contents.items()}
    mirror.copy_folder("columns", sizes)
    assert files(mirror) == {f"columns/{name}": content for name, content in contents.items()}
    bucket.server.reset()
    mirror.copy_folder("columns", sizes)
    assert bucket.server.requests() == []
    (mirror.folder / "columns/small").unlink()
    mirror.copy_folder("columns", sizes)
    assert files(mirror).keys() == {f"columns/{name}" for name in contents}


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"a": 4, "b": 1}, "/columns/b: no such object, but the index lists it"),
        ({"a": 9}, "the object is shorter"),
        ({"a": 3}, r"/columns/a: has 4 bytes, but the index lists 3"),
    ],
)
def test_a_folder_that_is_not_as_said_does_not_appear(
    bucket: Bucket, mirror_of: MakeMirror, sizes: dict[str, int], said: str
) -> None:
    bucket.put("set/columns/a", b"text")
    mirror = mirror_of(f"{bucket.url}/set")
    with pytest.raises(ReadError, match=said):
        mirror.copy_folder("columns", sizes)
    assert files(mirror) == {}


def test_a_disk_that_becomes_full_in_the_middle_of_a_write_is_an_error(
    bucket: Bucket, mirror_of: MakeMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel then writes what fits, and says how much that was."""
    bucket.put("set/columns/a", b"text")
    mirror = mirror_of(f"{bucket.url}/set")
    monkeypatch.setattr(os, "pwritev", lambda file, pieces, start: os.pwrite(file, b"".join(pieces)[:2], start))
    with pytest.raises(ConfigError, match=r"cannot be mirrored.*No space left on device"), mirror.locked():
        mirror.copy_folder("columns", {"a": 4})
    assert files(mirror) == {}


def test_what_comes_after_a_failure_is_written_nowhere_else(
    bucket: Bucket, mirror_of: MakeMirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late answer must not go to a file that was opened meanwhile, and has the number of one that was closed."""
    late, written = threading.Event(), threading.Event()
    read = ObjectClient.read

    def slow(client: ObjectClient, wanted: ObjectRange) -> Any:
        if wanted.url.endswith("/b"):
            late.wait(PATIENCE_S)
        return read(client, wanted)

    def noted(*given: Any) -> int:
        try:
            return pwrite(*given)
        finally:
            written.set()

    pwrite = os.pwrite
    monkeypatch.setattr(ObjectClient, "read", slow)
    monkeypatch.setattr(os, "pwrite", noted)
    bucket.put("set/columns/b", b"text")
    mirror = mirror_of(f"{bucket.url}/set")
    with pytest.raises(ReadError, match="columns/a: no such object"):
        mirror.copy_folder("columns", {"a": 4, "b": 4})
    others = [tmp_path / f"other{number}" for number in range(20)]
    opened = [path.open("w+b") for path in others]
    late.set()
    written.wait(2)  # or it gives up before
    assert all(os.fstat(file.fileno()).st_size == 0 for file in opened)
    for file in opened:
        file.close()


MIRRORING = """
import hashlib, sys
from energon_grain.stores.mirror import Mirror
from energon_grain.stores.object_client import shared_client
from energon_grain.storage.settings import storage_settings

mirror = Mirror(sys.argv[1], shared_client(storage_settings()))
sizes = {"a": int(sys.argv[2]), "b": int(sys.argv[2])}
print("begins", flush=True)
while True:
    with mirror.locked():
        mirror.refresh(["small"])
        mirror.copy_folder("columns", sizes)
    digests = [hashlib.sha256((mirror.folder / "columns" / name).read_bytes()).hexdigest() for name in sizes]
    print((mirror.folder / "small").read_text(), *digests, flush=True)
    if sys.argv[3] == "once":
        break
    import shutil
    with mirror.locked():
        shutil.rmtree(mirror.folder / "columns")
"""


def started(url: str, size: int, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", MIRRORING, url, str(size), how],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        start_new_session=True,
    )


@pytest.fixture
def large_folder(bucket: Bucket) -> tuple[str, int, str]:
    """A folder, the size of its two columns, and what a process that mirrors it prints."""
    columns = {name: os.urandom(3 << 20) for name in "ab"}
    for name, content in columns.items():
        bucket.put(f"set/columns/{name}", content)
    bucket.put("set/small", b"text")
    bucket.server.reset()
    digests = " ".join(hashlib.sha256(content).hexdigest() for content in columns.values())
    return f"{bucket.url}/set", 3 << 20, f"text {digests}\n"


def test_processes_at_once_copy_a_folder_once(bucket: Bucket, large_folder: tuple[str, int, str]) -> None:
    url, size, expected = large_folder
    processes = [started(url, size, "once") for _ in range(3)]
    for process in processes:
        assert process.communicate(timeout=PATIENCE_S)[0] == f"begins\n{expected}"
    assert len(bucket.server.requests("columns/a")) == len(bucket.server.requests("columns/b")) == 1


def test_a_killed_process_leaves_nothing_that_disturbs(large_folder: tuple[str, int, str]) -> None:
    url, size, expected = large_folder
    for turn in range(4):
        process = started(url, size, "again and again")
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begins\n"
            time.sleep(0.1 * turn)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        with started(url, size, "once") as last:
            assert last.communicate(timeout=PATIENCE_S)[0] == f"begins\n{expected}"


def test_what_could_not_be_written_is_copied_again(bucket: Bucket, mirror_of: MakeMirror) -> None:
    bucket.put("set/sub/a", b"old")
    mirror = mirror_of(f"{bucket.url}/set")
    mirror.refresh(["sub/a"])
    bucket.put("set/sub/a", b"new")
    (mirror.folder / "sub").rename(mirror.folder / "away")
    (mirror.folder / "sub").symlink_to("away/none")  # where no file can be written
    said = re.escape(f"{mirror.url} cannot be mirrored in {mirror.folder}: ")
    with pytest.raises(ConfigError, match=said), mirror.locked():
        mirror.refresh(["sub/a"])
    (mirror.folder / "sub").unlink()
    (mirror.folder / "away").rename(mirror.folder / "sub")
    assert mirror.refresh(["sub/a"]) == {"sub/a": True}
    assert files(mirror) == {"sub/a": b"new"}


def test_a_cache_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = StorageSettings(cache_dir=str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cache_dir"), Mirror("s3://b/a", ObjectClient(settings)).locked():
        pass
    with pytest.raises(ConfigError, match="cache_dir"):
        RemoteFiles(settings)
