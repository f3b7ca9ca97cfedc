"""The block cache: what is put comes back, nothing is fetched twice, and nothing damaged is believed."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from energon_grain.errors import ConfigError
from energon_grain.storage import block_space
from energon_grain.storage.block_cache import BlockCache
from energon_grain.storage.cached_object import CachedObject, Claim

BLOCK = 8192
SIZE = 10 * BLOCK + 777
PLENTY = 1 << 30
may_fork = pytest.mark.filterwarnings(
    # Other tests of the process may have started JAX; what is forked uses neither it nor threads that are not its own.
    r"ignore:os\.fork\(\) was called:RuntimeWarning",
    r"ignore:.*multi-threaded, use of fork\(\):DeprecationWarning",  # Python 3.12
)


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
        assert cached.wait(missing, timeout_seconds=20)
    return fetched


def allocated(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in (folder / "objects").glob("*/*"))


def copies(folder: Path) -> list[Path]:
    return sorted((folder / "objects").glob("*/*"), key=lambda path: path.stat().st_mtime)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(folder: Path) -> BlockCache:
    return BlockCache(folder, limit_bytes=PLENTY, block_bytes=BLOCK)


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


def test_only_whole_claimed_blocks_can_be_put(cache: BlockCache) -> None:
    cached, data = cache.open("a", b"1", SIZE), content("a")
    with cached.claim([2, 3, 10]) as claim:
        with pytest.raises(ValueError, match="not claimed"):
            claim.put(4, data[:BLOCK])
        with pytest.raises(ValueError, match="are not blocks"):
            claim.put(2, data[: BLOCK - 1])
        with pytest.raises(ValueError, match="are not blocks"):
            claim.put(10, data[:BLOCK])
        assert claim.put(2, data[2 * BLOCK : 4 * BLOCK])
        with pytest.raises(ValueError, match="not claimed"):
            claim.put(2, data[:BLOCK])
    assert cached.missing(0, 11) == [0, 1, 4, 5, 6, 7, 8, 9, 10]


def test_releasing_lets_others_finish_what_they_are_putting(cache: BlockCache) -> None:
    cached, data = cache.open("a", b"1", SIZE), content("a")
    claim = cached.claim([1, 2])
    with cache.space.lock():  # a put waits for it
        putting = threading.Thread(target=lambda: claim.put(1, data[BLOCK : 2 * BLOCK]))
        putting.start()
        while claim._puts == 0:
            time.sleep(0.001)
        claim.release()
        assert not cached.wait([1, 2], timeout_seconds=0.01)
    putting.join()
    assert not claim.put(2, data[2 * BLOCK : 3 * BLOCK])
    assert cached.wait([1, 2], timeout_seconds=0)
    assert cached.missing(1, 3) == [2]


def test_a_claim_keeps_others_out_until_blocks_are_put_or_released(cache: BlockCache) -> None:
    cached, data = cache.open("a", b"1", SIZE), content("a")
    one = cached.claim([1, 2, 3, 7])
    with cached.claim([0, 1, 2, 7, 8]) as other:
        assert (one.blocks, other.blocks) == ([1, 2, 3, 7], [0, 8])
    one.put(1, data[BLOCK : 3 * BLOCK])
    with cached.claim([1, 2, 3]) as other:
        assert other.blocks == []
    assert cached.wait([1, 2], timeout_seconds=0)
    assert not cached.wait([1, 2, 3], timeout_seconds=0.01)
    one.release()
    assert cached.wait([3], timeout_seconds=0)
    with cached.claim([1, 2, 3, 7]) as other:
        assert other.blocks == [3, 7]


def test_threads_fetch_each_block_once(cache: BlockCache) -> None:
    fetched: Counter[int] = Counter()
    data = content("a")

    def run() -> None:
        for first in range(10):
            fetched.update(fetch(cache.open("a", b"1", SIZE), data, first, first + 2))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fetched == dict.fromkeys(range(11), 1)


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


FETCH_ALL = """
say("ready"); hear()
fetched = []
for number in np.random.default_rng(os.getpid()).permutation(20).tolist():
    name = f"object {number}"
    data, cached = content(name), cache.open(name, b"1", SIZE)
    for first in range(0, 11, 2):
        stop = min(first + 3, 11)
        while missing := cached.missing(first, stop):
            with cached.claim(missing) as claim:
                for block in claim.blocks:
                    start, end = cached.version.extent(block, block + 1)
                    time.sleep(0.0005)
                    assert claim.put(block, data[start:end])
                    fetched.append((number, block))
            assert cached.wait(missing, timeout_seconds=20)
        start, end = cached.version.extent(first, stop)
        assert cached.read(start, end) == data[start:end]
