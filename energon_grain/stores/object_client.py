# SPDX-License-Identifier: Apache-2.0
"""Read, list and write objects of stores: in parallel, with timeouts, retries and hedged requests.

A request without a response blocks all readers that wait for it; a store that loses one in some hundred wastes minutes.
Therefore a request without a first byte after three times the usual latency is sent again, while the first one
continues, and the first response counts. At most one request in twenty is sent again (`hedging`).
"""

from __future__ import annotations

import functools
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import msgspec

from energon_grain.errors import ReadError
from energon_grain.storage.cancellation import POLL_SECONDS, cancelled_by, current_cancellation, is_cancelled
from energon_grain.storage.remote import Fetched, ObjectRange
from energon_grain.storage.settings import StorageSettings
from energon_grain.storage.traffic import Traffic, count, count_read
from energon_grain.storage.urls import scheme_of
from energon_grain.stores.hedging import UNKNOWN_SECONDS, HedgeBudget, Latencies
from energon_grain.stores.object_error import ObjectError
from energon_grain.stores.object_stores import (
    NOT_NEEDED,
    Begin,
    LateResponseError,
    ObjectStores,
    OnFirstByte,
    in_list,
    is_forked,
)
from energon_grain.stores.retries import Outages, Trial

_Result = TypeVar("_Result")

SECOND_REQUEST_SECONDS = UNKNOWN_SECONDS
_MOST_COPIES = 3
"""Maximum number of copies of a request: the second one may be lost, too."""

_DELAY_GROWTH = 2
_SOON_SECONDS = 0.01
_IDLE_SECONDS = 10.0
"""Time that an idle thread is kept for the next request."""


