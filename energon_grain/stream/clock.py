"""Where the time goes: what each stage of a chunk or a batch takes, on one clock for all processes of a machine."""

from __future__ import annotations

import os
import random
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import perf_counter_ns, sleep, thread_time_ns
from typing import Any, Literal, NamedTuple

from energon_grain.storage.traffic import Traffic
from energon_grain.stream.worker_config import worker_number

Kind = Literal["storage", "work", "pipeline"]
"""Waiting for bytes; work on samples and batches; planning and handing over."""
_COST_NS, _COST_SHARE = 40_000, 0.001
"""What it takes to take the time of a step, by code that is never warm, and what part of all time that may be."""
_SHORT_NS, _MOST_UNTIMED = 8_000_000, 1024
"""Of steps that come more often than that, not all waits are timed; of the shortest ones every 1024th, on average."""
_OWN_RANDOM = random.Random(0)  # the global generator is the program's, and goes on as if nothing had been drawn
Place = Literal["workers", "one worker", "main"]
"""Side by side in all workers; in one of them at a time; in the one thread that makes batches."""


class Span(NamedTuple):
    """One stage, once. A tuple, as it goes from process to process.

    Attributes:
        kind: What sort of thing it is.
        name: `read`, `fetch`, `decode`, the name of a hook, ….
        place: What it may run beside.
        begin_ns: On `time.perf_counter_ns`.
        wall_ns: How long it took.
        cpu_ns: How long a core ran its thread.
        samples: How many went through.
    """

    kind: Kind
    name: str
    place: Place
    begin_ns: int
    wall_ns: int
    cpu_ns: int
    samples: int


class Clock:
    """Takes the times of stages that follow each other in one thread.

    The time of a thread's core costs ten times as much to ask for as the time of day, so this is for whole chunks.
    """

    __slots__ = ("_begin_ns", "_cpu_ns", "spans")

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.start()

    def start(self) -> None:
        """The next stage begins now; what was waited for before it (a lock) is no stage's."""
        self._begin_ns, self._cpu_ns = perf_counter_ns(), thread_time_ns()

    def lap(self, kind: Kind, name: str, samples: int, place: Place = "workers") -> None:
        """A stage ends now, and the next one begins."""
        now, cpu = perf_counter_ns(), thread_time_ns()
        self.spans.append(Span(kind, name, place, self._begin_ns, now - self._begin_ns, cpu - self._cpu_ns, samples))
        self._begin_ns, self._cpu_ns = now, cpu


class HookClock:
    """A lock to hold around calls of a hook, and how long they took once it was held; for one thread."""

    __slots__ = ("_began_ns", "_calls", "_lock", "_wall_ns")

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._lock = lock
        self._calls = self._wall_ns = self._began_ns = 0

    def __enter__(self) -> None:
        self._lock.__enter__()
        self._began_ns = perf_counter_ns()

    def __exit__(self, *exception: object) -> None:
        self._wall_ns += perf_counter_ns() - self._began_ns
        self._calls += 1
        self._lock.__exit__(None, None, None)

    def span(self, name: str, place: Place, samples: int | None = None) -> Span:
        """All calls as one.

        Args:
            name: Of the hook.
            place: What it may run beside.
            samples: In them; None: one each.
        """
        calls = self._calls if samples is None else samples
        return Span("work", name, place, self._began_ns, self._wall_ns, 0, calls)


