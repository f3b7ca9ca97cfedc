"""Encoding chunks ahead of the consumer, in several threads, delivered in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from energon_grain.storage.given_up import GivenUp, Over, wanted_until
from energon_grain.stream.bounded_buffer import BoundedBuffer
from energon_grain.stream.chunk import Chunk, Encoded

Run = Callable[[Chunk], Encoded]


@dataclass(slots=True, eq=False)
class _Task:
    chunk: Chunk
    result: Encoded | None = None
    error: BaseException | None = None


class OrderedWorkers:
    """An iterator over encoded chunks, computed by several threads.

    As many chunks are under way as keep all threads busy and fit into `budget_bytes`, what they will hold being
    estimated from the last that was done; one is always under way, and until it is done no other: nobody knows how much
    larger decoding makes it.

    Args:
        runs: One function a thread.
        chunks: In order.
        budget_bytes: Bound on the memory of chunks that are under way or done and not yet taken.
    """

    def __init__(self, runs: Sequence[Run], chunks: Iterator[Chunk], budget_bytes: int) -> None:
        self._chunks = chunks
        self._budget_bytes = budget_bytes
        self._most = 2 * len(runs) + 1
        self._under_way: deque[_Task] = deque()
        self._expansion: float | None = None
        self._next: Chunk | None = None
        self._tasks: BoundedBuffer[_Task] = BoundedBuffer(self._most + 1)
        self._over = Over()
        self._done = threading.Condition()
        self._threads = [
            threading.Thread(
                target=_work,
                args=(run, self._tasks, self._over, self._done),
                name=f"energon-grain-worker-{n}",
                daemon=True,
            )
            for n, run in enumerate(runs)
        ]
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Iterator[Encoded]:
        return self

    def __next__(self) -> Encoded:
        self._submit()
        if not self._under_way:
            raise StopIteration
        task = self._under_way[0]
        with self._done:
            while task.result is None and task.error is None and not self._over.is_set():
                self._done.wait()
        if self._over.is_set():
            raise GivenUp
        self._under_way.popleft()
        if task.error is not None:
            try:
                raise task.error
            finally:
                del task  # the traceback refers to this frame
        assert task.result is not None
        self._expansion = max(1.0, task.result.size_bytes / max(1, task.chunk.size_bytes))
        self._submit()
        return task.result

    def _submit(self) -> None:
        while len(self._under_way) < self._most:
            if self._next is None:
                self._next = next(self._chunks, None)
                if self._next is None:
                    return
            if self._under_way:
                held = sum(task.chunk.size_bytes for task in self._under_way) + self._next.size_bytes
                if self._expansion is None or held * self._expansion > self._budget_bytes:
                    return
            task = _Task(self._next)
            self._next = None
            self._under_way.append(task)
            self._tasks.put(task)

    def stop(self) -> None:
        """Let the threads end behind the hook or request in hand, and wake whoever waits for a result."""
        self._over.set()
        self._tasks.close()
        with self._done:
            self._done.notify_all()

    def close(self) -> None:
        """Stop the threads and wait for them."""
        self.stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()


def _work(run: Run, tasks: BoundedBuffer[_Task], over: Over, done: threading.Condition) -> None:
    while True:
        try:
            task = tasks.get()
        except GivenUp:
            return
        try:
            with wanted_until(over):
                task.result = run(task.chunk)
        except BaseException as error:
            task.error = error
        with done:
            done.notify_all()
        del task  # or its samples would live until the next one comes
