# SPDX-License-Identifier: Apache-2.0
"""Retries of requests to stores: for as long as the settings allow, with delays, and one log line for all requests.

A store that restarts, or limits the request rate, is back in a minute or two, and a training run should wait for it.
Temporary failures are therefore retried for a time (`retry_s`). An unknown host name, or a port on which nothing
listens, is usually a typo until there was a first response: these retries end sooner.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from dataclasses import dataclass, field

from energon_grain.errors import RangeError, ReadError
from energon_grain.storage.cancellation import pause
from energon_grain.storage.settings import StorageSettings
from energon_grain.storage.traffic import count
from energon_grain.stores.object_error import ObjectError

_logger = logging.getLogger("energon_grain")
LOG_SECONDS = 10.0
"""Minimum interval of log messages about retries."""
UNREACHABLE_SECONDS = 30.0
"""How long a store is retried that has never responded to this process."""
_jitter = random.Random()
"""Separate, so that the state of the program's `random` is not changed."""


def most_attempts(settings: StorageSettings) -> int:
    """Number of attempts for clients that count them: about as many as `retry_s` allows."""
    if settings.attempts is not None:
        return settings.attempts
    return 2 + int(settings.retry_s / max(settings.longest_pause_s, 0.1))


@dataclass(slots=True)
class Outages:
    """State shared by the requests of one client. Thread-safe."""

    responded: set[str] = field(default_factory=set[str])
    _failing: dict[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])
    _logged_at: float = -LOG_SECONDS
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begins(self, trial: Trial) -> None:
        with self._lock:
            self._failing.setdefault(id(trial), (time.monotonic(), time.time()))

    def ends(self, trial: Trial) -> None:
        with self._lock:
            self._failing.pop(id(trial), None)

    def log(self, message: str) -> None:
        """Log a failure that is retried, unless another one was logged recently."""
        now = time.monotonic()
        with self._lock:
            if now - self._logged_at < LOG_SECONDS or not self._failing:
                return
            self._logged_at = now
            since, clock = min(self._failing.values())
            others = len(self._failing) - 1
        at = time.strftime("%H:%M:%S", time.localtime(clock))
        too = f", and {others} other requests" if others else ""
        _logger.warning("%s (failing since %s, for %.0f s%s)", message, at, now - since, too)


class Trial:
    """One request and its attempts. For one thread.

    Args:
        doing: Purpose of the request, for messages: "reading s3://…".
        url: URL of the object.

    Attributes:
        store: Scheme and bucket.
        attempt: Number of the current attempt, from 1.
    """

    def __init__(self, settings: StorageSettings, outages: Outages, doing: str, url: str) -> None:
        self._settings = settings
        self._outages = outages
        self._doing = doing
        self.store = "/".join(url.split("/")[:3])
        self._began_s = self._attempt_began_s = time.monotonic()
        self._pause_s = settings.first_pause_s
        self.attempt = 1

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *error: object) -> None:
        self._outages.ends(self)

    def responded(self) -> None:
        """Record that the store has responded, with success or failure."""
        self._outages.responded.add(self.store)

    def again(self, error: ObjectError) -> None:
        """Wait for the next attempt. Raises RangeError, and ReadError after the last attempt."""
        if not error.unreachable:
            self.responded()
        if error.out_of_range:
            raise RangeError(f"{self._doing}: the object is shorter ({error})") from None
        elapsed_s = time.monotonic() - self._began_s
        limit_s = self._limit_s(error)
        left_s = limit_s - elapsed_s
        if not error.temporary or self.attempt == self._settings.attempts or left_s <= error.wait_s:
            tried = f"{self.attempt} attempts in {elapsed_s:.1f} s" if error.temporary else "not retried"
            advice = f"; {error.advice}" if error.advice else ""
            raise ReadError(f"{self._doing} failed: {error} ({tried}){advice}") from None
        self.attempt += 1
        # With jitter, so that many readers do not retry all at once.
        pause_s = min(error.wait_s + self._pause_s * _jitter.uniform(0.5, 1.0), left_s)
        of = f" of {self._settings.attempts}" if self._settings.attempts else ""
        self._outages.begins(self)
        self._outages.log(f"{self._doing} failed ({error}); attempt {self.attempt}{of} in {pause_s:.2g} s")
        pause(pause_s)
        now = time.monotonic()
        count(paused_s=pause_s, lost_s=now - self._attempt_began_s)
        self._attempt_began_s = now
        self._pause_s = min(2 * self._pause_s, self._settings.longest_pause_s)

    def _limit_s(self, error: ObjectError) -> float:
        limit_s = self._settings.retry_s
        if error.unreachable and self.store not in self._outages.responded:
            return min(limit_s, UNREACHABLE_SECONDS)
        return limit_s
