"""Processes that share a block cache, some of which are killed or forked."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from cached_blocks import BLOCK, SIZE, Process, allocated, content, fetch
from forking import may_fork
from patience import PATIENCE_S

from energon_grain.storage.block_cache import BlockCache

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
            assert cached.wait(missing, timeout_seconds=600)
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
        waiting = threading.Thread(target=lambda: waited.append(cached.wait([0, 2, 3], timeout_seconds=PATIENCE_S)))
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


@may_fork
def test_a_child_that_is_forked_during_a_claim(cache: BlockCache) -> None:
    """Neither holds it, nor waits for threads that it does not have, and its own reads and claims work."""
    cached, data = cache.open("a", b"1", SIZE), content("a")
    fetch(cached, data, 0, 2)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with cached.claim([4, 5]) as claim, cache._lock:
            held.set()
            release.wait(PATIENCE_S)
            claim.put(4, data[4 * BLOCK : 5 * BLOCK])

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(PATIENCE_S)
    inherited = cached.claim([7])
    child = os.fork()
    if child == 0:
        signal.alarm(600)
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
