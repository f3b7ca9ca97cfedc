"""Claims on blocks: who fetches what, so that nothing is fetched twice."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest
from cached_blocks import BLOCK, SIZE, content, fetch

from energon_grain.storage.block_cache import BlockCache


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
