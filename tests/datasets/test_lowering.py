"""A kind of node in one file: what the user writes, how it lowers, and its operator with its state."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import pytest
from small_graphs import mixed, require_exact_states
from stream_hosts import MakeDataset

from energon_grain import BatchDataset, ConfigError, RepeatDataset, SavableDataset, Stream, WorkerConfig
from energon_grain.datasets.dataset import OF_DATASET, node, settle
from energon_grain.datasets.lowering import LanePart, Lowering, Part
from energon_grain.stream.lanes import Item, Items, Lane, LaneOperator, Reference, State
from energon_grain.stream.state import Form, Many


@node
class WithPrevious(SavableDataset):
    """Each item of a lane beside the one before it."""

    dataset: SavableDataset

    _: KW_ONLY
    worker_config: WorkerConfig = OF_DATASET

    def __post_init__(self) -> None:
        settle(self, self.dataset)

    def lower(self, to: Lowering) -> Part:
        below = to.below(self.dataset)
        return LanePart(WithPreviousLanes(to.operator(below)), {"with previous": below.mixture})


@dataclass(frozen=True, slots=True, eq=False)
class WithPreviousLanes(LaneOperator):
    child: LaneOperator

    @property
    def state_form(self) -> Form:
        return self.child.state_form, Many(self.child.reference_form)

    @property
    def reference_form(self) -> Form:
        return Many(self.child.reference_form), self.child.reference_form

    def open(self, lane: Lane, state: State | None) -> Items:
        below, held = (None, ()) if state is None else state
        items = [(reference, self.child.rebuild(reference, lane)) for reference in held]
        return _WithPrevious(self.child.open(lane, below), items)

    def number(self, reference: Reference) -> int:
        return self.child.number(reference[1])

    def rebuild(self, reference: Reference, lane: Lane) -> Any:
        values = [self.child.rebuild(each, lane) for each in (*reference[0], reference[1])]
        return tuple(values)


class _WithPrevious:
    def __init__(self, child: Items, before: list[Item]) -> None:
        self._child = child
        self._before = before

    def next(self) -> Item | None:
        item = self._child.next()
        if item is None:
            return None
        both, self._before = (*self._before, item), [item]
        return (tuple(reference for reference, _ in both[:-1]), item[0]), tuple(value for _, value in both)

    def begin(self, pass_number: int) -> None:
        self._before = []
        self._child.begin(pass_number)

    def state(self) -> State:
        return self._child.state(), tuple(reference for reference, _ in self._before)

    def expect(self, items: float) -> None:
        self._child.expect(items)


def test_a_node_of_somebody_else(text_dataset: MakeDataset) -> None:
    def make() -> SavableDataset:
        return BatchDataset(RepeatDataset(WithPrevious(mixed(text_dataset(31)))), 6, tuple)

    batches = require_exact_states(make, 12)
    assert {len(item) for batch in batches for item in batch} == {1, 2}


def test_a_node_that_does_not_lower() -> None:
    dataset = SavableDataset(worker_config=WorkerConfig(rank=0, world_size=1))
    with pytest.raises(ConfigError, match="a SavableDataset is not a dataset that can be run"):
        Stream.of(dataset)
