# SPDX-License-Identifier: Apache-2.0
"""Split parts by a ratio: the number of samples of each part in each shard, and which samples they are."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from energon_grain.errors import ConfigError, SplitError
from energon_grain.forms import did_you_mean
from energon_grain.samplers.hashing import fold

DEFAULT_PARTS: tuple[str, ...] = ("train", "val", "test")


def parse_ratio(text: str) -> dict[str, float]:
    """Parse `8,1,1` or `0.8, 0.1, 0.1` (train, val, test) or `train=9,heldout=1` (any names; also with colons).

    Raises ConfigError.
    """
    pieces = [piece.strip() for piece in text.split(",")]
    try:
        named = [re.split("[=:]", piece, maxsplit=1) for piece in pieces]
        if all(len(each) == 2 for each in named):
            names = [name.strip() for name, _ in named]
            if len(set(names)) < len(names):
                raise ConfigError(f"split ratio {text!r} names a part twice.")
            return name_ratio(dict(zip(names, [float(number) for _, number in named], strict=True)))
        return name_ratio([float(piece) for piece in pieces])
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"split ratio {text!r}: expected three numbers for train, val and test, such as 8,1,1, or names, such as "
            f"train=9,val=1."
        ) from error


def name_ratio(ratio: Mapping[str, float] | Sequence[float]) -> dict[str, float]:
    """Name the numbers of a plain sequence train, val and test. A mapping is unchanged. Raises ConfigError."""
    if isinstance(ratio, Mapping):
        named = {**ratio}
    elif 1 <= len(ratio) <= len(DEFAULT_PARTS):
        named = dict(zip(DEFAULT_PARTS[: len(ratio)], ratio, strict=True))
    else:
        raise ConfigError(
            f"split ratio {list(ratio)}: numbers without names are for train, val and test, so there may be at most "
            f"three. Use names for other parts: train=8,val=1,extra=1."
        )
    for name, value in named.items():
        if not name or not math.isfinite(value) or value < 0:
            raise ConfigError(
                f"split ratio of {name!r} is {value}: expected a number of at least 0, for a part with a name."
            )
    if not any(named.values()):
        raise ConfigError(f"split ratio {named}: at least one part must have more than 0.")
    return named


class SplitRatio:
    """Split parts of shards without a split file: runs of each shard.

    Every shard is cut separately into one run per part, in the order of the parts, in proportion to the ratio. So no
    sample is in two parts, none is lost, and parts are read in runs. The position of a cut depends only on the name of
    the file (without its folder) and its number of samples: when shards are added, removed or moved to other folders,
    the samples of the others stay in their parts.

    In a shard of n samples, a part with the share r has n · r of them, rounded up or down by a hash of the name, with
    probabilities in proportion to the fraction. So with shards of ten samples, even a part of 1 % gets its share: over
    all samples in S shards, it is off by about √S / 2.

    Args:
        ratio: Numbers by part, or for train, val and test; any scale. Text is parsed by `parse_ratio`.

    Raises ConfigError: The ratio is invalid.
    """

    __slots__ = ("bounds",)

    def __init__(self, ratio: str | Mapping[str, float] | Sequence[float]) -> None:
        named = parse_ratio(ratio) if isinstance(ratio, str) else name_ratio(ratio)
        exact = {name: Fraction(str(number)) for name, number in named.items() if number > 0}
        total = sum(exact.values())
        ends = list(itertools.accumulate((number / total for number in exact.values()), initial=Fraction(0)))
        self.bounds = dict(zip(exact, itertools.pairwise(ends), strict=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SplitRatio) and list(self.bounds.items()) == list(other.bounds.items())

    def __hash__(self) -> int:
        return hash(tuple(self.bounds.items()))

    def __repr__(self) -> str:
        return f"SplitRatio({str(self)!r})"

    def __str__(self) -> str:
        return ",".join(f"{name}:{end - begin}" for name, (begin, end) in self.bounds.items())

    def runs(self, part: str, shards: Mapping[str, int]) -> list[tuple[int, int]]:
        """First sample of a part in each shard (samples by name), and one past its last. Raises SplitError."""
        if part not in self.bounds:
            advice = did_you_mean(part, self.bounds) or f"; it names {', '.join(map(repr, self.bounds))}"
            raise SplitError(f"split_ratio {str(self)!r} has no split part {part!r}{advice}")
        begin, end = self.bounds[part]
        return [(_end_of_part(begin, name, count), _end_of_part(end, name, count)) for name, count in shards.items()]


def _end_of_part(bound: Fraction, shard: str, count: int) -> int:
    """Position of a cut in a shard of `count` samples, at a bound from 0 to 1: 0 and `count` for these two."""
    up = fold("split ratio", shard.rpartition("/")[2])  # out of 2**64
    return (bound.numerator * (count << 64) + up * bound.denominator) // (bound.denominator << 64)
