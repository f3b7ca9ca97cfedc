# SPDX-License-Identifier: Apache-2.0
"""Columns: a number that is the same for a whole chunk of positions, or one number for each of them.

The arithmetic of this package is written once for both. A plain integer uses the fast path: numpy broadcasts it, and
divides by it with a multiplication. With an array of one number per element, one call serves any mixture of leaves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.uint64]
Column = int | Array
"""One number in [0, 2**64) for all elements of a chunk, or one each, uint64 (k,)."""


def operand(column: Column) -> np.uint64 | Array:
    """Return the column in a form that numpy combines with uint64 arrays without leaving uint64."""
    return np.uint64(column) if isinstance(column, int) else column


def at(column: Column, where: slice | npt.NDArray[np.integer[Any]]) -> Column:
    """Return the column for a part of the elements."""
    return column if isinstance(column, int) else column[where]


def spread(column: Column, size: int) -> Array:
    """Return the column as an array of `size` numbers (read-only if it was one number)."""
    return np.broadcast_to(np.uint64(column), (size,)) if isinstance(column, int) else column


def scaled(x: Column, n: Column) -> Array:
    """Return floor(x * n / 2**64), exactly: a hash scaled to [0, n). Products of 32-bit halves cannot overflow."""
    half, low = np.uint64(32), np.uint64(0xFFFF_FFFF)
    x_all, n_all = np.atleast_1d(operand(x)), np.atleast_1d(operand(n))
    x_high, x_low, n_high, n_low = x_all >> half, x_all & low, n_all >> half, n_all & low
    middle = x_high * n_low + (x_low * n_low >> half)
    other = x_low * n_high + (middle & low)
    return x_high * n_high + (middle >> half) + (other >> half)


def signed(values: Array) -> npt.NDArray[np.int64]:
    """View numbers below 2**63 as int64."""
    return values.view(np.int64)


def divide_product(a: Array, b: Array, divisor: Array, plus: Array | int = 0) -> tuple[Array, Array]:
    """Return quotient and remainder of (a * b + plus) / divisor, exactly.

    The quotient must be below 2**63, divisor and plus below 2**61. If the product could exceed 64 bits, the quotient is
    estimated in doubles and corrected with the remainder, which is exact modulo 2**64: the estimate is off by at most
    5 * 2**-53 of itself plus 1, so the remainder is below 2**63 while the product is below 2**111. Larger products use
    Python integers, which is 50 times slower.
    """
    largest = int(a.max()) * int(b.max())
    addend = np.uint64(plus) if isinstance(plus, int) else plus
    if (largest + int(addend.max())) >> 64 == 0:
        product = a * b + addend
        quotient = product // divisor
        return quotient, product - quotient * divisor
    if largest >> 111:
        whole = a.astype(object) * b.astype(object) + addend.astype(object)
        quotient = (whole // divisor.astype(object)).astype(np.uint64)
        return quotient, a * b + addend - quotient * divisor
    estimate = (a.astype(np.float64) * b.astype(np.float64) / divisor.astype(np.float64)).astype(np.uint64)
    left_over = (a * b + addend - estimate * divisor).view(np.int64)
    fix = left_over // divisor.view(np.int64)
    return (estimate.view(np.int64) + fix).view(np.uint64), (left_over - fix * divisor.view(np.int64)).view(np.uint64)
