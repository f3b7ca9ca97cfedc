# SPDX-License-Identifier: Apache-2.0
"""When a request to a store is made again: for as long as the settings say, with pauses, and with one log line for all.

A store that is restarted, or asks for fewer requests, is back in a minute or two, and a training run should wait for
it. So failures that may pass are tried again by time (`retry_s`). A name that does not resolve, or a port that nothing
listens on, is most often a typing error while nothing there has answered yet: that ends sooner.
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
"""How often the log says that requests are being tried again."""
UNREACHABLE_SECONDS = 30.0
"""How long a store that never answered this process is asked for an answer."""
_jitter = random.Random()
"""Of its own: the state of the program's `random` is the program's."""


def most_attempts(settings: StorageSettings) -> int:
    """How often a client that counts attempts should make a request: about as often as `retry_s` allows."""
    if settings.attempts is not None:
        return settings.attempts
    return 2 + int(settings.retry_s / max(settings.longest_pause_s, 0.1))


@dataclass(slots=True)
class Outages:
    """What the requests of one client know of each other. Thread-safe."""

    answered: set[str] = field(default_factory=set[str])
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
        """Log a failure that is tried again, unless another was logged a moment ago."""
        now = time.monotonic()
        with self._lock:
            if now - self._logged_at < LOG_SECONDS or not self._failing:
                return
            self._logged_at = now
            since, clock = min(self._failing.values())
            others = len(self._failing) - 1
        at = time.strftime("%H:%M:%S", time.localtime(clock))
        too = f", {others} other requests too" if others else ""
        _logger.warning("%s (failing since %s, for %.0f s%s)", message, at, now - since, too)


class Trial:
    """One request and its attempts. For one thread.

    Args:
        doing: What the request is for, in messages: "reading s3://…".
        url: Of the object.
    """

    def __init__(self, settings: StorageSettings, outages: Outages, doing: str, url: str) -> None:
        self._settings = settings
        self._outages = outages
        self._doing = doing
        self._store = "/".join(url.split("/")[:3])
        self._began_s = self._attempt_began_s = time.monotonic()
        self._pause_s = settings.first_pause_s
        self.attempt = 1

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *error: object) -> None:
        self._outages.ends(self)

    def answered(self) -> None:
        """The store has answered, whatever it said."""
        self._outages.answered.add(self._store)

    def again(self, error: ObjectError) -> None:
        """Wait until the next attempt. Raises RangeError, and ReadError where there is none."""
        if not error.unreachable:
            self.answered()
        if error.out_of_range:
            raise RangeError(f"{self._doing}: the object ends before ({error})") from None
        elapsed_s = time.monotonic() - self._began_s
        limit_s = self._limit_s(error)
        left_s = limit_s - elapsed_s
        if not error.passing or self.attempt == self._settings.attempts or left_s <= error.wait_s:
            tried = f"{self.attempt} attempts in {elapsed_s:.1f} s" if error.passing else "not tried again"
            way_out = f"; {error.way_out}" if error.way_out else ""
            raise ReadError(f"{self._doing} failed: {error} ({tried}){way_out}") from None
        self.attempt += 1
        # With jitter, so that many readers do not come back all at once.
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
        if error.unreachable and self._store not in self._outages.answered:
            return min(limit_s, UNREACHABLE_SECONDS)
        return limit_s
