# SPDX-License-Identifier: Apache-2.0
"""Folds over windows: plans based on known values of samples (token counts, sizes), never on their data.

The plan of a window needs the leftovers of the windows before it, its *carry*: a few integers, identical on every host.
So a plan is a pure function of a position, but computing it at a far position requires all windows before it. `Fold` is
a cache: it holds the latest plans, and closely spaced carries to continue from. A saved state holds the carry of its
window, so a restored run continues from there, on any number of hosts, without computing anything again.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakSet

Carry = tuple[int, ...]
"""State passed from window to window: the first position of the next window, and other numbers, all in [0, 2**63)."""
Plan = TypeVar("Plan")
Advance = Callable[[Carry], tuple[Plan, Carry]]
"""From a carry to the plan of its window, and the next carry. Its position is larger, unless the fold has ended."""
_PLANS = 8
_PAST = 512
_AHEAD = 1 << 14
_REACH = 8
"""Maximum number of windows between the carry of a saved state and its place; one, unless carries were removed."""


class Fold(Generic[Plan]):
    """The cache of a fold. For its users, a function of positions. Thread-safe; copies in other processes start empty.

    Args:
        first: Carry of the first window, with position 0.
        advance: Makes the plan of a window from its carry. Pure.
    """

    def __init__(self, first: Carry, advance: Advance[Plan]) -> None:
        self._first, self._advance = first, advance
        self.lock = threading.RLock()
        _folds.add(self)
        self._carries = [self._first]  # sorted by position
        self._last_anchor = 0  # position of the last anchor
        self._plans: OrderedDict[Carry, tuple[Carry, Plan]] = OrderedDict()  # carry -> (next carry, plan)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._first, self._advance)

    def plan_at(self, position: int) -> tuple[int, int, Plan]:
        """The first position of the window of a position, its end, and its plan.

        If the fold ends before the position, the last plan.
        """
        with self.lock:
            carry = self._carries[self._nearest(position)]
            while True:
                after, plan = self._made(carry)
                if position < after[0] or after[0] == carry[0]:
                    return carry[0], after[0], plan
                carry = after

    def first_past(self, reached: Callable[[Carry], bool], end: int) -> tuple[int, Plan] | None:
        """The first position and the plan of the first window after which `reached`, which stays true once it is.

        None: it is not before position `end`, or before the fold ends.
        """
        with self.lock:
            carry = self._carries[bisect_left(self._carries, x=True, lo=1, key=reached) - 1]
            while carry[0] < end:
                after, plan = self._made(carry)
                if reached(after):
                    return carry[0], plan
                if after[0] == carry[0]:
                    break
                carry = after
        return None

    def _made(self, carry: Carry) -> tuple[Carry, Plan]:
        """The next carry, and the plan of the window."""
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
        """The carry of a position's window, or an earlier one if the position is long before the last anchor."""
        with self.lock:
            self._last_anchor = position
            if position and self._nearest(position) + 1 == len(self._carries):
                self.plan_at(position)
            return self._carries[self._nearest(position)]

    def remember(self, carry: Carry) -> None:
        """Add a carry from an `anchor` of the same fold, of any process."""
        with self.lock:
            at = self._nearest(carry[0])
            if self._carries[at][0] != carry[0]:
                self._keep(at + 1, carry)

    def resume(self, carry: Carry, position: int) -> None:
        """Replace all known carries by the carry of a saved state at `position`.

        Plans the window of the position at once, because it is needed next. Raises ValueError if the carry does not
        belong to the position.
        """
        with self.lock:
            if carry[0] > position:
                raise ValueError(f"a plan begins at {carry[0]}, after {position}")
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
        """A function that restores the current contents."""
        with self.lock:
            carries, plans, last_anchor = [*self._carries], OrderedDict(self._plans), self._last_anchor

        def undo() -> None:
            with self.lock:
                self._carries, self._plans, self._last_anchor = carries, plans, last_anchor

        return undo

    def _nearest(self, position: int) -> int:
        return bisect_right(self._carries, position, key=lambda carry: carry[0]) - 1

    def _keep(self, at: int, carry: Carry) -> None:
        """Insert a carry. If there are too many before the last anchor, remove the most redundant; ahead, every second.

        Carries right after the last anchor are kept, and the last ones: the next anchor is near one of these.
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


# A forked child may save the state of a stream running in its parent, where another thread may be planning.
os.register_at_fork(after_in_child=_renew_locks)


class SavedCarries:
    """The carries of a saved state. The folds of an order take them one after the other."""

    def __init__(self, carries: Sequence[Carry]) -> None:
        self._left = iter(carries)
        self._before: list[Callable[[], None]] = []

    def next(self, shortest: int) -> Carry:
        """The next carry. Raises ValueError if there is none, or it is shorter than `shortest`."""
        carry = next(self._left, ())
        if len(carry) < shortest:
            raise ValueError("there are too few carries")
        return carry

    def restore(self, fold: Fold[Any], carry: Carry, position: int) -> None:
        """Let a fold continue from a carry. See `Fold.resume`."""
        self._before.append(fold.memory())
        fold.resume(carry, position)

    def finish(self) -> None:
        """Check that all carries were taken. Raises ValueError otherwise."""
        if next(self._left, None) is not None:
            raise ValueError("there are too many carries")

    def undo(self) -> None:
        """Undo `restore` on all folds."""
        while self._before:
            self._before.pop()()


def flat(carries: Sequence[Carry]) -> list[int]:
    """Several carries as one list: for each its length, followed by its numbers."""
    return [number for carry in carries for number in (len(carry), *carry)]


def unflat(numbers: Sequence[int]) -> list[Carry]:
    """Decode the result of `flat`.

    Raises:
        ValueError: The list is invalid.
    """
    carries: list[Carry] = []
    at = 0
    while at < len(numbers):
        end = at + 1 + numbers[at]
        if numbers[at] < 1 or end > len(numbers):
            raise ValueError(f"{len(numbers)} numbers do not form complete carries")
        carries.append(tuple(numbers[at + 1 : end]))
        at = end
    return carries
