"""Workers: threads or processes that encode chunks ahead of the consumer, delivered in order.

Threads are the default. A worker process is a fresh interpreter that runs `energon_grain.stream.worker_process`; it
does not import the user's script again, so scripts need no `__main__` guard. It gets the compiled dataset once (by
cloudpickle, so hooks may be defined in the script) and then one chunk after the other. Results come back through a
memory file that both sides map: nothing is written to `/dev/shm`, so nothing stays behind when a process is killed.

One thread of the parent waits for each worker; assembly and state stay in the parent. Workers live as long as their
pool, through passes and restores. Backends bring pools of their own, as PyTorch's `DataLoader`.

What runs for a stream ends when the stream is closed, when nobody has it any more, or with the program.

The garbage collector calls finalizers in whatever thread it happens to run in, in the middle of whatever that thread
does: maybe with a lock in hand that those wait for who are to be ended, maybe in one of their own. So a finalizer here
waits for nothing; it begins a thread that does.
"""

from __future__ import annotations

import _thread
import dataclasses
import mmap
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Generic, Protocol, TypeVar, cast

from energon_grain.errors import WorkerError
from energon_grain.sources.source import Source
from energon_grain.storage.given_up import GivenUp, Over, program_ends, wanted_until
from energon_grain.stream.chunks import Chunk, ChunkPace, Encoded
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stage import PureStage
from energon_grain.stream.worker_process import HEADER, SampleUnpickler, memory_file, part_offsets, pickled_spec


class UnderWay:
    """Threads and processes of a stream.

    It refers to nothing that refers to the stream, which could not be collected otherwise. That is also why it holds no
    samples while nothing runs beside `next`: an error that was kept with a dropped one knows all its callers.

    Attributes:
        over: Set when nobody waits any more for what runs now.
        pool: Workers, which outlive what they are started for.
    """

    def __init__(self) -> None:
        self.over = Over()
        self.pool: WorkerPool | None = None
        self._process = os.getpid()
        self._runs = False
        self._stopping = threading.RLock()
        self._ends: list[tuple[Callable[[], object], Callable[[], object] | None]] = []

    def begin(self) -> None:
        """Something is about to run: a new `over`."""
        self.over = Over()

    def add(self, tell: Callable[[], object], wait: Callable[[], object] | None = None) -> None:
        """Take in something that runs.

        Args:
            tell: Lets it end, and waits for nothing. Here and below, a second call does no harm.
            wait: Waits until it has ended.
        """
        self._process = os.getpid()
        self._runs = True
        self._ends.append((tell, wait))

    @property
    def elsewhere(self) -> bool:
        """Whether this is a forked child's copy, of which nothing runs here."""
        return self._runs and self._process != os.getpid()

    def stop(self) -> None:
        """End what runs, behind the hook in hand, and wait for it."""
        if self.elsewhere:
            return
        with interrupts_held(), self._stopping:
            self.over.set()
            for tell, _ in self._ends:
                tell()
            for _, wait in self._ends:
                if wait is not None:
                    wait()
            self._ends.clear()

    def close(self) -> None:
        """End the workers too."""
        if self.elsewhere:
            return
        with interrupts_held():
            self.stop()
            if self.pool is not None:
                self.pool.close()


def close_with(owner: object, close: Callable[[], object]) -> weakref.finalize[..., Any]:
    """Call `close` when `owner` is collected, in a thread of its own, or when the program ends.

    Only in this process: a forked child has copies of what is held, but neither its threads nor its processes, so
    waiting for those would never end.

    Args:
        owner: Whose life counts. `close` must not refer to it.
        close: What ends threads and processes; it may have been called before.
    """
    return weakref.finalize(owner, _close_aside, close, os.getpid())


def _close_aside(close: Callable[[], object], process: int) -> None:
    if os.getpid() != process:
        return
    if program_ends() and threading.get_ident() == threading.main_thread().ident:
        close()  # called by `atexit`: the collector is off, and threads that begin now would be cut off
    else:
        # `Thread.start` takes locks of the module `threading`, which this thread may have in hand.
        _thread.start_new_thread(_begin_thread, (close,))


def _begin_thread(close: Callable[[], object]) -> None:
    # The program waits for it when it ends.
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


