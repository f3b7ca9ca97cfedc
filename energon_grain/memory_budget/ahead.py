# SPDX-License-Identifier: Apache-2.0
"""Samples and batches made ahead: the holder that every process with loaders has."""

from __future__ import annotations

import sys
import threading
import weakref

from energon_grain.errors import ConfigError


class LookAhead:
    """Samples and batches that loaders of this process made ahead. The limit counts all loaders together.

    Attributes:
        refusal: Message of the error to raise, because not even the minimum fits.
    """

    holder = "look-ahead"

    def __init__(self) -> None:
        self.refusal: str | None = None
        self._lock = threading.RLock()
        self._allowed_bytes = sys.maxsize
        self._held: weakref.WeakKeyDictionary[object, float] = weakref.WeakKeyDictionary()
        self._smallest: weakref.WeakKeyDictionary[object, float] = weakref.WeakKeyDictionary()

    def fits(self, owner: object, size_bytes: float) -> bool:
        """Whether an owner may hold this much. Raises ConfigError if there is a refusal."""
        if self.refusal is not None:
            raise ConfigError(self.refusal)
        with self._lock:
            self._smallest[owner] = min(size_bytes, self._smallest.get(owner, size_bytes))
            own = self._held.get(owner, 0.0)
            if sum(self._held.values()) - own + size_bytes > self._allowed_bytes:
                self._held[owner] = min(own, size_bytes)
                return False
            self._held[owner] = size_bytes
            return True

    def held_bytes(self) -> int:
        with self._lock:
            return int(sum(self._held.values()))

    def least_bytes(self) -> int:
        """The smallest amount that lets every owner have one entry while it makes the next."""
        with self._lock:
            return int(sum(self._smallest.values()))

    def allow(self, size_bytes: int) -> None:
        self._allowed_bytes = size_bytes