say(repr(fetched))
"""


def test_processes_fetch_each_block_once(folder: Path) -> None:
    with Process(FETCH_ALL, folder) as one, Process(FETCH_ALL, folder) as other:
        for process in (one, other):
            assert process.line() == "ready"
        one.go()
        other.go()
        fetched = [eval(process.line()) for process in (one, other)]
    assert all(fetched), "both took part"
    assert Counter(fetched[0] + fetched[1]) == {(number, block): 1 for number in range(20) for block in range(11)}


CLAIM_AND_STAY = """
cached = cache.open("a", b"1", SIZE)
claim = cached.claim([0, 1, 2, 3])
claim.put(1, content("a")[BLOCK:2 * BLOCK])
say(repr(claim.blocks)); hear()
"""


def test_the_claims_of_a_killed_process_are_free(cache: BlockCache, folder: Path) -> None:
    cached, data = cache.open("a", b"1", SIZE), content("a")
    with Process(CLAIM_AND_STAY, folder) as process:
        assert process.line() == "[0, 1, 2, 3]"
        with cached.claim([0, 1, 2, 3, 4]) as claim:
            assert claim.blocks == [4]
        waited: list[bool] = []
        waiting = threading.Thread(target=lambda: waited.append(cached.wait([0, 2, 3], timeout_seconds=20)))
        waiting.start()
        process.kill()
        waiting.join()
    assert waited == [True]
    assert fetch(cached, data, 0, 11) == [0, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert cached.read(0, SIZE) == data


PUT_FOR_EVER = """
data = content("a")
say("ready")
for turn in range(10**9):
    cached = cache.open(f"{turn % 7}", b"1", SIZE)
    if turn % 50 == 49:
        for path in Path(folder, "objects").glob("*/*"):
            path.unlink()
    with cached.claim(range(11)) as claim:
        for block in claim.blocks:
            start, end = cached.version.extent(block, block + 1)
            claim.put(block, data[start:end])
