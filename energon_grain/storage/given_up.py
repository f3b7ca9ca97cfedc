"""Whether what a thread does is still wanted: a program that ends, or a reader that is closed, gives it up.

Who closes a reader waits for its threads, and so does Python for those of executors before it ends. A request that
stalls, or is tried again and again, would hold that up for minutes; so would the hundreds of slow hooks that a chunk
may take.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import thread as executor_threads
from typing import Any

LOOK_SECONDS = 0.1
"""How often those who wait look whether what they wait for is still wanted, or has come without a notice.

A signal handler that interrupts `Condition.wait`, and waits for the same, may take the last notice."""

_ended = threading.Event()
# There is no public hook that early. What was registered last is called first: before executors wait for their threads.
_register: Any = getattr(threading, "_register_atexit", None)
if _register is not None and executor_threads:
    _register(_ended.set)


class GivenUp(BaseException):
    """Nobody waits any more for what this thread makes.

    It is no `Exception`: nothing that handles failures, ours or a hook's, may take it for one.
    """


class Over:
    """Set once, when nobody waits any more for what some threads make."""

    __slots__ = ("_cuts", "_set")

    def __init__(self) -> None:
        self._set = False
        self._cuts: dict[int, Callable[[], object]] = {}

    def is_set(self) -> bool:
        """Whether nobody waits any more."""
        return self._set

    def set(self) -> None:
        """Nobody waits any more. It waits for nothing."""
        self._set = True
        for cut in tuple(self._cuts.values()):
            cut()

    @contextlib.contextmanager
    def cutting(self, cut: Callable[[], object]) -> Generator[None]:
        """Inside the block, `set` calls `cut`. Raises GivenUp at its end if it did."""
        self._cuts[id(cut)] = cut
        try:
            if self._set:
                cut()
            yield
        finally:
            del self._cuts[id(cut)]
        if self._set:
            raise GivenUp


class _OfThread(threading.local):
    over: Over | None = None
    joins = False


_of_thread = _OfThread()


class wanted_until:  # noqa: N801 (a context manager; as a generator it would cost each step a microsecond)
    """Inside the block, give up what this thread does as soon as `over` is set; None: never."""

    __slots__ = ("_before", "_over")

    def __init__(self, over: Over | None) -> None:
        self._over = over

    def __enter__(self) -> None:
        self._before, _of_thread.over = _of_thread.over, self._over

    def __exit__(self, *exception: object) -> None:
        _of_thread.over = self._before


def wanted_for() -> Over | None:
    """What `wanted_until` was given in this thread, to be handed on to threads that make requests for it."""
    return _of_thread.over


def join(*threads: threading.Thread) -> None:
    """Let threads that have told their end, or are about to, go; one's own goes by itself.

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


def while_wanted(loop: Iterator[Any] | list[Any]) -> contextlib.AbstractContextManager[None]:
    """A context for a loop over an iterator of C's (`zip` of lists, say), or over a list that nobody else needs.

    The loop ends behind the call that is under way when nobody waits any more, and the block with GivenUp. The loop
    itself pays nothing for that: the iterator is exhausted, or the list emptied, by who gives it up.
    """
    over = _of_thread.over
    if over is None:
        return contextlib.nullcontext()
    return over.cutting(loop.clear if isinstance(loop, list) else lambda: [None for _ in loop])


def require_wanted() -> None:
    """Raises GivenUp if nobody waits any more for what this thread makes."""
    if _of_thread.over is not None and _of_thread.over.is_set():
        raise GivenUp


def given_up() -> bool:
    """Whether nobody waits any more for what this thread reads; nobody does once the main thread is at its end."""
    over = _of_thread.over
    return _ended.is_set() or not threading.main_thread().is_alive() or (over is not None and over.is_set())


def pause(seconds: float) -> None:
    """Sleep, until nobody waits any more at the latest."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not given_up():
        time.sleep(min(left, LOOK_SECONDS))
