"""Batches formed in lanes: of a lane's consecutive items."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from energon_grain.errors import ConfigError
from energon_grain.samplers.hashing import fold
from energon_grain.stream.operators.lane import Lane
from energon_grain.stream.operators.made_of_several import MadeOfSeveral, Making
from energon_grain.stream.operators.operator import Item, Node, NumberOf, Operator, Reference, State
from energon_grain.stream.spec import HookSpec
from energon_grain.stream.state import Form, Many


class _Bucket:
    __slots__ = ("references", "size", "values")

    def __init__(self, size: int) -> None:
        self.size = size
        self.references: list[Any] = []
        self.values: list[Any] = []

    def take(self) -> tuple[tuple[Any, ...], list[Any]]:
        return tuple(self.references), self.values


class Buckets:
    """One bucket for each criterion, in the order in which they were begun.

    Args:
        node: The description.
        lane: Where.
        child: Gives the items.
        making: Makes the batches.
    """

    __slots__ = ("_buckets", "_child", "_key", "_lane", "_making", "_node")

    def __init__(self, node: GroupNode, lane: Lane, child: Operator, making: Making) -> None:
        self._node = node
        self._lane = lane
        self._child = child
        self._making = making
        self._key = node.criterion_key(lane)
        self._buckets: dict[Hashable, _Bucket] = {}

    def fill(self, items: Iterable[Item]) -> None:
        """Put items back that were held."""
        for item in items:
            self._put(item)

    def _put(self, item: Item) -> Hashable:
        """Put an item into its bucket, whose criterion is returned."""
        node = self._node
        criterion, size = self._key_and_size(item)
        if (size is None) == (node.size is None):
            which = "both" if size is not None else "neither"
            raise ConfigError(
                f"{node.criterion.name} returned the batch size {size} and batch_size is {node.size}: exactly one of "
                f"them must be None, {which} is given"
            )
        size = int(node.size or 0) if size is None else int(size)
        bucket = self._buckets.get(criterion)
        if bucket is None:
            bucket = self._buckets[criterion] = _Bucket(size)
        if bucket.size != size:
            raise ConfigError(
                f"{node.criterion.name} returned the batch size {size} for {criterion!r}, after {bucket.size} before: "
                f"items of one batch must agree on it"
            )
        bucket.references.append(item[0])
        bucket.values.append(item[1])
        return criterion

    def _key_and_size(self, item: Item) -> tuple[Hashable, int | None]:
        node = self._node
        said: Any = self._lane.call(node.criterion, self._key, NumberOf(node.child, item[0]), item[1])
        try:
            criterion, size = said
            hash(criterion)
            if size is not None and not size >= 1:
                raise ValueError
        except (TypeError, ValueError):
            raise ConfigError(
                f"{node.criterion.name} returned {said!r}: a pair is meant, of a hashable key, and of the batch "
                f"size, above 0, or None where the dataset has one"
            ) from None
        return criterion, size

    def next(self) -> Item | None:
        """The next batch."""
        node = self._node
        while True:
            item = self._making.next()
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
        self._making.start(*self._buckets.pop(criterion).take())

    def begin(self, pass_number: int) -> None:
        """Empty all buckets."""
        self._making.stop()
        self._buckets.clear()
        self._child.begin(pass_number)

    def state(self) -> State:
        """References of what is in the buckets."""
        buckets = tuple(tuple(bucket.references) for bucket in self._buckets.values())
        return self._child.state(), self._making.state(), buckets

    def expect(self, items: float) -> None:
        """Read a batch's worth of samples ahead for each."""
        self._child.expect(items * (self._node.size or 8))


