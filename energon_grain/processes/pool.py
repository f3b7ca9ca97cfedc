# SPDX-License-Identifier: Apache-2.0
"""Worker processes, which encode chunks ahead of the consumer.

A worker is a fresh interpreter that runs `PROGRAM`. It does not import the user's script again, so scripts need no
`__main__` guard. It receives the compiled dataset once (by cloudpickle, so hooks may be defined in the script) and then
one chunk after the other. Results are returned as in-memory files. Nothing is written to `/dev/shm`, so nothing is left
when a process is killed.

Threads of the parent wait for each worker; assembly and state stay in the parent. Workers live as long as their
pool, through passes and restores. One that is killed is replaced, and its chunks are encoded again. Backends start
workers in other ways.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, Protocol, cast

from energon_grain.errors import WorkerError
from energon_grain.processes.worker import Channel, ResultFile, ResultFiles, SampleUnpickler, pickled_spec
from energon_grain.sources.source import Source
from energon_grain.storage.cancellation import POLL_SECONDS, Cancelled
from energon_grain.stream.chunks import Chunk, ChunkPace, Encoded
from energon_grain.stream.clock import Span
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stage import PureStage
from energon_grain.stream.transport import Deaths, Lost, TransportWorkers
from energon_grain.stream.worker_config import WorkerConfig

PROGRAM = (
    "from energon_grain.processes.start import main; main()\n"
    "from energon_grain.processes.worker import serve_interpreter; serve_interpreter()"
)
"""For `python -c`, with the descriptor of the channel and the process ID of the parent as arguments."""
_END_SECONDS = 5.0
_PATIENCE_SECONDS = 0.5
"""Time to finish current chunks. With the next constant, it is below the second within which a program should end."""
_EXIT_SECONDS = 0.3


class StartedProcess(Protocol):
    """A process, as seen by the process that started it."""

    @property
    def pid(self) -> int | None: ...

    @property
    def code(self) -> int | None:
        """Exit code, a signal as a negative number; None: unknown."""
        ...

    def ended(self, patience_s: float) -> bool:
        """Whether it has ended, after waiting up to `patience_s`."""
        ...

    def kill(self) -> None:
        """Kill the process."""


StartProcess = Callable[[int, Channel, socket.socket], StartedProcess]
"""Starts the worker of a number. It must `serve` the messages of the channel, on the given other end."""


class _Interpreter:
    """A fresh interpreter, which does not import the script."""

    def __init__(self, end: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(end), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            pass_fds=(end,),
            process_group=0,  # Ctrl-C is for the parent, even while the worker starts
            env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        )
        self.pid = self._process.pid
        self.kill = self._process.kill

    @property
    def code(self) -> int | None:
        return self._process.returncode

    def ended(self, patience_s: float) -> bool:
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            return False
        return True


def interpreters(spec: StreamSpec) -> StartProcess:
    """Starts workers as fresh interpreters, and sends them the compiled dataset. Raises as `pickled_spec`."""

    def start(number: int, channel: Channel, end: socket.socket) -> StartedProcess:
        pickled = pickled_spec(dataclasses.replace(spec, program=None), otherwise="use worker_type='thread'")
        process = _Interpreter(end.fileno())
        with suppress(OSError):  # it has ended: the next request reports that
            channel.send(pickle.dumps((number, sys.path)))
            channel.send(pickled)
        return process

    return start


def process_pool(spec: StreamSpec, stage: PureStage, config: WorkerConfig, workers: int) -> ProcessPool:
    """A pool of `workers` fresh interpreters. See `stream.workers.OwnPool`."""
    return ProcessPool(stage.sources, workers, config.prefetch_bytes, interpreters(spec))


class ProcessPool:
    """Worker processes. See `stream.workers.WorkerPool` and `stream.transport.Transport`.

    Args:
        budget_bytes: Limit on the memory of results that are not yet taken.
        import_script: Whether the processes import the user's script first.
        forked: Whether the processes are forked. A lost one is then replaced only when the next run starts, because a
            fork beside running threads may inherit a lock.
    """

    shares: Literal["memory", "disk", "nothing"] = "disk"

    def __init__(
        self,
        sources: list[Source],
        workers: int,
        budget_bytes: int,
        start: StartProcess,
        *,
        import_script: bool = False,
        forked: bool = False,
    ) -> None:
        self.workers = workers
        self._forked = forked
        self.sources = sources
        self.deaths = Deaths()
        self._files = ResultFiles(most=4 * workers + 4)  # two chunks and two batches per worker, and those in use
        self._budget_bytes = budget_bytes
        self._start = start
        self._import_script = import_script
        self._processes: dict[int, WorkerProcess] = {}
        self._choosing = threading.RLock()  # a signal handler may close while its own thread chooses
        self._closed = False

    def start(self, chunks: Iterator[Chunk], pace: ChunkPace) -> ProcessWorkers:
        """Make the workers encode chunks. Workers that died, or were killed during a chunk, are replaced."""
        for number in range(self.workers):
            process = self._processes.get(number)
            if process is not None and not process.idle:
                self._processes.pop(number).close()
            if number not in self._processes:
                self._processes[number] = self._started(number)
        return ProcessWorkers(self, chunks, pace, self._budget_bytes)

    def _started(self, number: int) -> WorkerProcess:
        return WorkerProcess(number, self._start, self._files, self._import_script)

    def submit(self, message: bytes, avoid: Sequence[Ticket] = ()) -> Ticket:
        """Send a chunk to the worker with the fewest chunks: none is idle while another has two, and none has three."""
        with self._choosing:
            if self._closed:
                raise Cancelled
            for number, process in self._processes.items():
                if process.lost and not self._forked:
                    process.close()
                    self._processes[number] = self._started(number)
            process = min(self._processes.values(), key=lambda each: (each.lost, each.chunks))
            if process.lost:
                raise WorkerError(f"{process.death}. The loader can continue from here with a new process")
            process.chunks += 1
        try:
            return process.submit(message)
        except BaseException:
            self._returned(process)
            raise

    def _returned(self, process: WorkerProcess) -> None:
        with self._choosing:
            process.chunks -= 1

    def wait(self, tickets: Sequence[Ticket], timeout_s: float) -> Sequence[Ticket]:
        """The first ticket, if its answer arrives in time."""
        (ticket,) = tickets
        return tickets[:] if ticket.process.answers(ticket.place, timeout_s) else ()

    def patience_s(self, tickets: Sequence[Ticket]) -> float:
        return math.inf

    def result(self, ticket: Ticket) -> _Answer:
        """The parts of an answer, and its times. Raises Lost if the process died."""
        try:
            return ticket.process.result(ticket.file)
        finally:
            self._returned(ticket.process)

    def forget(self, ticket: Ticket) -> None:
        """Take the answer, so that the process can be used again; `interrupt` kills it if it takes too long."""
        while not ticket.process.answers(ticket.place, POLL_SECONDS):
            pass
        with suppress(Lost):
            self.result(ticket)

    def load(self, chunk: Chunk, result: _Answer) -> tuple[Encoded | BaseException, float]:
        """The unpickled chunk, and the seconds from its start to the answer."""
        parts, made_ns, ready_ns = result
        began_ns = time.perf_counter_ns()
        encoded: Any = SampleUnpickler(parts[0], parts[1:], self.sources).load()
        if isinstance(encoded, BaseException):
            return encoded, 0.0
        if encoded.work is not None:
            now_ns, spans = time.perf_counter_ns(), encoded.work.spans
            sent_ns = spans[-1].begin_ns + spans[-1].wall_ns
            spans.append(Span("pipeline", "send", "workers", sent_ns, ready_ns - sent_ns, 0, len(chunk.draws)))
            spans.append(Span("pipeline", "receive", "main", began_ns, now_ns - began_ns, 0, len(chunk.draws)))
        return cast("Encoded", encoded), (ready_ns - made_ns) / 1e9

    def interrupt(self) -> None:
        """Wait for current chunks. Processes that take too long are killed."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for process in [*self._processes.values()]:
            process.interrupt(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        self._closed = True
        processes = [*self._processes.values()]  # a signal handler may close too, during this call
        for process in processes:
            process.dismiss()
        deadline = time.monotonic() + _EXIT_SECONDS
        for process in processes:
            process.close(max(0.0, deadline - time.monotonic()))
        self._processes.clear()
        self._files.close()


_Answer = tuple[list[Any], int, int]
"""The parts of a result, for `SampleUnpickler`, and its start and end time, on `time.perf_counter_ns`."""


class ProcessWorkers(TransportWorkers):
    """Encoded chunks from worker processes."""

    def __init__(self, pool: ProcessPool, chunks: Iterator[Chunk], pace: ChunkPace, budget_bytes: int) -> None:
        self._pool = pool
        super().__init__(pool, chunks, pace, budget_bytes)

    def close(self) -> None:
        """Wait for current chunks. Processes that take too long are killed."""
        self.stop()
        self._pool.interrupt()
        super().close()


class Ticket(NamedTuple):
    """A chunk that was sent to a process."""

    process: WorkerProcess
    place: int
    file: ResultFile


class WorkerProcess:
    """One worker process. Two threads drive it: while one waits for an answer, the other has sent the next chunk.

    Args:
        files: Files for results.
        import_script: Whether the process imports the user's script first.

    Attributes:
        chunks: Number of chunks that it has.
        lost: Whether it has died, or its answers cannot be read any more.
    """

    def __init__(self, number: int, start: StartProcess, files: ResultFiles, import_script: bool) -> None:
        self.chunks = 0
        self.lost = False
        self._identity = object()
        self._number = number
        self._files = files
        self._import_script = import_script
        self._sending = threading.Lock()
        self._turn = threading.Condition()
        self._sent = self._answered = 0
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        try:
            self._process = start(number, self._channel, theirs)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()

    def submit(self, message: bytes) -> Ticket:
        """Send a pickled chunk. Raises WorkerError if this process has reached its limit of open files."""
        file = self._files.take()
        with self._sending:
            place, self._sent = self._sent, self._sent + 1
            try:
                self._channel.send(message, file.descriptor)
            except ConnectionError:  # `result` reports it
                self._report(lost=True)
        return Ticket(self, place, file)

    def answers(self, place: int, timeout_s: float) -> bool:
        """Whether the next answer is that of a place, or none will arrive."""
        with self._turn:
            return self._turn.wait_for(lambda: self._answered == place or self.lost, timeout_s)

    def result(self, file: ResultFile) -> _Answer:
        """The next answer. Raises Lost if the process died, and WorkerError at the limit of open files."""
        try:
            answer, _ = self._channel.receive()
            self._report(answered=1)
        except (EOFError, OSError) as error:
            self._report(lost=True)
            self._process.ended(_END_SECONDS)
            raise Lost(self.death, worker=self._identity) from error
        except BaseException:
            self._report(lost=True)
            self._process.kill()  # the start of the next answer is unknown
            raise
        sizes, began_ns, ended_ns = pickle.loads(answer)  # the worker is ours; its socket is private
        return self._files.parts(file, sizes), began_ns, ended_ns

    @property
    def death(self) -> str:
        """How it ended."""
        dead = self._number, self._process.pid or 0, self._process.code
        return worker_death([dead], import_script=self._import_script)

    def _report(self, *, answered: int = 0, lost: bool = False) -> None:
        with self._turn:
            self._answered += answered
            self.lost = self.lost or lost
            self._turn.notify_all()

    @property
    def idle(self) -> bool:
        """Whether it can take a chunk: it is alive, and has answered all requests."""
        return not self.lost and self._answered == self._sent and not self._process.ended(0)

    def interrupt(self, patience_s: float) -> None:
        """Kill the process if it does not finish its chunks in time. Threads that wait for these raise Lost."""
        with self._turn:
            done = self._turn.wait_for(lambda: self._answered == self._sent or self.lost, patience_s)
        if not done:
            self._process.kill()

    def dismiss(self) -> None:
        """Let the process end."""
        # Processes forked meanwhile may keep this end open, so also send a message.
        with suppress(OSError):
            self._channel.send(b"")
        self._channel.close()

    def close(self, patience_s: float = _EXIT_SECONDS) -> None:
        self.dismiss()
        if not self._process.ended(patience_s):
            self._process.kill()
            self._process.ended(_END_SECONDS)


def worker_death(dead: Iterable[tuple[int, int, int | None]], *, import_script: bool = False) -> str:
    """The message about dead worker processes.

    Args:
        dead: (number, process ID, exit code; None: unknown) of each.
        import_script: Whether these processes import the user's script first.
    """
    dead = tuple(dead)
    listed = ", ".join(f"worker process {number} (pid {pid}) {_how(code)}" for number, pid, code in dead)
    codes = {code for _, _, code in dead}
    advice = ""
    if codes & {None, -9}:
        advice = " Signal 9 usually means that the machine ran out of memory: use fewer workers or smaller batches."
    elif import_script and 1 in codes:
        advice = (
            " Processes started by `spawn` or `forkserver` import the script again: put its main part below "
            "`if __name__ == '__main__':`."
        )
    return f"{listed} while it was needed; its own messages are on stderr.{advice}".removesuffix(".")


def _how(code: int | None) -> str:
    if code is None:
        return "ended"
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
