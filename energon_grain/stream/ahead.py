"""Making batches ahead of the consumer, in a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from energon_grain.storage.given_up import GivenUp, Over, wanted_until
from energon_grain.stream.bounded_buffer import BoundedBuffer
from energon_grain.stream.end_of_life import UnderWay, interrupts_held
from energon_grain.stream.production import Production, Step
from energon_grain.stream.stage import approximate_bytes


class Ahead:
    """An iterator over the steps of a production that runs in the background.

    Args:
        production: What makes the steps.
        capacity: Batches that wait for the consumer at most.
        budget_bytes: Bound on their memory, estimated from the first one; a single batch may always wait.
        under_way: Ends the thread.
    """

    def __init__(self, production: Production, capacity: int, budget_bytes: int, under_way: UnderWay) -> None:
        self._buffer: BoundedBuffer[Step | BaseException | None] = BoundedBuffer(capacity)
        self._thread = threading.Thread(
            target=_produce,
            args=(production, self._buffer, budget_bytes, under_way.over),
            name="energon-grain-batches",
            daemon=True,
        )
        with interrupts_held():
            self._thread.start()
            under_way.add(self._buffer.close, self._wait)

    def _wait(self) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        entry = self._buffer.get()
        if entry is None:
            raise StopIteration
        if isinstance(entry, BaseException):
            try:
                raise entry
            finally:
                del entry  # the traceback refers to this frame
        return entry


def _produce(
    production: Production, buffer: BoundedBuffer[Step | BaseException | None], budget_bytes: int, over: Over
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
    except GivenUp:
        return
    except BaseException as error:
        try:
            buffer.put(error)
        except GivenUp:
            return
