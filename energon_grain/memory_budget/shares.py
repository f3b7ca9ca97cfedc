# SPDX-License-Identifier: Apache-2.0
"""Dividing memory among those who ask for it."""

from __future__ import annotations

from collections.abc import Sequence


def divide(free_bytes: int, asked_bytes: Sequence[int]) -> list[int]:
    """The share of each asker.

    If everything fits, each gets what it asks for, and an equal part of the rest. Otherwise small requests are granted
    and large ones are cut to the same size (max-min fairness).

    >>> divide(100, [10, 20]), divide(100, [10, 80, 90])
    ([45, 55], [10, 45, 45])
    """
    shares = [0] * len(asked_bytes)
    left = max(0, free_bytes)
    smallest_first = sorted(range(len(asked_bytes)), key=lambda number: asked_bytes[number])
    for place, number in enumerate(smallest_first):
        shares[number] = min(asked_bytes[number], left // (len(shares) - place))
        left -= shares[number]
    return [share + left // len(shares) for share in shares]


def divide_now(free_bytes: int, asked_bytes: Sequence[int], held_bytes: Sequence[int]) -> list[int]:
    """The same, without what others hold at this time beyond their share.

    >>> divide_now(100, [50, 50], [80, 10])
    [50, 20]
    """
    free_now = free_bytes - sum(held_bytes)
    shares = divide(free_bytes, asked_bytes)
    return [min(share, max(0, free_now + held)) for share, held in zip(shares, held_bytes, strict=True)]
