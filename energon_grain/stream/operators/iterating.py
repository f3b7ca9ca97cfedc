"""Functions from a stream of items to a stream of items."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from energon_grain.errors import StateError
from energon_grain.samplers.hashing import fold
from energon_grain.storage.given_up import GivenUp
from energon_grain.stream.hook_call import HookGenerator
from energon_grain.stream.operators.lane import Lane
from energon_grain.stream.operators.operator import Item, Node, Operator, Reference, State
from energon_grain.stream.spec import HookSpec
from energon_grain.stream.state import Form, Number, Same


@dataclass(frozen=True, slots=True, eq=False)
class IterateNode:
    """A function from an iterator over a lane's items to an iterator over others.

    It is called anew for every `inputs` items, which is what makes it possible to go on: the state is the place below
    where the present call began, and how many items came of it since. Going on runs the call again up to there.

    A reference is (items of the call before this one, number of the call, state below where it began).

    Attributes:
        child: Gives the inputs.
        hook: Takes an iterator and returns one.
        key: 64-bit key of the node.
        inputs: Items that a call sees at most.
        length: From a number of inputs to the number of outputs, as an estimate.
    """

    child: Node
    hook: HookSpec
    key: int
    inputs: int
    length: Callable[[int], int]

    @property
    def finite(self) -> bool:
        """As below."""
        return self.child.finite

    def items(self) -> int:
        """As the user says."""
        return self.length(self.child.items())

    def open(self, lane: Lane, state: State | None) -> Operator:
        """The function at work in a lane."""
        began, call, made = (None, 0, 0) if state is None else state
        return _Iterate(self, lane, self.child.open(lane, began), call, made)

    @property
    def state_form(self) -> Form:
        """The state below where the present call began, its number, and items that came of it."""
        return self.child.state_form, Number(), Number()

    @property
    def reference_form(self) -> Form:
        """Both numbers, and the state below: which samples it takes, only running the function tells."""
        return Number(), Number(), Same(self.key, self.child.state_form)

    def number(self, reference: Reference) -> int:
        """A hash of both numbers."""
        return fold(reference[1], reference[0])

    def rebuild(self, reference: Reference, lane: Lane) -> Any:
        """The call run again, up to the item."""
        made, call, began = reference
        running = lane.replays.get((self.key, call))
        if running is None or running[0] > made:
            again = lane.replay()
            child = again.reopen(self.child, began)
            running = lane.replays[self.key, call] = [0, _Iterate(self, again, child, call, 0)]
        # Items of one call that are held together come out of one call, one after the other.
        with lane.around.replay():
            value: Any = None
            while running[0] <= made:
                item = running[1].next()
                running[0] += 1
                if item is None or item[0][1] != call:
                    raise StateError("the inputs of a function from stream to stream are not there any more")
                value = item[1]
        return value

    def children(self) -> tuple[Node]:
        """The only one."""
        return (self.child,)


class _Inputs:
    """An item that was looked at, and then others of an operator up to a number."""

    __slots__ = ("_child", "_first", "failed", "left", "running")

    def __init__(self, first: Item, child: Operator, left: int) -> None:
        self._first: Item | None = first
        self._child = child
        self.left = left
        self.running: HookGenerator | None = None
        self.failed: BaseException | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.failed is not None:
            raise GivenUp  # a function that handles whatever comes would ask for ever
        if not self.left:
            raise StopIteration
        item, self._first = self._first, None
        if item is None:
            assert self.running is not None
            try:
                # Others work on the next item: hooks in worker threads among them, which may wait for the same lock.
                with self.running.outside():
                    item = self._child.next()
            except BaseException as error:
                self.failed = error
                raise
        if item is None:
            self.left = 0
            raise StopIteration
        self.left -= 1
        return item[1]


class _Iterate:
    __slots__ = ("_began", "_call", "_child", "_inputs", "_key", "_lane", "_made", "_node", "_outputs")

    def __init__(self, node: IterateNode, lane: Lane, child: Operator, call: int, made: int) -> None:
        self._node = node
        self._lane = lane
        self._child = child
        self._call = call
        self._key = fold(node.key, lane.number, lane.pass_number)
        self._began = child.state()
        self._made = 0
        self._inputs: _Inputs | None = None
        self._outputs: HookGenerator | None = None
        if made:
            with lane.around.replay():
                self._start()
                if self._outputs is None:
                    raise StateError("the inputs of a function from stream to stream are not there any more")
                try:
                    self._outputs.skip(made)
                finally:
                    self._require_inputs()
            self._made = made

    def _start(self) -> None:
        """Begin a call at the present place, if there is any input."""
        self._began = self._child.state()
        self._made = 0
        first = self._child.next()
        if first is None:
            return
        self._inputs = _Inputs(first, self._child, self._node.inputs)
        self._outputs = self._lane.run(self._node.hook, self._key, [self._call], self._inputs)
        self._inputs.running = self._outputs

    def _require_inputs(self) -> None:
        """Raise what the inputs raised: that is no failure of the function, whatever the function made of it."""
        assert self._inputs is not None
        if self._inputs.failed is not None:
            raise self._inputs.failed

    def _end(self) -> None:
        """End the call."""
        if self._inputs is not None and self._inputs.left == self._node.inputs:
            self._lane.count_drop()  # it did not even look at its first input
        self._outputs = self._inputs = None
        self._call += 1
        self._made = 0
        self._began = self._child.state()

    def next(self) -> Item | None:
        while True:
            if self._outputs is None:
                self._start()
                if self._outputs is None:
                    return None
            try:
                value = next(self._outputs)
            except StopIteration:
                self._require_inputs()
                if not self._made:
                    self._lane.count_drop()
                self._end()
                continue
            except GivenUp:
                self._require_inputs()
                raise
            except Exception as error:
                self._require_inputs()
                reference = (self._made, self._call, self._began)
                self._end()
                self._lane.drop(self._node, reference, self._node.hook, error, None)
                continue
            self._require_inputs()
            self._made += 1
            if self._lane.around.failing:
                self._lane.around.succeeded(self._node.hook.name)
            return (self._made - 1, self._call, self._began), value

    def begin(self, pass_number: int) -> None:
        self._child.begin(pass_number)
        self._end()

    def state(self) -> State:
        return self._began, self._call, self._made

    def expect(self, items: float) -> None:
        self._child.expect(items)
