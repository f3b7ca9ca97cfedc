"""Steps that are made in a thread of their own, ahead of who takes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count

import pytest
from patience import PATIENCE_S

from energon_grain.storage.given_up import GivenUp, Over
from energon_grain.stream.prefetch import Background

SHORT_S = 0.05


class Numbers:
    """0, 1, 2, … `stop` - 1, and then an error if there is one; tells how many were made."""

    def __init__(self, stop: int, error: Exception | None = None) -> None:
        self.stop, self.error = stop, error
        self.made = 0
        self.changed = threading.Condition()

    def __iter__(self) -> Iterator[int]:
        for number in range(self.stop):
            with self.changed:
                self.made += 1
                self.changed.notify_all()
            yield number
        if self.error is not None:
            raise self.error

    def made_in_time(self, number: int, seconds: float) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.made >= number, seconds)


@pytest.mark.parametrize(("capacity", "budget_bytes", "waiting"), [(3, 1 << 30, 3), (8, 250, 2), (8, 10, 1)])
def test_order_and_bounds(capacity: int, budget_bytes: int, waiting: int) -> None:
    numbers = Numbers(9)
    ahead = Background(numbers, capacity, budget_bytes, lambda _: 100, Over())
    for taken in range(3):
        in_hand = waiting + 1 + taken
        assert numbers.made_in_time(in_hand, PATIENCE_S)
        assert not numbers.made_in_time(in_hand + 1, SHORT_S)
        assert next(ahead) == taken
    assert list(ahead) == [3, 4, 5, 6, 7, 8]
    with pytest.raises(StopIteration):
        next(ahead)
    ahead.close()


def test_what_it_ends_with_comes_behind_what_was_made() -> None:
    ahead = Background(Numbers(2, ArithmeticError("no third")), 8, 1 << 30, lambda _: 1, Over())
    assert [next(ahead), next(ahead)] == [0, 1]
    with pytest.raises(ArithmeticError, match="no third"):
        next(ahead)
    ahead.close()


@pytest.mark.parametrize("full", [True, False])
def test_stopping_wakes_both_sides(full: bool) -> None:
    over, given_up, held = Over(), threading.Event(), threading.Event()

    def entries() -> Iterator[int]:
        yield from count() if full else ()
        held.wait(PATIENCE_S)

    ahead = Background(entries(), 1, 1 << 30, lambda _: 1, over)

    def take() -> None:
        with pytest.raises(GivenUp):
            while True:
                next(ahead)
        given_up.set()

    taker = threading.Thread(target=take)
    taker.start()
    over.set()
    ahead.stop()
    assert given_up.wait(PATIENCE_S)
    held.set()
    ahead.close()
    taker.join()