class ObjectClient:
    """Objects of stores. Thread-safe and picklable. After use, a forked child process gets a WorkerError.

    Attributes:
        settings: Storage settings.
        traffic: Counters of all threads of this process for this client.
    """

    def __init__(self, settings: StorageSettings) -> None:
        self.settings = settings
        self.traffic = Traffic()
        self._counting = threading.Lock()
        self._slots = threading.BoundedSemaphore(settings.requests_in_flight)
        self._threads: ThreadPoolExecutor | None = None
        self._stores = ObjectStores(settings)
        self._waiting = _WaitingThreads()
        self._outages = Outages()
        self._latencies = Latencies()
        self._hedges = HedgeBudget(settings.requests_in_flight)

    def __reduce__(self) -> tuple[Any, ...]:
        return shared_client, (self.settings,)

    def read(self, wanted: ObjectRange, begin: Begin = in_list) -> Fetched | None:
        """Read one range; None if the object does not exist.

        Raises RangeError if the object is shorter, and ReadError if it cannot be read; names object and range.
        """

        def ask(on_first_byte: OnFirstByte) -> Fetched | None:
            return self._stores.read(wanted.url, wanted.start, wanted.stop, wanted.known, begin, on_first_byte)

        began = time.perf_counter()
        found = self._repeated(ask, f"reading {wanted}", wanted.url, size_bytes=_size_of(wanted))
        count_read(wanted.url, time.perf_counter() - began)
        if found is not None:
            self._count(bytes_read=found.received_bytes)
        return found

    def head(self, url: str) -> Fetched | None:
        """Size, generation and modification time of an object; None if it does not exist. Raises ReadError."""
        return self._repeated(lambda _: self._stores.head(url), f"looking at {url}", url, size_bytes=0)

    def list(self, url: str) -> list[str]:
        """Names of the objects below a folder, relative to it, sorted. Raises ReadError."""
        return self._repeated(lambda _: self._stores.list(url), f"listing {url}", url)

    def list_versions(self, url: str) -> dict[str, tuple[int, bytes]]:
        """Size and generation of the objects below a folder, by names relative to it. Raises ReadError."""
        return self._repeated(lambda _: self._stores.list_versions(url), f"listing {url}", url)

    def pinned(self, url: str) -> str:
        """A URL of the Hub with its revision resolved to a commit, once per process; other URLs unchanged.

        Raises ReadError if the Hub does not respond.
        """
        if scheme_of(url) != "hf":
            return url
        return self._repeated(lambda _: self._stores.pinned(url), f"looking up the revision of {url}", url)

    def write(self, url: str, data: bytes) -> bytes:
        """Write an object atomically; returns its generation. Raises ReadError."""
        return self._repeated(lambda _: self._stores.write(url, data), f"writing {url}", url)

    def delete(self, url: str) -> None:
        """Remove an object, if it exists. Raises ReadError."""
        self._repeated(lambda _: self._stores.delete(url), f"removing {url}", url)

    def map(self, function: Callable[[Any], _Result], items: Sequence[Any]) -> list[_Result]:
        """Call a function that makes requests for several items, in parallel; return the results in order.

        After the first failure, calls that have not started are skipped.
        """
        if len(items) <= 1 or is_forked():  # a forked process has no threads: the first request raises
            return [function(item) for item in items]
        if self._threads is None:
            with self._counting:
                self._threads = self._threads or ThreadPoolExecutor(self.settings.requests_in_flight, "objects")
        cancellation = current_cancellation()

        def call(item: Any) -> _Result:
            with cancelled_by(cancellation):
                return function(item)

        futures = [self._threads.submit(call, item) for item in items]
        try:
            return [_result(future) for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def _repeated(
        self, ask: Callable[[OnFirstByte], _Result], doing: str, url: str, *, size_bytes: int | None = None
    ) -> _Result:
        """The result of a request, tried until it succeeds or the time for retries is over.

        Args:
            size_bytes: Expected size of the response; None: it has no first byte before it is complete, so it is never
                sent again while it is in flight.
        """
        self._stores.refuse_fork(url)
        with Trial(self.settings, self._outages, doing, url) as trial:
            while True:
                try:
                    found = self._once(ask, trial.store, size_bytes, repeated=trial.attempt > 1)
                except ObjectError as error:
                    trial.again(error)
                else:
                    trial.responded()
                    return found

    def _once(
        self, ask: Callable[[OnFirstByte], _Result], store: str, size_bytes: int | None, *, repeated: bool
    ) -> _Result:
        """The result of one attempt. A request that is no longer needed, or too slow, is abandoned."""
        while not self._slots.acquire(timeout=POLL_SECONDS):
            _check_needed()
        try:
            _check_needed()
            self._count(requests=1, repeated=repeated)
            if size_bytes is None:
                return self._first_of(_HedgedRequest(ask), math.inf)
            self._hedges.earn()
            observe = functools.partial(self._latencies.observe, store, size_bytes)
            hedge_after_s = self._latencies.hedge_after_s(store, size_bytes, SECOND_REQUEST_SECONDS)
            return self._first_of(_HedgedRequest(ask, observe), hedge_after_s)
        finally:
            self._slots.release()

    def _first_of(self, asked: _HedgedRequest[_Result], hedge_after_s: float) -> _Result:
        """The first result of a request that is sent again, with growing delays, while no byte arrives."""
        asked.send(self._waiting)
        now = time.monotonic()
        end, again = now + self.settings.timeout_s, now + hedge_after_s
        while True:
            try:
                return asked.result.result(max(0.0, min(POLL_SECONDS, end - now, max(_SOON_SECONDS, again - now))))
            except TimeoutError:
                if asked.result.done():  # its error is a TimeoutError
                    return asked.result.result()
                _check_needed()
            now = time.monotonic()
            if now >= end:
                raise ObjectError(f"no response within {self.settings.timeout_s:g} s", temporary=True) from None
            if asked.has_first_byte:  # never sent again: without this, the loop would check every 10 ms
                again = math.inf
            if now < again or not asked.can_be_hedged:
                continue
            hedge_after_s *= _DELAY_GROWTH
            again = now + hedge_after_s
            if self._hedges.spend():
                self._count(requests=1, repeated=1, sent_twice=1)
                asked.send(self._waiting)

    def _count(self, **more: int) -> None:
        with self._counting:
            for name, number in more.items():
                setattr(self.traffic, name, getattr(self.traffic, name) + number)
        count(**more)


class _HedgedRequest(Generic[_Result]):
    """A request that may be sent again while it is in flight.

    Attributes:
        result: The first result. A temporary failure does not count while the other request is in flight: a store that
            refuses the second request may be about to respond to the first.

    Args:
        ask: Sends the request.
        observe: Called with the time until the first byte of each copy, in seconds.
    """

    def __init__(self, ask: Callable[[OnFirstByte], _Result], observe: Callable[[float], None] | None = None) -> None:
        self.result: Future[_Result] = Future()
        self._ask = ask
        self._observe = observe
        self._in_flight: list[object] = []
        self._first: dict[str, object] = {}

    @property
    def has_first_byte(self) -> bool:
        """Whether a response has begun, or the request has failed."""
        return bool(self._first)

    @property
    def can_be_hedged(self) -> bool:
        """Whether requests are in flight, without a first byte yet, and another one is allowed."""
        return 1 <= len(self._in_flight) < _MOST_COPIES and not self._first

    def send(self, threads: _WaitingThreads) -> None:
        """Send the request, and let a thread wait for the response."""
        mine = object()
        self._in_flight.append(mine)
        threads.call(lambda: self._wait(mine))

    def _wait(self, mine: object) -> None:
        began_s, measured = time.monotonic(), False

        def use() -> None:
            if self._first.setdefault("first", mine) is not mine:
                raise LateResponseError

        def on_first_byte() -> None:
            nonlocal measured
            if self._observe is not None and not measured:
                measured = True
                self._observe(time.monotonic() - began_s)
            use()

        try:
            try:
                found = self._ask(on_first_byte)
            except LateResponseError:
                raise
            except BaseException as error:
                self._in_flight.remove(mine)  # if two fail at once, the later one sees that it is the last
                may_recover = isinstance(error, ObjectError) and error.temporary
                if not (may_recover and self._in_flight and self._first.get("first") is not mine):
                    use()
                    self.result.set_exception(error)
            else:
                on_first_byte()
                self.result.set_result(found)
        except LateResponseError:
            pass  # its response is discarded


class _WaitingThreads:
    """Threads that wait for stores. Nothing waits for them, not even interpreter exit.

    A thread that is idle for `_IDLE_SECONDS` ends.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)

    def call(self, function: Callable[[], None]) -> None:
        """Call a function in an idle thread, or in a new one."""
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._work, name="object-request", daemon=True).start()
        self._calls.put(function)  # last: a call without its own thread would take another call's

    def _work(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                if self._idle.acquire(blocking=False):
                    return
                call = self._calls.get()  # about to arrive
            call()
            self._idle.release()


def _size_of(wanted: ObjectRange) -> int:
    """The size of a range; 0 if its end is unknown."""
    if wanted.start is None or wanted.start < 0 or wanted.stop is None:
        return 0
    return wanted.stop - wanted.start


def _result(future: Future[_Result]) -> _Result:
    """The result of a call in a thread. It may wait long for a free thread, so the wait ends on cancellation."""
    while True:
        try:
            return future.result(POLL_SECONDS)
        except TimeoutError:
            if future.done():
                return future.result()
            if is_cancelled() and future.cancel():
                raise ReadError(f"waiting for other requests failed: {NOT_NEEDED}") from None


def _check_needed() -> None:
    if is_cancelled():
        raise ObjectError(NOT_NEEDED, temporary=False)


_shared: dict[bytes, ObjectClient] = {}


def shared_client(settings: StorageSettings) -> ObjectClient:
    """The client of this process for these settings; its limit of requests and its counters are shared."""
    key = msgspec.json.encode(settings)
    found = _shared.get(key)
    return _shared.setdefault(key, ObjectClient(settings)) if found is None else found
