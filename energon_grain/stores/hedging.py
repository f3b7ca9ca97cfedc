# SPDX-License-Identifier: Apache-2.0
"""When a request to a store is sent again: after three times the usual time without a first byte, and not too often.

"Hedged requests" of Dean and Barroso, The Tail at Scale, CACM 56(2), 2013: the first of the responses counts.
"""

from __future__ import annotations

import threading
from collections import deque

UNKNOWN_SECONDS = 2.0
"""Time after which a request is sent again while the usual latency is unknown."""
_USUAL_TIMES = 3.0
_LEAST_SECONDS = 0.2
"""Shorter delays are usual on a busy machine, and waiting this long costs little."""
_USUAL_SHARE = 0.9
"""The usual latency is exceeded by one request in ten."""
_REMEMBERED = 64
_LEAST_KNOWN = 8
_SMALL_BITS = 16
_CLASS_BITS = 3
_EVERY = 20
_AT_FIRST = 4


class Latencies:
    """Recent times until the first byte, by store and by size of the request. Thread-safe.

    Sizes up to 64 KiB are one class, and each factor of eight above is another one.
    """

    def __init__(self) -> None:
        self._recent: dict[tuple[str, int], deque[float]] = {}
        self._usual: dict[tuple[str, int], float] = {}
        self._lock = threading.Lock()

    def observe(self, store: str, size_bytes: int, seconds: float) -> None:
        """Record the time of a response, also of one that is not used."""
        key = store, _size_class(size_bytes)
        with self._lock:
            recent = self._recent.setdefault(key, deque(maxlen=_REMEMBERED))
            recent.append(seconds)
            if len(recent) >= _LEAST_KNOWN:
                self._usual[key] = sorted(recent)[int(len(recent) * _USUAL_SHARE)]

    def hedge_after_s(self, store: str, size_bytes: int, unknown_s: float = UNKNOWN_SECONDS) -> float:
        """Seconds without a first byte after which a request should be sent again."""
        usual_s = self._usual.get((store, _size_class(size_bytes)))
        return unknown_s if usual_s is None else max(_LEAST_SECONDS, _USUAL_TIMES * usual_s)


def _size_class(size_bytes: int) -> int:
    return -(-max(0, (size_bytes - 1).bit_length() - _SMALL_BITS) // _CLASS_BITS)


class HedgeBudget:
    """Allows one in twenty requests to be sent again: a slow store does not get every request twice. Thread-safe.

    Args:
        at_once: Maximum number that may be sent again together after a long time without any.
    """

    def __init__(self, at_once: int) -> None:
        self._most = _EVERY * max(_AT_FIRST, at_once)
        self._left = _EVERY * _AT_FIRST
        self._lock = threading.Lock()

    def earn(self) -> None:
        """Count a request."""
        with self._lock:
            self._left = min(self._most, self._left + 1)

    def spend(self) -> bool:
        """Whether a request may be sent again now."""
        with self._lock:
            if self._left < _EVERY:
                return False
            self._left -= _EVERY
            return True
