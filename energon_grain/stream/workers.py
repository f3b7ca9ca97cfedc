# SPDX-License-Identifier: Apache-2.0
"""Workers encode chunks ahead of the consumer and deliver them in order. Also how a stream's threads and processes end.

Threads are the default. Worker processes are an extension (`energon_grain.processes`), found by dotted name. Backends
have their own.

The threads and processes of a stream end when the stream is closed or collected, or when the program ends.

The garbage collector calls finalizers in any thread, at any point of its work: that thread may hold a lock that the
threads to be ended wait for, or may be one of them. So a finalizer waits for nothing. It starts a thread that waits.
"""

from __future__ import annotations

import _thread
import atexit
import logging
import os
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic, Literal, Protocol, TypeVar, cast

from energon_grain.storage.cancellation import POLL_SECONDS, Cancellation, Cancelled, cancelled_by, join
from energon_grain.stream.chunks import Chunk, ChunkPace, Encoded
from energon_grain.stream.extensions import POOLS, extension
from energon_grain.stream.memory import look_ahead
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stage import PureStage
from energon_grain.stream.worker_config import WorkerConfig

_logger = logging.getLogger("energon_grain")


class Shutdown:
    """Ends the threads and processes of a stream.

    It holds no reference to the stream, which could otherwise not be collected. For the same reason it holds no samples
    while nothing runs outside `next`: the error kept with a dropped sample refers to all callers.

    Attributes:
        cancellation: Set when running work is no longer needed.
        pool: Workers, which live longer than a single run.
    """

    def __init__(self) -> None:
        self.cancellation = Cancellation()
        self.pool: WorkerPool | None = None
        self._process = os.getpid()
        self._runs = False
        self._stopping = threading.RLock()
        self._ends: list[tuple[Callable[[], object], Callable[[], object] | None]] = []

    def reset(self) -> None:
        """Prepare for a new run, with a new `cancellation`."""
        self.cancellation = Cancellation()

    def add(self, stop: Callable[[], object], wait: Callable[[], object] | None = None) -> None:
        """Add something that runs.

        Args:
            stop: Makes it end, without waiting. This and the following functions may be called repeatedly.
            wait: Waits until it has ended.
        """
        self._process = os.getpid()
        self._runs = True
        self._ends.append((stop, wait))

    @property
    def in_other_process(self) -> bool:
        """Whether this is a forked child's copy, whose threads and processes run in the parent."""
        return self._runs and self._process != os.getpid()

    def stop(self) -> None:
        """End everything that runs, after the current hooks, and wait for it."""
        if self.in_other_process:
            return
        with interrupts_held(), self._stopping:
            self.cancellation.set()
            for stop, _ in self._ends:
                stop()
            for _, wait in self._ends:
                if wait is not None:
                    wait()
            self._ends.clear()

    def close(self) -> None:
        """End the workers too. If another thread is closing already, wait for it."""
        if self.in_other_process:
            return
        with interrupts_held(), self._stopping:
            self.stop()
            if self.pool is not None:
                self.pool.close()
            _open.discard(self)


_open: set[Shutdown] = set()
"""Arguments of `close_on_collect` whose workers have not ended. A forked child would wait for them forever."""
os.register_at_fork(after_in_child=_open.clear)


def close_on_collect(owner: object, shutdown: Shutdown) -> None:
    """Close `shutdown` when `owner` is collected or the program ends. It must not refer to `owner`."""
    if not _open:  # register again, after the libraries that hooks may use: the last registered is called first
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    _open.add(shutdown)
    weakref.finalize(owner, _close_in_thread, shutdown).atexit = False


def _close_all() -> None:
    for shutdown in tuple(_open):  # including those left to a closing thread, which may not have started
        shutdown.close()


def _close_in_thread(shutdown: Shutdown) -> None:
    # Since Python 3.12 no thread can start once a program ends. Then `_close_all` closes it, or has already.
    with suppress(RuntimeError):
        if shutdown in _open:
            # `Thread.start` takes locks of the module `threading`, which this thread may hold.
            _thread.start_new_thread(_begin_thread, (shutdown.close,))


