# SPDX-License-Identifier: Apache-2.0
"""Reading, listing and writing objects of stores: side by side, with time-outs, further attempts and second requests.

A request that is answered by nothing holds up all that waits for it, and a store that loses one in some hundred makes
minutes of it. So what has no first byte after `SECOND_REQUEST_SECONDS` is asked for once more while the first request
goes on, and the first of the two to be answered counts. What is merely slow stays: of all requests one in twenty is
sent twice at most.
"""

from __future__ import annotations

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
from energon_grain.storage.traffic import Traffic, count, took
from energon_grain.storage.urls import scheme_of
from energon_grain.stores.object_error import ObjectError
from energon_grain.stores.object_stores import (
    NOT_NEEDED,
    Answered,
    Begin,
    LateAnswerError,
    ObjectStores,
    in_list,
    is_forked,
)
from energon_grain.stores.retries import Outages, Trial

_Result = TypeVar("_Result")

SECOND_REQUEST_SECONDS = 2.0
"""How long a request may be without a first byte before it is sent a second time; longer where it is usual to wait."""
_USUAL_TIMES = 5
_SENT_TWICE_SHARE = 0.05
_SENT_TWICE_ALWAYS = 4
"""So many requests may be sent twice, and the share of all: a store that is slow to answer everybody is not helped by
twice the requests."""

_IDLE_SECONDS = 10.0
"""So long a thread that waits for stores is kept for the next request."""


