"""How often and how far: repeating, limiting and cutting into epochs what lanes make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from energon_grain.stream.operators.lane import Lane
from energon_grain.stream.operators.operator import Item, Node, Operator, Reference, State
from energon_grain.stream.operators.transparent import Transparent
from energon_grain.stream.state import Form, Number


@dataclass(frozen=True, slots=True, eq=False)
class RepeatNode(Transparent):
    """A finite child, over and over.

    Attributes:
        child: What is repeated.
        times: Passes of the child that make one pass; None: for ever.
    """

    child: Node
    times: int | None

    @property
    def finite(self) -> bool:
        """Unless it goes on for ever."""
        return self.times is not None

    def items(self) -> int:
        """Of all passes; endless: of one."""
        return self.child.items() * (self.times or 1)

    def open(self, lane: Lane, state: State | None) -> Operator:
        """The repetition of a lane."""
        first = lane.pass_number * self.times if self.times is not None else 0
        done, child_pass, below = (0, first, None) if state is None else state
        child = self.child.open(lane, below)
        if state is None:
            child.begin(child_pass)
        return _Repeat(self, lane, child, done, child_pass)

    @property
    def state_form(self) -> Form:
        """Passes done, pass and state of the child."""
        return Number(), Number(), self.child.state_form


class _Repeat:
    __slots__ = ("_child", "_done", "_lane", "_node", "_pass")

    def __init__(self, node: RepeatNode, lane: Lane, child: Operator, done: int, child_pass: int) -> None:
        self._node = node
        self._lane = lane
        self._child = child
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

    def expect(self, items: float) -> None:
        self._child.expect(items)


@dataclass(frozen=True, slots=True, eq=False)
class CutNode(Transparent):
    """The first items of each pass of a child, counted over all lanes; an endless child goes on where it was cut.

    Attributes:
        child: What is cut.
        length: Items of a pass, of which lane l gets those with numbers l, l + L, l + 2 L, …
        lanes: L.
        goes_on: Whether a finite child too goes on where it was cut, and begins again when it ends (epochs); otherwise
            it begins its next pass (a limit).
    """

    child: Node
    length: int
    lanes: int
    goes_on: bool

    @property
    def finite(self) -> bool:
        """It ends."""
        return True

    def items(self) -> int:
        """As many as it is cut to."""
        return self.length if self.goes_on else min(self.length, self.child.items())

    def open(self, lane: Lane, state: State | None) -> Operator:
        """The cut of a lane."""
        below = self._below(lane)
        made, child_pass, child = (0, below.pass_number, None) if state is None else state
        return _Cut(self, lane, self.child.open(below, child), made, child_pass)

    @property
    def state_form(self) -> Form:
        """Items of this pass, and pass and state of the child."""
        return Number(), Number(), self.child.state_form

    def _below(self, lane: Lane) -> Lane:
        """The lane as the child sees it: what goes on knows no passes of what cuts it."""
        return lane.at_pass(0) if self.goes_on else lane

    def rebuild(self, reference: Reference, lane: Lane) -> Any:
        """The child's."""
        return self.child.rebuild(reference, self._below(lane))


class _Cut:
    __slots__ = ("_child", "_count", "_lane", "_made", "_node", "_pass")

    def __init__(self, node: CutNode, lane: Lane, child: Operator, made: int, child_pass: int) -> None:
        self._node = node
        self._lane = lane
        self._child = child
        self._made = made
        self._pass = child_pass
        self._count = max(0, -(-(node.length - lane.number) // node.lanes))

    def next(self) -> Item | None:
        if self._made >= self._count:
            return None
        while (item := self._child.next()) is None:
            if not self._node.goes_on:
                return None
            self._lane.count_pass()
            self._pass += 1
            self._child.begin(self._pass)
        self._made += 1
        return item

    def begin(self, pass_number: int) -> None:
        self._made = 0
        if not self._node.goes_on:
            self._pass = pass_number
            self._child.begin(pass_number)

    def state(self) -> State:
        return self._made, self._pass, self._child.state()

    def expect(self, items: float) -> None:
        self._child.expect(min(items, self._count))
