# SPDX-License-Identifier: Apache-2.0
"""Workers: what encodes chunks ahead of the consumer, delivered in order; and how all that runs for a stream ends.

Threads are the default. Worker processes are an extension (`energon_grain.processes`), found by dotted name. Backends
bring their own.

What runs for a stream ends when the stream is closed, when nobody has it any more, or with the program.

The garbage collector calls finalizers in whatever thread it happens to run in, in the middle of whatever that thread
does: maybe with a lock in hand that those wait for who are to be ended, maybe in one of their own. So a finalizer here
waits for nothing; it begins a thread that does.
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
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stage import PureStage
from energon_grain.stream.worker_config import WorkerConfig

_logger = logging.getLogger("energon_grain")


class Shutdown:
    """Threads and processes of a stream.

    It refers to nothing that refers to the stream, which could not be collected otherwise. That is also why it holds no
    samples while nothing runs beside `next`: an error that was kept with a dropped one knows all its callers.

    Attributes:
        over: Set when nobody waits any more for what runs now.
        pool: Workers, which outlive what they are started for.
    """

    def __init__(self) -> None:
        self.cancellation = Cancellation()
        self.pool: WorkerPool | None = None
        self._process = os.getpid()
        self._runs = False
        self._stopping = threading.RLock()
        self._ends: list[tuple[Callable[[], object], Callable[[], object] | None]] = []

    def reset(self) -> None:
        """Something is about to run: a new `cancellation`."""
        self.cancellation = Cancellation()

    def add(self, stop: Callable[[], object], wait: Callable[[], object] | None = None) -> None:
        """Take in something that runs.

        Args:
            tell: Lets it end, and waits for nothing. Here and below, a second call does no harm.
            wait: Waits until it has ended.
        """
        self._process = os.getpid()
        self._runs = True
        self._ends.append((stop, wait))

    @property
    def in_other_process(self) -> bool:
        """Whether this is a forked child's copy, of which nothing runs here."""
        return self._runs and self._process != os.getpid()

    def stop(self) -> None:
        """End what runs, behind the hook in hand, and wait for it."""
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
        """End the workers too. Who calls it while another thread does waits for that one."""
        if self.in_other_process:
            return
        with interrupts_held(), self._stopping:
            self.stop()
            if self.pool is not None:
                self.pool.close()
            _open.discard(self)


_open: set[Shutdown] = set()
"""What `close_on_collect` took in, until its workers have ended. A forked child would wait for those for ever."""
os.register_at_fork(after_in_child=_open.clear)


def close_on_collect(owner: object, shutdown: Shutdown) -> None:
    """Close `shutdown` when `owner`, to which it must not refer, is collected, or when the program ends."""
    if not _open:  # anew, before the ends of libraries that hooks may use: what is registered last is called first
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    _open.add(shutdown)
    weakref.finalize(owner, _close_in_thread, shutdown).atexit = False


def _close_all() -> None:
    for shutdown in tuple(_open):  # also what a thread is to close: it may not have begun, and nobody waits for it
        shutdown.close()


def _close_in_thread(shutdown: Shutdown) -> None:
    # Since Python 3.12 no thread begins any more once a program ends. Then `_close_all` closes it, or has done so.
    with suppress(RuntimeError):
        if shutdown in _open:
            # `Thread.start` takes locks of the module `threading`, which this thread may have in hand.
            _thread.start_new_thread(_begin_thread, (shutdown.close,))


def _begin_thread(close: Callable[[], object]) -> None:
    with suppress(RuntimeError):
        # The program waits for it before it calls what is registered with `atexit`.
        threading.Thread(target=close, name="energon-grain-closing", daemon=False).start()


