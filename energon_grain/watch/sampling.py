# SPDX-License-Identifier: Apache-2.0
"""Which of many short steps are timed, and what those say of the others."""

from __future__ import annotations

import random
from time import perf_counter_ns

_COST_NS, _COST_SHARE = 40_000, 0.001
"""What it takes to take the time of a step, by code that is never warm, and what part of all time that may be."""
_SHORT_NS, _MAX_UNTIMED = 8_000_000, 1024
"""Of steps that come more often than that, not all waits are timed; of the shortest ones every 1024th, on average."""
_OWN_RANDOM = random.Random(0)  # the global generator is the program's, and goes on as if nothing had been drawn


class BatchClock:
    """Which of many short steps to take the time of where they are made, so that this takes 0.1 % of theirs.

    Each of those stands for those before it that were not timed.
    """

    __slots__ = ("_last_ns", "_last_step")

    def __init__(self, step: int) -> None:
        self._last_step, self._last_ns = step, 0

    def due(self) -> bool:
        """Whether to take the time of the step that begins."""
        return perf_counter_ns() - self._last_ns > _COST_NS / _COST_SHARE

    def done(self, step: int, took_ns: int, elsewhere_ns: int) -> float:
        """The step is over; how many it stands for, but for no more time than there was since the last one.

        Args:
            step: Its number.
            took_ns: What was measured of it. Where that is long by accident, others were not.
            elsewhere_ns: Of the time since the last one, what went into something else.
        """
        now_ns = perf_counter_ns()
        most = (now_ns - self._last_ns - elsewhere_ns) / max(1, took_ns) if self._last_ns else 1.0
        weight = min(max(1.0, most), max(1, step - self._last_step))
        self._last_step, self._last_ns = step, now_ns
        return weight


class WaitClock:
    """How long a program waited for its steps, and how long it had them, with few looks at the clock.

    What takes long is timed where it happens: a chunk that is made inside `next`, and an empty queue. The rest of each
    step is short and about the same, and a look at the clock would cost a hundredth of the shortest ones. So of these
    some are timed, chosen at random, and each stands for those before it, but for no more time than there was: it may
    be a long one by accident. Steps that come less often than every eight milliseconds all are timed. At the beginning,
    and after the program asked for the numbers, few are left out at first: a loop that turns slow just then is seen at
    once.

    Attributes:
        apart_ns: That the program waited for what is timed by itself, in total.
        starting_ns: That it waited for first ones, in total.
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
        self._counted_ns = 0  # of `long_wait_ns`
        self._long_wait_until_ns = 0  # when the last of that ended
        self._first_ns = self._last_ns = self._last_delivered = self._step_ns = self._running_ns = self._waiting_ns = 0
        self._most = 1  # steps that are left out now, on average

    def add_long_wait(self, began_ns: int) -> None:
        """The program waited until now for something that is timed by itself."""
        self._long_wait_until_ns = perf_counter_ns()
        self.long_wait_ns += self._long_wait_until_ns - began_ns

    def stop(self, delivered: int) -> None:
        """So many steps have come, and the next one is a first one."""
        self._running_ns, self._waiting_ns, self._first_ns = self.ran_ns(delivered), self.waiting_ns, 0
        self._most = 1

    def few(self) -> None:
        """Leave few steps out from now on."""
        self._most = 1

    def left_out(self) -> int:
        """How many steps not to time before the next one is."""
        most = min(self._most, _SHORT_NS // max(1, self._step_ns))
        self._most = min(2 * self._most, _MAX_UNTIMED)
        return int(2 * most * _OWN_RANDOM.random())

    def timed(self, delivered: int, began_ns: int, long_wait_ns: int) -> tuple[int, int]:
        """A step has come that was timed.

        Args:
            come: Steps that have come with it.
            began_ns: When it was asked for, on `time.perf_counter_ns`.
            apart_ns: The attribute at that time.

        Returns:
            How many steps it stands for, and how long the program waited for them.
        """
        now_ns, steps = perf_counter_ns(), max(1, delivered - self._last_delivered)
        self._last_delivered = delivered
        if not self._first_ns:
            self.starting_ns += now_ns - began_ns
            self._counted_ns = self.long_wait_ns
            self._step_ns, self._last_ns = 0, now_ns
            self._first_ns = now_ns  # behind the others: who asks meanwhile sees none
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
        """That the program waited, but for the first step."""
        return self._waiting_ns + (self.long_wait_ns - self._counted_ns if self._first_ns else 0)

    def ran_ns(self, delivered: int) -> int:
        """From each first step to the last behind it, when so many have come; those not timed take about as long."""
        if not self._first_ns:
            return self._running_ns
        untimed_ns = max(0, delivered - self._last_delivered) * self._step_ns
        behind_ns = max(self._last_ns + untimed_ns, self._long_wait_until_ns)  # or the program would wait for longer
        return self._running_ns + min(behind_ns, perf_counter_ns()) - self._first_ns
