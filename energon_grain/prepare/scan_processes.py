"""A few scanning processes of our own, one pair of pipes each.

`concurrent.futures.ProcessPoolExecutor` would either fork a process with threads, or import the caller's `__main__`
again in every child, so that a script without a main guard prepares its dataset recursively. Here a child is forked
where this process has a single thread, as the command line has (about 5 ms), and is a plain program otherwise (about
0.2 s until it works). It ends when its input does; one that dies is an error that names the shard it was on.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO

import msgspec

from energon_grain import errors
from energon_grain.prepare.scan_task import ScanOutcome, ScanTask
from energon_grain.prepare.scan_worker import REPLY, serve


def may_fork() -> bool:
    """Say whether this process has one thread only, native ones counted: then a fork copies it whole."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


class ScanProcesses:
    """Runs tasks in children; iterating yields each task with its outcome, or with the error it met, as they finish.

    Children start at once. Leaving the `with` block ends them.

    Args:
        tasks: What to scan.
        processes: How many children; no more than tasks are started.

    Raises:
        WorkerError: A child died (when iterating).
    """

    def __init__(self, tasks: Sequence[ScanTask], processes: int) -> None:
        self._waiting = deque(tasks)
        start = _fork if may_fork() else _spawn
        self._children = [start() for _ in range(min(processes, len(tasks)))]

    def __enter__(self) -> ScanProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for child in self._children:
            child.end()

    def __iter__(self) -> Iterator[tuple[ScanTask, ScanOutcome | Exception]]:
        busy: dict[_Child, ScanTask] = {}
        with selectors.DefaultSelector() as selector:
            for child in self._children:
                busy[child] = task = self._waiting.popleft()
                child.send(task)
                selector.register(child.replies, selectors.EVENT_READ, child)
            while busy:
                for key, _ in selector.select():
                    child: _Child = key.data
                    line = child.replies.readline()
                    task = busy.pop(child)
                    if not line.endswith(b"\n"):
                        raise child.died(task)
                    if self._waiting:
                        busy[child] = following = self._waiting.popleft()
                        child.send(following)
                    else:
                        selector.unregister(child.replies)
                    yield task, _read_reply(line)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Child:
    pid: int
    wait: Callable[[], object]
    tasks: BinaryIO
    replies: BinaryIO

    def send(self, task: ScanTask) -> None:
        try:
            self.tasks.write(msgspec.json.encode(task) + b"\n")
            self.tasks.flush()
        except BrokenPipeError:
            raise self.died(task) from None

    def died(self, task: ScanTask) -> errors.WorkerError:
        return errors.WorkerError(
            f"{task.location}: the process that scanned it ended unexpectedly (out of memory?). Run the same command "
            f"again: shards that were finished are not scanned again. --num-workers 0 scans without processes."
        )

    def end(self) -> None:
        """End the child, in the middle of a shard if need be, and wait for it."""
        with contextlib.suppress(BrokenPipeError):
            self.tasks.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        self.wait()
        self.replies.close()


def _fork() -> _Child:
    task_read, task_write = os.pipe()
    reply_read, reply_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(task_write)
            os.close(reply_read)
            serve(task_read, reply_write)
            code = 0
        finally:
            os._exit(code)
    os.close(task_read)
    os.close(reply_write)
    wait = functools.partial(os.waitpid, pid, 0)
    return _Child(pid=pid, wait=wait, tasks=open(task_write, "wb"), replies=open(reply_read, "rb"))


def _spawn() -> _Child:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    task_read, task_write = os.pipe()
    reply_read, reply_write = os.pipe()
    command = [sys.executable, "-m", "energon_grain.prepare.scan_worker"]
    process = subprocess.Popen(command, stdin=task_read, stdout=reply_write, env=environment)
    os.close(task_read)
    os.close(reply_write)
    return _Child(pid=process.pid, wait=process.wait, tasks=open(task_write, "wb"), replies=open(reply_read, "rb"))


def _read_reply(line: bytes) -> ScanOutcome | Exception:
    reply = REPLY.from_json(line)
    if reply.outcome is not None:
        return reply.outcome
    assert reply.error is not None
    name, message = reply.error
    error_class: type[Exception] = getattr(errors, name, errors.ReadError)
    return error_class(message)
