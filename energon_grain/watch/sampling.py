# SPDX-License-Identifier: Apache-2.0
"""Sampling: which of many short steps are timed, and how the others are estimated."""

from __future__ import annotations

import random
from time import perf_counter_ns

_COST_NS, _COST_SHARE = 40_000, 0.001
"""Time to measure a step, with cold caches, and the maximum share of all time to spend on it."""
_SHORT_NS, _MAX_UNTIMED = 8_000_000, 1024
"""Of steps that are shorter than this, not all waits are timed; of the shortest, one in 1024 on average."""
_OWN_RANDOM = random.Random(0)  # the global generator belongs to the program


class BatchClock:
    """Selects the steps to time while they are made, so that timing takes 0.1 % of their time.

    A timed step also represents the untimed steps before it.
    """

    __slots__ = ("_last_ns", "_last_step")

    def __init__(self, step: int) -> None:
        self._last_step, self._last_ns = step, 0

    def due(self) -> bool:
        """Whether to time the step that begins."""
        return perf_counter_ns() - self._last_ns > _COST_NS / _COST_SHARE

    def done(self, step: int, took_ns: int, elsewhere_ns: int) -> float:
        """Record that a timed step is done. Returns how many steps it represents, within the time since the last one.

        Args:
            step: Number of the step.
            took_ns: Measured time. If it is long by chance, the other steps were not.
            elsewhere_ns: Part of the time since the last one that was spent on something else.
        """
        now_ns = perf_counter_ns()
        most = (now_ns - self._last_ns - elsewhere_ns) / max(1, took_ns) if self._last_ns else 1.0
        weight = min(max(1.0, most), max(1, step - self._last_step))
        self._last_step, self._last_ns = step, now_ns
        return weight


class WaitClock:
    """Measures how long a program waited for its steps, and how long it ran, while rarely reading the clock.

    Long waits are timed where they happen: for a chunk that is made inside `next`, and for an empty queue. The rest of
    each step is short and about equal, and reading the clock would cost a hundredth of the shortest steps. So some
    steps are timed, chosen at random. Each represents the untimed steps before it, limited by the actual time, because
    it may be long by chance. If steps are longer than eight milliseconds, all are timed. At the beginning, and after
    the program has read the numbers, few steps are left out at first, so that a loop that becomes slow is noticed at
    once.

    Attributes:
        long_wait_ns: Total time of waits that are timed individually.
        starting_ns: Total time that the program waited for first steps.
    """

    __slots__ = (
        *("long_wait_ns", "starting_ns"),
        *(
            "_long_wait_until_ns",
            "_counted_ns",
            "_first_ns",
            "_last_delivered",
            "_last_ns",
            "_most",
            "_running_ns",
            "_step_ns",
            "_waiting_ns",
        ),
    )

    def __init__(self) -> None:
        self.long_wait_ns = self.starting_ns = 0
        self._counted_ns = 0  # part of `long_wait_ns` already counted
        self._long_wait_until_ns = 0  # end of the last long wait
        self._first_ns = self._last_ns = self._last_delivered = self._step_ns = self._running_ns = self._waiting_ns = 0
        self._most = 1  # current average number of untimed steps

    def add_long_wait(self, began_ns: int) -> None:
        """Record a long wait of the program, which ends now."""
        self._long_wait_until_ns = perf_counter_ns()
        self.long_wait_ns += self._long_wait_until_ns - began_ns

    def stop(self, delivered: int) -> None:
        """Record that `delivered` steps were delivered, and that the next one is a first one."""
        self._running_ns, self._waiting_ns, self._first_ns = self.ran_ns(delivered), self.waiting_ns, 0
        self._most = 1

    def few(self) -> None:
        """Leave out few steps from now on."""
        self._most = 1

    def left_out(self) -> int:
        """How many steps not to time before the next timed one."""
        most = min(self._most, _SHORT_NS // max(1, self._step_ns))
        self._most = min(2 * self._most, _MAX_UNTIMED)
        return int(2 * most * _OWN_RANDOM.random())

    def timed(self, delivered: int, began_ns: int, long_wait_ns: int) -> tuple[int, int]:
        """Record the delivery of a timed step.

        Args:
            delivered: Number of delivered steps, including this one.
            began_ns: When it was requested, on `time.perf_counter_ns`.
            long_wait_ns: Value of the attribute at that time.

        Returns:
            How many steps it represents, and how long the program waited for them.
        """
        now_ns, steps = perf_counter_ns(), max(1, delivered - self._last_delivered)
        self._last_delivered = delivered
        if not self._first_ns:
            self.starting_ns += now_ns - began_ns
            self._counted_ns = self.long_wait_ns
            self._step_ns, self._last_ns = 0, now_ns
            self._first_ns = now_ns  # last, so that a concurrent reader sees no first step
            return 1, now_ns - began_ns
        own_ns = now_ns - began_ns - (self.long_wait_ns - long_wait_ns)
        waited_ns = long_wait_ns = self.long_wait_ns - self._counted_ns
        waited_ns += min(own_ns * steps, now_ns - self._last_ns - long_wait_ns)
        self._counted_ns += long_wait_ns
        self._waiting_ns += waited_ns
        self._step_ns, self._last_ns = (now_ns - self._last_ns) // steps, now_ns
        return steps, waited_ns

    @property
    def waiting_ns(self) -> int:
        """Time that the program waited, except for first steps."""
        return self._waiting_ns + (self.long_wait_ns - self._counted_ns if self._first_ns else 0)

    def ran_ns(self, delivered: int) -> int:
        """Time from each first step to the last one after it. Untimed steps are estimated from the timed ones."""
        if not self._first_ns:
            return self._running_ns
        untimed_ns = max(0, delivered - self._last_delivered) * self._step_ns
        behind_ns = max(self._last_ns + untimed_ns, self._long_wait_until_ns)  # otherwise waits could exceed it
        return self._running_ns + min(behind_ns, perf_counter_ns()) - self._first_ns
