"""Reading, listing and writing objects of stores, with requests side by side, time-outs and further attempts."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from energon_grain.errors import RangeError, ReadError
from energon_grain.storage.given_up import LOOK_SECONDS, given_up, pause, wanted_for, wanted_until
from energon_grain.storage.helper_objects import HelperObjects
from energon_grain.storage.object_error import GIVEN_UP, ObjectError
from energon_grain.storage.storage_settings import StorageSettings
from energon_grain.storage.tensorstore_objects import Fetched, Objects, TensorStoreObjects, inherited

_logger = logging.getLogger("energon_grain")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class ObjectRange:
    """Bytes [start, stop) of an object.

    Attributes:
        url: Of the object.
        start: None, together with `stop`: the whole object; negative: counted from its end, then without `stop`.
        stop: None: to the end.
        known: A generation: where the object still is that version, no bytes come.
    """

    url: str
    start: int | None = None
    stop: int | None = None
    known: bytes | None = None

    def __str__(self) -> str:
        if self.start is None:
            return self.url
        return f"{self.url} bytes {self.start} to {'the end' if self.stop is None else self.stop}"


@dataclass(slots=True)
class Traffic:
    """What a client has asked for and got, of all threads together."""

    requests: int = 0
    repeated: int = 0
    bytes_read: int = 0


_all: weakref.WeakSet[ObjectClient] = weakref.WeakSet()


class ObjectClient:
    """Objects of stores. Thread-safe and picklable; a forked process may go on to use it.

    Attributes:
        settings: How stores are reached.
        traffic: Counts of this process.
    """

    def __init__(self, settings: StorageSettings) -> None:
        self.settings = settings
        self.traffic = Traffic()
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(self.settings.requests_in_flight)
        self._threads: ThreadPoolExecutor | None = None
        self._objects: Objects = HelperObjects(self.settings) if inherited() else TensorStoreObjects(self.settings)

    def __reduce__(self) -> tuple[Any, ...]:
        return shared_client, (self.settings,)

    def read(self, wanted: ObjectRange) -> Fetched | None:
        """Read one range; None where there is no such object.

        Raises:
            RangeError: The object ends before.
            ReadError: It cannot be read; names object and range.
        """

        def ask(objects: Objects, timeout_s: float) -> Fetched | None:
            return objects.read(wanted.url, wanted.start, wanted.stop, wanted.known, timeout_s)

        found = self._repeated(ask, f"reading {wanted}")
        if found is not None and found.data is not None:
            with self._lock:
                self.traffic.bytes_read += len(found.data)
        return found

    def map(self, function: Callable[[Any], _Result], items: Sequence[Any]) -> list[_Result]:
        """Call a function that makes requests for each of several items, side by side; give the results in order.

        After the first failure those that have not begun are left out.
        """
        if len(items) <= 1:
            return [function(item) for item in items]
        over = wanted_for()

        def call(item: Any) -> _Result:
            with wanted_until(over):
                return function(item)

        futures = [self._pool().submit(call, item) for item in items]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def list(self, url: str) -> list[str]:
        """Names of the objects below a folder, relative to it, sorted. Raises ReadError."""
        return self._repeated(lambda objects, timeout_s: objects.list(url, timeout_s), f"listing {url}")

    def write(self, url: str, data: bytes) -> bytes:
        """Put an object, whole or not at all; give its generation. Raises ReadError."""
        return self._repeated(lambda objects, timeout_s: objects.write(url, data, timeout_s), f"writing {url}")

    def delete(self, url: str) -> None:
        """Remove an object, if it is there. Raises ReadError."""
        self._repeated(lambda objects, timeout_s: objects.delete(url, timeout_s), f"removing {url}")

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self.settings.requests_in_flight, thread_name_prefix="objects")
            return self._threads

    def _repeated(self, ask: Callable[[Objects, float], _Result], doing: str) -> _Result:
        settings = self.settings
        began, pause_s, attempt = time.monotonic(), settings.first_pause_s, 1
        while True:
            try:
                return self._once(ask, repeated=attempt > 1)
            except ObjectError as error:
                if error.out_of_range:
                    raise RangeError(f"{doing}: the object ends before ({error})") from None
                if not error.passing or attempt == settings.attempts:
                    tried = f"{attempt} attempts in {time.monotonic() - began:.1f} s"
                    raise ReadError(
                        f"{doing} failed: {error} ({tried if error.passing else 'not tried again'})"
                        f"{error.way_out and '; '}{error.way_out}"
                    ) from None
                attempt += 1
                _logger.warning(
                    "%s failed (%s); attempt %d of %d in %.2g s", doing, error, attempt, settings.attempts, pause_s
                )
            pause(pause_s * random.uniform(0.5, 1.0))  # so that many readers do not come back all at once
            pause_s = min(2 * pause_s, settings.longest_pause_s)

    def _once(self, ask: Callable[[Objects, float], _Result], *, repeated: bool) -> _Result:
        while not self._slots.acquire(timeout=LOOK_SECONDS):
            _check_wanted()
        try:
            _check_wanted()
            with self._lock:
                self.traffic.requests += 1
                self.traffic.repeated += repeated
            return ask(self._objects, self.settings.timeout_s)
        finally:
            self._slots.release()


def _check_wanted() -> None:
    if given_up():
        raise ObjectError(GIVEN_UP, passing=False)


_shared: dict[bytes, ObjectClient] = {}
_shared_lock = threading.Lock()


def shared_client(settings: StorageSettings) -> ObjectClient:
    """The client of this process for these settings: its requests in flight and its traffic are everybody's."""
    key = msgspec.json.encode(settings)
    with _shared_lock:
        if key not in _shared:
            _shared[key] = ObjectClient(settings)
        return _shared[key]


def _after_fork() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    # Threads are not copied, and whoever held a lock is not there. Registered after TensorStore's own note of the fork.
    for client in tuple(_all):
        client._begin()


os.register_at_fork(after_in_child=_after_fork)
