# SPDX-License-Identifier: Apache-2.0
"""Cancel the work of threads: at the end of the program, or when a reader is closed.

Closing a reader waits for its threads, and Python waits for executor threads before it exits. A stalled or repeated
request would delay that by minutes, as would hundreds of slow hooks in one chunk.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import thread as executor_threads
from typing import Any

POLL_SECONDS = 0.1
"""How often a waiting thread checks whether it is cancelled, or whether it missed a notification.

A signal handler that interrupts `Condition.wait` and waits on the same condition may consume the last notification."""

_ended = threading.Event()
# No public hook runs that early. Callbacks run in reverse order: this one before executors wait for their threads.
_register: Any = getattr(threading, "_register_atexit", None)
if _register is not None and executor_threads:
    _register(_ended.set)


class Cancelled(BaseException):
    """The result of this thread is no longer needed.

    It is not an `Exception`, so that error handlers, ours or a hook's, do not catch it.
    """


class Cancellation:
    """Set once, when the results of some threads are no longer needed."""

    __slots__ = ("_callbacks", "_set")

    def __init__(self) -> None:
        self._set = False
        self._callbacks: dict[int, Callable[[], object]] = {}

    def is_set(self) -> bool:
        """Whether `set` was called."""
        return self._set

    def set(self) -> None:
        """Cancel. Returns at once."""
        self._set = True
        for callback in tuple(self._callbacks.values()):
            callback()

    @contextlib.contextmanager
    def calling(self, callback: Callable[[], object]) -> Generator[None]:
        """Inside the block, `set` calls `callback`. Raises Cancelled at the end of the block if it did."""
        self._callbacks[id(callback)] = callback
        try:
            if self._set:
                callback()
            yield
        finally:
            del self._callbacks[id(callback)]
        if self._set:
            raise Cancelled


class _ThreadState(threading.local):
    cancellation: Cancellation | None = None
    joins = False


_thread_state = _ThreadState()


class cancelled_by:  # noqa: N801 (a context manager; as a generator it would cost each step a microsecond)
    """Inside the block, this thread is cancelled once `cancellation` is set; None: never."""

    __slots__ = ("_before", "_cancellation")

    def __init__(self, cancellation: Cancellation | None) -> None:
        self._cancellation = cancellation

    def __enter__(self) -> None:
        self._before, _thread_state.cancellation = _thread_state.cancellation, self._cancellation

    def __exit__(self, *exception: object) -> None:
        _thread_state.cancellation = self._before


def current_cancellation() -> Cancellation | None:
    """The argument of `cancelled_by` in this thread, to pass on to threads that make requests for it."""
    return _thread_state.cancellation


def join(*threads: threading.Thread) -> None:
    """Wait for threads that have ended, or are about to; not for the calling thread itself.

    Before Python 3.13, `Thread.join` blocks forever in a signal handler that interrupted another call of it. Such a
    handler skips the join; it has already waited for the results that it needs.
    """
    if _thread_state.joins:
        return
    _thread_state.joins = True
    try:
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()
    finally:
        _thread_state.joins = False


def cancellable(loop: Iterator[Any] | list[Any]) -> contextlib.AbstractContextManager[None]:
    """A context for a loop over an iterator implemented in C (such as `zip` of lists), or over a list used only by it.

    On cancellation, the loop ends after the current call, and the block raises Cancelled. The loop itself pays no
    overhead: the canceller exhausts the iterator, or empties the list.
    """
    cancellation = _thread_state.cancellation
    if cancellation is None:
        return contextlib.nullcontext()
    return cancellation.calling(loop.clear if isinstance(loop, list) else lambda: [None for _ in loop])


def raise_if_cancelled() -> None:
    """Raises Cancelled if the result of this thread is no longer needed."""
    if _thread_state.cancellation is not None and _thread_state.cancellation.is_set():
        raise Cancelled


def is_cancelled() -> bool:
    """Whether the reads of this thread are no longer needed; always true once the main thread has ended."""
    cancellation = _thread_state.cancellation
    return _ended.is_set() or not threading.main_thread().is_alive() or bool(cancellation and cancellation.is_set())


def pause(seconds: float) -> None:
    """Sleep, at most until this thread is cancelled."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not is_cancelled():
        time.sleep(min(left, POLL_SECONDS))
