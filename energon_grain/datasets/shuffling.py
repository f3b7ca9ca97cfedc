# SPDX-License-Identifier: Apache-2.0
"""The shuffle buffer, which needs no buffer if the order is arithmetic."""

from __future__ import annotations

from collections import deque
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import numpy as np

from energon_grain.datasets.dataset import OF_DATASET, SavableDataset, check_size, node, settle
from energon_grain.datasets.lowering import LanePart, Lowering, Part
from energon_grain.samplers.hashing import fold
from energon_grain.samplers.permutation import permute
from energon_grain.samplers.window_shuffle import WindowShuffle
from energon_grain.stream.lanes import Item, Items, ItemsOver, Lane, LaneOperator, State
from energon_grain.stream.state import Form, ListOf, Number
from energon_grain.stream.worker_config import WorkerConfig


@node
class ShuffleBufferDataset(SavableDataset):
    """Mixes the samples of a dataset over at least `size` neighbours.

    No buffer is held: positions are permuted, so the state of a shuffled stream is its position.

    Args:
        dataset: Dataset to shuffle.
        size: Minimum number of samples that mix; 1: no shuffle.
        worker_config: Default: the configuration of the dataset.

    Raises:
        ConfigError: `size` is not a positive number.
    """

    dataset: SavableDataset
    size: int
    _: KW_ONLY
    worker_config: WorkerConfig = OF_DATASET

    def __post_init__(self) -> None:
        check_size(self, "size", self.size, "samples")
        settle(self, self.dataset)

    def lower(self, to: Lowering) -> Part:
        part = to.lower(self.dataset, outermost=self.size == 1 and to.outermost)
        if self.size == 1:
            return part
        mixture = {"shuffle": self.size, "of": part.mixture}
        key = to.key("shuffle")
        if isinstance(part, LanePart):
            return LanePart(ShuffleLanes(part.operator, -(-self.size // to.lanes), key), mixture, part.batches)
        part.routes = part.over(WindowShuffle(self.size, key=key, passes=part.passes))
        part.mixture = mixture
        return part


@dataclass(frozen=True, slots=True, eq=False)
class ShuffleLanes(LaneOperator):
    """Shuffles each `window` consecutive items of a lane."""

    chooses: ClassVar[bool] = True
    child: LaneOperator
    window: int
    key: int

    def open(self, lane: Lane, state: State | None) -> Items:
        if state is None:
            return _Shuffle(self, lane, self.child.open(lane, None), 0, [])
        below, windows, references = state
        child = self.child.open(lane, below)
        remaining = [(reference, self.child.rebuild(reference, lane)) for reference in references]
        return _Shuffle(self, lane, child, windows, remaining)

    @property
    def state_form(self) -> Form:
        """The state of the child, the number of windows, and the remaining items of this window."""
        return self.child.state_form, Number(), ListOf(self.child.reference_form)


class _Shuffle(ItemsOver[ShuffleLanes]):
    __slots__ = ("_key", "_rest", "_windows")

    def __init__(self, node: ShuffleLanes, lane: Lane, child: Items, windows: int, rest: list[Item]) -> None:
        super().__init__(node, lane, child)
        self._key = fold(node.key, lane.number, lane.pass_number)
        self._windows = windows
        self._rest = deque(rest)

    def next(self) -> Item | None:
        if not self._rest:
            items: list[Item] = []
            while len(items) < self._node.window and (item := self._child.next()) is not None:
                items.append(item)
            if not items:
                return None
            order = permute(np.arange(len(items)), len(items), fold(self._key, self._windows))
            self._rest.extend(items[place] for place in order.tolist())
            self._windows += 1
        return self._rest.popleft()

    def begin(self, pass_number: int) -> None:
        self._rest.clear()
        self._child.begin(pass_number)

    def state(self) -> State:
        return self._child.state(), self._windows, tuple([reference for reference, _ in self._rest])

    def expect(self, items: float) -> None:
        self._child.expect(items + self._node.window - len(self._rest))
