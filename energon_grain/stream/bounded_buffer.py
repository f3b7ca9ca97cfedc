"""A queue between two threads that either side may close."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

from energon_grain.storage.given_up import GivenUp

T = TypeVar("T")


class BoundedBuffer(Generic[T]):
    """At most `capacity` entries wait; `put` blocks while it is full, `get` while it is empty."""

    def __init__(self, capacity: int) -> None:
        self._capacity = max(1, capacity)
        self._entries: deque[T] = deque()
        self._closed = False
        self._changed = threading.Condition()

    def narrow(self, capacity: int) -> None:
        """Let at most `capacity` entries wait from now on, one at the least."""
        with self._changed:
            self._capacity = max(1, min(capacity, self._capacity))

    def put(self, entry: T) -> None:
        """Append an entry. Raises GivenUp."""
        with self._changed:
            while len(self._entries) >= self._capacity and not self._closed:
                self._changed.wait()
            if self._closed:
                raise GivenUp
            self._entries.append(entry)
            self._changed.notify_all()

    def get(self) -> T:
        """Remove the first entry. Raises GivenUp, even when entries are left."""
        with self._changed:
            while not self._entries and not self._closed:
                self._changed.wait()
            if self._closed:
                raise GivenUp
            entry = self._entries.popleft()
            self._changed.notify_all()
            return entry

    def close(self) -> None:
        """Wake whoever waits; what is left in the buffer is dropped."""
        with self._changed:
            self._closed = True
            self._entries.clear()
            self._changed.notify_all()