class BoundedBuffer(Generic[T]):
    """At most `capacity` entries wait; `put` blocks while it is full, `get` while it is empty."""

    def __init__(self, capacity: int) -> None:
        self._capacity = max(1, capacity)
        self._entries: deque[T] = deque()
        self._closed = False
        self._changed = threading.Condition()

    def narrow(self, capacity: int) -> None:
        """Let at most `capacity` entries wait from now on, one at the least."""
        with self._changed:
            self._capacity = max(1, min(capacity, self._capacity))

    def put(self, entry: T) -> None:
        """Append an entry. Raises GivenUp."""
        with self._changed:
            while len(self._entries) >= self._capacity and not self._closed:
                self._changed.wait()
            if self._closed:
                raise GivenUp
            self._entries.append(entry)
            self._changed.notify_all()

    def get(self) -> T:
        """Remove the first entry. Raises GivenUp, even when entries are left."""
        with self._changed:
            while not self._entries and not self._closed:
                self._changed.wait()
            if self._closed:
                raise GivenUp
            entry = self._entries.popleft()
            self._changed.notify_all()
            return entry

    def close(self) -> None:
        """Wake whoever waits; what is left in the buffer is dropped."""
        with self._changed:
            self._closed = True
            self._entries.clear()
            self._changed.notify_all()


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


class ChunkWorkers(Protocol):
    """An iterator over encoded chunks, in order, that workers make ahead of need.

    It may raise StopIteration and later deliver again: then the iterator of chunks did so too.
    """

    def __iter__(self) -> Iterator[Encoded]: ...

    def __next__(self) -> Encoded: ...

    def stop(self) -> None:
        """Wake who waits in `next`, and let no worker take another chunk, without waiting; any thread may call it."""
        ...

    def close(self) -> None:
        """Wait until all of that is so."""
        ...


class WorkerPool(Protocol):
    """Workers, for the life of a stream. They hold nothing that what comes out depends on."""

    @property
    def workers(self) -> int:
        """How many."""
        ...

    def start(self, chunks: Iterator[Chunk], pace: ChunkPace) -> ChunkWorkers:
        """Let them encode these chunks from now on. What was started before is closed by then.

        Args:
            chunks: Asked by one thread at a time. It may raise StopIteration and later deliver again.
            pace: Is told how long each chunk took.
        """
        ...

    def close(self) -> None:
        """End them; once more does no harm."""
        ...


MakePool = Callable[[StreamSpec, PureStage], WorkerPool]


class ThreadPool:
    """Threads of this process.

    Args:
        stage: What they run.
        workers: How many.
        budget_bytes: Bound on the memory of what they made and nobody took yet.
    """

    def __init__(self, stage: PureStage, workers: int, budget_bytes: int) -> None:
        self.workers = workers
        self._stage = stage
        self._budget_bytes = budget_bytes

    def start(self, chunks: Iterator[Chunk], pace: ChunkPace) -> ChunkWorkers:
        """See `WorkerPool.start`."""
        return OrderedWorkers([pace.timed(self._stage.run)] * self.workers, chunks, self._budget_bytes)

    def close(self) -> None:
        """Nothing is left: threads end with what they were started for."""


_END_SECONDS = 5.0
_PATIENCE_SECONDS = 0.5
_LEAVE_SECONDS = 0.3


class ProcessPool:
    """Worker processes. See `stream.workers.WorkerPool`.

    Args:
        spec: The compiled dataset.
        sources: The parent's sources.
        workers: How many.
        budget_bytes: Bound on the memory of what they made and nobody took yet.
    """

    def __init__(self, spec: StreamSpec, sources: list[Source], workers: int, budget_bytes: int) -> None:
        self.workers = workers
        self._spec = spec
        self._sources = sources
        self._budget_bytes = budget_bytes
        self._processes: dict[int, WorkerProcess] = {}

    def start(self, chunks: Iterator[Chunk], pace: ChunkPace) -> ProcessWorkers:
        """Let them encode chunks; those that died, or were ended in the middle of one, are replaced."""
        for number in range(self.workers):
            process = self._processes.get(number)
            if process is not None and not process.idle:
                self._processes.pop(number).close()
            if number not in self._processes:
                self._processes[number] = WorkerProcess(self._spec, self._sources, number)
        return ProcessWorkers(list(self._processes.values()), chunks, pace, self._budget_bytes)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes.values():
            process.dismiss()
        deadline = time.monotonic() + _LEAVE_SECONDS
        for number in tuple(self._processes):
            self._processes[number].close(max(0.0, deadline - time.monotonic()))
            del self._processes[number]


