"""Permuting positions inside windows, brute-forced."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from energon_grain.errors import ConfigError
from energon_grain.samplers.window_shuffle import WindowShuffle


@dataclass(frozen=True)
class Passes:
    """Passes of a fixed (or fractional) number of positions."""

    samples: Fraction

    def start(self, epoch: int) -> int:
        return int(epoch * self.samples)

    def length(self, epoch: int) -> int:
        return self.start(epoch + 1) - self.start(epoch)

    def epoch_at(self, position: int) -> int:
        epoch = 0
        while self.start(epoch + 1) <= position:
            epoch += 1
        return epoch


def route(shuffle: WindowShuffle, positions: object) -> list[int]:
    child, below = shuffle.route(np.asarray(positions, np.int64))
    assert child.dtype == np.int32
    assert not child.any()
    return below.tolist()


@settings(max_examples=60)
@given(window=st.integers(1, 40), key=st.integers(0, 2**64 - 1), first=st.integers(0, 2**40))
def test_endless_windows_are_permuted_each(window: int, key: int, first: int) -> None:
    shuffle = WindowShuffle(window, key=key, passes=None)
    first = first // window * window
    below = route(shuffle, np.arange(first, first + 5 * window))
    for at in range(0, 5 * window, window):
        assert sorted(below[at : at + window]) == list(range(first + at, first + at + window))


@settings(max_examples=60)
@given(
    window=st.integers(1, 12),
    key=st.integers(0, 2**64 - 1),
    samples=st.fractions(min_value=Fraction(1, 3), max_value=30, max_denominator=7),
)
def test_a_pass_keeps_its_positions(window: int, key: int, samples: Fraction) -> None:
    """Windows begin with each pass, and the last one of a pass is shorter; passes may be empty."""
    passes = Passes(samples)
    shuffle = WindowShuffle(window, key=key, passes=passes)
    below = route(shuffle, np.arange(passes.start(6)))
    for epoch in range(6):
        start, stop = passes.start(epoch), passes.start(epoch + 1)
        for first in range(start, stop, window):
            last = min(first + window, stop)
            assert sorted(below[first:last]) == list(range(first, last))


@settings(max_examples=40)
@given(
    window=st.integers(1, 12),
    samples=st.none() | st.fractions(min_value=Fraction(1, 3), max_value=30, max_denominator=7),
    asked=st.lists(st.integers(0, 150), min_size=1, max_size=40),
)
def test_any_positions_in_any_order(window: int, samples: Fraction | None, asked: list[int]) -> None:
    passes = None if samples is None else Passes(samples)
    shuffle = WindowShuffle(window, key=7, passes=passes)
    whole = route(shuffle, np.arange(151))
    assert route(shuffle, asked) == [whole[position] for position in asked]
    assert [route(shuffle, [position])[0] for position in asked] == [whole[position] for position in asked]


def test_no_position_at_all() -> None:
    for passes in (None, Passes(Fraction(5))):
        assert route(WindowShuffle(4, key=1, passes=passes), []) == []


def test_short_passes_far_apart() -> None:
    """More passes between two positions than positions that are asked for."""
    shuffle = WindowShuffle(4, key=3, passes=Passes(Fraction(2)))
    below = route(shuffle, [0, 1, 900, 901, 902, 903])
    assert [sorted(below[at : at + 2]) for at in (0, 2, 4)] == [[0, 1], [900, 901], [902, 903]]


def test_windows_and_keys_have_orders_of_their_own() -> None:
    orders = {
        tuple(place - first for place in route(WindowShuffle(50, key=key, passes=None), np.arange(first, first + 50)))
        for key in range(10)
        for first in range(0, 500, 50)
    }
    assert len(orders) == 100


def test_every_order_of_a_window_is_as_likely() -> None:
    below = np.array(route(WindowShuffle(3, key=11, passes=None), np.arange(3 * 6000))).reshape(-1, 3)
    counts = Counter(map(tuple, (below % 3).tolist()))
    assert len(counts) == 6
    chi_squared = sum((count - 1000) ** 2 / 1000 for count in counts.values())
    assert chi_squared < 20  # of 5 degrees of freedom: 1 in 800


def test_a_window_has_a_position() -> None:
    with pytest.raises(ConfigError, match="at least 1 position"):
        WindowShuffle(0, key=1, passes=None)
