"""Lane states as lists of small non-negative integers.

Positions are written as differences from the position of the same feed that was written last, so that the samples a
lane holds, which lie close together, take one or two bytes each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from energon_grain.errors import StateError


class IntegerWriter:
    """Collects the integers of one lane.

    Attributes:
        values: What was written.
    """

    __slots__ = ("_last", "_written", "values")

    def __init__(self) -> None:
        self.values: list[int] = []
        self._last: defaultdict[int, int] = defaultdict(int)
        self._written: dict[int, Any] = {}

    def integer(self, value: int) -> None:
        """Write a non-negative integer."""
        self.values.append(value)

    def is_new(self, key: int, state: Any) -> bool:
        """Write whether a state differs from the last one under the key; then it is to be written now."""
        new = key not in self._written or self._written[key] != state
        self._written[key] = state
        self.values.append(int(new))
        return new

    def position(self, feed: int, position: int) -> None:
        """Write a position of a feed's stream."""
        difference = position - self._last[feed]
        self._last[feed] = position
        self.values.append(2 * difference if difference >= 0 else -2 * difference - 1)


class IntegerReader:
    """Hands out again what an `IntegerWriter` collected, in the same order.

    Args:
        values: The integers of one lane.
    """

    __slots__ = ("_at", "_last", "_states", "_values")

    def __init__(self, values: list[int]) -> None:
        self._values = values
        self._at = 0
        self._states: dict[int, Any] = {}
        self._last: defaultdict[int, int] = defaultdict(int)

    def integer(self) -> int:
        """The next integer.

        Raises:
            StateError: There is none.
        """
        if self._at >= len(self._values):
            raise StateError("a saved state of lanes ends too early: it belongs to another graph, or is damaged")
        self._at += 1
        return self._values[self._at - 1]

    def once(self, key: int, read: Callable[[], Any]) -> Any:
        """What was written behind `is_new`: read now, or the last one under the key.

        Raises:
            StateError: There is none.
        """
        if self.integer():
            self._states[key] = read()
        if key not in self._states:
            raise StateError("a saved state of lanes refers to nothing: it belongs to another graph, or is damaged")
        return self._states[key]

    def position(self, feed: int) -> int:
        """The next position of a feed's stream."""
        code = self.integer()
        self._last[feed] += -((code + 1) // 2) if code & 1 else code // 2
        return self._last[feed]

    def end(self) -> None:
        """Check that everything was read.

        Raises:
            StateError: Something is left.
        """
        if self._at != len(self._values):
            raise StateError("a saved state of lanes is too long: it belongs to another graph, or is damaged")
