"""The unit of work: a run of consecutive local positions, read and encoded together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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
        first: Local position of the first one.
        batch_size: Of the host's batches; 0 where positions do not tell which batch a sample belongs to.
    """

    number: int
    draws: Draws
    size_bytes: int
    groups: tuple[range, ...] = ()
    first: int = 0
    batch_size: int = 0

    @property
    def batch_of(self) -> Callable[[int], int] | None:
        """Number of the batch that the sample at a place belongs to, if none is dropped; None: nobody can tell."""
        if not self.batch_size:
            return None
        return lambda place: (self.first + place) // self.batch_size

    def batches_of(self, places: npt.NDArray[np.intp]) -> Callable[[int], int] | None:
        """The same for places among some of the chunk's."""
        if not self.batch_size:
            return None
        return lambda place: (self.first + int(places[place])) // self.batch_size


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