class ProcessWorkers(OrderedWorkers):
    """Encoded chunks from worker processes, each of which a thread waits for."""

    def __init__(
        self, processes: list[WorkerProcess], chunks: Iterator[Chunk], pace: ChunkPace, budget_bytes: int
    ) -> None:
        self._processes = processes
        super().__init__([pace.timed(process.run) for process in processes], chunks, budget_bytes)

    def close(self) -> None:
        """Wait for the chunks in hand; processes that take long over theirs are killed."""
        self.stop()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for process in self._processes:
            process.interrupt(max(0.0, deadline - time.monotonic()))
        super().close()


class WorkerProcess:
    """One worker process, driven by one thread at a time.

    Args:
        spec: The compiled dataset.
        sources: The parent's sources, which provenance of returned samples refers to.
        number: Of the worker, for messages.
    """

    def __init__(self, spec: StreamSpec, sources: list[Source], number: int) -> None:
        own = pickled_spec(dataclasses.replace(spec, program=None), otherwise="use worker_type='thread'")
        start = pickle.dumps({"number": number, "path": sys.path, "spec": own})
        self._sources = sources
        self._number = number
        self._arena = memory_file()
        self._lock = threading.Lock()
        self._busy = False
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from energon_grain.stream.worker_process import main; main()", str(self._arena)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(self._arena,),
            process_group=0,  # Ctrl-C is for the parent, also while the worker still starts
            env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        )
        self._send(start)

    def run(self, chunk: Chunk) -> Encoded:
        """Encode a chunk in the worker.

        Raises:
            WorkerError: The worker died.
            Exception: What the stage raised there.
        """
        with self._lock:
            self._busy = True
            self._send(pickle.dumps(chunk, protocol=5))
            sizes = cast("list[int]", pickle.loads(self._receive()))  # the worker is ours; its pipe is private
            offsets, total = part_offsets(sizes)
            with mmap.mmap(self._arena, total) as arena:
                # Copied out before the worker overwrites it; bytearrays make writable arrays.
                parts = [bytearray(arena[begin : begin + size]) for begin, size in zip(offsets, sizes, strict=True)]
            self._busy = False
        result: Any = SampleUnpickler(parts[0], parts[1:], self._sources).load()
        if isinstance(result, BaseException):
            raise result
        return cast("Encoded", result)

    def _send(self, payload: bytes) -> None:
        try:
            stdin = cast("BinaryIO", self._process.stdin)
            stdin.write(HEADER.pack(len(payload)))
            stdin.write(payload)
            stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise self._death() from error

    def _receive(self) -> bytes:
        stdout = cast("BinaryIO", self._process.stdout)
        header = stdout.read(HEADER.size)
        if len(header) < HEADER.size:
            raise self._death()
        payload = stdout.read(HEADER.unpack(header)[0])
        if len(payload) < HEADER.unpack(header)[0]:
            raise self._death()
        return payload

    def _death(self) -> WorkerError:
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        return worker_death([(self._number, self._process.pid, code)])

    @property
    def idle(self) -> bool:
        """Whether it can take a chunk: it lives, and has answered the last one."""
        return not self._busy and self._process.poll() is None

    def interrupt(self, patience_s: float) -> None:
        """End the process if it works on a chunk and goes on to; whoever waits for that chunk gets a WorkerError."""
        if self._lock.acquire(timeout=patience_s):
            self._lock.release()
        else:
            self._process.kill()

    def dismiss(self) -> None:
        """Let the process end."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue

    def close(self, patience_s: float = _LEAVE_SECONDS) -> None:
        """End the process."""
        self.dismiss()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._arena)


def worker_death(dead: Iterable[tuple[int, int, int | None]], *, import_script: bool = False) -> WorkerError:
    """The error that names them.

    Args:
        dead: (number, process id, exit code; None: not known) of each.
        import_script: Whether such processes begin by importing the user's script.
    """
    dead = tuple(dead)
    told = ", ".join(f"worker process {number} (pid {pid}) {_how(code)}" for number, pid, code in dead)
    codes = {code for _, _, code in dead}
    advice = ""
    if codes & {None, -9}:
        advice = " Signal 9 usually means that the machine ran out of memory: use fewer workers or smaller batches."
    elif import_script and 1 in codes:
        advice = (
            " Processes that are started by `spawn` or `forkserver` import the script again: what it does must stand "
            "below `if __name__ == '__main__':`."
        )
    return WorkerError(
        f"{told} while it was needed; its own messages are on stderr.{advice} The loader goes on from here with a new "
        f"one"
    )


def _how(code: int | None) -> str:
    if code is None:
        return "ended"
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
