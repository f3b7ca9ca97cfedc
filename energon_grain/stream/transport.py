# SPDX-License-Identifier: Apache-2.0
"""Workers that may be lost: processes on this host, actors on others.

The stage is pure: a chunk can be encoded anywhere, again, or twice. So the engine submits the chunk of a lost worker
again, and if a pool asks for it, submits a late chunk to a second worker and takes the first answer. Pools only carry
messages: they implement `Transport`.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

from energon_grain.errors import WorkerError
from energon_grain.storage.cancellation import POLL_SECONDS, Cancelled
from energon_grain.stream.chunks import Chunk, ChunkPace, Encoded
from energon_grain.stream.workers import OrderedWorkers, max_in_flight

Ticket = TypeVar("Ticket")
MAX_TRIES = 4
"""A chunk whose workers were lost this often ends the iteration: it is probably the cause."""
DEATHS = 16
"""Default maximum number of workers lost within `DEATHS_SECONDS`."""
DEATHS_SECONDS = 600.0

_logger = logging.getLogger("energon_grain")


class Lost(Exception):  # noqa: N818
    """The worker that had a chunk is gone, or its result is. The message names the worker and the reason.

    Args:
        message: For the log and for the final error.
        worker: Identity of the worker, if it has died. Each death is counted once.
    """

    def __init__(self, message: str, worker: object = None) -> None:
        super().__init__(message)
        self.worker = worker


class Deaths:
    """Counts lost workers, and ends the iteration if too many are lost within a time. Thread-safe.

    Args:
        most: Maximum number within `seconds`.
    """

    def __init__(self, most: int = DEATHS, seconds: float = DEATHS_SECONDS) -> None:
        self._most, self._seconds = most, seconds
        self._times: deque[float] = deque()
        self._counted: deque[object] = deque(maxlen=256)
        self._counting = threading.Lock()

    def count(self, lost: Lost) -> None:
        """Count and log a death. Raises WorkerError if there are too many."""
        with self._counting:
            if lost.worker is None or lost.worker in self._counted:
                return
            self._counted.append(lost.worker)
            now = time.monotonic()
            self._times.append(now)
            while self._times[0] < now - self._seconds:
                self._times.popleft()
            times = len(self._times)
        if times > self._most:
            raise WorkerError(
                f"{times} workers were lost within {self._seconds:.0f} s; the last one: {lost}. The loader can "
                f"continue from here"
            ) from lost
        _logger.warning("%s. Its chunks are encoded again (%d of at most %d deaths)", lost, times, self._most)


class Transport(Protocol[Ticket]):
    """Carries chunks to workers and results back. Called by several threads.

    Attributes:
        workers: Number of workers. Each has up to two chunks at a time.
        deaths: Counts lost workers, for the life of the pool.
    """

    @property
    def workers(self) -> int: ...

    @property
    def deaths(self) -> Deaths: ...

    def submit(self, message: bytes, avoid: Sequence[Ticket]) -> Ticket:
        """Send a pickled chunk to the worker with the fewest chunks, if possible none that has one of `avoid`.

        Lost workers are replaced first. Raises WorkerError if there is no worker.
        """
        ...

    def wait(self, tickets: Sequence[Ticket], timeout_s: float) -> Sequence[Ticket]:
        """The tickets that have a result, or are lost; after `timeout_s` perhaps none."""
        ...

    def patience_s(self, tickets: Sequence[Ticket]) -> float:
        """Time after which the chunk of these tickets is submitted to another worker too; infinite: never."""
        ...

    def result(self, ticket: Ticket) -> Any:
        """The result of a ticket that `wait` returned, for `load`. Raises Lost."""
        ...

    def forget(self, ticket: Ticket) -> None:
        """Another worker was faster, or the run ends."""
        ...

    def load(self, chunk: Chunk, result: Any) -> tuple[Encoded | BaseException, float]:
        """The encoded chunk or the error of the stage, and the seconds that the worker took. Called by the consumer."""
        ...


class _Tries:
    """The workers that have one chunk."""

    def __init__(self, transport: Transport[Any], message: bytes) -> None:
        self._transport, self._message = transport, message
        self._tickets: list[Any] = []
        self._count = 0
        self._asked_s = 0.0

    def answered(self) -> Iterator[Any]:
        """Submit the chunk where necessary, and return tickets with results, after a moment perhaps none."""
        if not self._tickets:
            self._count += 1
        waited_s = time.monotonic() - self._asked_s
        some = 0 < len(self._tickets) < self._transport.workers
        late = some and waited_s > self._transport.patience_s(self._tickets)
        if late or not self._tickets:
            self._asked_s = time.monotonic()
            self._tickets.append(self._transport.submit(self._message, self._tickets))
        for ticket in self._transport.wait(self._tickets, POLL_SECONDS):
            self._tickets.remove(ticket)
            yield ticket

    def check(self, lost: Lost) -> None:
        """Raise WorkerError if the chunk was lost too often."""
        if self._count >= MAX_TRIES:
            raise WorkerError(
                f"{self._count} workers were lost while they had the same chunk, which probably causes it. The last "
                f"one: {lost}. The loader can continue from here"
            ) from lost

    def end(self) -> None:
        """Forget the tickets that are left."""
        for ticket in self._tickets:
            self._transport.forget(ticket)


class TransportWorkers(OrderedWorkers[Any]):
    """Encoded chunks in order, from the workers of a transport. Two threads wait for each worker."""

    def __init__(self, transport: Transport[Any], chunks: Iterator[Chunk], pace: ChunkPace, budget_bytes: int) -> None:
        self._transport = transport
        workers = transport.workers
        super().__init__(self._make, 2 * workers, chunks, budget_bytes, max_in_flight(workers), pace)

    def resize_workers(self, workers: int) -> None:
        """Use another number of workers from now on."""
        self.resize(2 * workers, max_in_flight(workers))

    def _make(self, chunk: Chunk) -> Any:
        """Let workers encode a chunk, after its prefetched bytes have arrived, until one answers."""
        if chunk.prefetched is not None:
            chunk.prefetched.wait()
        tries = _Tries(self._transport, pickle.dumps(chunk, protocol=5))
        try:
            while not self._cancellation.is_set():
                try:
                    for ticket in tries.answered():
                        return self._transport.result(ticket)
                except Lost as lost:
                    if not self._cancellation.is_set():
                        self._transport.deaths.count(lost)
                        tries.check(lost)
            raise Cancelled
        finally:
            tries.end()

    def taken(self, chunk: Chunk, result: Any) -> Encoded:
        """The encoded chunk. Raises any error that the stage raised in the worker."""
        encoded, seconds = self._transport.load(chunk, result)
        if isinstance(encoded, BaseException):
            raise encoded
        self._pace.learn(chunk, encoded, seconds)
        return encoded
