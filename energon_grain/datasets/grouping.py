# SPDX-License-Identifier: Apache-2.0
"""Batches of samples that belong together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Any

from energon_grain.datasets.dataset import OF_DATASET, SavableDataset, check_function, check_size, node, settle
from energon_grain.datasets.hooks import HookOwner, hook_spec
from energon_grain.datasets.lowering import LanePart, Lowering, Part
from energon_grain.errors import ConfigError
from energon_grain.samplers.hashing import fold
from energon_grain.stream.hooks import HookSpec
from energon_grain.stream.lanes import (
    CombiningLanes,
    HookRunner,
    Item,
    Items,
    ItemsOver,
    Lane,
    NumberOf,
    Reference,
    State,
)
from energon_grain.stream.state import Form, ListOf
from energon_grain.stream.worker_config import WorkerConfig

_BUCKETS = 8
"""Assumed number of groups, and assumed items per group if the criterion sets the size."""


@node
class GroupBatchDataset(SavableDataset):
    """Batches of samples that belong together: each lane collects samples by key, and a full group is a batch.

    Args:
        dataset: Dataset to batch.
        fixed_batch_size: Samples per batch; None: `sample_group_key` sets the size for each key.
        sample_group_key: `sample -> (key, size)`. Exactly one of `size` and `fixed_batch_size` is None, and the size of
            a key never changes. May raise `SkipSample`.
        batcher: Makes a batch from a list of samples; not a generator.
        drop_last: Drop groups that are incomplete at the end of a finite pass. Otherwise they become short batches.
        hook: Name of the batcher. See `MapDataset`, also for `task_encoder` and `failure_tolerance`.
        group_hook: Name of the key function.
        batcher_stateless: Accepted for compatibility, as is `batcher_config`.
        worker_config: Default: the configuration of the dataset.

    Raises:
        ConfigError: An argument is invalid.
    """

    dataset: SavableDataset
    fixed_batch_size: int | None
    sample_group_key: Callable[[Any], tuple[Hashable, int | None]]
    batcher: Callable[[list[Any]], Any]
    _: KW_ONLY
    drop_last: bool = False
    hook: str = "batch"
    group_hook: str = "batch_group_criterion"
    task_encoder: HookOwner | None = None
    failure_tolerance: int | None = None
    batcher_stateless: InitVar[bool] = False
    batcher_config: InitVar[Any] = None
    worker_config: WorkerConfig = OF_DATASET

    def __post_init__(self, batcher_stateless: bool, batcher_config: Any) -> None:
        if self.fixed_batch_size is not None:
            check_size(self, "fixed_batch_size", self.fixed_batch_size, "samples")
        check_function(self, "sample_group_key", self.sample_group_key, generator=False)
        check_function(self, "batcher", self.batcher, generator=False)
        settle(self, self.dataset)

    def lower(self, to: Lowering) -> Part:
        to.graph.ragged = True
        below = to.below(self.dataset, forms=True)
        group = GroupLanes(
            child=to.operator(below, stripe=1),
            hook=hook_spec(self.hook, self.batcher, self.task_encoder, self.failure_tolerance),
            generates=False,
            key=to.key(f"group {self.hook}"),
            criterion=hook_spec(self.group_hook, self.sample_group_key, self.task_encoder),
            size=self.fixed_batch_size,
            drop_last=self.drop_last,
        )
        mixture = {"group": self.fixed_batch_size, "drop_last": self.drop_last, "of": below.mixture}
        return LanePart(group, mixture, batches=True)


@dataclass(frozen=True, slots=True, eq=False)
class GroupLanes(CombiningLanes):
    """Batches of items with a common key: one bucket per key, delivered when full.

    Buckets that are incomplete at the end of a pass are delivered in order of creation.

    Attributes:
        criterion: Returns (key of the batch, batch size or None) for a value.
        size: Batch size if the criterion returns None; None: the criterion must return one.
        drop_last: Whether incomplete buckets at the end are dropped.
    """

    criterion: HookSpec
    size: int | None
    drop_last: bool

    def buffers(self) -> Iterator[int]:
        if self.finite:
            yield self.child.items() // ((self.size or _BUCKETS) * _BUCKETS)
        yield from self.child.buffers()

    def open(self, lane: Lane, state: State | None) -> Items:
        below, runner, buckets = (None, None, ()) if state is None else state
        operator = _Buckets(self, lane, self.child.open(lane, below), HookRunner(self, lane, runner))
        for references in buckets:
            operator.fill((reference, self.child.rebuild(reference, lane)) for reference in references)
        return operator

    @property
    def state_form(self) -> Form:
        """The states of the child and of the current call, and the buckets."""
        return self.child.state_form, self.runner_form, ListOf(self.members_form)

    def rebuild_member(self, reference: Reference, lane: Lane) -> Any:
        """Return an item after the criterion ran on it, because the criterion may modify it."""
        value = self.child.rebuild(reference, lane)
        lane.call(self.criterion, self.criterion_key(lane), NumberOf(self.child, reference), value)
        return value

    def criterion_key(self, lane: Lane) -> int:
        return fold(self.key, "criterion", lane.number, lane.pass_number)


class _Bucket:
    __slots__ = ("references", "size", "values")

    def __init__(self, size: int) -> None:
        self.size = size
        self.references: list[Any] = []
        self.values: list[Any] = []

    def take(self) -> tuple[tuple[Any, ...], list[Any]]:
        return tuple(self.references), self.values


class _Buckets(ItemsOver[GroupLanes]):
    """One bucket per key, in order of creation."""

    __slots__ = ("_buckets", "_key", "_runner")

    def __init__(self, node: GroupLanes, lane: Lane, child: Items, runner: HookRunner) -> None:
        super().__init__(node, lane, child)
        self._runner = runner
        self._key = node.criterion_key(lane)
        self._buckets: dict[Hashable, _Bucket] = {}

    def fill(self, items: Iterable[Item]) -> None:
        """Restore buffered items."""
        for item in items:
            self._put(item)

    def _put(self, item: Item) -> Hashable:
        """Put an item into its bucket and return the bucket's key."""
        node = self._node
        criterion, size = self._key_and_size(item)
        if (size is None) == (node.size is None):
            which = "both are" if size is not None else "neither is"
            raise ConfigError(
                f"{node.criterion.name} returned the batch size {size} and batch_size is {node.size}: exactly one of "
                f"them must be None, but {which} set"
            )
        size = int(node.size or 0) if size is None else int(size)
        bucket = self._buckets.get(criterion)
        if bucket is None:
            bucket = self._buckets[criterion] = _Bucket(size)
        if bucket.size != size:
            raise ConfigError(
                f"{node.criterion.name} returned the batch size {size} for {criterion!r}, but {bucket.size} before: "
                f"all items of a key must have the same batch size"
            )
        bucket.references.append(item[0])
        bucket.values.append(item[1])
        return criterion

    def _key_and_size(self, item: Item) -> tuple[Hashable, int | None]:
        node = self._node
        returned: Any = self._lane.call(node.criterion, self._key, NumberOf(node.child, item[0]), item[1])
        try:
            criterion, size = returned
            hash(criterion)
            if size is not None and not size >= 1:
                raise ValueError
        except (TypeError, ValueError):
            raise ConfigError(
                f"{node.criterion.name} returned {returned!r}: expected a pair of a hashable key and a batch size "
                f"above 0 (or None if batch_size is set)"
            ) from None
        return criterion, size

    def next(self) -> Item | None:
        node = self._node
        while True:
            item = self._runner.next()
            if item is not None:
                return item
            item = self._child.next()
            if item is None:
                if node.drop_last or not self._buckets:
                    self._buckets.clear()
                    return None
                self._start(next(iter(self._buckets)))
                continue
            try:
                criterion = self._put(item)
            except Exception as error:
                self._lane.drop(node.child, item[0], node.criterion, error, item[1])
                continue
            bucket = self._buckets[criterion]
            if len(bucket.values) >= bucket.size:
                self._start(criterion)

    def _start(self, criterion: Hashable) -> None:
        self._runner.start(*self._buckets.pop(criterion).take())

    def begin(self, pass_number: int) -> None:
        self._runner.stop()
        self._buckets.clear()
        self._child.begin(pass_number)

    def state(self) -> State:
        buckets = tuple(tuple(bucket.references) for bucket in self._buckets.values())
        return self._child.state(), self._runner.state(), buckets

    def expect(self, items: float) -> None:
        self._child.expect(items * (self._node.size or _BUCKETS))