@contextmanager
def interrupts_held() -> Generator[None]:
    """Inside the block a first Ctrl-C waits for its end, so that nothing is left half begun or half ended.

    A second one does not. Processes that are forked inside ignore it: who interrupts all of them wants their parent.
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
    """An iterator over encoded chunks, computed by several threads; `taken` makes them of what those return.

    As many chunks are under way as `resize` says and fit into `budget_bytes`, what they will hold being
    estimated from the last that was done; one is always under way, and until it is done no other: nobody knows how much
    larger decoding makes it. Iterating may end and later go on, as iterating over `chunks` did.

    Args:
        run: What a thread does with a chunk.
        threads: How many; see `resize`.
        budget_bytes: Bound on the memory of chunks that are under way or done and not yet taken.
    """

    def __init__(
        self, run: Callable[[Chunk], T], threads: int, chunks: Iterator[Chunk], budget_bytes: int, most: int
    ) -> None:
        self._run_chunk = run
        self._chunks = chunks
        self._budget_bytes = budget_bytes
        self._in_flight: deque[_Task] = deque()
        self._before_change = 0  # of them
        self._expansion: float | None = None
        self._next: Chunk | None = None
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._cancellation = Cancellation()
        self._done: SimpleQueue[None] = SimpleQueue()  # notices for who takes chunks: one is done, or all is over
        self._ended: SimpleQueue[None] = SimpleQueue()  # and for who closes this: a thread has
        self._changing = threading.RLock()  # a signal handler may close what its own thread is changing
        self._threads: list[_Thread] = []
        self._at_work = 0
        self.resize(threads, most)

    def resize(self, threads: int, most: int) -> None:
        """Go on with so many threads, and so many chunks under way. Without threads, who takes a chunk makes it."""
        with self._changing:
            if self._cancellation.is_set():
                return
            self._most = most
            self._before_change = len(self._in_flight)
            for _ in range(self._at_work - threads):
                self._tasks.put(None)  # for a thread behind the chunks that stand in front of it
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
        """Whether what is taken now was begun behind the last `resize`."""
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
        if self._cancellation.is_set():
            raise Cancelled
        self._in_flight.popleft()
        _wait(self._done, 0)  # or notices of what was done before would heap up
        self._before_change -= 1
        if task.error is not None:
            try:
                raise task.error
            finally:
                del task  # the traceback refers to this frame
        encoded = self.taken(task.chunk, cast("T", task.result))
        self._expansion = max(1.0, encoded.size_bytes / max(1, task.chunk.size_bytes))
        if self._at_work:
            self._submit()
        return encoded

    def taken(self, chunk: Chunk, result: T) -> Encoded:
        del chunk
        return cast("Encoded", result)

    def _submit(self) -> None:
        while len(self._in_flight) < self._most:
            if self._next is None:
                self._next = next(self._chunks, None)
                if self._next is None:
                    return
            if self._in_flight:
                held = sum(task.chunk.size_bytes for task in self._in_flight) + self._next.size_bytes
                if self._expansion is None or held * self._expansion > self._budget_bytes:
                    return
            task = _Task(self._next)
            self._next = None
            self._in_flight.append(task)
            with self._changing:  # behind a thread's end nobody would find it
                handed_out = self._at_work > 0
                if handed_out:
                    self._tasks.put(task)
            if not handed_out:
                task.do(self._run_chunk, self._cancellation)

    def stop(self) -> None:
        """Let the threads end behind the hook or request in hand, and wake whoever waits for a result."""
        self._cancellation.set()
        self._tasks.put(None)  # each thread hands it on to the next
        self._done.put(None)

    def close(self) -> None:
        """Stop the threads and wait for them."""
        self.stop()
        with self._changing:
            threads = [*self._threads]
        for thread in threads:
            while not thread.ended and thread is not threading.current_thread():
                _wait(self._ended)
        # For the call that this one interrupted, in a signal handler, and whose notices it took. CPython 3.11 forgets
        # the timeout of `get` where a handler takes longer.
        self._ended.put(None)
        join(*threads)
        self._in_flight.clear()  # and what nobody takes


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
            del task  # or its samples would live until the next one comes
    finally:
        if cancellation.is_set():
            tasks.put(None)
        cast("_Thread", threading.current_thread()).ended = True
        ended.put(None)


def max_in_flight(workers: int) -> int:
    """Chunks that are under way, or done and not yet taken, at most.

    They are taken in order, so a chunk that takes long holds up the others only as soon as these are all done.
    """
    return 4 * workers + 1


class WorkerPool(Protocol):
    """Workers, for the life of a stream. They hold nothing that what comes out depends on."""

    @property
    def workers(self) -> int:
        """How many there are."""
        ...

    @property
    def shares(self) -> Literal["memory", "disk"]:
        """What they have in common with this process, where data can be fetched ahead to for them."""
        ...

    def start(self, chunks: Iterator[Chunk], pace: ChunkPace) -> OrderedWorkers[Any]:
        """Let them encode these chunks from now on. What was started before is closed by then.

        Args:
            chunks: Asked by one thread at a time. It may raise StopIteration and later deliver again.
            pace: Is told how long each chunk took.
        """
        ...

    def close(self) -> None:
        """End them; once more does no harm."""


MakePool = Callable[[StreamSpec, PureStage], WorkerPool]
OwnPool = Callable[[StreamSpec, PureStage, WorkerConfig, int], WorkerPool | None]
"""The workers of a stream, and how many; None: hooks may not run there."""


def own_pool(spec: StreamSpec, stage: PureStage, config: WorkerConfig, workers: int) -> WorkerPool | None:
    """So many workers of the configured kind; None: hooks may not run in threads."""
    name = POOLS.get(str(config.worker_type))
    make: OwnPool = _thread_pool if name is None else extension(name)
    return make(spec, stage, config, workers)


class ThreadPool:
    """Threads of this process.

    Args:
        budget_bytes: Bound on the memory of what they made and nobody took yet.
    """

    shares: Literal["memory", "disk"] = "memory"

    def __init__(self, stage: PureStage, workers: int, budget_bytes: int) -> None:
        self.workers = workers
        self._stage = stage
        self._budget_bytes = budget_bytes
        self._running: Callable[[], OrderedWorkers[Encoded] | None] = lambda: None

    def start(self, chunks: Iterator[Chunk], pace: ChunkPace) -> OrderedWorkers[Encoded]:
        run = pace.timed(self._run)
        running = OrderedWorkers(run, self.workers, chunks, self._budget_bytes, max_in_flight(self.workers))
        self._running = weakref.ref(running)
        return running

    def resize(self, workers: int) -> None:
        """Go on with so many threads. Without any, who takes a chunk makes it."""
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
        """Nothing is left: threads end with what they were started for."""


def _thread_pool(spec: StreamSpec, stage: PureStage, config: WorkerConfig, workers: int) -> ThreadPool | None:
    if spec.stage_seeds_globals:
        _logger.warning(
            "hooks with restore_seeds=True seed generators of the whole process, so they run inside `next` and not in "
            "threads; let them use self.rng, or use worker processes"
        )
        return None
    return ThreadPool(stage, workers, config.prefetch_bytes)
