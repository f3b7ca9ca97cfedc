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
_COST_NS, _COST_SHARE = 40_000, 0.004
"""What it takes to take the time of a step, by code that is never warm, and what part of all time that may be."""
_SHORT_NS, _MOST_UNTIMED = 1_000_000, 32
"""Of steps that come more often than that, not all waits are timed; of the shortest ones every 32nd, on average."""
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


class StepSampling:
    """Which of many short steps to take the time of, so that this takes 0.4 % of theirs: all of long ones.

    They are chosen at random, as what steps do may come in turns, and each stands for those before it that were not.
    """

    __slots__ = ("_left", "_measured_ns", "_random", "weight")

    def __init__(self) -> None:
        self._random = random.Random(0)
        self._left = self.weight = 0
        self._measured_ns = perf_counter_ns()

    def due(self) -> bool:
        """Whether to take the time of the step that begins."""
        self.weight += 1
        return self.weight > self._left

    def done(self, took_ns: int, elsewhere_ns: int) -> float:
        """The step is over; how many it stands for, but for no more time than there was since the last one.

        Args:
            took_ns: What was measured of it. Where that is long by accident, others were not.
            elsewhere_ns: Of the time since the last one, what went into something else.
        """
        now_ns, steps = perf_counter_ns(), self.weight
        self.weight = 0
        step_ns = (now_ns - self._measured_ns) / steps
        weight = min(steps, max(1.0, (now_ns - self._measured_ns - elsewhere_ns) / max(1, took_ns)))
        self._measured_ns = now_ns
        self._left = self._random.randint(0, min(10_000, 2 * int(_COST_NS / _COST_SHARE / max(step_ns, 1.0))))
        return weight


class WaitClock:
    """How long a program waited for its steps, and how long it had them, with few looks at the clock.

    A look costs as much as a hundredth of the shortest steps. So of short ones those are timed that may be long: where
    none is ready, and where a chunk is made inside `next`. Of the others, which take about the same, some are timed at
    random, and each stands for those before it, but for no more time than there was: it may be a long one by accident.
    Steps that come less often than every millisecond all are timed. At the beginning, and after somebody asked for the
    numbers, few are left out at first: a loop that turns slow just then is seen at once.

    Attributes:
        left: So many short steps are not timed before the next one is; who hands one over counts down.
        chunks_ns: That the maker of steps waited for chunks, in total.
        waiting_ns: That the program waited, but for the first step.
        starting_ns: That it waited for the first one since `begin`, in total.
    """

    __slots__ = (
        *("left", "chunks_ns", "waiting_ns", "starting_ns"),
        *("_chosen", "_marked", "_chosen_ns", "_alone_ns", "_most"),
        *("_first_ns", "_last_ns", "_step_ns", "_running_ns", "_counted_chunks_ns"),
    )

    def __init__(self) -> None:
        self.left = self.chunks_ns = self.waiting_ns = self.starting_ns = 0
        self._chosen = self._marked = 0  # `left` when a step was timed for others too, and when one was timed at all
        self._most = 1  # steps that are left out now, on average
        self._chosen_ns = self._alone_ns = 0  # when the former was, and what was waited since for steps by themselves
        self._first_ns = self._last_ns = self._step_ns = self._running_ns = self._counted_chunks_ns = 0

    def begin(self) -> None:
        """The next step is a first one."""
        self._running_ns, self._first_ns = self.ran_ns(), 0
        self.left = self._chosen = self._marked = 0
        self._most = 1

    def time_next(self) -> None:
        """Time the next step. Nobody may be waiting for one."""
        self._chosen, self._marked, self.left = self._chosen - self.left, self._marked - self.left, 0
        self._most = 1

    def timed(self, began_ns: int, inside_ns: int | None, *, alone: bool, all_are: bool = False) -> int:
        """A step has come that was timed; how long the program waited for it and those that it stands for.

        Args:
            began_ns: When it was asked for, on `time.perf_counter_ns`.
            inside_ns: Of that, what chunks took that are made inside `next`; None: they are made elsewhere.
            alone: It stands for itself, as none was ready.
            all_are: So is the next one.
        """
        now_ns, chunks_ns = perf_counter_ns(), 0
        own_ns = now_ns - began_ns
        if inside_ns is not None:
            own_ns -= inside_ns
            chunks_ns = self.chunks_ns - self._counted_chunks_ns
            self._counted_chunks_ns = self.chunks_ns
        if not self._first_ns:
            waited_ns = now_ns - began_ns
            self.starting_ns += waited_ns
            self._last_ns = self._chosen_ns = now_ns
            self._first_ns = now_ns  # behind the others: who asks meanwhile sees none
            self._alone_ns = 0
            return waited_ns
        self._step_ns = (now_ns - self._last_ns) // (1 + self._marked - self.left)
        self._last_ns = now_ns
        if alone:
            waited_ns = own_ns
            self._alone_ns += own_ns
        else:
            most_ns = now_ns - self._chosen_ns - self._alone_ns
            waited_ns = min(chunks_ns + own_ns * (1 + self._chosen - self.left), most_ns)
            self._chosen_ns, self._alone_ns = now_ns, 0
            untimed = 0 if all_are else min(self._most, _SHORT_NS // max(1, self._step_ns))
            self._most = min(2 * self._most, _MOST_UNTIMED)
            self.left = self._chosen = int(2 * untimed * _OWN_RANDOM.random())
        self.waiting_ns += waited_ns
        self._marked = self.left
        return waited_ns

    def ran_ns(self) -> int:
        """From each first step to the last one behind it; those that were not timed take about as long."""
        if not self._first_ns:
            return self._running_ns
        untimed_ns = (self._marked - self.left) * self._step_ns
        return self._running_ns + min(self._last_ns + untimed_ns, perf_counter_ns()) - self._first_ns


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
