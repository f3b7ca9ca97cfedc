"""One item in, one, none or several items out: maps, filters and generators above stateful nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from energon_grain.errors import SkipSample
from energon_grain.samplers.hashing import fold
from energon_grain.stream.hook_call import Batches, HookGenerator
from energon_grain.stream.operators.lane import Lane
from energon_grain.stream.operators.operator import Item, Node, NumberOf, Operator, Reference, State
from energon_grain.stream.operators.transparent import Transparent
from energon_grain.stream.spec import HookSpec
from energon_grain.stream.state import Form, Many, Marked, Number


@dataclass(frozen=True, slots=True, eq=False)
class MapNode(Transparent):
    """A hook on each item. Items keep their references.

    Attributes:
        child: What it is applied to.
        hook: Takes and returns a value; may raise to drop it.
        key: 64-bit key of the node.
        outermost: Whether what it returns is an item of the lane, so that the batch is known.
    """

    child: Node
    hook: HookSpec
    key: int
    outermost: bool = False

    def open(self, lane: Lane, state: State | None) -> Operator:
        """The map of a lane."""
        return _Map(self, lane, self.child.open(lane, state))

    @property
    def state_form(self) -> Form:
        """As below."""
        return self.child.state_form

    def rebuild(self, reference: Reference, lane: Lane) -> Any:
        """The hook applied to what is below."""
        value = self.child.rebuild(reference, lane)
        key = fold(self.key, lane.number, lane.pass_number)
        batch = lane.around.batch if self.outermost else None
        return lane.call(self.hook, key, NumberOf(self.child, reference), value, batch=batch)


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
            batch = lane.around.batch if node.outermost else None
            try:
                return reference, lane.call(node.hook, self._key, NumberOf(node.child, reference), value, batch=batch)
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

    The state is the item that is being worked on, how many items came of it, and which batches the hook was told that
    they are made for, where it asked; going on runs the generator again and leaves those items out. A reference is
    (number among them, reference of the item below, batches up to it).

    Attributes:
        child: What it is applied to.
        hook: A generator function.
        key: 64-bit key of the node.
        knows_batches: Whether the hook is told which batch it makes an item for: not where a function from stream to
            stream asks for its items, which is run again without this being known.
    """

    child: Node
    hook: HookSpec
    key: int
    knows_batches: bool

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
        below, running = state
        operator = _Generate(self, lane, self.child.open(lane, below))
        for made, source, batches in running:
            operator.resume(source, self.child.rebuild(source, lane), made, batches)
        return operator

    @property
    def state_form(self) -> Form:
        """The state below, and of a generator that runs the reference of what it makes next."""
        return self.child.state_form, Many(self.reference_form)

    @property
    def reference_form(self) -> Form:
        """A number among what came of one item, that item's, and where the hook asked: numbers and batches."""
        return Marked(self.child.reference_form, Many((Number(), Number())))

    def number(self, reference: Reference) -> int:
        """A hash of both."""
        return fold(self.child.number(reference[1]), reference[0])

    def rebuild(self, reference: Reference, lane: Lane) -> Any:
        """The hook run again, up to the item."""
        made, source, batches = reference
        generator = self.run(lane, self.lane_key(lane), source, self.child.rebuild(source, lane), batches)
        generator.skip(made)
        return generator.again(made)

    def lane_key(self, lane: Lane) -> int:
        """Key of the hook's random numbers in a lane."""
        return fold(self.key, lane.number, lane.pass_number)

    def run(self, lane: Lane, key: int, source: Reference, value: Any, batches: Batches = ()) -> HookGenerator:
        """Call the hook on an item from below; `batches`: what it is told, where it was told before."""
        maker = lane.around if self.knows_batches else None
        return lane.run(self.hook, key, NumberOf(self.child, source), value, maker=maker, batches=batches)

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

    def resume(self, source: Reference, value: Any, made: int, batches: Batches) -> None:
        """Work on an item of which some items were made before."""
        self._start(source, value, batches)
        assert self._generator is not None
        self._generator.skip(made)
        self._made = made

    def _start(self, source: Reference, value: Any, batches: Batches = ()) -> None:
        self._source, self._value, self._made = source, value, 0
        self._generator = self._node.run(self._lane, self._key, source, value, batches)

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
            return (self._made - 1, self._source, self._generator.draw.batches), value

    def _finish(self) -> None:
        self._generator = self._source = self._value = None
        self._made = 0

    def begin(self, pass_number: int) -> None:
        self._finish()
        self._child.begin(pass_number)

    def state(self) -> State:
        if self._generator is None:
            return self._child.state(), ()
        return self._child.state(), ((self._made, self._source, self._generator.draw.batches),)

    def expect(self, items: float) -> None:
        self._child.expect(items)
