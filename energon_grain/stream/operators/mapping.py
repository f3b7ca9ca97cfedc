"""One item in, one, none or several items out: maps, filters and generators above stateful nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from energon_grain.errors import SkipSample
from energon_grain.samplers.hashing import fold
from energon_grain.stream.hook_call import HookGenerator
from energon_grain.stream.operators.integers import IntegerReader, IntegerWriter
from energon_grain.stream.operators.lane import Lane
from energon_grain.stream.operators.operator import Item, Node, NumberOf, Operator, Position, Reference, State
from energon_grain.stream.operators.transparent import Transparent
from energon_grain.stream.spec import HookSpec


@dataclass(frozen=True, slots=True, eq=False)
class MapNode(Transparent):
    """A hook on each item. Items keep their references.

    Attributes:
        child: What it is applied to.
        hook: Takes and returns a value; may raise to drop it.
        key: 64-bit key of the node.
    """

    child: Node
    hook: HookSpec
    key: int

    def open(self, lane: Lane, state: State | None) -> Operator:
        """The map of a lane."""
        return _Map(self, lane, self.child.open(lane, state))

    def held(self, state: State) -> Iterable[Position]:
        """As below."""
        return self.child.held(state)

    def write(self, state: State, writer: IntegerWriter) -> None:
        """As below."""
        self.child.write(state, writer)

    def read(self, reader: IntegerReader) -> State:
        """As below."""
        return self.child.read(reader)

    def rebuild(self, reference: Reference, lane: Lane) -> Any:
        """The hook applied to what is below."""
        value = self.child.rebuild(reference, lane)
        key = fold(self.key, lane.number, lane.pass_number)
        return lane.call(self.hook, key, NumberOf(self.child, reference), value)


class _Map:
    __slots__ = ("_child", "_key", "_lane", "_node")

    def __init__(self, node: MapNode, lane: Lane, child: Operator) -> None:
        self._node = node
        self._lane = lane
        self._child = child
        self._key = fold(node.key, lane.number, lane.pass_number)

    def next(self) -> Item | None:
        node, lane = self._node, self._lane
        while True:
            item = self._child.next()
            if item is None:
                return None
            reference, value = item
            try:
                return reference, lane.call(node.hook, self._key, NumberOf(node.child, reference), value)
            except Exception as error:
                lane.drop(node.child, reference, node.hook, error, value)

    def begin(self, pass_number: int) -> None:
        self._child.begin(pass_number)

    def state(self) -> State:
        return self._child.state()

    def expect(self, items: float) -> None:
        self._child.expect(items)


@dataclass(frozen=True, slots=True)
class Keep:
    """A filter as a hook: it returns what it is given, or drops it.

    Attributes:
        accepts: The user's function.
    """

    accepts: Any

    def __call__(self, value: Any) -> Any:
        """The value, or SkipSample."""
        if not self.accepts(value):
            raise SkipSample("the filter did not accept it")
        return value


@dataclass(frozen=True, slots=True, eq=False)
class GenerateNode:
    """A generator hook: each item becomes any number of items.

    The state is the item that is being worked on and how many items came of it; going on runs the generator again and
    leaves those out. A reference is (number among them, reference of the item below).

    Attributes:
        child: What it is applied to.
        hook: A generator function.
        key: 64-bit key of the node.
    """

    child: Node
    hook: HookSpec
    key: int

    @property
    def finite(self) -> bool:
        """As below."""
        return self.child.finite

    def items(self) -> int:
        """As below: nobody knows how many items the hook makes of one."""
        return self.child.items()

    def open(self, lane: Lane, state: State | None) -> Operator:
        """The generator of a lane."""
        if state is None:
            return _Generate(self, lane, self.child.open(lane, None))
        below, source, made = state
        operator = _Generate(self, lane, self.child.open(lane, below))
        if source is not None:
            operator.resume(source, self.child.rebuild(source, lane), made)
        return operator

    def held(self, state: State) -> Iterable[Position]:
        """The item that is being worked on, and what is held below."""
        yield from self.child.held(state[0])
        if state[1] is not None:
            yield from self.child.positions(state[1])

    def write(self, state: State, writer: IntegerWriter) -> None:
        """The state below; 0, or 1 + items made of the item that is being worked on, and that."""
        below, source, made = state
        self.child.write(below, writer)
        if source is None:
            writer.integer(0)
        else:
            writer.integer(1 + made)
            self.child.write_reference(source, writer)

    def read(self, reader: IntegerReader) -> State:
        """What `write` wrote."""
        below = self.child.read(reader)
        made = reader.integer()
        if not made:
            return below, None, 0
        return below, self.child.read_reference(reader), made - 1

    def write_reference(self, reference: Reference, writer: IntegerWriter) -> None:
        """Number, and the reference below."""
        writer.integer(reference[0])
        self.child.write_reference(reference[1], writer)

    def read_reference(self, reader: IntegerReader) -> Reference:
        """What `write_reference` wrote."""
        number = reader.integer()
        return number, self.child.read_reference(reader)

    def number(self, reference: Reference) -> int:
        """A hash of both."""
        return fold(self.child.number(reference[1]), reference[0])

    def positions(self, reference: Reference) -> Iterable[Position]:
        """As below."""
        return self.child.positions(reference[1])

    def rebuild(self, reference: Reference, lane: Lane) -> Any:
        """The hook run again, up to the item."""
        made, source = reference
        generator = self.run(lane, self.lane_key(lane), source, self.child.rebuild(source, lane))
        generator.skip(made)
        return generator.again(made)

    def lane_key(self, lane: Lane) -> int:
        """Key of the hook's random numbers in a lane."""
        return fold(self.key, lane.number, lane.pass_number)

    def run(self, lane: Lane, key: int, source: Reference, value: Any) -> HookGenerator:
        """Call the hook on an item from below."""
        return lane.run(self.hook, key, NumberOf(self.child, source), value)

    def children(self) -> tuple[Node]:
        """The only one."""
        return (self.child,)


