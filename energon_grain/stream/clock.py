# SPDX-License-Identifier: Apache-2.0
"""Where the time goes: what each stage of a chunk or a batch takes, on one clock for all processes of a machine.

It runs where an observer wants to know, and nowhere else.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import perf_counter_ns, sleep, thread_time_ns
from typing import Any, Literal, NamedTuple

from energon_grain.storage.traffic import Traffic
from energon_grain.stream.hooks import HookSpec
from energon_grain.stream.worker_config import worker_number

Kind = Literal["storage", "work", "pipeline"]
"""Waiting for bytes; work on samples and batches; planning and handing over."""
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
    """Takes the times of stages that follow each other in one thread, and of hooks that are called many times in it.

    The time of a thread's core costs ten times as much to ask for as the time of day, so stages are those of whole
    chunks.

    Args:
        runs: Whether anything is timed.

    Attributes:
        spans: Of the stages so far.
    """

    __slots__ = ("_begin_ns", "_calls", "_cpu_ns", "_runs", "spans")

    def __init__(self, *, runs: bool = True) -> None:
        self._runs = runs
        self._calls: dict[int, _Calls] = {}
        self.spans: list[Span] = []
        self.start()

    def start(self) -> None:
        """The next stage begins now; what was waited for before it (a lock) belongs to no stage."""
        if self._runs:
            self._begin_ns, self._cpu_ns = perf_counter_ns(), thread_time_ns()

    def lap(self, kind: Kind, name: str, samples: int, place: Place = "workers") -> None:
        """A stage ends now, and the next one begins."""
        if self._runs:
            began_ns, cpu_ns = self._begin_ns, self._cpu_ns
            self.start()
            wall_ns, cpu_ns = self._begin_ns - began_ns, self._cpu_ns - cpu_ns
            self.spans.append(Span(kind, name, place, began_ns, wall_ns, cpu_ns, samples))

    def timing(self, hook: HookSpec, lock: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
        """What to hold around a call of a hook in place of its lock: the time begins when the lock is held."""
        if not self._runs:
            return lock
        calls = self._calls.get(id(hook))
        if calls is None:
            calls = self._calls[id(hook)] = _Calls(hook, lock)
        return calls

    def hook_spans(self, place: Place | None = None, samples: int | None = None) -> list[Span]:
        """All calls of each hook as one span.

        Args:
            place: What they may run beside; None: in workers, side by side where the hook is thread-safe.
            samples: In the calls of a hook; None: one each.
        """
        return [each.span(place, samples) for each in self._calls.values()]

    def shared(self, place: Place, samples: int) -> list[Span]:
        """The time since `start` as one span for each hook, by how they shared the calls that were timed.

        Args:
            place: What they may run beside.
            samples: That each had since.
        """
        begin_ns, found = self._begin_ns, self.hook_spans(place, samples)
        took_ns, timed_ns = perf_counter_ns() - begin_ns, max(1, sum(span.wall_ns for span in found))
        for number, span in enumerate(found):
            own_ns = took_ns * span.wall_ns // timed_ns
            found[number] = span._replace(begin_ns=begin_ns, wall_ns=own_ns)
            begin_ns += own_ns
        return found

    def work(self) -> Work | None:
        """What was timed; None: nothing was."""
        return Work(self.spans) if self._runs else None


class _Calls:
    """A lock to hold around calls of a hook, and how long they took once it was held."""

    __slots__ = ("_began_ns", "_calls", "_hook", "_lock", "_wall_ns")

    def __init__(self, hook: HookSpec, lock: AbstractContextManager[Any]) -> None:
        self._hook, self._lock = hook, lock
        self._calls = self._wall_ns = self._began_ns = 0

    def __enter__(self) -> None:
        self._lock.__enter__()
        self._began_ns = perf_counter_ns()

    def __exit__(self, *exception: object) -> None:
        self._wall_ns += perf_counter_ns() - self._began_ns
        self._calls += 1
        self._lock.__exit__(None, None, None)

    def span(self, place: Place | None, samples: int | None) -> Span:
        place = place or ("workers" if self._hook.concurrent else "one worker")
        count = self._calls if samples is None else samples
        return Span("work", self._hook.name, place, self._began_ns, self._wall_ns, 0, count)


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
        traffic: What the process read since its last report; None: the process that asks counts by itself.
        lock_ns: How long a thread that gave Python's lock away for a moment waited to get it back; None: not tried.
        of_chunk: Whether it is that of a chunk, in whatever worker made it; else of planning, fetching or pinning.
    """

    spans: list[Span]
    process: int = field(default_factory=os.getpid)
    worker: str = field(default_factory=_worker)
    traffic: Traffic | None = None
    lock_ns: int | None = None
    of_chunk: bool = True

    def try_lock(self) -> None:
        """Give Python's lock away and see how long others keep it: 1 µs where no other thread wants it.

        That distinguishes threads that wait for the lock from those that sleep, or that get no core: all three look
        the same to a clock.
        """
        began_ns = perf_counter_ns()
        sleep(0)
        self.lock_ns = perf_counter_ns() - began_ns
