# SPDX-License-Identifier: Apache-2.0
"""Folds over windows: plans that look at what is known of samples (token counts, sizes), never at their data.

A plan of a window needs what the windows before it left over, its *carry*: a few integers, the same on every host. So a
plan is a pure function of a position, but one whose value at a far position takes all windows before it. `Fold` is its
memory: the latest plans, and carries from which it can go on, closely behind each other. A saved state holds the carry
of its window, so whoever restores it goes on from there, on any number of hosts, and nothing is computed again.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakSet

Carry = tuple[int, ...]
"""What windows leave to the next: its first position, then whatever the fold carries; numbers in [0, 2**63)."""
Plan = TypeVar("Plan")
Advance = Callable[[Carry], tuple[Plan, Carry]]
"""From a carry to the plan of its window, and the carry behind that, whose position is larger unless all is over."""
_PLANS = 8
_PAST = 512
_AHEAD = 1 << 14
_REACH = 8
"""Windows that may lie between the carry of a saved state and its place; one, unless carries between were left out."""


class Fold(Generic[Plan]):
    """The memory of a fold; to its users a function of positions. Thread-safe; copies of it in other processes are new.

    Args:
        first: The carry of the first window, whose position is 0.
        advance: Makes one window's plan of a carry. Pure.
    """

    def __init__(self, first: Carry, advance: Advance[Plan]) -> None:
        self._first, self._advance = first, advance
        self.lock = threading.RLock()
        _folds.add(self)
        self._carries = [self._first]  # by their positions
        self._last_anchor = 0  # position of the last anchor
        self._plans: OrderedDict[Carry, tuple[Carry, Plan]] = OrderedDict()  # by the carry before, with that behind

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._first, self._advance)

    def plan_at(self, position: int) -> tuple[int, int, Plan]:
        """The plan of the window that a position lies in, with the window's first position and its end.

        Where the fold ends before that, it is the last plan.
        """
        with self.lock:
            carry = self._carries[self._nearest(position)]
            while True:
                after, plan = self._made(carry)
                if position < after[0] or after[0] == carry[0]:
                    return carry[0], after[0], plan
                carry = after

    def _made(self, carry: Carry) -> tuple[Carry, Plan]:
        """The carry behind a window, and its plan."""
        if carry in self._plans:
            self._plans.move_to_end(carry)
            return self._plans[carry]
        plan, after = self._advance(carry)
        self._plans[carry] = after, plan
        if len(self._plans) > _PLANS:
            self._plans.popitem(last=False)
        self.remember(after)
        return after, plan

    def anchor(self, position: int) -> Carry:
        """The carry of a position's window, however far others were planned; long before the last one, an earlier."""
        with self.lock:
            self._last_anchor = position
            if position and self._nearest(position) + 1 == len(self._carries):
                self.plan_at(position)
            return self._carries[self._nearest(position)]

    def remember(self, carry: Carry) -> None:
        """Take in a carry that an `anchor` of the same fold gave, in whatever process."""
        with self.lock:
            at = self._nearest(carry[0])
            if self._carries[at][0] != carry[0]:
                self._keep(at + 1, carry)

    def resume(self, carry: Carry, position: int) -> None:
        """Take in the carry that a state of a place at `position` holds, in place of all that is known.

        The window of the position is planned now: it is what comes next. Raises ValueError if the carry is not of that
        place.
        """
        with self.lock:
            if carry[0] > position:
                raise ValueError(f"a plan begins at {carry[0]}, behind {position}")
            self._carries, self._last_anchor = [self._first, *([carry] if carry[0] else [])], 0
            self._plans = OrderedDict()
            carry = self._carries[-1]
            for _ in range(_REACH):
                after, _ = self._made(carry)
                if position < after[0] or after[0] == carry[0]:
                    return
                carry = after
        raise ValueError(f"a plan ends at {carry[0]}, long before {position}")

    def memory(self) -> Callable[[], None]:
        """A function that brings back what is known now."""
        with self.lock:
            carries, plans, last_anchor = [*self._carries], OrderedDict(self._plans), self._last_anchor

        def undo() -> None:
            with self.lock:
                self._carries, self._plans, self._last_anchor = carries, plans, last_anchor

        return undo

    def _nearest(self, position: int) -> int:
        return bisect_right(self._carries, position, key=lambda carry: carry[0]) - 1

    def _keep(self, at: int, carry: Carry) -> None:
        """Hold a carry. Of too many before the last anchor, one goes that others are nearest to; ahead every second.

        Those right behind the last anchor stay, and the last ones: near either the next anchor is asked for.
        """
        carries = self._carries
        carries.insert(at, carry)
        past = self._nearest(self._last_anchor)
        if past > _PAST:
            del carries[min(range(1, past), key=lambda i: carries[i + 1][0] - carries[i - 1][0])]
        elif len(carries) - past > _AHEAD:
            del carries[past + _PAST : -_PAST : 2]


_folds: WeakSet[Fold[Any]] = WeakSet()


def _renew_locks() -> None:
    for each in tuple(_folds):
        each.lock = threading.RLock()


# A forked child may save the state of a stream that is at work in its parent, where another thread plans.
os.register_at_fork(after_in_child=_renew_locks)


class SavedCarries:
    """The carries that a saved state holds, for the folds of an order, which take them in one after the other."""

    def __init__(self, carries: Sequence[Carry]) -> None:
        self._left = iter(carries)
        self._before: list[Callable[[], None]] = []

    def next(self, shortest: int) -> Carry:
        """The next one. Raises ValueError if there is none, or it is shorter than `shortest`."""
        carry = next(self._left, ())
        if len(carry) < shortest:
            raise ValueError("there are too few carries")
        return carry

    def restore(self, fold: Fold[Any], carry: Carry, position: int) -> None:
        """Let a fold go on from a carry. See `Fold.resume`."""
        self._before.append(fold.memory())
        fold.resume(carry, position)

    def finish(self) -> None:
        """Check that all were taken. Raises ValueError if some were not."""
        if next(self._left, None) is not None:
            raise ValueError("there are too many carries")

    def undo(self) -> None:
        """Let all folds that took one forget it."""
        while self._before:
            self._before.pop()()


def flat(carries: Sequence[Carry]) -> list[int]:
    """Several carries as one list: of each its length, and its numbers."""
    return [number for carry in carries for number in (len(carry), *carry)]


def unflat(numbers: Sequence[int]) -> list[Carry]:
    """The carries that `flat` made a list of.

    Raises:
        ValueError: It is not such a list.
    """
    carries: list[Carry] = []
    at = 0
    while at < len(numbers):
        end = at + 1 + numbers[at]
        if numbers[at] < 1 or end > len(numbers):
            raise ValueError(f"{len(numbers)} numbers are no whole carries")
        carries.append(tuple(numbers[at + 1 : end]))
        at = end
    return carries
