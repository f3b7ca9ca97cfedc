"""Operators whose items are those of what lies below."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from energon_grain.stream.operators.integers import IntegerReader, IntegerWriter
from energon_grain.stream.operators.lane import Lane
from energon_grain.stream.operators.operator import Node, Position, Reference


class Transparent:
    """What nodes have in common that hand on their child's items as they are. References are the child's."""

    __slots__ = ()

    child: Node

    @property
    def finite(self) -> bool:
        """As below."""
        return self.child.finite

    def items(self) -> int:
        """As below."""
        return self.child.items()

    def write_reference(self, reference: Reference, writer: IntegerWriter) -> None:
        """The child's."""
        self.child.write_reference(reference, writer)

    def read_reference(self, reader: IntegerReader) -> Reference:
        """The child's."""
        return self.child.read_reference(reader)

    def number(self, reference: Reference) -> int:
        """The child's."""
        return self.child.number(reference)

    def positions(self, reference: Reference) -> Iterable[Position]:
        """The child's."""
        return self.child.positions(reference)

    def rebuild(self, reference: Reference, lane: Lane) -> Any:
        """The child's."""
        return self.child.rebuild(reference, lane)

    def children(self) -> tuple[Node]:
        """The only one."""
        return (self.child,)
