# SPDX-License-Identifier: Apache-2.0
"""Samples and batches made ahead: the holder that every process with loaders has."""

from __future__ import annotations

import sys
import threading
import weakref
from typing import NamedTuple

from energon_grain.errors import ConfigError


class _Owner(NamedTuple):
    """The bytes that an owner may hold, and those that may exist beside it."""

    held: float = 0.0
    beside: float = 0.0

    @property
    def charged(self) -> float:
        return self.held + self.beside


class LookAhead:
    """Samples and batches that loaders of this process made ahead. The limit counts all loaders together.

    Whether a worker is in the middle of a chunk is decided by the scheduler, so each owner is charged for the most that
    its workers can take at once, at the time when it asks to begin another entry. No measurement needs to see it first.

    Attributes:
        refusal: Message of the error to raise, because not even the minimum fits.
    """

    holder = "look-ahead"

    def __init__(self) -> None:
        self.refusal: str | None = None
        self._lock = threading.RLock()
        self._allowed_bytes = sys.maxsize
        self._owners: weakref.WeakKeyDictionary[object, _Owner] = weakref.WeakKeyDictionary()
        self._least: weakref.WeakKeyDictionary[object, float] = weakref.WeakKeyDictionary()

    def fits(self, owner: object, size_bytes: float, beside_bytes: float) -> bool:
        """Whether an owner may hold this much, and its workers as much beside. Raises ConfigError if refused."""
        if self.refusal is not None:
            raise ConfigError(self.refusal)
        with self._lock:
            asked, own = _Owner(size_bytes, beside_bytes), self._owners.get(owner, _Owner())
            self._least[owner] = min(asked.charged, self._least.get(owner, asked.charged))
            if self._charged() - own.charged + asked.charged > self._allowed_bytes:
                self._owners[owner] = _Owner(min(own.held, size_bytes), beside_bytes)
                return False
            self._owners[owner] = asked
            return True

    def _charged(self) -> float:
        return sum(each.charged for each in self._owners.values())

    def held_bytes(self) -> int:
        with self._lock:
            return int(sum(each.held for each in self._owners.values()))

    def beside_bytes(self) -> int:
        """The most that may exist beside what is held: copies in the making, and what was just taken."""
        with self._lock:
            return int(sum(each.beside for each in self._owners.values()))

    def least_bytes(self) -> int:
        """The smallest amount that lets every owner have one entry while it makes the next."""
        with self._lock:
            return int(sum(self._least.values()))

    def allow(self, size_bytes: int) -> None:
        self._allowed_bytes = size_bytes
