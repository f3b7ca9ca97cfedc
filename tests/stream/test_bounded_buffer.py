"""The queue between the batch thread and the consumer."""

from __future__ import annotations

import threading
import time

import pytest

from energon_grain.storage.given_up import GivenUp
from energon_grain.stream.workers import BoundedBuffer


def test_order_capacity_and_narrowing() -> None:
    buffer: BoundedBuffer[int] = BoundedBuffer(8)
    buffer.narrow(2)
    buffer.narrow(5)
    done = threading.Event()

    def fill() -> None:
        for number in range(6):
            buffer.put(number)
        done.set()

    thread = threading.Thread(target=fill)
    thread.start()
    time.sleep(0.05)
    assert not done.is_set()
    assert [buffer.get() for _ in range(3)] == [0, 1, 2]
    assert not done.wait(0.05)
    assert [buffer.get() for _ in range(3)] == [3, 4, 5]
    thread.join()


def test_closing_wakes_both_sides() -> None:
    full: BoundedBuffer[int] = BoundedBuffer(1)
    full.put(1)
    empty: BoundedBuffer[int] = BoundedBuffer(0)
    woken: list[str] = []

    def put() -> None:
        with pytest.raises(GivenUp):
            full.put(2)
        woken.append("put")

    def get() -> None:
        with pytest.raises(GivenUp):
            empty.get()
        woken.append("get")

    threads = [threading.Thread(target=put), threading.Thread(target=get)]
    for thread in threads:
        thread.start()
    time.sleep(0.02)
    full.close()
    empty.close()
    for thread in threads:
        thread.join()
    assert sorted(woken) == ["get", "put"]
    with pytest.raises(GivenUp):
        full.get()
