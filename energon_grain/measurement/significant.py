"""Numbers as people read them."""

from __future__ import annotations

import math


def significant(value: float, digits: int = 3) -> str:
    """Write a number with so many digits that count, or all of them before the point, and without an exponent.

    >>> significant(12345.6), significant(9.96, 2), significant(0.0312, 2)
    ('12,346', '10', '0.031')
    """
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = digits - 1 - math.floor(math.log10(abs(rounded))) if rounded else 0
    return f"{value:,.{max(0, decimals)}f}"
