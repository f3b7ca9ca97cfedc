# SPDX-License-Identifier: Apache-2.0
"""Weights and repetitions as exact numbers: the value of the decimal text, not of its double."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from numbers import Rational, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError

Weight = int | float | str | Decimal | Fraction

Schedule = Sequence[tuple[int, Sequence[Weight]]]
"""Segments: the first position of each, and its weights."""


@dataclass(frozen=True, slots=True)
class Smooth:
    """Start of a segment that carries on the divisions of the one before it, from the end of each lane's run on.

    Attributes:
        rounds: int64 (L,), a round of each lane.
    """

    rounds: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """Start of a segment that is known without the ones before it.

    Attributes:
        number: number of segments before it.
        rounds: int64 (L,), the first round of each lane.
        counts: int64 (K, L), rounds of each child before.
        tail: int64 (3, L), the child of each of the three rounds before; any, if there are fewer.
        phases: of a smooth segment: uint64 (2 K - 1, L), 8 bits for each node of the share tree.
        earlier: the segments before it, if they are known, from the beginning or from another anchor on.
    """

    number: int
    rounds: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    tail: npt.NDArray[np.int64]
    phases: npt.NDArray[np.uint64] | None = None
    earlier: Sequence[tuple[Any, Sequence[Weight]]] = ()


LaneStart = int | npt.NDArray[np.int64] | Smooth | Anchor
LaneSchedule = Sequence[tuple[LaneStart, Sequence[Weight]]]
"""The same; a segment may also begin at a round of each lane, int64 (L,)."""

MAX_TOTAL = 1 << 31
"""Maximum sum of integer weights, so that products of two of them fit into 64 bits."""


def exact(value: Weight, what: str = "weight") -> Fraction:
    """Return a number as the fraction of its decimal text: 0.1 is 1/10.

    Raises ConfigError if the value is not a number, not finite, or negative.
    """
    try:
        number = Fraction(_written(value))
    except (ValueError, TypeError, OverflowError, ZeroDivisionError):
        raise ConfigError(f"{what} {value!r} is not a finite number") from None
    if number < 0:
        raise ConfigError(f"{what} {value!r} is negative: it must be at least 0")
    return number


def _written(value: Weight) -> int | str | Decimal | Fraction:
    """The number with Python integers, or the decimal text of a rounded number."""
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, Rational):  # including numpy's integers
        return Fraction(int(value.numerator), int(value.denominator))
    return str(value) if isinstance(value, Real) else value  # including numpy's short floats


def integer_weights(weights: Sequence[Weight]) -> tuple[int, ...]:
    """Return integers in the ratio of the weights: `[0.7, "0.2", 0.1]` is `(7, 2, 1)`.

    The ratio is exact if the smallest such integers add up to at most 2**31, else each share is off by under 2**-31.

    Args:
        weights: one number per child, at least one of them above 0.

    Raises:
        ConfigError: a weight would round to zero.
    """
    if (whole := [each for each in weights if type(each) is int and each >= 0]) and len(whole) == len(weights):
        common = math.gcd(*whole)
        if 0 < sum(whole) // max(common, 1) <= MAX_TOTAL:
            return tuple(each // common for each in whole)
    fractions = [exact(weight) for weight in weights]
    total = sum(fractions)
    scale = Fraction(math.lcm(*(f.denominator for f in fractions)), math.gcd(*(f.numerator for f in fractions)))
    if total * scale > MAX_TOTAL:
        scale = Fraction(MAX_TOTAL - len(fractions)) / total
    integers = tuple(round(f * scale) for f in fractions)
    for number, (fraction, integer) in enumerate(zip(fractions, integers, strict=True)):
        if fraction and not integer:
            raise ConfigError(
                f"weight {number} of {len(fractions)}, {weights[number]!r}, is {float(fraction / total):.2g} of all, "
                f"which rounds to zero: a share must be at least {1 / MAX_TOTAL:.3g}"
            )
    return integers


def period(rates: Sequence[int | Fraction]) -> int:
    """Number of epochs of these rates after which their lengths (see `epoch_lengths`) repeat."""
    return math.lcm(*(rate.denominator for rate in rates))


def epoch_lengths(rates: Sequence[int | Fraction], first: int, count: int) -> npt.NDArray[np.int64]:
    """(count,) the sum over rates of floor((e + 1) * rate) - floor(e * rate), for the epochs e from `first` on."""
    lengths = np.full(count, sum(math.floor(rate) for rate in rates), np.int64)
    for rate in rates:
        whole, part = rate.denominator, rate.numerator % rate.denominator
        # Fraction of a sample left by earlier epochs, as a numerator. Python integers if products exceed 64 bits.
        number = np.arange(count, dtype=np.int64 if whole * max(whole, count) < 1 << 62 else object)
        left = (first * part % whole + number % whole * part) % whole
        lengths += (left + part >= whole).astype(np.int64)
    return lengths
