# SPDX-License-Identifier: Apache-2.0
"""A thread that detects hangs and reports where they are, with the stack of every thread."""

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
"""Checks per timeout. A hang is reported when the timeout has passed, or up to a quarter of it later."""


class Watchdog:
    """Periodically checks the current activity, and calls a function if it has not changed for too long.

    The watched code pays almost nothing: beginning and ending an activity are one assignment each.

        with Watchdog(timeout=60, callback=send_alert) as watchdog:
            for batch in watchdog.watch_iter(batches):  # watches each `next`, not the body of the loop
                ...

    Args:
        timeout: Seconds that one activity may take.
        initial_timeout: Seconds for the first activity; default: `timeout`.
        callback: Called in the watchdog's own thread. If it raises, the process ends with status 1.
        dump_stacks: Whether to write the stacks of all threads to stderr first.
        enabled: Whether an activity begins now.
        current_step: Returns the current activity (None: no activity), in the watchdog's thread. Default: as set by
            `enable` and `disable`.
        first: The first activity.
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
        self._over: SimpleQueue[None] = SimpleQueue()  # setting an `Event` must not be interrupted by setting it again
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
            # Nothing else ends a thread that hangs in C code.
            traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    def enable(self) -> None:
        """Begin an activity."""
        self._mark = object()
        self._first = self._first or self._mark

    def reset(self) -> None:
        """Restart the timeout of the current activity, if there is one."""
        if self._mark is not None:
            self._mark = object()

    def disable(self) -> None:
        """End the activity."""
        self._mark = None

    def stop(self) -> None:
        """Stop watching permanently, without waiting for the thread."""
        self._over.put(None)

    def finish(self) -> None:
        """Stop watching, and wait for the thread."""
        self.stop()
        join(self._thread)

    def __enter__(self) -> Self:
        if self._mark is None:
            self.enable()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.finish()

    def watch_iter(self, iterable: Iterable[T]) -> Iterator[T]:
        """The same entries. An activity lasts from the request of an entry until its arrival."""
        try:
            self.enable()
            for entry in iterable:
                self.disable()
                yield entry
                self.enable()
        finally:
            self.disable()


def all_stacks(*, without: int) -> str:
    """Stacks of the threads of this process, except one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
        if ident != without
    )
