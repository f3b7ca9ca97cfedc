"""Locks on ranges of a file that go with the process that holds them, however it ends.

They are Linux's *open file description* locks: they exclude threads as well as processes, because every holder opens
the file for itself. A lock ends when it is dropped or when the last copy of its descriptor is closed, so a killed
process leaves none behind. A forked child would hold its parent's locks on; it closes them before anything else.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
import time
import weakref

from energon_grain.storage.file_lock import open_unlinked

_FLOCK = struct.Struct("hhqqi0q")  # fcntl.h: type, whence, start, length, process (0)
_OTHERS = (errno.EAGAIN, errno.EACCES)
EVERYTHING = 1 << 62
"""One past every range that has a meaning."""
_FIRST_PAUSE_SECONDS = 50e-6
_LONGEST_PAUSE_SECONDS = 10e-3

_all: weakref.WeakSet[RangeLocks] = weakref.WeakSet()
_opening = threading.RLock()
"""Held while a descriptor is opened or closed, and while this process forks: a child knows all that it inherits."""


class RangeLocks:
    """Exclusive locks on ranges of one file, all of one holder.

    Ranges may lie beyond the file's end: they are names, nothing is read or written.

    Args:
        path: Opened for reading and writing.
        create: Make an empty file if there is none.

    Attributes:
        descriptor: Of the file; -1 after `close`, and in a child that was forked meanwhile.

    Raises:
        OSError: The file cannot be opened, or is a link.
    """

    __slots__ = ("__weakref__", "descriptor")

    def __init__(self, path: str, *, create: bool = False) -> None:
        self.descriptor = -1
        with _opening:
            self.descriptor = open_unlinked(path, os.O_RDWR | (os.O_CREAT if create else 0))
            _all.add(self)

    def take(self, first: int, stop: int) -> bool:
        """Lock [first, stop) at once. False: somebody else has a part of it, and nothing was locked.

        Raises:
            OSError: The system or the file system has no such locks.
        """
        try:
            _control(self.descriptor, "F_OFD_SETLK", fcntl.F_WRLCK, first, stop)
        except OSError as error:
            if error.errno in _OTHERS:
                return False
            raise
        return True

    def take_within(self, first: int, stop: int, *, timeout_seconds: float) -> bool:
        """Lock [first, stop), waiting for others. False: they still hold it after `timeout_seconds`."""
        pauses = Pauses(timeout_seconds)
        while not self.take(first, stop):
            if not pauses.pause():
                return False
        return True

    def drop(self, first: int, stop: int) -> None:
        """Unlock [first, stop), locked or not."""
        if self.descriptor >= 0:
            _control(self.descriptor, "F_OFD_SETLK", fcntl.F_UNLCK, first, stop)

    def close(self) -> None:
        """Drop every lock, also where a child that did not run our handler still has the descriptor."""
        with _opening:
            if self.descriptor >= 0:
                try:
                    self.drop(0, EVERYTHING)
                finally:
                    os.close(self.descriptor)
                    self.descriptor = -1

    def __del__(self) -> None:
        # Without the lock: this may run inside it. A fork in between can only leave the child one descriptor more.
        if self.descriptor >= 0:
            os.close(self.descriptor)


class Pauses:
    """Sleeps that grow from 50 µs to 10 ms, until time is up."""

    def __init__(self, timeout_seconds: float) -> None:
        self._end = time.monotonic() + timeout_seconds
        self._next = _FIRST_PAUSE_SECONDS

    def pause(self) -> bool:
        """Sleep a little. False: time is up."""
        if time.monotonic() >= self._end:
            return False
        time.sleep(self._next)
        self._next = min(self._next * 2, _LONGEST_PAUSE_SECONDS)
        return True


def is_locked(descriptor: int, first: int, stop: int) -> bool:
    """Whether somebody who opened the file apart from `descriptor` holds a lock on a part of [first, stop)."""
    return _control(descriptor, "F_OFD_GETLK", fcntl.F_RDLCK, first, stop) != fcntl.F_UNLCK


def _control(descriptor: int, command: str, kind: int, first: int, stop: int) -> int:
    """One call of fcntl(2) on a range; gives the kind of lock that it answers with.

    Raises:
        OSError: Somebody else has a lock there, or there are no such locks.
    """
    number: int | None = getattr(fcntl, command, None)
    if number is None:
        raise OSError(errno.ENOTSUP, "this system has no open file description locks")
    asked = _FLOCK.pack(kind, os.SEEK_SET, first, stop - first, 0)
    return _FLOCK.unpack(fcntl.fcntl(descriptor, number, asked))[0]


def _close_inherited() -> None:
    global _opening
    _opening = threading.RLock()
    for locks in tuple(_all):
        descriptor, locks.descriptor = locks.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)  # not dropped: that would take the lock from the parent


# The lambdas look the lock up when they run: a child makes a new one, and may fork itself.
os.register_at_fork(
    before=lambda: _opening.acquire(), after_in_parent=lambda: _opening.release(), after_in_child=_close_inherited
)