class ObjectClient:
    """Objects of stores. Thread-safe and picklable. A process that was forked after its use gets a WorkerError.

    Attributes:
        settings: How stores are reached.
        traffic: What all threads of this process asked for and got by it.
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
        self._usual_s = 0.0  # until the first byte, of late

    def __reduce__(self) -> tuple[Any, ...]:
        return shared_client, (self.settings,)

    def read(self, wanted: ObjectRange, begin: Begin = in_list) -> Fetched | None:
        """Read one range; None where there is no such object.

        Raises RangeError if the object ends before, and ReadError if it cannot be read; names object and range.
        """

        def ask(answered: Answered) -> Fetched | None:
            return self._stores.read(wanted.url, wanted.start, wanted.stop, wanted.known, begin, answered)

        began = time.perf_counter()
        found = self._repeated(ask, f"reading {wanted}", wanted.url, twice=True)
        took(wanted.url, time.perf_counter() - began)
        if found is not None:
            self._count(bytes_read=found.came_bytes)
        return found

    def look(self, url: str) -> Fetched | None:
        """Size, generation and time of an object, without its bytes; None: there is none. Raises ReadError."""
        return self._repeated(lambda _: self._stores.look(url), f"looking at {url}", url, twice=True)

    def list(self, url: str) -> list[str]:
        """Names of the objects below a folder, relative to it, sorted. Raises ReadError."""
        return self._repeated(lambda _: self._stores.list(url), f"listing {url}", url)

    def list_versions(self, url: str) -> dict[str, tuple[int, bytes]]:
        """Size and generation of the objects below a folder, by names relative to it. Raises ReadError."""
        return self._repeated(lambda _: self._stores.list_versions(url), f"listing {url}", url)

    def pinned(self, url: str) -> str:
        """A URL of the Hub with the commit that its revision stands for, once a process; others as they are.

        Raises ReadError if the Hub does not say.
        """
        if scheme_of(url) != "hf":
            return url
        return self._repeated(lambda _: self._stores.pinned(url), f"looking up the revision of {url}", url)

    def write(self, url: str, data: bytes) -> bytes:
        """Put an object, whole or not at all; give its generation. Raises ReadError."""
        return self._repeated(lambda _: self._stores.write(url, data), f"writing {url}", url)

    def delete(self, url: str) -> None:
        """Remove an object, if it is there. Raises ReadError."""
        self._repeated(lambda _: self._stores.delete(url), f"removing {url}", url)

    def map(self, function: Callable[[Any], _Result], items: Sequence[Any]) -> list[_Result]:
        """Call a function that makes requests for each of several items, side by side; give the results in order.

        After the first failure those that have not begun are left out.
        """
        if len(items) <= 1 or is_forked():  # whose threads are not there: the first request says so
            return [function(item) for item in items]
        if self._threads is None:
            with self._counting:
                self._threads = self._threads or ThreadPoolExecutor(self.settings.requests_in_flight, "objects")
        over = current_cancellation()

        def call(item: Any) -> _Result:
            with cancelled_by(over):
                return function(item)

        futures = [self._threads.submit(call, item) for item in items]
        try:
            return [_result(future) for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def _repeated(self, ask: Callable[[Answered], _Result], doing: str, url: str, *, twice: bool = False) -> _Result:
        self._stores.refuse_fork(url)
        with Trial(self.settings, self._outages, doing, url) as trial:
            while True:
                try:
                    found = self._once(ask, repeated=trial.attempt > 1, twice=twice)
                except ObjectError as error:
                    trial.again(error)
                else:
                    trial.answered()
                    return found

    def _once(self, ask: Callable[[Answered], _Result], *, repeated: bool, twice: bool) -> _Result:
        """What a request gives. One that nobody wants any more, or that takes too long, is left to itself."""
        while not self._slots.acquire(timeout=POLL_SECONDS):
            _check_needed()
        try:
            _check_needed()
            self._count(requests=1, repeated=repeated)
            asked = _Asked(ask)
            asked.send(self._waiting)
            now, patience_s = time.monotonic(), max(SECOND_REQUEST_SECONDS, _USUAL_TIMES * self._usual_s)
            end, again = now + self.settings.timeout_s, now + patience_s
            while True:
                try:
                    found = asked.result.result(max(0.0, min(POLL_SECONDS, end - now)))
                    if twice:  # the others have no first byte before all of their answer
                        self._usual_s += 0.1 * (asked.first_byte_s - self._usual_s)
                    return found
                except TimeoutError:
                    _check_needed()
                now = time.monotonic()
                if now >= end:
                    raise ObjectError(f"no answer within {self.settings.timeout_s:g} s", passing=True) from None
                if twice and now >= again and asked.waits_for_one:
                    again = now + patience_s
                    if self.traffic.sent_twice < _SENT_TWICE_ALWAYS + self.traffic.requests * _SENT_TWICE_SHARE:
                        self._count(requests=1, repeated=1, sent_twice=1)
                        asked.send(self._waiting)
        finally:
            self._slots.release()

    def _count(self, **more: int) -> None:
        with self._counting:
            for name, number in more.items():
                setattr(self.traffic, name, getattr(self.traffic, name) + number)
        count(**more)


class _Asked(Generic[_Result]):
    """A request that may be sent again while it is under way.

    Attributes:
        result: What the one gives that is answered first. A failure that may pass is none while another is under way:
            a store that refuses the second request may be about to answer the first.
        first_byte_s: How long that took.
    """

    def __init__(self, ask: Callable[[Answered], _Result]) -> None:
        self.result: Future[_Result] = Future()
        self._ask = ask
        self._under_way: list[object] = []
        self._first: dict[str, object] = {}
        self._began_s = time.monotonic()
        self.first_byte_s = 0.0

    @property
    def waits_for_one(self) -> bool:
        """Whether a single one is under way, and has no first byte yet."""
        return len(self._under_way) == 1 and not self._first

    def send(self, threads: _WaitingThreads) -> None:
        """Send it, and let a thread wait for the answer."""
        mine = object()
        self._under_way.append(mine)
        threads.call(lambda: self._wait(mine))

    def _wait(self, mine: object) -> None:
        def answered() -> None:
            if self._first.setdefault("first", mine) is not mine:
                raise LateAnswerError
            self.first_byte_s = self.first_byte_s or time.monotonic() - self._began_s

        try:
            try:
                found = self._ask(answered)
            except LateAnswerError:
                raise
            except BaseException as error:
                self._under_way.remove(mine)  # of two that fail at once the later one sees that it is the last
                may_pass = isinstance(error, ObjectError) and error.passing
                if not (may_pass and self._under_way and self._first.get("first") is not mine):
                    answered()
                    self.result.set_exception(error)
            else:
                answered()
                self.result.set_result(found)
        except LateAnswerError:
            pass  # its answer is not read


class _WaitingThreads:
    """Threads that wait for stores, and that nobody has to wait for, not even the end of the program.

    One that has had nothing to do for `_IDLE_SECONDS` ends.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)

    def call(self, function: Callable[[], None]) -> None:
        """Call a function in a thread that is idle, or in a new one."""
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._work, name="object-request", daemon=True).start()
        self._calls.put(function)  # behind: a call that has no thread would take that of another

    def _work(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                if self._idle.acquire(blocking=False):
                    return
                call = self._calls.get()  # it is on its way
            call()
            self._idle.release()


def _result(future: Future[_Result]) -> _Result:
    """What a thread's call gives. Those of others may take all threads for long, and nobody waits for that in vain."""
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
        raise ObjectError(NOT_NEEDED, passing=False)


_shared: dict[bytes, ObjectClient] = {}


def shared_client(settings: StorageSettings) -> ObjectClient:
    """The client of this process for these settings: its requests in flight and its traffic are everybody's."""
    key = msgspec.json.encode(settings)
    found = _shared.get(key)
    return _shared.setdefault(key, ObjectClient(settings)) if found is None else found
