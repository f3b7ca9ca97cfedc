"""Converting shards in processes, one for each shard.

A process is a plain program that takes 0.3 s to start, which for shards of hundreds of megabytes is nothing. So no
`__main__` of the caller's is imported again, and one that dies takes only its shard with it. Small datasets, and those
in object stores, whose settings only this process knows, are converted in threads here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Lock

import msgspec

from energon_grain import errors
from energon_grain.conversion.shards import REPLY, ShardTask, WrittenShard

_PROGRAM = "energon_grain.conversion.shard_program"


class ShardProcesses:
    """Runs the program for tasks, in as many threads as there are to be processes. `close` ends what runs."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._lock, self._closed = Lock(), False

    def convert(self, task: ShardTask) -> WrittenShard:
        """Convert one shard in a process of its own.

        Raises:
            WorkerError: The process died.
            EnergonGrainError: As the process met it.
        """
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-m", _PROGRAM, msgspec.json.encode(task).decode()]
        with self._lock:
            if self._closed:
                raise errors.WorkerError(f"{task.target}: the conversion was ended")
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
            self._running.add(process)
        try:
            output, _ = process.communicate()
        finally:
            with self._lock:
                self._running.discard(process)
        if not output.endswith("\n"):
            raise errors.WorkerError(
                f"{task.target}: the process that wrote it ended unexpectedly (out of memory?). Run the same command "
                f"again: shards that were finished are not written again. --num-workers 0 uses no processes."
            )
        reply = REPLY.from_json(output.encode())
        if reply.written is not None:
            return reply.written
        assert reply.error is not None
        name, message = reply.error
        error_class: type[Exception] = getattr(errors, name, errors.ReadError)
        raise error_class(message)

    def close(self) -> None:
        """End the processes, in the middle of a shard if need be."""
        with self._lock:
            self._closed = True
            for process in self._running:
                process.terminate()


@contextmanager
def converted(
    tasks: Sequence[ShardTask],
    workers: int,
    convert: Callable[[ShardTask], WrittenShard],
    stop: Callable[[], None],
) -> Generator[Generator[tuple[ShardTask, WrittenShard]]]:
    """Convert shards in threads; the block iterates over them as they are done.

    Raises what the first failed one met. Leaving early calls `stop`, and waits for the threads.
    """
    with ThreadPoolExecutor(max(1, workers), thread_name_prefix="convert") as pool:
        running: dict[Future[WrittenShard], ShardTask] = {}
        try:
            running = {pool.submit(convert, task): task for task in tasks}
            yield _as_done(running)
        finally:
            for future in running:
                future.cancel()
            if not all(future.done() for future in running):
                stop()


def _as_done(running: dict[Future[WrittenShard], ShardTask]) -> Generator[tuple[ShardTask, WrittenShard]]:
    waiting = set(running)
    while waiting:
        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        for future in done:
            yield running[future], future.result()
