"""The unit of work: a run of consecutive local positions, read and encoded together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.stream.draws import Draws
from energon_grain.stream.read_ahead import Arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNumbers:
    """How the batches of a host are numbered as long as nothing is dropped: for making them beside their samples.

    Attributes:
        origin: Local position at which some batch begins.
        item: Global item at which the step of that batch begins.
        global_batch: G, items of a step.
        host: This host.
        hosts: Of so many.
        base: Item 0 of the pass among the items of all passes.
        pass_number: As it counts for random numbers.
        pads: Whether batches have a mask.
    """

    origin: int
    item: int
    global_batch: int
    host: int
    hosts: int
    base: int
    pass_number: int
    pads: bool

    def of(self, first: int) -> tuple[int, int]:
        """(item that keys random numbers, step in the pass) of the batch that begins at a local position."""
        step = (self.item + (first - self.origin) * self.hosts) // self.global_batch
        return self.base + first * self.hosts + self.host, step


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
        numbers: Of the batches; None: they are not wanted.
        arrival: Of what is fetched ahead; None: nothing is.
    """

    number: int
    draws: Draws
    size_bytes: int
    groups: tuple[range, ...] = ()
    first: int = 0
    batch_size: int = 0
    numbers: BatchNumbers | None = None
    arrival: Arrival | None = None

    def whole_batches(self) -> Iterator[range]:
        """Places of the batches that lie in this chunk as a whole."""
        return (group for group in self.groups if len(group) == self.batch_size)

    def batches_of(self, places: npt.NDArray[np.intp]) -> Callable[[int], int] | None:
        """Number of the batch of each of some places, if no sample is dropped; None: nobody can tell."""
        if not self.batch_size:
            return None
        return lambda place: (self.first + int(places[place])) // self.batch_size


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MadeBatch:
    """A batch that was made where its samples were; it stands at the place of its first one, None at the others'.

    Attributes:
        batch: As the consumer gets it.
        samples: How many it was made of.
    """

    batch: Any
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoded:
    """A chunk, done.

    Attributes:
        outcomes: One entry a position: the encoded sample, or the `Dropped` in its stead; or, where nothing was
            dropped, a `MadeBatch` and None for all of its samples.
        restore_keys: One a position.
        drops: How many were dropped.
        size_bytes: Estimate of the memory that the outcomes hold.
        made: Whether there are made batches.
    """

    outcomes: list[Any]
    restore_keys: list[tuple[Any, ...]]
    drops: int
    size_bytes: int
    made: bool = False
