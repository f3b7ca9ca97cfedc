"""Several datasets in one lane: blends by weights, and one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from energon_grain.samplers.hashing import fold
from energon_grain.samplers.routing import Router
from energon_grain.stream.operators.lane import Lane
from energon_grain.stream.operators.operator import (
    Item,
    Node,
    Operator,
    Reference,
    State,
)
from energon_grain.stream.state import Form, Number, OneOf

_LABELS_AHEAD = 64


class _OfSeveral:
    """What nodes with several children have in common. A reference is (number of the child, its reference)."""

    __slots__ = ()

    nodes: tuple[Node, ...]

    @property
    def reference_form(self) -> Form:
        """Number of the child, and its reference."""
        return OneOf(tuple(node.reference_form for node in self.nodes))

    def number(self, reference: Reference) -> int:
        """A hash of both."""
        return fold(self.nodes[reference[0]].number(reference[1]), reference[0])

    def rebuild(self, reference: Reference, lane: Lane) -> Any:
        """The child's."""
        return self.nodes[reference[0]].rebuild(reference[1], lane)

    def children(self) -> tuple[Node, ...]:
        """All of them."""
        return self.nodes


@dataclass(frozen=True, slots=True, eq=False)
class BlendNode(_OfSeveral):
    """An endless blend of items: round r of a lane is for the child that the router names, whatever that drops.

    Each child's items are handed out in order; a child whose pass ends begins the next one.

    Attributes:
        nodes: What is blended.
        router: A `Blend`, from positions `r * L + lane` to children.
        lanes: L.
        shares: Fraction of the items that each child gets, for reading ahead.
    """

    nodes: tuple[Node, ...]
    router: Router
    lanes: int
    shares: tuple[float, ...]

    @property
    def finite(self) -> bool:
        """Endless."""
        return False

    def items(self) -> int:
        """Items of one pass over each child."""
        return sum(node.items() for node in self.nodes)

    def open(self, lane: Lane, state: State | None) -> Operator:
        """The blend of a lane."""
        rounds, places = (0, ((0, None),) * len(self.nodes)) if state is None else state
        first = lane.at_pass(0)
        children = [node.open(first, below) for node, (_, below) in zip(self.nodes, places, strict=True)]
        return _Blend(self, lane, children, rounds, [pass_number for pass_number, _ in places])

    @property
    def state_form(self) -> Form:
        """Rounds, and pass and state of each child."""
        return Number(), tuple((Number(), node.state_form) for node in self.nodes)

    def rebuild(self, reference: Reference, lane: Lane) -> Any:
        """The child's."""
        return self.nodes[reference[0]].rebuild(reference[1], lane.at_pass(0))


class _Blend:
    __slots__ = ("_children", "_first", "_labels", "_lane", "_node", "_passes", "_places", "_rounds")

    def __init__(self, node: BlendNode, lane: Lane, children: list[Operator], rounds: int, passes: list[int]) -> None:
        self._node = node
        self._lane = lane
        self._children = children
        self._rounds = rounds
        self._passes = passes
        self._first = 0
        self._labels: list[int] = []
        self._places: list[State] = [(0, None)] * len(children)
        for number in range(len(children)):
            self._note(number)

    def _note(self, number: int) -> None:
        self._places[number] = self._passes[number], self._children[number].state()

    def next(self) -> Item | None:
        place = self._rounds - self._first
        if not 0 <= place < len(self._labels):
            self._first, place = self._rounds, 0
            rounds = np.arange(self._rounds, self._rounds + _LABELS_AHEAD)
            self._labels = self._node.router.route(rounds * self._node.lanes + self._lane.number)[0].tolist()
        label = self._labels[place]
        child = self._children[label]
        while (item := child.next()) is None:
            self._lane.count_pass()
            self._passes[label] += 1
            child.begin(self._passes[label])
        self._rounds += 1
        self._note(label)
        return (label, item[0]), item[1]

    def begin(self, pass_number: int) -> None:
        del pass_number

    def state(self) -> State:
        return self._rounds, tuple(self._places)

    def expect(self, items: float) -> None:
        for child, share in zip(self._children, self._node.shares, strict=True):
            child.expect(items * share)


@dataclass(frozen=True, slots=True, eq=False)
class ConcatNode(_OfSeveral):
    """The children one after the other, in each lane by itself.

    Attributes:
        nodes: Finite ones.
    """

    nodes: tuple[Node, ...]

    @property
    def finite(self) -> bool:
        """It ends."""
        return True

    def items(self) -> int:
        """Of all children."""
        return sum(node.items() for node in self.nodes)

    def open(self, lane: Lane, state: State | None) -> Operator:
        """The concatenation of a lane."""
        at, pass_number, below = (0, lane.pass_number, (None,) * len(self.nodes)) if state is None else state
        children = [node.open(lane, child) for node, child in zip(self.nodes, below, strict=True)]
        return _Concat(children, at, pass_number)

    @property
    def state_form(self) -> Form:
        """Number of the present child, pass, and the state of each child."""
        return Number(len(self.nodes)), Number(), tuple(node.state_form for node in self.nodes)


class _Concat:
    __slots__ = ("_at", "_children", "_pass", "_states")

    def __init__(self, children: list[Operator], at: int, pass_number: int) -> None:
        self._children = children
        self._at = at
        self._pass = pass_number
        self._states: list[State] = [child.state() for child in children]

    def next(self) -> Item | None:
        while True:
            item = self._children[self._at].next()
            self._states[self._at] = self._children[self._at].state()
            if item is not None:
                return (self._at, item[0]), item[1]
            if self._at + 1 == len(self._children):
                return None
            self._at += 1
            self._children[self._at].begin(self._pass)

    def begin(self, pass_number: int) -> None:
        self._pass = pass_number
        self._at = 0
        self._children[0].begin(pass_number)
        self._states[0] = self._children[0].state()

    def state(self) -> State:
        return self._at, self._pass, tuple(self._states)

    def expect(self, items: float) -> None:
        for number, child in enumerate(self._children):
            child.expect(items if number == self._at else 0)
