"""Ranges in memory: what was added comes back until there is no more room."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from forking import may_fork
from hypothesis import given, strategies as st
from object_server import Bucket
from patience import PATIENCE_S

from energon_grain import StorageSettings
from energon_grain.storage.remote_files import HeldRanges, RemoteFiles, held_ranges

CONTENT = bytes(range(200))
ranges = st.tuples(st.integers(0, 199), st.integers(0, 60)).map(lambda one: (one[0], min(one[0] + one[1], 200)))


@given(st.lists(ranges, max_size=20), ranges)
def test_what_is_held_and_what_is_missing_make_the_whole(added: list[tuple[int, int]], wanted: tuple[int, int]) -> None:
    held = HeldRanges(10_000)
    there: set[int] = set()
    for start, stop in added:
        assert all(there.isdisjoint(range(begin, end)) for begin, end in held.missing("a", start, stop))
        held.add("a", start, [CONTENT[start:stop][:7], CONTENT[start:stop][7:]])
        there.update(range(start, stop))
    start, stop = wanted
    missing = {byte for begin, end in held.missing("a", start, stop) for byte in range(begin, end)}
    assert missing == set(range(start, stop)) - there
    assert held.read("a", start, stop) == (None if missing else CONTENT[start:stop])
    assert held.missing("b", start, stop) == ([(start, stop)] if start < stop else [])


def test_the_oldest_go_first_and_one_always_stays() -> None:
    held = HeldRanges(100)
    for start in range(0, 160, 40):
        held.add("a", start, [CONTENT[start : start + 40]])
    assert held.missing("a", 0, 160) == [(0, 80)]
    held.add("b", 0, [CONTENT])
    assert held.read("b", 5, 190) == CONTENT[5:190]
    assert held.read("a", 150, 160) is None
    held.discard("b")
    assert held.missing("b", 0, 200) == [(0, 200)]
    held.add("c", 0, [CONTENT[:100]])
    assert held.read("c", 0, 100) == CONTENT[:100]


def test_what_comes_after_a_reader_was_closed_is_not_held(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead_bytes = 12_345_678  # of this test alone
    files = RemoteFiles(StorageSettings(cache_bytes=0, ahead_bytes=ahead_bytes))
    bucket.put("x", bytes(1000))
    url = f"{bucket.url}/x"
    assert files.size(url) == 1000
    bucket.server.reset()
    began, go = threading.Event(), threading.Event()
    read = files.versions.read

    def waiting(*args: Any) -> Any:
        began.set()
        go.wait(PATIENCE_S)
        return read(*args)

    monkeypatch.setattr(files.versions, "read", waiting)
    keeping = threading.Thread(target=files.keep, args=(url, 0, 1000))
    keeping.start()
    assert began.wait(PATIENCE_S)
    files.close()
    go.set()
    keeping.join()
    assert bucket.server.requests("x")
    assert held_ranges(ahead_bytes).size_bytes == 0
    bucket.server.reset()
    assert files.keep(url, 0, 1000)
    assert held_ranges(ahead_bytes).size_bytes == 1000
    files.close()
    assert held_ranges(ahead_bytes).size_bytes == 0


class _Slow:
    """Pieces that take until a test lets them be had."""

    def __init__(self) -> None:
        self.asked, self.may_come = threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        self.asked.set()
        assert self.may_come.wait(PATIENCE_S)
        yield CONTENT[:10]


@may_fork
def test_a_fork_while_a_thread_adds_does_not_wait_for_it() -> None:
    held = HeldRanges(100)
    held.add("a", 0, [CONTENT[:10]])
    slow = _Slow()
    adding = threading.Thread(target=held.add, args=("b", 0, slow))
    adding.start()
    assert slow.asked.wait(PATIENCE_S)
    try:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(0 if held.read("a", 0, 10) == CONTENT[:10] else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        slow.may_come.set()
        adding.join(PATIENCE_S)
    assert held.read("b", 0, 10) == CONTENT[:10]
