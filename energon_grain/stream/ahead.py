"""Making batches ahead of the consumer, in a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from energon_grain.storage.given_up import wanted_until
from energon_grain.stream.bounded_buffer import BoundedBuffer, BufferClosed
from energon_grain.stream.encode import approximate_bytes
from energon_grain.stream.production import Production, Step


class Ahead:
    """An iterator over the steps of a production that runs in the background.

    Args:
        production: What makes the steps; closed together with this.
        capacity: Batches that wait for the consumer at most.
        budget_bytes: Bound on their memory, estimated from the first one; a single batch may always wait.
    """

    def __init__(self, production: Production, capacity: int, budget_bytes: int) -> None:
        self._production = production
        self._buffer: BoundedBuffer[Step | BaseException | None] = BoundedBuffer(capacity)
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=_produce,
            args=(production, self._buffer, budget_bytes, self._over),
            name="energon-grain-batches",
            daemon=True,
        )
        self._thread.start()

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        entry = self._buffer.get()
        if entry is None:
            raise StopIteration
        if isinstance(entry, BaseException):
            raise entry
        return entry

    def close(self) -> None:
        """Stop the thread and the workers, without what a store has not sent yet, and wait for them."""
        self._buffer.close()
        self._over.set()
        self._production.close()
        if self._thread is not threading.current_thread():
            self._thread.join()


def _produce(
    production: Production,
    buffer: BoundedBuffer[Step | BaseException | None],
    budget_bytes: int,
    over: threading.Event,
) -> None:
    measured = False
    try:
        with wanted_until(over):
            for step in production:
                if not measured:
                    buffer.narrow(budget_bytes // max(1, approximate_bytes(step.batch)))
                    measured = True
                buffer.put(step)
                del step  # or the batch would live until the next one is made
        buffer.put(None)
    except BufferClosed:
        return
    except BaseException as error:
        try:
            buffer.put(error)
        except BufferClosed:
            return
