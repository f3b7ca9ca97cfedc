"""Reading, listing and writing objects of stores, with requests side by side, time-outs and further attempts."""

from __future__ import annotations

import logging
import os
import queue
import random
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from energon_grain.errors import RangeError, ReadError
from energon_grain.storage.given_up import LOOK_SECONDS, given_up, pause, wanted_for, wanted_until
from energon_grain.storage.object_stores import GIVEN_UP, Fetched, ObjectError, ObjectStores
from energon_grain.storage.settings import StorageSettings

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
    """Objects of stores. Thread-safe and picklable. A process that was forked after its use gets a WorkerError.

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
        self._stores = ObjectStores(self.settings)
        self._waiting = _Waiting()

    def __reduce__(self) -> tuple[Any, ...]:
        return shared_client, (self.settings,)

    def read(self, wanted: ObjectRange) -> Fetched | None:
        """Read one range; None where there is no such object.

        Raises:
            RangeError: The object ends before.
            ReadError: It cannot be read; names object and range.
        """
        found = self._repeated(
            lambda: self._stores.read(wanted.url, wanted.start, wanted.stop, wanted.known), f"reading {wanted}"
        )
        if found is not None and found.data is not None:
            with self._lock:
                self.traffic.bytes_read += len(found.data)
        return found

    def look(self, url: str) -> Fetched | None:
        """Size and generation of an object, without its bytes; None: there is none. Raises ReadError."""
        return self._repeated(lambda: self._stores.look(url), f"looking at {url}")

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
        return self._repeated(lambda: self._stores.list(url), f"listing {url}")

    def write(self, url: str, data: bytes) -> bytes:
        """Put an object, whole or not at all; give its generation. Raises ReadError."""
        return self._repeated(lambda: self._stores.write(url, data), f"writing {url}")

    def delete(self, url: str) -> None:
        """Remove an object, if it is there. Raises ReadError."""
        self._repeated(lambda: self._stores.delete(url), f"removing {url}")

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self.settings.requests_in_flight, thread_name_prefix="objects")
            return self._threads

    def _repeated(self, ask: Callable[[], _Result], doing: str) -> _Result:
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

    def _once(self, ask: Callable[[], _Result], *, repeated: bool) -> _Result:
        while not self._slots.acquire(timeout=LOOK_SECONDS):
            _check_wanted()
        try:
            _check_wanted()
            with self._lock:
                self.traffic.requests += 1
                self.traffic.repeated += repeated
            return self._awaited(self._waiting.submit(ask))
        finally:
            self._slots.release()

    def _awaited(self, asked: Future[_Result]) -> _Result:
        """What a request gives. One that nobody wants any more, or that takes too long, is left to itself."""
        end = time.monotonic() + self.settings.timeout_s
        while True:
            try:
                return asked.result(max(0.0, min(LOOK_SECONDS, end - time.monotonic())))
            except TimeoutError:
                _check_wanted()
                if time.monotonic() >= end:
                    raise ObjectError(f"no answer within {self.settings.timeout_s:g} s", passing=True) from None


class _Waiting:
    """Threads that wait for stores, and that nobody has to wait for, not even the end of the program."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)

    def submit(self, call: Callable[[], _Result]) -> Future[_Result]:
        """Call a function in a thread that is idle, or in a new one."""
        future: Future[_Result] = Future()
        self._calls.put((future, call))
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._work, name="object-request", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            future, call = self._calls.get()
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
            del future, call
            self._idle.release()


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
    # Threads are not copied, and whoever held a lock is not there.
    for client in tuple(_all):
        client._begin()


os.register_at_fork(after_in_child=_after_fork)
