"""Shuffling what lanes make, where the order is no longer arithmetic on positions."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from energon_grain.samplers.hashing import fold
from energon_grain.samplers.permutation import permute
from energon_grain.stream.operators.lane import Lane
from energon_grain.stream.operators.operator import Item, Node, Operator, State
from energon_grain.stream.operators.transparent import Transparent
from energon_grain.stream.state import Form, Many, Number


@dataclass(frozen=True, slots=True, eq=False)
class ShuffleNode(Transparent):
    """Each `window` consecutive items of a lane in a random order.

    Attributes:
        child: What is shuffled.
        window: Items of a window.
        key: 64-bit key of the node.
    """

    child: Node
    window: int
    key: int

    def open(self, lane: Lane, state: State | None) -> Operator:
        """The shuffle of a lane."""
        if state is None:
            return _Shuffle(self, lane, self.child.open(lane, None), 0, [])
        below, windows, references = state
        child = self.child.open(lane, below)
        held = [(reference, self.child.rebuild(reference, lane)) for reference in references]
        return _Shuffle(self, lane, child, windows, held)

    @property
    def state_form(self) -> Form:
        """The state below, windows so far, and the rest of this one."""
        return self.child.state_form, Number(), Many(self.child.reference_form)


class _Shuffle:
    __slots__ = ("_child", "_key", "_node", "_rest", "_windows")

    def __init__(self, node: ShuffleNode, lane: Lane, child: Operator, windows: int, rest: list[Item]) -> None:
        self._node = node
        self._child = child
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
