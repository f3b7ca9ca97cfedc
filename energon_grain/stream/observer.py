# SPDX-License-Identifier: Apache-2.0
"""Reports of the engine: its only outlet for numbers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol

from energon_grain.stream.clock import Clock, Span, Work

if TYPE_CHECKING:
    from energon_grain.stream.drops import Dropped
    from energon_grain.stream.index_map import Draws
    from energon_grain.stream.passes import Progress

P = ParamSpec("P")
_logger = logging.getLogger("energon_grain")


class ObservedStream(Protocol):
    """A stream as seen by an observer. Properties may be read from any thread."""

    @property
    def awaited(self) -> object:
        """The step that a thread is waiting for; None: no thread waits."""
        ...

    @property
    def next_step(self) -> object:
        """The next step."""
        ...


class Observer(Protocol):
    """Receives reports of a stream, in the process of the program. Derive from it; the default methods do nothing.

    `planned`, `spans`, `made`, `dropped` and `short` are called in the threads that make chunks and steps, ahead of
    delivery. The other methods are called in the thread that calls `next`. Times are on `time.perf_counter_ns`. Keep no
    strong reference to the stream: it ends its threads when the last reference is gone.

    An observer that raises an exception is removed, with a warning in the log, and the stream continues.

    Attributes:
        timed: Whether it needs `spans` and `made`. If no observer does, the engine never reads a clock for them.
        due: Whether it needs a `made` report for the next step. Read after each call of `delivered` and `made`, because
            a call for each step would cost more than a short step.
    """

    timed: bool = True
    due: bool = False

    def begin(self, stream: ObservedStream, place: Progress) -> None:
        """Steps are made starting at a place in the stream. Steps after it that were made before are made again."""

    def planned(self, draws: Draws, size_bytes: int) -> None:
        """A chunk is about to be read."""

    def spans(self, work: Work) -> None:
        """Times of one chunk, when the thread that makes steps receives it, or of other work (see `Work`)."""

    def made(self, step: int, assembled: Sequence[Span], batched: Sequence[Span], chunks_ns: int) -> None:
        """A step was made that `due` had requested times for.

        Args:
            step: Number of the step.
            assembled: Spans of assembling its items, each summed over several times.
            batched: Spans of its batch hooks.
            chunks_ns: Time spent waiting for chunks since the last report.
        """

    def waited(self, began_ns: int) -> None:
        """The program itself waited until now for something slow: a chunk, or an empty queue."""

    def requested(self, ready: int) -> None:
        """The program requests a step, when `ready` steps are ready. `delivered` follows, or `end` after a failure."""

    def delivered(self, step: int, samples: int) -> int:
        """A step was delivered, and all steps before it.

        Args:
            step: Number of delivered steps, including this one.
            samples: Samples of this step.

        Returns:
            How many of the next steps need no report. The smallest number of all observers is used.
        """
        del step, samples
        return sys.maxsize

    def dropped(self, step: int, dropped: Dropped) -> None:
        """A sample, item or batch was dropped while this step was made."""

    def short(self, step: int, missing: int) -> None:
        """A step has `missing` samples less than the others; 0: none, whatever was reported before."""

    def passed(self, step: int, *, stride: int, empty: int, skipped: bool) -> None:
        """All steps before this one are delivered. May be called from any thread.

        Args:
            step: Number of the step. A later call from another thread may have a smaller number.
            stride: Distance from one step to the next.
            empty: Number of additional steps that were made but do not count.
            skipped: Whether the steps were skipped.
        """

    def jumped(self, step: int, *, pass_ended: bool) -> None:
        """Steps made but not delivered are discarded; `step` is the next one. `pass_ended`: because the pass ended."""

    def end(self, delivered: int, failed: int | None) -> None:
        """No more steps are made, after `delivered` ones. `failed`: number of the step that could not be made."""

    def close(self) -> None:
        """The stream is closed."""


def _to_each(method: Callable[Concatenate[Any, P], None]) -> Callable[Concatenate[Outlet, P], None]:
    """Call the method of the same name of all observers."""
    name = method.__name__

    def report(self: Outlet, *args: P.args, **kwargs: P.kwargs) -> None:
        for observer in self.observers:
            try:
                getattr(observer, name)(*args, **kwargs)
            except Exception:
                self.failed(observer)

    return report


class Outlet:
    """Passes the reports of the engine to all observers.

    Attributes:
        observers: The observers, in the order of calls.
        timed: Whether any of them needs times.
        due: Whether any of them needs a `made` report for the next step.
        ready: Sum, over all requests of a step, of the steps that were ready. Counted here, because a call is too slow.
    """

    def __init__(self, *observers: Observer) -> None:
        self.observers = observers
        self.timed = any(observer.timed for observer in observers)
        self.ready = 0
        self.refresh()

    def __bool__(self) -> bool:
        return bool(self.observers)

    def refresh(self) -> None:
        """Update `due`."""
        self.due = any(observer.due for observer in self.observers)

    def report_other(self, clock: Clock) -> None:
        """Report the times of work other than a chunk or a step."""
        work = clock.work()
        if work is not None:
            work.of_chunk = False
            self.spans(work)

    def add(self, observer: Observer) -> None:
        """Add an observer."""
        self.observers = (*self.observers, observer)
        self.refresh()

    def remove(self, observer: Observer) -> None:
        """Remove an observer, if present."""
        self.observers = tuple(each for each in self.observers if each is not observer)
        self.refresh()

    def failed(self, observer: Observer) -> None:
        """Remove an observer that raised an exception."""
        if observer in self.observers:
            _logger.warning("%s raised an exception and is removed; the stream continues", observer, exc_info=True)
            self.remove(observer)

    begin = _to_each(Observer.begin)
    planned = _to_each(Observer.planned)
    spans = _to_each(Observer.spans)
    waited = _to_each(Observer.waited)
    requested = _to_each(Observer.requested)
    dropped = _to_each(Observer.dropped)
    short = _to_each(Observer.short)
    passed = _to_each(Observer.passed)
    jumped = _to_each(Observer.jumped)
    end = _to_each(Observer.end)
    close = _to_each(Observer.close)
    _made = _to_each(Observer.made)

    def made(self, step: int, assembled: Sequence[Span], batched: Sequence[Span], chunks_ns: int) -> None:
        """See `Observer.made`."""
        self._made(step, assembled, batched, chunks_ns)
        self.refresh()

    def delivered(self, step: int, samples: int) -> int:
        """See `Observer.delivered`."""
        unreported = sys.maxsize
        for observer in self.observers:
            try:
                unreported = min(unreported, observer.delivered(step, samples))
            except Exception:
                self.failed(observer)
        self.refresh()
        return unreported