"""


@pytest.mark.parametrize("seed", range(3))
def test_a_process_may_be_killed_at_any_moment(folder: Path, seed: int) -> None:
    limit = 300_000
    data = content("a")
    pause = np.random.default_rng(seed).uniform(0.005, 0.02)
    with Process(PUT_FOR_EVER, folder, limit) as process:
        assert process.line() == "ready"
        threading.Event().wait(pause)
        process.kill()
    cache = BlockCache(folder, limit_bytes=limit, block_bytes=BLOCK)
    for name in "0123456":
        cached = cache.open(name, b"1", SIZE)
        for block in range(11):
            start, end = cached.version.extent(block, block + 1)
            assert cached.read(start, end) in (None, data[start:end])
        fetch(cached, data, 0, 11)
        assert cached.read(0, SIZE) == data
        assert allocated(folder) <= limit


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


def test_the_least_recently_used_objects_go(folder: Path) -> None:
    cache = BlockCache(folder, limit_bytes=500_000, block_bytes=BLOCK)  # room for five
    for number in range(5):
        fetch(cache.open(str(number), b"1", SIZE), content(str(number)), 0, 11)
        os.utime(copies(folder)[-1], (number, number))
    assert allocated(folder) > 450_000
    again = BlockCache(folder, limit_bytes=500_000, block_bytes=BLOCK)
    assert again.open("0", b"1", SIZE).read(0, 5) == content("0")[:5]  # used again, so that the others are older
    fetch(cache.open("new", b"1", SIZE), content("new"), 0, 11)
    assert allocated(folder) <= 500_000
    again = BlockCache(folder, limit_bytes=500_000, block_bytes=BLOCK)
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


@may_fork
def test_a_child_that_is_forked_during_a_claim(cache: BlockCache) -> None:
    """Neither holds it, nor waits for threads that it does not have, and its own reads and claims work."""
    cached, data = cache.open("a", b"1", SIZE), content("a")
    fetch(cached, data, 0, 2)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with cached.claim([4, 5]) as claim, cache._lock:
            held.set()
            release.wait(20)
            claim.put(4, data[4 * BLOCK : 5 * BLOCK])

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(20)
    inherited = cached.claim([7])
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        right = cache.open("a", b"1", SIZE).read(0, 2 * BLOCK) == data[: 2 * BLOCK]
        right &= not inherited.put(7, data[7 * BLOCK : 8 * BLOCK])
        with cached.claim([4, 5, 6, 7]) as claim:
            right &= claim.blocks == [6]
            right &= claim.put(6, data[6 * BLOCK : 7 * BLOCK])
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    release.set()
    thread.join()
    inherited.release()
    assert cached.missing(0, 8) == [2, 3, 5, 7]


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot make the block cache"):
        BlockCache(tmp_path / "file", limit_bytes=1)
    with pytest.raises(ConfigError, match="multiple of 4096"):
        BlockCache(tmp_path / "cache", limit_bytes=1, block_bytes=1000)
    with pytest.raises(ConfigError, match="needs space"):
        BlockCache(tmp_path / "cache", limit_bytes=0)


class CacheMachine(RuleBasedStateMachine):
    """Two caches of one folder, as two processes have, against a dict of what was put."""

    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.known: set[tuple[str, int]] = set()
        self.held: dict[tuple[str, int], Claim] = {}
        self.data = {name: content(name) for name in "ab"}

        self.folder = self.make_folder()
        self.caches = [BlockCache(self.folder, limit_bytes=PLENTY, block_bytes=BLOCK) for _ in range(2)]

    make_folder: Callable[[], Path]

    def cached(self, who: int, name: str) -> CachedObject:
        return self.caches[who].open(name, b"1", SIZE)

    @rule(target=claims, who=st.integers(0, 1), name=st.sampled_from("ab"), blocks=st.sets(st.integers(0, 10)))
    def claim(self, who: int, name: str, blocks: set[int]) -> tuple[str, Claim]:
        claim = self.cached(who, name).claim(sorted(blocks))
        assert claim.blocks == [b for b in sorted(blocks) if (name, b) not in self.known and (name, b) not in self.held]
        self.held.update(dict.fromkeys([(name, block) for block in claim.blocks], claim))
        return name, claim

    @rule(held=claims, count=st.integers(1, 4))
    def put(self, held: tuple[str, Claim], count: int) -> None:
        name, claim = held
        left = [block for block in claim.blocks if self.held.get((name, block)) is claim]
        if not left:
            return
        first = left[0]
        run = [block for place, block in enumerate(left[:count]) if block == first + place]
        assert claim.put(first, self.data[name][first * BLOCK : (run[-1] + 1) * BLOCK])
        for block in run:
            del self.held[name, block]
            self.known.add((name, block))

    @rule(held=claims)
    def release(self, held: tuple[str, Claim]) -> None:
        held[1].release()
        self.held = {block: claim for block, claim in self.held.items() if claim is not held[1]}

    @rule(who=st.integers(0, 1))
    def close(self, who: int) -> None:
        self.caches[who].close()

    @rule(who=st.integers(0, 1))
    def restart(self, who: int) -> None:
        self.caches[who] = BlockCache(self.folder, limit_bytes=PLENTY, block_bytes=BLOCK)

    @rule(who=st.integers(0, 1), name=st.sampled_from("ab"), ends=st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)))
    def read(self, who: int, name: str, ends: tuple[int, int]) -> None:
        start, stop = sorted(ends)
        whole = all((name, block) in self.known for block in range(start // BLOCK, -(-stop // BLOCK)))
        expected = self.data[name][start:stop] if whole or start == stop else None
        assert self.cached(who, name).read(start, stop) == expected

    @rule(who=st.integers(0, 1), name=st.sampled_from("ab"))
    def wait(self, who: int, name: str) -> None:
        free = self.cached(who, name).wait(range(11), timeout_seconds=0)
        assert free == (not any(held == name for held, _ in self.held))

    @invariant()
    def missing(self) -> None:
        for name in "ab":
            expected = [block for block in range(11) if (name, block) not in self.known]
            assert self.cached(0, name).missing(0, 11) == expected

    def teardown(self) -> None:
        for claim in self.held.values():
            claim.release()


def test_any_sequence_of_calls(tmp_path_factory: pytest.TempPathFactory) -> None:
    CacheMachine.make_folder = staticmethod(lambda: tmp_path_factory.mktemp("machine"))  # type: ignore[assignment]
    run_state_machine_as_test(CacheMachine, settings=settings(max_examples=60, stateful_step_count=30, deadline=None))
