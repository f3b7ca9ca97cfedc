# SPDX-License-Identifier: Apache-2.0
"""What the engine reports of its work: its only outlet for numbers."""

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
    """A stream, as an observer may ask it from any thread."""

    @property
    def awaited(self) -> object:
        """The step that a thread waits for now; None: no thread waits."""
        ...

    @property
    def next_step(self) -> object:
        """The step that is next."""
        ...


class Observer(Protocol):
    """Receives what a stream reports, in the process of the program. Derive from it; defaults do nothing.

    `planned`, `spans`, `made`, `dropped` and `short` are called in whatever thread makes chunks and steps, ahead of
    those that are delivered; the others in the thread that calls `next`. Times are on `time.perf_counter_ns`. Keep no
    strong reference to the stream, which ends its threads when the last one is lost.

    An observer that raises an exception is removed, with a warning in the log, and the stream goes on.

    Attributes:
        timed: Whether it needs `spans` and `made`. Where no observer does, the engine never looks at a clock for them.
        due: Whether it needs a `made` report for the next step. Read after each call of `delivered` and `made`, because
            a call for each step would cost more than a short step.
    """

    timed: bool = True
    due: bool = False

    def begin(self, stream: ObservedStream, place: Progress) -> None:
        """Steps are made from a place in the stream on. What was made from there on before is made again."""

    def planned(self, draws: Draws, size_bytes: int) -> None:
        """A chunk is about to be read."""

    def spans(self, work: Work) -> None:
        """The times of one chunk, when the thread that makes steps gets it; or of something else (see `Work`)."""

    def made(self, step: int, assembled: Sequence[Span], batched: Sequence[Span], chunks_ns: int) -> None:
        """A step was made whose times were due.

        Args:
            step: Its number.
            assembled: Putting its items together, each added up from several times.
            batched: Its batch hooks.
            chunks_ns: How long chunks were waited for since the last report.
        """

    def waited(self, began_ns: int) -> None:
        """The program itself waited until now for something that takes long: a chunk, or an empty queue."""

    def requested(self, ready: int) -> None:
        """The program asks for a step, of which so many are ready; `delivered`, or `end` after a failure, follows."""

    def delivered(self, step: int, samples: int) -> int:
        """The step is here, and so are all before it.

        Args:
            step: How many steps have come with it.
            samples: In this one.

        Returns:
            How many of the next steps come without a report. The smallest answer of all observers counts.
        """
        del step, samples
        return sys.maxsize

    def dropped(self, step: int, dropped: Dropped) -> None:
        """A sample, an item or a batch was dropped while this step was made."""

    def short(self, step: int, missing: int) -> None:
        """A step has so many samples less than the others; 0: none, whatever was reported before."""

    def passed(self, step: int, *, stride: int, empty: int, skipped: bool) -> None:
        """All steps before this one are delivered. May be called from any thread.

        Args:
            step: A later call may come with an earlier one, from another thread.
            stride: From one step to the next.
            empty: So many were made in addition, and do not count.
            skipped: They were left out.
        """

    def jumped(self, step: int, *, pass_ended: bool) -> None:
        """Steps made but not delivered are discarded; `step` is the next one. `pass_ended`: because the pass ended."""

    def end(self, delivered: int, failed: int | None) -> None:
        """No more steps are made, of which so many have come; `failed`: number of the one that could not be made."""

    def close(self) -> None:
        """The stream is closed."""


def _to_each(method: Callable[Concatenate[Any, P], None]) -> Callable[Concatenate[Outlet, P], None]:
    """Calls the method of that name of all observers."""
    name = method.__name__

    def report(self: Outlet, *args: P.args, **kwargs: P.kwargs) -> None:
        for observer in self.observers:
            try:
                getattr(observer, name)(*args, **kwargs)
            except Exception:
                self.failed(observer)

    return report


class Outlet:
    """Passes what the engine reports to all observers.

    Attributes:
        observers: In this order.
        timed: Whether one of them needs times.
        due: Whether one of them wants to know what making the next step takes.
        ready: How many steps were ready when one was asked for, added up; counted here, as a call would cost too much.
    """

    def __init__(self, *observers: Observer) -> None:
        self.observers = observers
        self.timed = any(observer.timed for observer in observers)
        self.ready = 0
        self.refresh()

    def __bool__(self) -> bool:
        return bool(self.observers)

    def refresh(self) -> None:
        """See what is due."""
        self.due = any(observer.due for observer in self.observers)

    def report_other(self, clock: Clock) -> None:
        """Report the times of something else than a chunk or a step."""
        work = clock.work()
        if work is not None:
            work.of_chunk = False
            self.spans(work)

    def add(self, observer: Observer) -> None:
        """Report to this one, too."""
        self.observers = (*self.observers, observer)
        self.refresh()

    def remove(self, observer: Observer) -> None:
        """Report to it no longer, if it is there."""
        self.observers = tuple(each for each in self.observers if each is not observer)
        self.refresh()

    def failed(self, observer: Observer) -> None:
        """Called where an observer raised."""
        if observer in self.observers:
            _logger.warning("%s raised an exception, and is removed; the stream goes on", observer, exc_info=True)
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