def _begin_thread(close: Callable[[], object]) -> None:
    with suppress(RuntimeError):
        # The program waits for this thread before it calls `atexit` functions.
        threading.Thread(target=close, name="energon-grain-closing", daemon=False).start()


@contextmanager
def interrupts_held() -> Generator[None]:
    """Delay a first Ctrl-C until the end of the block, so that starting and stopping are not interrupted halfway.

    A second one is not delayed. Processes forked inside ignore it: an interrupt of the whole group is for their parent.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.get_ident() != threading.main_thread().ident or not callable(before):
        yield
        return
    process, held = os.getpid(), False

    def hold(number: int, frame: Any) -> None:
        nonlocal held
        if os.getpid() == process:
            again, held = held, True
            if again:
                before(number, frame)

    try:
        signal.signal(signal.SIGINT, hold)
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            before(signal.SIGINT, None)


T = TypeVar("T")
Run = Callable[[Chunk], Encoded]


@dataclass(slots=True, eq=False)
class _Task:
    chunk: Chunk
    result: Any = None
    error: BaseException | None = None

    def do(self, run: Callable[[Chunk], Any], cancellation: Cancellation) -> None:
        try:
            with cancelled_by(cancellation):
                self.result = run(self.chunk)
        except BaseException as error:
            self.error = error


class OrderedWorkers(Generic[T]):
    """An iterator over encoded chunks, computed by several threads. `taken` converts the results of the threads.

    As many chunks are in flight as `resize` allows and `budget_bytes` holds. If the next chunk is late and no other is
    left to begin, more are allowed from then on: while one chunk takes long, workers finish those behind it, and the
    order stays. Their memory is estimated from the last finished chunk. One chunk is always in flight, and no other
    until it is done, because it is unknown how much larger decoding makes it. Iterating may end and continue later, as
    iterating over `chunks` does.

    Args:
        run: Called by a thread on each chunk.
        threads: Number of threads; see `resize`.
        budget_bytes: Limit on the memory of chunks that are in flight, or done and not yet taken.
        most: Initial maximum number of these chunks.
        pace: Receives the current maximum.
    """

    def __init__(
        self,
        run: Callable[[Chunk], T],
        threads: int,
        chunks: Iterator[Chunk],
        budget_bytes: int,
        most: int,
        pace: ChunkPace | None = None,
    ) -> None:
        self._run_chunk = run
        self._pace = pace or ChunkPace(first=1)
        self._pace.budget_bytes = budget_bytes
        self._held_bytes = 0
        self._deepens = True  # whether chunks were submitted since the maximum was raised
        self._chunks = chunks
        self._budget_bytes = budget_bytes
        self._in_flight: deque[_Task] = deque()
        self._before_change = 0  # chunks in flight since before the last `resize`
        self._expansion: float | None = None
        self._next: Chunk | None = None
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._cancellation = Cancellation()
        self._done: SimpleQueue[None] = SimpleQueue()  # wakes the consumer: a chunk is done, or everything ends
        self._ended: SimpleQueue[None] = SimpleQueue()  # wakes the closing thread: a thread has ended
        self._changing = threading.RLock()  # a signal handler may close what its own thread is changing
        self._threads: list[_Thread] = []
        self._at_work = 0
        self.resize(threads, most)

    def resize(self, threads: int, most: int) -> None:
        """Set the number of threads, and of chunks in flight. Without threads, the consumer makes its chunks."""
        with self._changing:
            if self._cancellation.is_set():
                return
            self._most = self._pace.depth = most
            self._pace.threads = threads
            self._before_change = len(self._in_flight)
            for _ in range(self._at_work - threads):
                self._tasks.put(None)  # ends one thread, after the chunks queued before it
            self._threads = [thread for thread in self._threads if not thread.ended]
            for number in range(self._at_work, threads):
                thread = _Thread(
                    target=_work,
                    args=(self._run_chunk, self._tasks, self._cancellation, self._done, self._ended),
                    name=f"energon-grain-worker-{number}",
                    daemon=True,
                )
                thread.start()
                self._threads.append(thread)
            self._at_work = threads

    @property
    def settled(self) -> bool:
        """Whether the chunks taken now were begun after the last `resize`."""
        return self._before_change <= 0

    def __iter__(self) -> Iterator[Encoded]:
        return self

    def __next__(self) -> Encoded:
        self._submit()
        if not self._in_flight:
            raise StopIteration
        task = self._in_flight[0]
        while task.result is None and task.error is None and not self._cancellation.is_set():
            _wait(self._done)
            self._submit(waits=True)
        if self._cancellation.is_set():
            raise Cancelled
        self._in_flight.popleft()
        self._held_bytes -= task.chunk.held_bytes
        _wait(self._done, 0)  # otherwise notices of earlier chunks would accumulate
        self._before_change -= 1
        if task.error is not None:
            try:
                raise task.error
            finally:
                del task  # the traceback refers to this frame
        encoded = self.taken(task.chunk, cast("T", task.result))
        self._expansion = max(1.0, encoded.size_bytes / max(1, task.chunk.held_bytes))
        if self._at_work:
            self._submit()
        return encoded

    def taken(self, chunk: Chunk, result: T) -> Encoded:
        del chunk
        return cast("Encoded", result)

    def _submit(self, *, waits: bool = False) -> None:
        """Submit chunks, beyond the maximum if the next one `waits` while workers have nothing left to begin."""
        if waits and self._deepens and self._at_work and self._tasks.empty():
            self._deepens = False
            self._most = self._pace.depth = self._most + self._most // 4 + 1
        while len(self._in_flight) < self._most:
            if self._next is None:
                self._next = next(self._chunks, None)
                if self._next is None:
                    return
            if self._in_flight:
                held, grows = self._held_bytes + self._next.held_bytes, self._expansion
                copies = min(held, self._at_work * self._next.held_bytes)
                if not grows or not look_ahead.fits(self, held * grows, self._budget_bytes, copies * grows):
                    return
            task = _Task(self._next)
            self._next = None
            self._in_flight.append(task)
            self._deepens = True
            self._held_bytes += task.chunk.held_bytes
            with self._changing:  # after the end of the threads, no thread would find it
                handed_out = self._at_work > 0
                if handed_out:
                    self._tasks.put(task)
            if not handed_out:
                task.do(self._run_chunk, self._cancellation)

    def stop(self) -> None:
        """Make the threads end after their current hook or request, and wake all threads waiting for a result."""
        self._cancellation.set()
        self._tasks.put(None)  # each thread passes it on to the next
        self._done.put(None)

    def close(self) -> None:
        """Stop the threads and wait for them."""
        self.stop()
        with self._changing:
            threads = [*self._threads]
        for thread in threads:
            while not thread.ended and thread is not threading.current_thread():
                _wait(self._ended)
        # For the call that this one interrupted, if it runs in a signal handler and took its notices. CPython 3.11
        # ignores the timeout of `get` if a handler takes longer.
        self._ended.put(None)
        join(*threads)
        self._in_flight.clear()  # results that are no longer needed


class _Thread(threading.Thread):
    ended = False


def _wait(notices: SimpleQueue[None], seconds: float = POLL_SECONDS) -> None:
    with suppress(Empty):
        notices.get(timeout=seconds)


def _work(
    run: Callable[[Chunk], Any],
    tasks: SimpleQueue[_Task | None],
    cancellation: Cancellation,
    done: SimpleQueue[None],
    ended: SimpleQueue[None],
) -> None:
    try:
        while not cancellation.is_set():
            task = tasks.get()
            if task is None or cancellation.is_set():
                break
            task.do(run, cancellation)
            done.put(None)
            del task  # otherwise its samples would live until the next one arrives
    finally:
        if cancellation.is_set():
            tasks.put(None)
        cast("_Thread", threading.current_thread()).ended = True
        ended.put(None)


def max_in_flight(workers: int) -> int:
    """Initial maximum number of chunks that are in flight, or done and not yet taken.

    They are taken in order. `OrderedWorkers` raises the maximum while a slow chunk delays the others.
    """
    return 4 * workers + 1


most_under_way = max_in_flight
"""Deprecated name of `max_in_flight`."""


class WorkerPool(Protocol):
    """The workers of a stream, for its whole life. The output does not depend on their state."""

    @property
    def workers(self) -> int:
        """Number of workers; may exceed the cores of this host."""
        ...

    @property
    def shares(self) -> Literal["memory", "disk", "nothing"]:
        """Storage shared with this process, in which it can prefetch data for the workers."""
        ...

    def start(self, chunks: Iterator[Chunk], pace: ChunkPace) -> OrderedWorkers[Any]:
        """Make the workers encode these chunks from now on. The previous run is closed by then.

        Args:
            chunks: Used by one thread at a time. May raise StopIteration and later deliver again.
            pace: Receives the time of each chunk.
        """
        ...

    def close(self) -> None:
        """End the workers. May be called repeatedly."""


class Pool(Protocol):
    """Workers that outlive streams and serve several of them; `WorkerConfig(workers=pool)`."""

    @property
    def workers(self) -> int:
        """Number of workers."""
        ...

    def lease(self, spec: StreamSpec, stage: PureStage, budget_bytes: int) -> WorkerPool:
        """The workers of one stream. Closing the lease does not end them.

        Args:
            spec: The compiled dataset, picklable by cloudpickle without its `program`.
            stage: The stage of the calling process, for its sources.
            budget_bytes: Limit on the memory of results that are not yet taken.
        """
        ...


MakePool = Callable[[StreamSpec, PureStage], WorkerPool]
OwnPool = Callable[[StreamSpec, PureStage, WorkerConfig, int], WorkerPool | None]
"""Makes the given number of workers of a stream; None: hooks may not run there."""


def own_pool(spec: StreamSpec, stage: PureStage, config: WorkerConfig, workers: int) -> WorkerPool | None:
    """A pool of `workers` workers of the configured type; None: hooks may not run in threads."""
    if config.workers is not None:
        return config.workers.lease(spec, stage, config.prefetch_bytes)
    name = POOLS.get(str(config.worker_type))
    make: OwnPool = _thread_pool if name is None else extension(name)
    return make(spec, stage, config, workers)


class ThreadPool:
    """Threads of this process.

    Args:
        budget_bytes: Limit on the memory of results that are not yet taken.
    """

    shares: Literal["memory", "disk", "nothing"] = "memory"

    def __init__(self, stage: PureStage, workers: int, budget_bytes: int) -> None:
        self.workers = workers
        self._stage = stage
        self._budget_bytes = budget_bytes
        self._running: Callable[[], OrderedWorkers[Encoded] | None] = lambda: None

    def start(self, chunks: Iterator[Chunk], pace: ChunkPace) -> OrderedWorkers[Encoded]:
        run = pace.timed(self._run)
        running = OrderedWorkers(run, self.workers, chunks, self._budget_bytes, max_in_flight(self.workers), pace)
        self._running = weakref.ref(running)
        return running

    def resize(self, workers: int) -> None:
        """Set the number of threads. Without threads, the consumer makes its chunks."""
        self.workers = workers
        running = self._running()
        if running is not None:
            running.resize(workers, max_in_flight(workers))

    @property
    def settled(self) -> bool:
        running = self._running()
        return running is None or running.settled

    def _run(self, chunk: Chunk) -> Encoded:
        encoded = self._stage.run(chunk)
        if encoded.work is not None and self.workers > 1:
            encoded.work.try_lock()
        return encoded

    def close(self) -> None:
        """Does nothing: threads end with the run that they were started for."""


def _thread_pool(spec: StreamSpec, stage: PureStage, config: WorkerConfig, workers: int) -> ThreadPool | None:
    if spec.stage_seeds_globals:
        _logger.warning(
            "hooks with restore_seeds=True seed global random generators, so they run inside `next` and not in "
            "threads; let them use self.rng, or use worker processes"
        )
        return None
    return ThreadPool(stage, workers, config.prefetch_bytes)
