# SPDX-License-Identifier: Apache-2.0
"""Passes over a dataset, and where they end: repeat, limit, epochs."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, InitVar, dataclass
from fractions import Fraction
from typing import Any, ClassVar

from energon_grain.datasets.dataset import OF_DATASET, SavableDataset, check_size, node, put, settle
from energon_grain.datasets.lowering import LanePart, Lowering, Part, Steps
from energon_grain.errors import ConfigError
from energon_grain.samplers.routing import Limit
from energon_grain.samplers.weights import exact
from energon_grain.stream.index_map import EqualPasses, FractionalPasses
from energon_grain.stream.lanes import Item, Items, ItemsOver, Lane, LaneOperator, Reference, State
from energon_grain.stream.state import Form, Number
from energon_grain.stream.worker_config import WorkerConfig


@node
class RepeatDataset(SavableDataset):
    """Repeats a dataset. Each pass has its own order.

    Args:
        dataset: Dataset to repeat.
        repeats: Passes that form one pass of the result; None: endless. Fractions are exact and continue
            where the last pass ended: 0.7 repeats of 55 samples yield 38 or 39 of them, and after ten passes each was
            seen 7 times. Decimal numbers are taken as written.
        restart: Must be True: each `iter` after the end starts the next pass.
        worker_config: Default: the configuration of the dataset.

    Raises:
        ConfigError: `repeats` is not above 0, or `restart` is False.
    """

    dataset: SavableDataset
    _: KW_ONLY
    repeats: int | float | Fraction | None = None
    restart: InitVar[bool] = True
    worker_config: WorkerConfig = OF_DATASET

    def __post_init__(self, restart: bool) -> None:
        if self.repeats is not None and not (self.repeats > 0 and math.isfinite(self.repeats)):
            raise ConfigError(f"RepeatDataset: repeats={self.repeats}: expected a number above 0, or None (endless)")
        if not restart:
            raise ConfigError(
                "RepeatDataset: restart=False is not supported, because a new iteration is always the next pass: stop "
                "iterating instead"
            )
        settle(self, self.dataset)

    def on_steps(self, steps: Steps) -> SavableDataset | None:
        if self.repeats is not None or not steps.of_batches:
            return None
        steps.repeat = _forever
        return self.dataset

    def lower(self, to: Lowering) -> Part:
        part = to.lower(self.dataset, endless=self.repeats is None, outermost=False)
        times = None if self.repeats is None else exact(self.repeats)
        if isinstance(part, LanePart):
            return self._over_lanes(part, times)
        if times is None:
            part.repeat_forever()
            return part
        if not isinstance(part.passes, EqualPasses):
            raise ConfigError(
                f"RepeatDataset: repeats={self.repeats} of a dataset that is endless or whose passes differ in length: "
                f"repeat the datasets below it, or multiply their repetitions"
            )
        samples = part.passes.samples * times
        part.passes = EqualPasses(int(samples)) if samples.denominator == 1 else FractionalPasses(samples)
        part.mixture = {"repeat": str(times), "of": part.mixture}
        return part

    def _over_lanes(self, part: LanePart, times: Fraction | None) -> Part:
        if not part.operator.finite:
            if times is None:
                return part
            raise ConfigError("RepeatDataset: an endless dataset cannot be repeated: limit it first with LimitDataset")
        if times is not None and times.denominator != 1:
            raise ConfigError(
                f"RepeatDataset: repeats={self.repeats} of a dataset that filters, groups or packs, whose length is "
                f"unknown: use a whole number, or repeat the dataset below it"
            )
        whole = None if times is None else int(times)
        mixture = {"repeat": whole, "of": part.mixture}
        return LanePart(RepeatLanes(part.operator, whole), mixture, part.batches)


class _RepeatedForLimit(RepeatDataset):
    """Repeats up to the limit directly above it, from the beginning in each pass of the limit."""

    __slots__ = ()

    def on_steps(self, steps: Steps) -> SavableDataset | None:
        steps.repeat_for_limit = _repeated_up_to
        return self.dataset


@node
class LimitDataset(SavableDataset):
    """The first `length` items of every pass: batches above a batch, samples or packs below one.

    Args:
        dataset: Dataset to cut.
        length: Items per host.
        reset_after_epoch: Only for an endlessly repeated dataset at the top of a graph. True: every pass consists of
            the same first `length` items, for a validation of fixed length. False: a pass continues where the last one
            was cut. Passes of other datasets always start at the beginning.
        worker_config: Default: the configuration of the dataset.

    Raises:
        ConfigError: `length` is not a positive number.
    """

    dataset: SavableDataset
    length: int
    _: KW_ONLY
    reset_after_epoch: InitVar[bool] = False
    worker_config: WorkerConfig = OF_DATASET

    def __post_init__(self, reset_after_epoch: bool) -> None:
        check_size(self, "length", self.length, "items")
        below = self.dataset
        if reset_after_epoch and type(below) is RepeatDataset and below.repeats is None:
            below = _RepeatedForLimit(below.dataset, worker_config=below.worker_config)
            put(self, dataset=below)
        settle(self, below)

    def on_steps(self, steps: Steps) -> SavableDataset | None:
        steps.limit = self.length if steps.limit is None else min(steps.limit, self.length)
        steps.cut()
        return self.dataset

    def lower(self, to: Lowering) -> Part:
        part = to.lower(self.dataset, endless=False, outermost=False)
        mixture = {"limit": self.length, "of": part.mixture}
        if isinstance(part, LanePart) or part.drops:
            below = to.operator(part, endless=False)
            cut = CutLanes(below, self.length, to.lanes, continues=not below.finite)
            return LanePart(cut, mixture, part.batches)
        if part.passes is None:
            part.passes = EqualPasses(self.length)
        else:
            whole = part.equal_length("a limit")
            length = min(self.length, whole)
            part.routes, part.passes = part.over(Limit(length, whole)), EqualPasses(length)
        part.mixture = mixture
        return part


@dataclass(frozen=True, slots=True, init=False)
class EpochizeDataset(SavableDataset):
    """Divides an endless stream into virtual epochs. Each continues where the last one ended.

    Args:
        dataset: Endless dataset to divide.
        length: Items (batches, above a batch) per host and epoch.
        worker_config: Default: the configuration of the dataset.
        num_epochs: Replaces `length`: the length in passes over the data; 0.5 is half a pass.

    Raises:
        ConfigError: Not exactly one of `length` and `num_epochs` is set, or it is not above 0.
    """

    dataset: SavableDataset
    length: int | None
    num_epochs: int | float | Fraction | None

    def __init__(
        self,
        dataset: SavableDataset,
        length: int | None = None,
        worker_config: WorkerConfig | None = None,
        *,
        num_epochs: int | float | Fraction | None = None,
    ) -> None:
        if (length is None) == (num_epochs is None):
            raise ConfigError(
                f"EpochizeDataset: length={length}, num_epochs={num_epochs}: set exactly one of them, a number of "
                f"items or of passes over the data"
            )
        if length is not None:
            check_size(self, "length", length, "items")
        elif num_epochs is not None and not (num_epochs > 0 and math.isfinite(num_epochs)):
            raise ConfigError(f"EpochizeDataset: num_epochs={num_epochs}: expected a number above 0")
        put(self, worker_config=worker_config, dataset=dataset, length=length, num_epochs=num_epochs)
        settle(self, dataset)

    def on_steps(self, steps: Steps) -> SavableDataset | None:
        steps.epochs.append(self._length_over)
        steps.repeat = _forever
        steps.cut()
        return self.dataset

    def lower(self, to: Lowering) -> Part:
        part = to.lower(self.dataset, endless=True, outermost=False)
        length = self._length_over(part.items())
        mixture = {"epochs": length, "of": part.mixture}
        if isinstance(part, LanePart) or part.drops:
            cut = CutLanes(to.operator(part, endless=True), length, to.lanes, continues=True)
            return LanePart(cut, mixture, part.batches)
        part.passes, part.mixture, part.same_pass = EqualPasses(length), mixture, False
        return part

    def _length_over(self, items: int, step_items: int = 1) -> int:
        """Return the length of an epoch over a pass of `items`, of which each item here takes `step_items`."""
        if self.length is not None:
            return self.length
        assert self.num_epochs is not None
        return max(1, math.floor(exact(self.num_epochs) * items / step_items))


@dataclass(frozen=True, slots=True, eq=False)
class RepeatLanes(LaneOperator):
    """Repeats a finite child.

    Attributes:
        times: Passes of the child that form one pass; None: forever.
    """

    chooses: ClassVar[bool] = True
    child: LaneOperator
    times: int | None

    @property
    def finite(self) -> bool:
        return self.times is not None

    def items(self) -> int:
        return self.child.items() * (self.times or 1)

    def open(self, lane: Lane, state: State | None) -> Items:
        first = lane.pass_number * self.times if self.times is not None else 0
        done, child_pass, below = (0, first, None) if state is None else state
        child = self.child.open(lane, below)
        if state is None:
            child.begin(child_pass)
        return _Repeat(self, lane, child, done, child_pass)

    @property
    def state_form(self) -> Form:
        """Number of finished passes, and the pass and state of the child."""
        return Number(), Number(), self.child.state_form


def _forever(child: LaneOperator) -> LaneOperator:
    return RepeatLanes(child, None)


def _repeated_up_to(child: LaneOperator, items: int, lanes: int) -> LaneOperator:
    # Each pass has at least one item, and possibly only one lane has any.
    return CutLanes(RepeatLanes(child, items), items * lanes, lanes, continues=False)


class _Repeat(ItemsOver[RepeatLanes]):
    __slots__ = ("_done", "_pass")

    def __init__(self, node: RepeatLanes, lane: Lane, child: Items, done: int, child_pass: int) -> None:
        super().__init__(node, lane, child)
        self._done = done
        self._pass = child_pass

    def next(self) -> Item | None:
        times = self._node.times
        while (item := self._child.next()) is None:
            if times is not None and self._done + 1 >= times:
                return None
            self._lane.count_pass()
            self._done += 1
            self._pass += 1
            self._child.begin(self._pass)
        return item

    def begin(self, pass_number: int) -> None:
        if self._node.times is None:
            return
        self._done = 0
        self._pass = pass_number * self._node.times
        self._child.begin(self._pass)

    def state(self) -> State:
        return (self._done if self._node.times is not None else 0), self._pass, self._child.state()


@dataclass(frozen=True, slots=True, eq=False)
class CutLanes(LaneOperator):
    """The first items of each pass of a child, counted over all lanes. An endless child continues where it was cut.

    Attributes:
        length: Items of a pass. Lane l receives the items l, l + L, l + 2 L, …
        continues: Whether a finite child also continues where it was cut and restarts when it ends (epochs); otherwise
            it starts its next pass (a limit).
    """

    child: LaneOperator
    length: int
    lanes: int
    continues: bool

    @property
    def finite(self) -> bool:
        return True

    @property
    def inspects_items(self) -> bool:
        return False

    def items(self) -> int:
        return self.length if self.continues else min(self.length, self.child.items())

    @property
    def spans_passes(self) -> bool:
        return self.continues or self.child.spans_passes

    def open(self, lane: Lane, state: State | None) -> Items:
        below = self._below(lane)
        made, child_pass, child = (0, below.pass_number, None) if state is None else state
        return _Cut(self, lane, self.child.open(below, child), made, child_pass)

    @property
    def state_form(self) -> Form:
        """Items of this pass, and the pass and state of the child."""
        return Number(), Number(), self.child.state_form

    def _below(self, lane: Lane) -> Lane:
        """Return the lane for the child: a child that continues does not see the passes of the cut."""
        return lane.at_pass(0) if self.continues else lane

    def rebuild(self, reference: Reference, lane: Lane) -> Any:
        return self.child.rebuild(reference, self._below(lane))


class _Cut(ItemsOver[CutLanes]):
    __slots__ = ("_count", "_made", "_pass")

    def __init__(self, node: CutLanes, lane: Lane, child: Items, made: int, child_pass: int) -> None:
        super().__init__(node, lane, child)
        self._made = made
        self._pass = child_pass
        self._count = max(0, -(-(node.length - lane.number) // node.lanes))

    def next(self) -> Item | None:
        if self._made >= self._count:
            return None
        while (item := self._child.next()) is None:
            if not self._node.continues:
                return None
            self._lane.count_pass()
            self._pass += 1
            self._child.begin(self._pass)
        self._made += 1
        return item

    def begin(self, pass_number: int) -> None:
        self._made = 0
        if not self._node.continues:
            self._pass = pass_number
            self._child.begin(pass_number)

    def state(self) -> State:
        return self._made, self._pass, self._child.state()

    def expect(self, items: float) -> None:
        self._child.expect(min(items, self._count))
