from __future__ import annotations

import pytest

from energon_grain.measurement.significant import significant


@pytest.mark.parametrize(
    ("value", "digits", "said"),
    [
        (0, 3, "0"),
        (150.2, 2, "150"),
        (9.96, 2, "10"),
        (9.94, 2, "9.9"),
        (0.0312, 2, "0.031"),
        (12345.6, 3, "12,346"),
        (99.96, 3, "100"),
        (7.0, 3, "7.00"),
    ],
)
def test_numbers_have_no_exponent(value: float, digits: int, said: str) -> None:
    assert significant(value, digits) == said