class _Generate:
    __slots__ = ("_child", "_generator", "_key", "_lane", "_made", "_node", "_source", "_value")

    def __init__(self, node: GenerateNode, lane: Lane, child: Operator) -> None:
        self._node = node
        self._lane = lane
        self._child = child
        self._key = node.lane_key(lane)
        self._generator: HookGenerator | None = None
        self._source: Reference = None
        self._value: Any = None
        self._made = 0

    def resume(self, source: Reference, value: Any, made: int) -> None:
        """Work on an item of which some items were made before."""
        self._start(source, value)
        assert self._generator is not None
        self._generator.skip(made)
        self._made = made

    def _start(self, source: Reference, value: Any) -> None:
        self._source, self._value, self._made = source, value, 0
        self._generator = self._node.run(self._lane, self._key, source, value)

    def next(self) -> Item | None:
        while True:
            if self._generator is None:
                item = self._child.next()
                if item is None:
                    return None
                self._start(*item)
                assert self._generator is not None
            try:
                value = next(self._generator)
            except StopIteration:
                if not self._made:
                    self._lane.count_drop()
                self._finish()
                continue
            except Exception as error:
                source, value = self._source, self._value
                self._finish()
                self._lane.drop(self._node.child, source, self._node.hook, error, value)
                continue
            self._made += 1
            if self._lane.around.failing:
                self._lane.around.succeeded(self._node.hook.name)
            return (self._made - 1, self._source), value

    def _finish(self) -> None:
        self._generator = self._source = self._value = None
        self._made = 0

    def begin(self, pass_number: int) -> None:
        self._finish()
        self._child.begin(pass_number)

    def state(self) -> State:
        return self._child.state(), self._source, self._made

    def expect(self, items: float) -> None:
        self._child.expect(items)
