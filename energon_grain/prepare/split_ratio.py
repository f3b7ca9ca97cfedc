"""Deal shards to split parts by ratio, without ever losing a shard.

The largest-remainder method on exact fractions of the decimal text: 7, 2, 1 of ten shards are seven, two and one,
where a running sum of floats (0.7 + 0.2 + 0.1 < 1) would drop the last one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from energon_grain.errors import ConfigError, SplitError

DEFAULT_PARTS: tuple[str, ...] = ("train", "val", "test")


def parse_ratio(text: str) -> dict[str, float]:
    """Read `8,1,1` or `0.8, 0.1, 0.1` (train, val, test) or `train=9,heldout=1` (any names).

    Raises:
        ConfigError: Anything else, or ratios that `check_ratio` refuses.
    """
    pieces = [piece.strip() for piece in text.split(",")]
    try:
        if all("=" in piece for piece in pieces):
            names = [piece.split("=", 1)[0].strip() for piece in pieces]
            if len(set(names)) < len(names):
                raise ConfigError(f"split ratio {text!r} names a part twice.")
            ratio = dict(zip(names, [float(piece.split("=", 1)[1]) for piece in pieces], strict=True))
        else:
            ratio = name_ratio([float(piece) for piece in pieces])
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"split ratio {text!r}: give three numbers for train, val and test, such as 8,1,1, or names, such as "
            f"train=9,val=1."
        ) from error
    check_ratio(ratio)
    return ratio


def name_ratio(ratio: Mapping[str, float] | Sequence[float]) -> dict[str, float]:
    """Give a bare sequence the names train, val and test; a mapping stays as it is."""
    if isinstance(ratio, Mapping):
        named = {**ratio}
    elif 1 <= len(ratio) <= len(DEFAULT_PARTS):
        named = dict(zip(DEFAULT_PARTS[: len(ratio)], ratio, strict=True))
    else:
        raise ConfigError(
            f"split ratio {list(ratio)}: bare numbers stand for train, val and test, so there may be at most three. "
            f"Name the parts to have others: train=8,val=1,extra=1."
        )
    check_ratio(named)
    return named


def check_ratio(ratio: Mapping[str, float]) -> None:
    """Raise ConfigError unless the ratios are finite, not negative and not all zero."""
    for name, value in ratio.items():
        if not name or not math.isfinite(value) or value < 0:
            raise ConfigError(
                f"split ratio of {name!r} is {value}: a ratio is a number of at least 0, of a named part."
            )
    if not any(ratio.values()):
        raise ConfigError(f"split ratio {dict(ratio)}: at least one part must have more than 0.")


def shards_per_part(shard_count: int, ratio: Mapping[str, float]) -> dict[str, int]:
    """Say how many of `shard_count` shards each part gets: the counts add up to `shard_count`.

    Parts with a ratio of 0 are left out. The others get at least one shard each; beyond that a count differs from the
    exact share by less than one, except where a larger part gave a shard up for that minimum. Of equal remainders the
    earlier part comes first.

    Raises:
        SplitError: There are fewer shards than parts with a positive ratio.
    """
    shares = {name: Fraction(str(value)) for name, value in ratio.items() if value > 0}
    if shard_count < len(shares):
        raise SplitError(
            f"{shard_count} shard{'s' * (shard_count != 1)} cannot be dealt to {len(shares)} parts "
            f"({', '.join(shares)}): each needs at least one. Give a split ratio with fewer parts (1,0,0 puts all into "
            f"train), or write the data into more shards."
        )
    total = sum(shares.values())
    exact = {name: share * shard_count / total for name, share in shares.items()}
    counts = {name: math.floor(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: counts[name] - exact[name])
    for name in by_remainder[: shard_count - sum(counts.values())]:
        counts[name] += 1
    for name in [name for name, count in counts.items() if count == 0]:
        giver = max(counts, key=lambda other: (counts[other] > 1, counts[other] - exact[other], counts[other]))
        counts[giver] -= 1
        counts[name] = 1
    return counts


def split_by_ratio(shards: Sequence[str], ratio: Mapping[str, float]) -> dict[str, tuple[str, ...]]:
    """Cut the list of shards, in its order, into consecutive parts of the sizes of `shards_per_part`."""
    parts: dict[str, tuple[str, ...]] = {}
    start = 0
    for name, count in shards_per_part(len(shards), ratio).items():
        parts[name] = tuple(shards[start : start + count])
        start += count
    return parts
