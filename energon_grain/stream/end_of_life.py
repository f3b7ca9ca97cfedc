"""What runs for a stream, and how it ends: when the stream is closed, when nobody has it any more, or with the program.

The garbage collector calls finalizers in whatever thread it happens to run in, in the middle of whatever that thread
does: maybe with a lock in hand that those wait for who are to be ended, maybe in one of their own. So a finalizer here
waits for nothing; it begins a thread that does.
"""

from __future__ import annotations

import _thread
import os
import signal
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol

from energon_grain.storage.given_up import Over, program_ends


class Pool(Protocol):
    """What outlives a single run."""

    def close(self) -> None:
        """End it; once more does no harm."""
        ...


class UnderWay:
    """Threads and processes of a stream.

    It refers to nothing that refers to the stream, which could not be collected otherwise. That is also why it holds no
    samples while nothing runs beside `next`: an error that was kept with a dropped one knows all its callers.

    Attributes:
        over: Set when nobody waits any more for what runs now.
        pool: Workers, which outlive what they are started for.
    """

    def __init__(self) -> None:
        self.over = Over()
        self.pool: Pool | None = None
        self._process = os.getpid()
        self._runs = False
        self._stopping = threading.RLock()
        self._ends: list[tuple[Callable[[], object], Callable[[], object] | None]] = []

    def begin(self) -> None:
        """Something is about to run: a new `over`."""
        self.over = Over()

    def add(self, tell: Callable[[], object], wait: Callable[[], object] | None = None) -> None:
        """Take in something that runs.

        Args:
            tell: Lets it end, and waits for nothing. Here and below, a second call does no harm.
            wait: Waits until it has ended.
        """
        self._process = os.getpid()
        self._runs = True
        self._ends.append((tell, wait))

    @property
    def elsewhere(self) -> bool:
        """Whether this is a forked child's copy, of which nothing runs here."""
        return self._runs and self._process != os.getpid()

    def stop(self) -> None:
        """End what runs, behind the hook in hand, and wait for it."""
        if self.elsewhere:
            return
        with interrupts_held(), self._stopping:
            self.over.set()
            for tell, _ in self._ends:
                tell()
            for _, wait in self._ends:
                if wait is not None:
                    wait()
            self._ends.clear()

    def close(self) -> None:
        """End the workers too."""
        if self.elsewhere:
            return
        with interrupts_held():
            self.stop()
            if self.pool is not None:
                self.pool.close()


def close_with(owner: object, close: Callable[[], object]) -> weakref.finalize[..., Any]:
    """Call `close` when `owner` is collected, in a thread of its own, or when the program ends.

    Only in this process: a forked child has copies of what is held, but neither its threads nor its processes, so
    waiting for those would never end.

    Args:
        owner: Whose life counts. `close` must not refer to it.
        close: What ends threads and processes; it may have been called before.
    """
    return weakref.finalize(owner, _close_aside, close, os.getpid())


def _close_aside(close: Callable[[], object], process: int) -> None:
    if os.getpid() != process:
        return
    if program_ends() and threading.get_ident() == threading.main_thread().ident:
        close()  # called by `atexit`: the collector is off, and threads that begin now would be cut off
    else:
        # `Thread.start` takes locks of the module `threading`, which this thread may have in hand.
        _thread.start_new_thread(_begin_thread, (close,))


def _begin_thread(close: Callable[[], object]) -> None:
    # The program waits for it when it ends.
    threading.Thread(target=close, name="energon-grain-closing", daemon=False).start()


@contextmanager
def interrupts_held() -> Generator[None]:
    """Inside the block a first Ctrl-C waits for its end, so that nothing is left half begun or half ended.

    A second one does not. Processes that are forked inside ignore it: who interrupts all of them wants their parent.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.get_ident() != threading.main_thread().ident or not callable(before):
        yield
        return
    process, held = os.getpid(), False

    def hold(number: int, frame: Any) -> None:
        nonlocal held
        if os.getpid() == process:
            again, held = held, True
            if again:
                before(number, frame)

    try:
        signal.signal(signal.SIGINT, hold)
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            before(signal.SIGINT, None)
