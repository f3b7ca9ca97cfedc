"""Scan many shards with an executor of somebody else: a pool, a cluster, a scheduler.

Only `concurrent.futures.Executor` is asked for, so that all of them take the same way. The workers return scans, and
they are stored here: what is finished is kept, whatever happens to the workers, to the executor or to this process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from queue import SimpleQueue

from energon_grain.errors import ConfigError, WorkerError
from energon_grain.prepare.scan_task import Result, ScanTask, find_stored, keep_scan, scan_remotely
from energon_grain.storage.location import is_url
from energon_grain.storage.storage_settings import storage_settings

TASKS_AHEAD = 1024
"""Shards handed over at a time: enough for a thousand cores, and a bound for the results that may wait here."""
_ATTEMPTS = 2
_GIVE_UP_AFTER = 5
_KEPT = "Shards that were finished are kept: run the same command again, and it starts with them."

_Returned = bytes | Exception


def scan_with(executor: Executor, tasks: Sequence[ScanTask], *, ahead: int = TASKS_AHEAD) -> Generator[Result]:
    """Give each task with its outcome or the error it met, as they finish; a stored scan is not made again.

    What is wrong with a shard is its outcome. Anything else that comes out of the executor for a shard is tried once
    more, and its outcome, a `WorkerError`, then; after the fifth such shard nothing more is tried. Leaving early
    cancels what has not begun, and stores what is done.

    Args:
        executor: Must be able to run a function of this library; it is not shut down.
        tasks: What to scan.
        ahead: Shards handed over at a time, and so results that wait here for being stored, at most.

    Raises:
        ConfigError: `ahead` is less than 1.
        WorkerError: The executor is broken or shut down, or five shards failed that way.
    """
    if ahead < 1:
        raise ConfigError(
            f"num_workers is {ahead}: with an executor it is how many shards are handed over at a time. Give 1 or more."
        )
    scans = _ExecutorScans(executor)
    try:
        for task in tasks:
            try:
                stored = find_stored(task)
            except OSError as error:
                yield task, error
                continue
            if stored is not None:
                yield task, stored
                continue
            while scans.running >= ahead:
                yield from scans.wait()
            scans.submit(task)
        while scans.running:
            yield from scans.wait()
    finally:
        scans.end()


class _ExecutorScans:
    """The tasks that an executor has, and how often each was tried before."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._running: dict[Future[_Returned], tuple[ScanTask, int]] = {}
        self._done: SimpleQueue[Future[_Returned]] = SimpleQueue()
        self._failed = 0

    @property
    def running(self) -> int:
        return len(self._running)

    def submit(self, task: ScanTask, attempt: int = 1) -> None:
        root, storage = os.path.join(os.getcwd(), task.root), None
        if is_url(task.root):
            root, storage = task.root, storage_settings()
        try:
            future = self._executor.submit(scan_remotely, root, task.name, task.records, task.first, storage)
        except Exception as error:  # a RuntimeError of one that was shut down, a ConnectionError of a cluster's
            raise _broken(error) from error
        self._running[future] = task, attempt
        future.add_done_callback(self._done.put)

    def wait(self) -> Iterator[Result]:
        """Wait for a task to end; give it, unless it is tried again."""
        future = self._done.get()
        task, attempt = self._running.pop(future)
        try:
            returned = future.result()
        except (BrokenExecutor, CancelledError) as error:
            raise _broken(error) from error
        except Exception as error:
            if attempt < _ATTEMPTS:
                self.submit(task, attempt + 1)
                return
            failure = f"{task.location}: its scan failed {_ATTEMPTS} times, last with {_describe(error)}. {_KEPT}"
            self._failed += 1
            if self._failed == _GIVE_UP_AFTER:
                raise WorkerError(f"The executor fails, on {self._failed} shards by now. {failure}") from error
            yield task, WorkerError(failure)
        else:
            yield task, returned if isinstance(returned, Exception) else keep_scan(task, returned)

    def end(self) -> None:
        """Cancel what has not begun, and store what is done and was not waited for."""
        for future, (task, _) in self._running.items():
            if future.cancel() or not future.done() or future.exception() is not None:
                continue
            returned = future.result()
            if isinstance(returned, bytes):
                with contextlib.suppress(OSError, WorkerError):
                    keep_scan(task, returned)


def _broken(error: BaseException) -> WorkerError:
    return WorkerError(f"The executor is broken or was shut down ({_describe(error)}). {_KEPT}")


def _describe(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
