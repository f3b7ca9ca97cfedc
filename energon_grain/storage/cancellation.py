# SPDX-License-Identifier: Apache-2.0
"""Cancelling what threads do: at the end of the program, or when a reader is closed.

Closing a reader waits for its threads, and Python waits for those of executors before it ends. A request that stalls,
or is repeated again and again, would delay that by minutes; so would the hundreds of slow hooks that a chunk may take.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import thread as executor_threads
from typing import Any

POLL_SECONDS = 0.1
"""How often a thread that waits checks whether it is cancelled, or whether a notice was lost.

A signal handler that interrupts `Condition.wait`, and waits for the same, may take the last notice."""

_ended = threading.Event()
# There is no public hook that early. What was registered last is called first: before executors wait for their threads.
_register: Any = getattr(threading, "_register_atexit", None)
if _register is not None and executor_threads:
    _register(_ended.set)


class Cancelled(BaseException):
    """What this thread makes is no longer needed.

    It is no `Exception`: nothing that handles failures, ours or a hook's, may take it for one.
    """


class Cancellation:
    """Set once, when what some threads make is no longer needed."""

    __slots__ = ("_cuts", "_set")

    def __init__(self) -> None:
        self._set = False
        self._cuts: dict[int, Callable[[], object]] = {}

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._set

    def set(self) -> None:
        """Cancel. It returns at once."""
        self._set = True
        for cut in tuple(self._cuts.values()):
            cut()

    @contextlib.contextmanager
    def cutting(self, cut: Callable[[], object]) -> Generator[None]:
        """Inside the block, `set` calls `cut`. Raises Cancelled at its end if it did."""
        self._cuts[id(cut)] = cut
        try:
            if self._set:
                cut()
            yield
        finally:
            del self._cuts[id(cut)]
        if self._set:
            raise Cancelled


class _OfThread(threading.local):
    over: Cancellation | None = None
    joins = False


_of_thread = _OfThread()


class cancelled_by:  # noqa: N801 (a context manager; as a generator it would cost each step a microsecond)
    """Inside the block, this thread is cancelled as soon as `over` is set; None: never."""

    __slots__ = ("_before", "_over")

    def __init__(self, over: Cancellation | None) -> None:
        self._over = over

    def __enter__(self) -> None:
        self._before, _of_thread.over = _of_thread.over, self._over

    def __exit__(self, *exception: object) -> None:
        _of_thread.over = self._before


def current_cancellation() -> Cancellation | None:
    """What `cancelled_by` was given in this thread, for the threads that make requests for it."""
    return _of_thread.over


def join(*threads: threading.Thread) -> None:
    """Wait for threads that have ended, or are about to; not for the calling thread itself.

    Before Python 3.13 `Thread.join` waits for ever in a signal handler that has interrupted another call of it. Such a
    handler goes on without: what it needs the threads to have done, it waits for before.
    """
    if _of_thread.joins:
        return
    _of_thread.joins = True
    try:
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()
    finally:
        _of_thread.joins = False


def cancellable(loop: Iterator[Any] | list[Any]) -> contextlib.AbstractContextManager[None]:
    """A context for a loop over an iterator of C's (`zip` of lists, say), or over a list that nothing else needs.

    When it is cancelled, the loop ends after the current call, and the block with Cancelled. The loop itself pays
    nothing for that: the canceller exhausts the iterator, or empties the list.
    """
    over = _of_thread.over
    if over is None:
        return contextlib.nullcontext()
    return over.cutting(loop.clear if isinstance(loop, list) else lambda: [None for _ in loop])


def raise_if_cancelled() -> None:
    """Raises Cancelled if what this thread makes is no longer needed."""
    if _of_thread.over is not None and _of_thread.over.is_set():
        raise Cancelled


def is_cancelled() -> bool:
    """Whether what this thread reads is no longer needed; nothing is once the main thread has ended."""
    over = _of_thread.over
    return _ended.is_set() or not threading.main_thread().is_alive() or (over is not None and over.is_set())


def pause(seconds: float) -> None:
    """Sleep, until this thread is cancelled at the latest."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not is_cancelled():
        time.sleep(min(left, POLL_SECONDS))
