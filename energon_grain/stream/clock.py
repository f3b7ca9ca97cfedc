# SPDX-License-Identifier: Apache-2.0
"""Timing: what each stage of a chunk or batch takes, on one clock for all processes of a machine.

Nothing is timed unless an observer requests it.
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
"""Waiting for bytes; work on samples and batches; planning and handover."""
Place = Literal["workers", "one worker", "main"]
"""In parallel in all workers; in one worker at a time; in the thread that makes batches."""


class Span(NamedTuple):
    """One run of one stage. A tuple, because it is sent between processes.

    Attributes:
        kind: Kind of stage.
        name: `read`, `fetch`, `decode`, the name of a hook, ….
        place: Where it runs, and in parallel with which stages.
        begin_ns: Start, on `time.perf_counter_ns`.
        wall_ns: Elapsed time.
        cpu_ns: CPU time of the thread.
        samples: Number of samples processed.
    """

    kind: Kind
    name: str
    place: Place
    begin_ns: int
    wall_ns: int
    cpu_ns: int
    samples: int


class Clock:
    """Measures consecutive stages in one thread, and hooks that are called many times in it.

    Reading the CPU time of a thread costs ten times as much as reading the wall clock, so a stage covers a whole chunk.

    Args:
        runs: Whether anything is timed.

    Attributes:
        spans: The stages so far.
    """

    __slots__ = ("_begin_ns", "_calls", "_cpu_ns", "_runs", "spans")

    def __init__(self, *, runs: bool = True) -> None:
        self._runs = runs
        self._calls: dict[int, _Calls] = {}
        self.spans: list[Span] = []
        self.start()

    def start(self) -> None:
        """Start the next stage. Waiting before it (for a lock) belongs to no stage."""
        if self._runs:
            self._begin_ns, self._cpu_ns = perf_counter_ns(), thread_time_ns()

    def lap(self, kind: Kind, name: str, samples: int, place: Place = "workers") -> None:
        """End the current stage and start the next."""
        if self._runs:
            began_ns, cpu_ns = self._begin_ns, self._cpu_ns
            self.start()
            wall_ns, cpu_ns = self._begin_ns - began_ns, self._cpu_ns - cpu_ns
            self.spans.append(Span(kind, name, place, began_ns, wall_ns, cpu_ns, samples))

    def timing(self, hook: HookSpec, lock: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
        """The context to hold around a hook call instead of its lock. Timing starts once the lock is held."""
        if not self._runs:
            return lock
        calls = self._calls.get(id(hook))
        if calls is None:
            calls = self._calls[id(hook)] = _Calls(hook, lock)
        return calls

    def hook_spans(self, place: Place | None = None, samples: int | None = None) -> list[Span]:
        """All calls of each hook as one span.

        Args:
            place: Where they run; None: in workers, in parallel if the hook is thread-safe.
            samples: Samples in the calls of a hook; None: one per call.
        """
        return [each.span(place, samples) for each in self._calls.values()]

    def shared(self, place: Place, samples: int) -> list[Span]:
        """The time since `start`, divided among hooks in proportion to their timed calls, one span per hook.

        Args:
            place: Where they run.
            samples: Samples each hook processed since `start`.
        """
        begin_ns, found = self._begin_ns, self.hook_spans(place, samples)
        took_ns, timed_ns = perf_counter_ns() - begin_ns, max(1, sum(span.wall_ns for span in found))
        for number, span in enumerate(found):
            own_ns = took_ns * span.wall_ns // timed_ns
            found[number] = span._replace(begin_ns=begin_ns, wall_ns=own_ns)
            begin_ns += own_ns
        return found

    def work(self) -> Work | None:
        """The measured work; None: nothing was timed."""
        return Work(self.spans) if self._runs else None


class _Calls:
    """A lock to hold around calls of a hook, which measures how long they take once it is held."""

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
    """Name of the current worker: `worker-0` for a thread, `process-0` for a process, `main` for the main thread."""
    number = worker_number()
    if number is not None:
        return f"process-{number}"
    thread = threading.current_thread()
    return "main" if thread is threading.main_thread() else thread.name.removeprefix("energon-grain-")


@dataclass(slots=True, eq=False)
class Work:
    """Measured work.

    Attributes:
        spans: The stages.
        process: ID of the process that did the work.
        worker: Name of the worker in that process.
        traffic: Reads of the process since its last report; None: the receiving process counts its own.
        lock_ns: How long a thread that released the GIL waited to get it back; None: not measured.
        of_chunk: Whether the work is a chunk, in any worker. Otherwise it is planning, fetching or pinning.
    """

    spans: list[Span]
    process: int = field(default_factory=os.getpid)
    worker: str = field(default_factory=_worker)
    traffic: Traffic | None = None
    lock_ns: int | None = None
    of_chunk: bool = True

    def try_lock(self) -> None:
        """Release the GIL and measure how long other threads keep it: 1 µs if no other thread wants it.

        This distinguishes threads that wait for the GIL from threads that sleep or get no core. A clock alone cannot.
        """
        began_ns = perf_counter_ns()
        sleep(0)
        self.lock_ns = perf_counter_ns() - began_ns
