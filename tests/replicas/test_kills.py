"""Replicas whose processes are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from replica_loaders import alone, files_in_memory, in_processes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def path(text_dataset: Callable[..., Path]) -> Path:
    return text_dataset(97)


def test_a_dead_follower_holds_nobody_up(path: Path, tmp_path: Path) -> None:
    with in_processes(path, tmp_path / "gather", 3) as (first, second, third):
        for replica in (first, second, third):
            replica.ask("steps", 3)
        assert [replica.answer()[0] for replica in (first, second, third)] == [alone(path, 3)] * 3
        second.kill()
        for replica in (first, third):
            replica.ask("steps", 20)
        assert [replica.answer()[0] for replica in (first, third)] == [alone(path, 23)[3:]] * 2


def test_after_a_dead_reader_the_next_rank_reads_from_the_same_place(path: Path, tmp_path: Path) -> None:
    files = files_in_memory()
    with in_processes(path, tmp_path / "gather", 3) as (first, second, third):
        first.ask("fork")
        child, _ = first.answer()  # such as a worker process: it has copies of all descriptors
        for replica in (first, second, third):
            replica.ask("steps", 3)
        for replica in (first, second, third):
            replica.answer()
        first.kill()
        for replica in (second, third):
            replica.ask("steps", 100)
        for replica in (second, third):
            error, seconds = replica.answer()
            assert error.startswith("WorkerError: rank 0, which reads the batches of rank")
            assert "rank 1 reads from the same place" in error
            assert seconds < 5  # below 1 on a quiet machine
        os.kill(child, signal.SIGKILL)
        for replica in (second, third):
            replica.ask("state")
        states = [replica.answer()[0] for replica in (second, third)]
        expected = alone(path, 40)
        found = []
        for replica in (second, third):  # the third connects after the second has read on, and reads what it missed
            replica.ask("steps", 10)
            found.append(replica.answer()[0])
        for replica in (third, second):
            replica.ask("steps", 5)
        for number, replica in enumerate((second, third)):
            found[number] += replica.answer()[0]
        assert found == [expected[state["step"] : state["step"] + 15] for state in states]
        second.kill()
        third.ask("steps", 100)
        error, _ = third.answer()
        assert "WorkerError: rank 1, which reads the batches of rank 2, has ended" in error
        third.ask("state")
        step = third.answer()[0]["step"]
        third.ask("steps", 1)
        assert third.answer()[0] == alone(path, step + 1)[step:]
    assert files_in_memory() == files
