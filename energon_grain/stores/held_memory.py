# SPDX-License-Identifier: Apache-2.0
"""Bytes of objects held in memory, under a memory budget."""

from __future__ import annotations

from typing import Protocol, TypeVar

from energon_grain.stream.memory import holders, look_ahead

_LEAST_BYTES, _FIRST_BYTES = 4 << 20, 32 << 20


class Held(Protocol):
    """Bytes that are dropped beyond a limit."""

    limit_bytes: int
    size_bytes: int


H = TypeVar("H", bound=Held)


class HeldMemory:
    """A memory holder of the bytes that all readers of this process hold. Two steps of a look-ahead fit into it."""

    holder = "look-ahead"

    def __init__(self, held: Held) -> None:
        self._held = held
        self._most_bytes = held.limit_bytes

    def held_bytes(self) -> int:
        """Size of the bytes."""
        return self._held.size_bytes

    def allow(self, size_bytes: int) -> None:
        """Hold at most this much from the next added bytes on, and never less than 4 MiB."""
        self._held.limit_bytes = min(self._most_bytes, max(_LEAST_BYTES, size_bytes))
        look_ahead.step_bytes = self._held.limit_bytes // 2


_all: list[HeldMemory] = []


def limited(held: H) -> H:
    """The same, known to a memory budget for the life of this process."""
    memory = HeldMemory(held)
    _all.append(memory)
    if look_ahead.budget is not None:
        memory.allow(_FIRST_BYTES)  # until the budget is divided again
    holders.add(memory)
    return held
