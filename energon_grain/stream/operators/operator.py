"""What a lane operator is.

Below the lowest stateful node a graph is an index map; from there on upwards every lane runs the same tree of operators
on its own samples. A tree of `Node` objects describes it, once for all lanes; `Node.open` makes the `Operator` that
runs in one lane.

An operator hands out *items*: a value, and a *reference* from which the value can be made again. A reference is made
of integers alone (positions of samples, numbers of batches), so the samples that an operator holds cost a few bytes
each in a saved state. The shape of a reference is known to the node that made it and to nobody else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from energon_grain.stream.state import Form

if TYPE_CHECKING:
    from energon_grain.stream.operators.lane import Lane

Reference = Any
State = Any
"""Nested tuples of integers and references: immutable, cheap to take after every item."""
Item = tuple[Reference, Any]


class Operator(Protocol):
    """A node at work in one lane."""

    def next(self) -> Item | None:
        """The lane's next item; None at the end of the pass, and again until `begin` is called."""
        ...

    def begin(self, pass_number: int) -> None:
        """Go to the beginning of a pass. What is endless below goes on where it stood."""
        ...

    def state(self) -> State:
        """The place behind the last item."""
        ...

    def expect(self, items: float) -> None:
        """Tell how many items will probably be asked for soon, so that as much is read ahead."""
        ...


class Node(Protocol):
    """A node of the graph, as lanes run it. Immutable; knows nothing of lanes."""

    @property
    def finite(self) -> bool:
        """Whether its passes end."""
        ...

    def items(self) -> int:
        """Items of a pass over all lanes, if nothing is dropped: an estimate. Endless: of one pass over the data."""
        ...

    def open(self, lane: Lane, state: State | None) -> Operator:
        """The operator of a lane, behind a state; None: at the beginning of `lane.pass_number`.

        What the state holds must be among `lane.samples`.
        """
        ...

    @property
    def state_form(self) -> Form:
        """What states of `open`'s operator look like."""
        ...

    @property
    def reference_form(self) -> Form:
        """What references of its items look like."""
        ...

    def number(self, reference: Reference) -> int:
        """64-bit number of an item among those of its lane; it keys random numbers of hooks on it."""
        ...

    def rebuild(self, reference: Reference, lane: Lane) -> Any:
        """The value of an item again, from `lane.samples`: those that its reference is made of."""
        ...

    def children(self) -> Iterable[Node]:
        """The nodes below."""
        ...


class NumberOf:
    """The number of an item, worked out when a hook asks for random numbers.

    Args:
        node: That made the item.
        reference: Of the item.
    """

    __slots__ = ("_node", "_reference")

    def __init__(self, node: Node, reference: Reference) -> None:
        self._node = node
        self._reference = reference

    def __getitem__(self, place: int, /) -> int:
        return self._node.number(self._reference)