@dataclass(frozen=True, slots=True, eq=False)
class BatchNode(MadeOfSeveral):
    """Each `size` consecutive items of a lane, as one item.

    Attributes:
        child: Of whose items batches are made.
        hook: Takes a list of values; may be a generator function, and then each batch becomes several.
        generates: Whether it is one.
        key: 64-bit key of the node.
        size: Items of a batch.
        drop_last: Whether a short batch at the end of a lane's pass is left out.
    """

    child: Node
    hook: HookSpec
    generates: bool
    key: int
    size: int
    drop_last: bool

    @property
    def finite(self) -> bool:
        """As below."""
        return self.child.finite

    def items(self) -> int:
        """Full batches, and a short one."""
        count = self.child.items()
        return count // self.size if self.drop_last else -(-count // self.size)

    def open(self, lane: Lane, state: State | None) -> Operator:
        """The batches of a lane."""
        below, making = (None, None) if state is None else state
        return _Batch(self, lane, self.child.open(lane, below), Making(self, lane, making))

    @property
    def state_form(self) -> Form:
        """The state below, and that of the making."""
        return self.child.state_form, self.making_form

    def children(self) -> tuple[Node]:
        """The only one."""
        return (self.child,)


class _Batch:
    __slots__ = ("_child", "_lane", "_making", "_node")

    def __init__(self, node: BatchNode, lane: Lane, child: Operator, making: Making) -> None:
        self._node = node
        self._lane = lane
        self._child = child
        self._making = making

    def next(self) -> Item | None:
        while True:
            item = self._making.next()
            if item is not None:
                return item
            references: list[Reference] = []
            values: list[Any] = []
            while len(values) < self._node.size:
                item = self._child.next()
                if item is None:
                    break
                references.append(item[0])
                values.append(item[1])
            if not values or (self._node.drop_last and len(values) < self._node.size):
                return None
            self._making.start(tuple(references), values)

    def begin(self, pass_number: int) -> None:
        self._making.stop()
        self._child.begin(pass_number)

    def state(self) -> State:
        return self._child.state(), self._making.state()

    def expect(self, items: float) -> None:
        self._child.expect(items * self._node.size)


@dataclass(frozen=True, slots=True, eq=False)
class GroupNode(MadeOfSeveral):
    """Batches of items that have something in common: a bucket for each criterion, handed out when it is full.

    Buckets that are not full at the end of a pass are handed out in the order in which they were begun.

    Attributes:
        child: Of whose items batches are made.
        hook: Takes a list of values.
        generates: False.
        key: 64-bit key of the node.
        criterion: Gives (what items of one batch have in common, batch size or None) of a value.
        size: Batch size where the criterion gives None; None: it must give one.
        drop_last: Whether buckets that are not full at the end are left out.
    """

    child: Node
    hook: HookSpec
    generates: bool
    key: int
    criterion: HookSpec
    size: int | None
    drop_last: bool

    @property
    def finite(self) -> bool:
        """As below."""
        return self.child.finite

    def items(self) -> int:
        """As below, at most."""
        return self.child.items()

    def open(self, lane: Lane, state: State | None) -> Operator:
        """The buckets of a lane."""
        from energon_grain.stream.operators.batching import Buckets

        below, making, buckets = (None, None, ()) if state is None else state
        operator = Buckets(self, lane, self.child.open(lane, below), Making(self, lane, making))
        for references in buckets:
            operator.fill((reference, self.child.rebuild(reference, lane)) for reference in references)
        return operator

    @property
    def state_form(self) -> Form:
        """The state below, that of the making, and the buckets."""
        return self.child.state_form, self.making_form, Many(self.members_form)

    def rebuild_member(self, reference: Reference, lane: Lane) -> Any:
        """An item as the criterion left it, which may write into it."""
        value = self.child.rebuild(reference, lane)
        lane.call(self.criterion, self.criterion_key(lane), NumberOf(self.child, reference), value)
        return value

    def children(self) -> tuple[Node]:
        """The only one."""
        return (self.child,)

    def criterion_key(self, lane: Lane) -> int:
        """Key of the criterion's random numbers."""
        return fold(self.key, "criterion", lane.number, lane.pass_number)
