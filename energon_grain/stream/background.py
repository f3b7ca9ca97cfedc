# SPDX-License-Identifier: Apache-2.0
"""Making steps in a background thread, a few steps ahead of the consumer."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

from energon_grain.storage.cancellation import POLL_SECONDS, Cancellation, Cancelled, cancelled_by, join
from energon_grain.stream.memory import look_ahead
from energon_grain.stream.observer import Outlet

T = TypeVar("T")
_LARGE_BYTES = 1 << 20  # each entry is weighed if the one before was larger


class Background(Generic[T]):
    """An iterator over the entries of another iterator, which runs in a thread, a few entries ahead.

    Args:
        capacity: Maximum number of waiting entries; 0: the thread is idle, and the consumer makes its entries.
        budget_bytes: Limit on the memory of waiting entries, estimated from the last large one. One may always wait.
        cancellation: Ends the iteration, together with `stop`.
        outlet: Receives reports of waiting for an entry.

    Attributes:
        full_s: Total time the thread waited for space, if times are measured.
    """

    def __init__(
        self,
        entries: Iterable[T],
        capacity: int,
        budget_bytes: int,
        weigh: Callable[[T], int],
        cancellation: Cancellation,
        outlet: Outlet | None = None,
    ) -> None:
        self.full_s = 0.0
        self._outlet = Outlet() if outlet is None else outlet
        self._idle = False  # whether the thread is idle and all its entries are taken
        self._entries = iter(entries)
        self._capacity = capacity
        self._budget_bytes = budget_bytes
        self._weigh = weigh
        self._weight = 0  # bytes of an entry
        self._waiting: deque[T] = deque()
        self._making = False
        self._end: BaseException | None = None  # raised after the waiting entries
        self._cancellation = cancellation
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="energon-grain-batches", daemon=True)
        self._thread.start()

    def resize(self, capacity: int) -> None:
        """Set the maximum number of waiting entries. Called by the consumer."""
        with self._changed:
            self._capacity = capacity
            self._idle = False
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def _run(self) -> None:
        end: BaseException = Cancelled()
        try:
            with suppress(Cancelled), cancelled_by(self._cancellation):
                while self._begin():
                    entry = next(self._entries)
                    if self._weight == 0 or self._weight > _LARGE_BYTES:
                        self._weight = max(1, self._weigh(entry))
                    with self._changed:
                        self._wait_for_space()
                        if self._cancellation.is_set():
                            break
                        self._waiting.append(entry)
                        self._making = False
                        self._changed.notify_all()
                    del entry  # otherwise it would live until the next one is made
        except BaseException as error:
            end = error
        with self._changed:
            self._making = False
            self._end = end
            self._changed.notify_all()

    def _begin(self) -> bool:
        """Wait until this thread should make an entry; False: it should end."""
        with self._changed:
            while self._capacity == 0 and not self._cancellation.is_set():
                self._idle = not self._waiting
                self._changed.wait()
            self._idle = False
            self._making = True
            return not self._cancellation.is_set()

    def _wait_for_space(self) -> None:
        timed = self._outlet.timed
        while self._is_full() and not self._cancellation.is_set():
            began = time.perf_counter() if timed else 0.0
            self._changed.wait()
            self.full_s += time.perf_counter() - began if timed else 0.0

    def _is_full(self) -> bool:
        waiting, weight = len(self._waiting), self._weight  # the caller has an entry while it takes the next one
        fits = look_ahead.fits(self, (waiting + 1) * weight, self._budget_bytes, 2 * weight)
        return waiting > 0 and not (waiting < self._capacity and fits)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        outlet = self._outlet
        # Taking the lock for each step would cost more than it takes to make some steps.
        if self._idle and not self._cancellation.is_set():
            return self._next_inline()
        with self._changed:
            outlet.ready += len(self._waiting)
            if not self._waiting and self._end is None:
                began_ns = time.perf_counter_ns() if outlet.timed else 0
                while not self._waiting and self._end is None and not self._cancellation.is_set():
                    if self._capacity == 0 and not self._making:
                        break
                    self._changed.wait(POLL_SECONDS)
                outlet.waited(began_ns)
            if self._cancellation.is_set():
                raise Cancelled
            if self._waiting:
                entry = self._waiting.popleft()
                self._changed.notify_all()
                return entry
            end, self._end = self._end, None if self._end is None else StopIteration()
        if end is None:
            return self._next_inline()
        try:
            raise end
        finally:
            del end  # the traceback refers to this frame

    def _next_inline(self) -> T:
        began_ns = time.perf_counter_ns() if self._outlet.timed else 0
        try:
            return next(self._entries)
        finally:
            self._outlet.waited(began_ns)

    def stop(self) -> None:
        """Wake waiting threads after `cancellation` was set."""
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()

    def close(self) -> None:
        if self._thread is not threading.current_thread():
            with self._changed:  # `wait` releases the lock: a signal handler may have interrupted the holder
                while self._end is None:
                    self._changed.wait(POLL_SECONDS)
            join(self._thread)