class MakingClock:
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
    and after somebody asked for the numbers, few are left out at first: a loop that turns slow just then is seen at
    once.

    Attributes:
        apart_ns: That the program waited for what is timed by itself, in total.
        ready: How many steps were ready when one was asked for, added up.
        starting_ns: That it waited for first ones, in total.
    """

    __slots__ = (
        *("apart_ns", "ready", "starting_ns"),
        *(
            "_apart_until_ns",
            "_counted_ns",
            "_first_ns",
            "_last_come",
            "_last_ns",
            "_most",
            "_running_ns",
            "_step_ns",
            "_waiting_ns",
        ),
    )

    def __init__(self) -> None:
        self.apart_ns = self.ready = self.starting_ns = 0
        self._counted_ns = 0  # of `apart_ns`
        self._apart_until_ns = 0  # when the last of that ended
        self._first_ns = self._last_ns = self._last_come = self._step_ns = self._running_ns = self._waiting_ns = 0
        self._most = 1  # steps that are left out now, on average

    def waited_apart(self, began_ns: int) -> None:
        """The program waited until now for something that is timed by itself."""
        self._apart_until_ns = perf_counter_ns()
        self.apart_ns += self._apart_until_ns - began_ns

    def stop(self, come: int) -> None:
        """So many steps have come, and the next one is a first one."""
        self._running_ns, self._waiting_ns, self._first_ns = self.ran_ns(come), self.waiting_ns, 0
        self._most = 1

    def few(self) -> None:
        """Leave few steps out from now on."""
        self._most = 1

    def left_out(self) -> int:
        """How many steps not to time before the next one is."""
        most = min(self._most, _SHORT_NS // max(1, self._step_ns))
        self._most = min(2 * self._most, _MOST_UNTIMED)
        return int(2 * most * _OWN_RANDOM.random())

    def timed(self, come: int, began_ns: int, apart_ns: int) -> tuple[int, int]:
        """A step has come that was timed.

        Args:
            come: Steps that have come with it.
            began_ns: When it was asked for, on `time.perf_counter_ns`.
            apart_ns: The attribute at that time.

        Returns:
            How many steps it stands for, and how long the program waited for them.
        """
        now_ns, steps = perf_counter_ns(), max(1, come - self._last_come)
        self._last_come = come
        if not self._first_ns:
            self.starting_ns += now_ns - began_ns
            self._counted_ns = self.apart_ns
            self._step_ns, self._last_ns = 0, now_ns
            self._first_ns = now_ns  # behind the others: who asks meanwhile sees none
            return 1, now_ns - began_ns
        own_ns = now_ns - began_ns - (self.apart_ns - apart_ns)
        waited_ns = apart_ns = self.apart_ns - self._counted_ns
        waited_ns += min(own_ns * steps, now_ns - self._last_ns - apart_ns)
        self._counted_ns += apart_ns
        self._waiting_ns += waited_ns
        self._step_ns, self._last_ns = (now_ns - self._last_ns) // steps, now_ns
        return steps, waited_ns

    @property
    def waiting_ns(self) -> int:
        """That the program waited, but for the first step."""
        return self._waiting_ns + (self.apart_ns - self._counted_ns if self._first_ns else 0)

    def ran_ns(self, come: int) -> int:
        """From each first step to the last behind it, when so many have come; those not timed take about as long."""
        if not self._first_ns:
            return self._running_ns
        untimed_ns = max(0, come - self._last_come) * self._step_ns
        behind_ns = max(self._last_ns + untimed_ns, self._apart_until_ns)  # or the program would wait for longer
        return self._running_ns + min(behind_ns, perf_counter_ns()) - self._first_ns


def _worker() -> str:
    """Who this is: `worker-0` for a thread, `process-0` for a process, `main` for the thread of the program."""
    number = worker_number()
    if number is not None:
        return f"process-{number}"
    thread = threading.current_thread()
    return "main" if thread is threading.main_thread() else thread.name.removeprefix("energon-grain-")


@dataclass(slots=True, eq=False)
class Work:
    """What making something took.

    Attributes:
        spans: Stage by stage.
        process: Number of the process that it was made in.
        worker: Its name there.
        traffic: What the process read since it told last; None: the process that asks counts by itself.
        lock_ns: How long a thread that gave Python's lock away for a moment waited to get it back; None: nobody tried.
    """

    spans: list[Span]
    process: int = field(default_factory=os.getpid)
    worker: str = field(default_factory=_worker)
    traffic: Traffic | None = None
    lock_ns: int | None = None

    def try_lock(self) -> None:
        """Give Python's lock away and see how long others keep it: 1 µs where nobody wants it.

        That tells threads that wait for the lock from those that sleep, or that get no core: all three look the same
        to a clock.
        """
        began_ns = perf_counter_ns()
        sleep(0)
        self.lock_ns = perf_counter_ns() - began_ns
