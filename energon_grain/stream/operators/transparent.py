"""Operators whose items are those of what lies below."""

from __future__ import annotations

from typing import Any

from energon_grain.stream.operators.lane import Lane
from energon_grain.stream.operators.operator import Node, Reference
from energon_grain.stream.state import Form


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

    @property
    def reference_form(self) -> Form:
        """The child's."""
        return self.child.reference_form

    def number(self, reference: Reference) -> int:
        """The child's."""
        return self.child.number(reference)

    def rebuild(self, reference: Reference, lane: Lane) -> Any:
        """The child's."""
        return self.child.rebuild(reference, lane)

    def children(self) -> tuple[Node]:
        """The only one."""
        return (self.child,)
