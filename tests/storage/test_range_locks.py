"""Locks on ranges: who is kept out, and that they go with their holder."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from forking import may_fork

from energon_grain.storage.range_locks import EVERYTHING, RangeLocks, is_locked


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "file"
    file.touch()
    return os.fspath(file)


def test_two_holders_in_one_process_exclude_each_other(path: str) -> None:
    one, other = RangeLocks(path), RangeLocks(path)
    assert one.take(3, 6)
    assert not other.take(5, 9)
    assert other.take(6, 9)
    assert not other.take(0, EVERYTHING)
    one.drop(5, 6)
    assert other.take(5, 6)
    assert not other.take(4, 5)
    one.close()
    assert other.take(0, EVERYTHING)
    other.close()


def test_asking_takes_nothing(path: str) -> None:
    one, asking = RangeLocks(path), RangeLocks(path)
    one.take(3, 6)
    assert [is_locked(asking.descriptor, block, block + 1) for block in range(2, 7)] == [False, True, True, True, False]
    assert not is_locked(one.descriptor, 0, EVERYTHING)  # its own
    one.close()
    assert not is_locked(asking.descriptor, 0, EVERYTHING)
    asking.close()


def test_whoever_waits_has_it_next(path: str) -> None:
    one, other = RangeLocks(path), RangeLocks(path)
    one.take(0, 1)
    assert not other.take_within(0, 1, timeout_seconds=0.02)
    threading.Timer(0.05, one.close).start()
    assert other.take_within(0, 1, timeout_seconds=10)
    other.close()


@may_fork
def test_a_forked_child_neither_keeps_a_lock_nor_takes_it_away(path: str) -> None:
    """Fork is what is tested: the child does nothing but wait and end."""
    one, other = RangeLocks(path), RangeLocks(path)
    one.take(0, 1)
    started, ended = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ended[1])
        one.close()
        os.write(started[1], b"." if one.descriptor == -1 else b"!")
        os.read(ended[0], 1)
        os._exit(0)
    try:
        assert os.read(started[0], 1) == b"."
        assert not other.take(0, 1)  # what the child closed was not the parent's lock
        os.close(one.descriptor)  # as if the parent were killed: nothing is dropped, only its descriptor goes
        one.descriptor = -1
        assert other.take(0, 1)
    finally:
        os.close(ended[1])
        os.waitpid(child, 0)
        for descriptor in (*started, ended[0]):
            os.close(descriptor)
        other.close()


def test_a_missing_file_is_made_only_on_request(tmp_path: Path) -> None:
    path = os.fspath(tmp_path / "new")
    with pytest.raises(FileNotFoundError):
        RangeLocks(path)
    RangeLocks(path, create=True).close()
    assert os.path.getsize(path) == 0
