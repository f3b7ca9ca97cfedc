"""The unit of work: a run of consecutive local positions, read and encoded together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from energon_grain.stream.draws import Draws


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunk:
    """What to read and encode.

    Attributes:
        number: 0, 1, 2, … in the order of positions.
        groups: Places of the chunk, all of them in order, cut where batches end unless something is dropped; empty
            where nothing is known of batches.
        draws: One draw a position.
        size_bytes: What reading it takes, known from the index.
    """

    number: int
    draws: Draws
    size_bytes: int
    groups: tuple[range, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoded:
    """A chunk, done.

    Attributes:
        outcomes: One entry a position: the encoded sample, or the `Dropped` in its stead.
        restore_keys: One a position.
        drops: How many were dropped.
        size_bytes: Estimate of the memory that the outcomes hold.
    """

    outcomes: list[Any]
    restore_keys: list[tuple[Any, ...]]
    drops: int
    size_bytes: int
