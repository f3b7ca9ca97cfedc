"""Scan many shards, where it is quickest: here, in forked processes, or in new ones.

A forked process works at once. A new one takes 0.2 s of processor time to start, in which one core scans some 100,000
small samples; so where this process cannot be forked, up to 2 GiB are begun right here, and the rest is handed over
only when the first quarter of a second shows that more than half a second is left. Shards in an object store are
scanned in threads of this process.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed

from energon_grain.errors import ConfigError, EnergonGrainError
from energon_grain.prepare.executor_scans import TASKS_AHEAD, scan_with
from energon_grain.prepare.scan_processes import ScanProcesses, may_fork
from energon_grain.prepare.scan_task import Result, ScanTask, scan_shard
from energon_grain.storage.location import is_url

BEGIN_HERE_BELOW_BYTES = 2 << 30
_FORK_ABOVE_BYTES = 16 << 20
_OBJECTS_AT_ONCE = 16
_TRIAL_S = 0.25
_WORTH_PROCESSES_S = 0.5


def default_workers() -> int:
    """The number of cores that this process may use, at most 16."""
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 16)


@contextlib.contextmanager
def scanning(
    tasks: Sequence[ScanTask], *, num_workers: int | None = None, executor: Executor | None = None
) -> Generator[Iterator[Result]]:
    """Scan every shard while the block iterates over the results, which come in any order; a failed one is its error.

    Args:
        tasks: One for each shard.
        num_workers: Processes at most; 0 scans in this process, None takes one for each core (at most 16). For shards
            in an object store: threads, None takes 16. For an executor: shards handed over at a time, at least 1; None
            is 1,024.
        executor: Runs `scan_remotely` instead of processes of our own.

    Raises:
        ConfigError: `num_workers` is negative, or 0 for an executor.
        WorkerError: A process died, or the executor failed for good.
    """
    if executor is not None:
        ahead = TASKS_AHEAD if num_workers is None else num_workers
        with contextlib.closing(scan_with(executor, tasks, ahead=ahead)) as results:
            yield results
        return
    remote = any(is_url(task.root) for task in tasks)
    workers = num_workers
    if workers is None:
        workers = _OBJECTS_AT_ONCE if remote else default_workers()
    if workers < 0:
        raise ConfigError(f"num_workers is {workers}: give 0 (no processes) or more.")
    if remote:
        with contextlib.closing(_scan_objects(tasks, max(workers, 1))) as results:
            yield results
        return
    total_bytes = sum(map(_size_bytes, tasks))
    if workers <= 1 or len(tasks) == 1:
        yield map(_scan_one, tasks)
    elif total_bytes > (_FORK_ABOVE_BYTES if may_fork() else BEGIN_HERE_BELOW_BYTES):
        with ScanProcesses(tasks, workers) as processes:
            yield iter(processes)
    else:
        with contextlib.closing(_begin_here(tasks, workers, total_bytes)) as results:
            yield results


def _scan_one(task: ScanTask) -> Result:
    try:
        return task, scan_shard(task)
    except (EnergonGrainError, OSError) as error:
        return task, error


def _scan_objects(tasks: Sequence[ScanTask], threads: int) -> Generator[Result]:
    """Scan in threads: nearly all the time they wait for the store."""
    with ThreadPoolExecutor(threads, thread_name_prefix="scan") as pool:
        futures = [pool.submit(_scan_one, task) for task in tasks]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def _begin_here(tasks: Sequence[ScanTask], workers: int, total_bytes: int) -> Generator[Result]:
    start = time.perf_counter()
    done_bytes = 0
    for place, task in enumerate(tasks):
        elapsed_s = time.perf_counter() - start
        left_s = elapsed_s * (total_bytes - done_bytes) / max(done_bytes, 1)
        if elapsed_s > _TRIAL_S and left_s > _WORTH_PROCESSES_S:
            with ScanProcesses(tasks[place:], workers) as processes:
                yield from processes
            return
        yield _scan_one(task)
        done_bytes += _size_bytes(task)


def _size_bytes(task: ScanTask) -> int:
    try:
        return os.stat(task.location).st_size
    except OSError:
        return 0  # the scan will say what is wrong
