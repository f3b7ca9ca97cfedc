"""A lock on a whole file, and what a fork does to it."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path

from forking import may_fork
from patience import PATIENCE_S

from energon_grain.storage.atomic import locked


def test_one_at_a_time(tmp_path: Path) -> None:
    done: list[str] = []

    def second() -> None:
        with open(tmp_path / "lock", "wb") as file, locked(file):
            done.append("second")

    with open(tmp_path / "lock", "wb") as file, locked(file):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        done.append("first")
    thread.join(PATIENCE_S)
    assert done == ["first", "second"]


@may_fork
def test_a_child_that_was_forked_meanwhile_holds_nothing_up(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    over = context.Event()
    child = context.Process(target=over.wait, args=(60,))
    with open(tmp_path / "lock", "wb") as file, locked(file):
        child.start()
    entered = threading.Event()

    def enter() -> None:
        with open(tmp_path / "lock", "wb") as file, locked(file):
            entered.set()

    waiting = threading.Thread(target=enter)
    waiting.start()
    try:
        assert entered.wait(PATIENCE_S)
    finally:
        over.set()
        child.join()
        waiting.join()
