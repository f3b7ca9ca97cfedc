# SPDX-License-Identifier: Apache-2.0
"""Datasets that continue in another blend, and blends whose lanes have states of their own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.lowering import IndexPart, Lowering, Part
from energon_grain.errors import AmendmentError
from energon_grain.samplers.routing import Routes
from energon_grain.stream.worker_config import WorkerConfig

Int64Array = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Handover:
    """Where a dataset continues.

    Attributes:
        before: Where its previous place had continued; None: at its beginning.
        rounds: Rounds that each lane had taken of it there, (L,); known once that place is lowered.
    """

    before: Handover | None = None
    rounds: Int64Array | None = None

    @property
    def first(self) -> Int64Array:
        """The dataset's round in each lane at which the new place begins, (L,)."""
        assert self.rounds is not None
        return self.rounds if self.before is None else self.rounds + self.before.first


@dataclass(frozen=True, slots=True)
class Shift:
    """One child, from a round of each lane on: round r of lane l is its round `first[l] + r`.

    Attributes:
        lanes: L.
        handover: Knows `first`.
    """

    preserves_runs: ClassVar[bool] = False
    lanes: int
    handover: Handover

    def route(self, position: npt.NDArray[np.int64]) -> Routes:
        """Return child 0 and its position at each position (at least 0, any order)."""
        first = self.handover.first[position % self.lanes]
        return np.zeros(position.size, dtype=np.int32), position + first * self.lanes

    def position_of(self, child: npt.NDArray[np.int32], below: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See `InvertibleRouter`. A position of an earlier place has none."""
        return np.maximum(below - self.handover.first[below % self.lanes] * self.lanes, -1)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MovingDataset(SavableDataset):
    """A dataset in one of the blends in which it was.

    Attributes:
        dataset: The dataset.
        place: Where it was first, see `Lowering.place`; its random keys contain that.
        begins: Where it continues; None: this is its first place.
        ends: The amendment at which it moved on from here; None: it is here.
        next: Where it continues then.
    """

    worker_config: WorkerConfig = field(default_factory=WorkerConfig.default_worker_config)
    dataset: SavableDataset
    place: str
    begins: Handover | None = None
    ends: int | None = None
    next: Handover | None = None

    def lower(self, to: Lowering) -> Part:
        if self.ends is not None and self.next is not None:
            self.next.rounds = to.begins[self.ends]
        if self.begins is None:
            return to.lower(self.dataset)
        graph = replace(to.graph, keys=type(to.graph.keys)())  # otherwise keys would count its nodes twice
        part = to.lower(self.dataset, graph=graph, place=self.place)
        if not isinstance(part, IndexPart):
            raise AmendmentError("a dataset with groups, packs or generators cannot move to another blend")
        part.routes = part.over(Shift(to.lanes, self.begins))
        return part


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BegunDataset(SavableDataset):
    """A dataset whose lanes have states of their own.

    Attributes:
        dataset: The dataset.
        begins: Rounds that its lanes had taken at each amendment, int64 (L,) each.
    """

    worker_config: WorkerConfig = field(default_factory=WorkerConfig.default_worker_config)
    dataset: SavableDataset
    begins: tuple[Int64Array, ...]

    def lower(self, to: Lowering) -> Part:
        return to.lower(self.dataset, begins=self.begins)
