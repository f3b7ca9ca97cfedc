# SPDX-License-Identifier: Apache-2.0
"""A thread that notices when something hangs, and says where: with the stack of every thread."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, Self, TypeVar

from energon_grain.storage.cancellation import join

T = TypeVar("T")
_LOOKS = 8
"""So often within a timeout is looked: what hangs is told when the timeout is over, or up to a quarter of it later."""


class Watchdog:
    """Looks now and then what is under way, and calls somebody where that has been the same for too long.

    Whatever is watched pays nothing for it: beginning and ending something are one assignment each.

        with Watchdog(timeout=60, callback=page_somebody) as watchdog:
            for batch in watchdog.watch_iter(batches):  # each `next`, not what the loop does
                ...

    Args:
        timeout: Seconds that one thing may take.
        initial_timeout: The same for the first one; default: no other.
        callback: Called in the watchdog's own thread. If it raises, the process ends, with status 1.
        dump_stacks: Whether the stacks of all threads are written to stderr first.
        enabled: Whether something is under way from now on.
        under_way: Asked, in that thread, what is under way (None: nothing). Default: what `enable` and `disable` say.
        first: What of that is the first thing.
    """

    def __init__(
        self,
        timeout: float,
        initial_timeout: float | None = None,
        callback: Callable[[], object] | None = None,
        dump_stacks: bool = True,
        enabled: bool = True,
        *,
        current_step: Callable[[], object] | None = None,
        first: object = None,
    ) -> None:
        self._timeout = timeout
        self._first_timeout = timeout if initial_timeout is None else initial_timeout
        self._callback = callback
        self._dump_stacks = dump_stacks
        self._current_step = current_step or (lambda: self._mark)
        self._mark: object = None
        self._first = first
        if enabled:
            self.enable()
        self._over: SimpleQueue[None] = SimpleQueue()  # an `Event` is not to be set in the middle of setting it
        self._thread = threading.Thread(target=self._run, name="energon-grain-watchdog", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        look_s = min(self._timeout, self._first_timeout, threading.TIMEOUT_MAX) / _LOOKS
        seen, since, reported = None, perf_counter(), False
        while True:
            with suppress(Empty):
                return self._over.get(timeout=look_s)
            now, found = perf_counter(), self._current_step()
            if found != seen:
                seen, since, reported = found, now, False
            limit = self._first_timeout if found == self._first else self._timeout
            if found is not None and not reported and now - since >= limit:
                reported = True
                self._report()

    def _report(self) -> None:
        if self._dump_stacks:
            print(all_stacks(without=threading.get_ident()), file=sys.stderr, flush=True)
        try:
            if self._callback is not None:
                self._callback()
        except Exception:
            # Nothing else ends a thread that hangs somewhere in C.
            traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    def enable(self) -> None:
        """Something is under way from now on."""
        self._mark = object()
        self._first = self._first or self._mark

    def reset(self) -> None:
        """What is under way, if anything is, has got further."""
        if self._mark is not None:
            self._mark = object()

    def disable(self) -> None:
        """Nothing is under way any more."""
        self._mark = None

    def stop(self) -> None:
        """Watch no longer, for good, whatever the thread does just now."""
        self._over.put(None)

    def finish(self) -> None:
        """The same, and wait for the thread."""
        self.stop()
        join(self._thread)

    def __enter__(self) -> Self:
        if self._mark is None:
            self.enable()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.finish()

    def watch_iter(self, iterable: Iterable[T]) -> Iterator[T]:
        """The same entries; each is under way from when it is asked for until it comes."""
        try:
            self.enable()
            for entry in iterable:
                self.disable()
                yield entry
                self.enable()
        finally:
            self.disable()


def all_stacks(*, without: int) -> str:
    """What the threads of this process do just now, but for one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
        if ident != without
    )
