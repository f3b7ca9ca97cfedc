# SPDX-License-Identifier: Apache-2.0
"""Blends by repetitions that change at the start of an epoch.

Segment s has its own lengths and repetitions from epoch e_s on, and its own keys. With rate_k = n_k r_k, epoch
e >= e_s begins at position first_k(e) = base_k + floor((e - e_s) rate_k) of child k, where base_k is where the segment
before ended. So every child goes on where it is, a child of rate 0 waits, and the counts of each epoch are exact.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.lowering import IndexPart, Lowering, Part
from energon_grain.datasets.mixtures import AmendedAt, BlendEpochizedDataset, Weight
from energon_grain.errors import ConfigError
from energon_grain.samplers.epochized_blend import EpochizedBlend
from energon_grain.samplers.hashing import fold
from energon_grain.samplers.routing import Routes, RouteTree
from energon_grain.samplers.weights import Weight as Number

_SEGMENT = fold("segment of epochs")
_ALWAYS = 1 << 62


class EpochSegments:
    """A stream of epochs with exact counts of each child, whose repetitions change at the start of some epochs.

    Args:
        lengths: Samples of each child, those of later segments included.
        repetitions: Of each child in the first segment.
        lanes: L.
        key: 64-bit key, as in `EpochizedBlend`.

    Attributes:
        samples: Samples of each child.
        rates: Average positions of each child per epoch of the last segment.
    """

    preserves_runs: ClassVar[bool] = True

    def __init__(self, lengths: Sequence[int], repetitions: Sequence[Number], *, lanes: int, key: int) -> None:
        self.samples, self._lanes, self._key = tuple(lengths), lanes, key
        count = len(repetitions)
        self._blends = [EpochizedBlend(lengths[:count], repetitions, lanes=lanes, key=key)]
        self._epochs = [0]  # first epoch of each segment
        self._starts = [0]  # its first position
        self._bases = [np.zeros(len(lengths), np.int64)]  # its first position of each child

    def append(self, position: int, repetitions: Sequence[Number]) -> None:
        """Change the repetitions from the first epoch on that begins at a position or after it.

        Raises ConfigError if an epoch could be empty.
        """
        position = self.next_cut(position)
        epoch = self.epoch_at(position)
        counts = np.zeros(len(self.samples), np.int64)
        blend, passed = self._blends[-1], epoch - self._epochs[-1]
        counts[: len(blend.rates)] = [passed * rate.numerator // rate.denominator for rate in blend.rates]
        base = self._bases[-1] + counts
        if not passed:  # it takes the place of a segment that has no epoch
            for of_segments in (self._blends, self._epochs, self._starts, self._bases):
                of_segments.pop()
        key = fold(self._key, _SEGMENT, epoch) if epoch else self._key
        self._blends.append(EpochizedBlend(self.samples[: len(repetitions)], repetitions, lanes=self._lanes, key=key))
        self._epochs.append(epoch)
        self._starts.append(position)
        self._bases.append(base)

    @property
    def rates(self) -> Sequence[Number]:
        return self._blends[-1].rates

    def start(self, epoch: int) -> int:
        """Return the first position of an epoch."""
        at = bisect_right(self._epochs, epoch) - 1
        return self._starts[at] + self._blends[at].start(epoch - self._epochs[at])

    def length(self, epoch: int) -> int:
        """Return how many positions an epoch holds."""
        return self.start(epoch + 1) - self.start(epoch)

    def epoch_at(self, position: int) -> int:
        """Return the epoch that holds a position."""
        at = bisect_right(self._starts, position) - 1
        return self._epochs[at] + self._blends[at].epoch_at(position - self._starts[at])

    @property
    def period(self) -> int:
        """Return a number of epochs after which their lengths repeat: none, before the last segment."""
        return _ALWAYS if len(self._blends) > 1 else self._blends[0].period

    def lengths(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """Return how many positions each of `count` epochs has, starting with epoch `first`."""
        parts: list[npt.NDArray[np.int64]] = []
        for blend, begin, end in zip(self._blends, self._epochs, [*self._epochs[1:], _ALWAYS], strict=True):
            low, high = max(first, begin), min(first + count, end)
            if low < high:
                parts.append(blend.lengths(low - begin, high - low))
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def next_cut(self, position: int) -> int:
        """The start of the next epoch, or of this one at its start; see `CutRouter`."""
        return self.start(self.epoch_at(position - 1) + 1) if position else 0

    def route(self, position: npt.NDArray[np.int64]) -> Routes:
        """Return the child and the child position at each position (at least 0, any order)."""
        child, below = np.empty(position.size, np.int32), np.empty(position.size, np.int64)
        segment = np.searchsorted(np.array(self._starts), position, side="right") - 1
        for number in np.unique(segment).tolist():
            here = np.flatnonzero(segment == number)
            child[here], own = self._blends[number].route(position[here] - self._starts[number])
            below[here] = own + self._bases[number][child[here]]
        return child, below


Schedule = tuple[tuple[int | AmendedAt, tuple[Weight, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AmendedEpochsDataset(SavableDataset):
    """A `BlendEpochizedDataset` over a whole run: all children that it ever had.

    Attributes:
        schedule: Where each segment begins, and the repetitions of the children that there were by then.
    """

    datasets: tuple[SavableDataset, ...]
    schedule: Schedule

    def lower(self, to: Lowering) -> Part:
        """See `SavableDataset.lower`."""
        parts: list[IndexPart] = []
        for part in to.children(self.datasets):
            if not isinstance(part, IndexPart):
                raise ConfigError(
                    "a blend by repetitions got a dataset that generates, groups, batches or packs, so its length is "
                    "unknown in advance: add datasets of single samples"
                )
            parts.append(part)
        lengths = [part.equal_length("a blend by repetitions") for part in parts]
        (_, first), *later = self.schedule
        router = EpochSegments(lengths, first, lanes=to.lanes, key=fold(to.seed, "blend_epochized", to.place))
        for start, repetitions in later:
            assert isinstance(start, AmendedAt)
            rounds = to.begins[start.number]
            router.append(int((rounds * to.lanes + np.arange(to.lanes)).min()), repetitions)
        return IndexPart(
            leaves=[leaf for part in parts for leaf in part.leaves],
            routes=RouteTree(router, [part.routes for part in parts]),
            passes=router,
            mixture={
                "blend_epochized": [str(number) for number in self.schedule[-1][1]],
                "of": [part.mixture for part in parts],
            },
            drops=any(part.drops for part in parts),
            batches=any(part.batches for part in parts),
        )


def amended_epochs(
    blend: BlendEpochizedDataset, datasets: tuple[SavableDataset, ...], schedule: Schedule
) -> SavableDataset:
    """Return the same blend over a whole run."""
    return AmendedEpochsDataset(worker_config=blend.worker_config, datasets=datasets, schedule=schedule)
