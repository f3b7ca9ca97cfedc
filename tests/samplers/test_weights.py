"""Weights are the numbers that their text says."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

from energon_grain.errors import ConfigError
from energon_grain.samplers.weights import MAX_TOTAL, Weight, exact, integer_weights


@pytest.mark.parametrize(
    ("weights", "integers"),
    [
        ([1], (1,)),
        ([0.7, "0.2", Decimal("0.1")], (7, 2, 1)),
        ([np.float64(0.1), 0.3], (1, 3)),
        ([np.float32(0.1), np.float16(0.3)], (1, 3)),
        ([Fraction(1, 3), 1, np.int64(2)], (1, 3, 6)),
        ([1e-3, "1/8"], (1, 125)),
        ([100, 200.0], (1, 2)),
    ],
)
def test_decimal_text_counts_as_written(weights: list[Weight], integers: tuple[int, ...]) -> None:
    assert integer_weights(weights) == integers


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20))
def test_totals_are_bounded_and_shares_close(weights: list[float]) -> None:
    try:
        integers = integer_weights(weights)
    except ConfigError:
        assert min(weights) / sum(weights) < 1 / MAX_TOTAL
        return
    total = sum(integers)
    assert total <= MAX_TOTAL
    for weight, integer in zip(weights, integers, strict=True):
        assert abs(integer / total - weight / sum(weights)) < 1e-8


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([], "at least one"),
        ([0, 0], "at least one"),
        ([1, 0], "weight 1 .* is 0"),
        ([1, -1], "negative"),
        ([1, float("nan")], "not a finite"),
        (["inf"], "not a finite"),
        (["many"], "not a finite"),
        ([None], "not a finite"),
        ([1, 1e-12], "weight 1 of 2, 1e-12, .* rounded to nothing"),
    ],
)
def test_impossible_weights_are_refused(weights: list[Weight], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        integer_weights(weights)


def test_a_schedule_may_pause_a_child() -> None:
    assert integer_weights([0, 0.5], allow_zero=True) == (0, 1)
    assert exact("0.10") == Fraction(1, 10)
    with pytest.raises(ConfigError, match="repetitions 'x'"):
        exact("x", "repetitions")
