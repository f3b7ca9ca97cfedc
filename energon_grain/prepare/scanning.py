"""Scan many shards: in this process while that is quicker, in other processes when there is enough to do.

Starting a process and importing numpy in it costs about 0.2 s of processor time, in which one core scans 200,000 small
samples. So a data set of up to 2 GiB is begun right here, and the rest handed over only when the first quarter of a
second shows that more than half a second is left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait

from energon_grain.errors import ConfigError, EnergonGrainError
from energon_grain.prepare.scan_processes import scan_in_processes
from energon_grain.prepare.scan_task import ScanOutcome, ScanTask, scan_shard

START_HERE_BELOW_BYTES = 2 << 30
_TRIAL_S = 0.25
_WORTH_PROCESSES_S = 0.5

Result = tuple[ScanTask, ScanOutcome | Exception]


def default_workers() -> int:
    """The number of cores that this process may use, at most 16."""
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 16)


def scan_shards(
    tasks: Sequence[ScanTask], *, num_workers: int | None = None, executor: Executor | None = None
) -> Iterator[Result]:
    """Scan every shard and yield task and outcome as they come, in any order; a failed one yields its error.

    Args:
        tasks: One for each shard.
        num_workers: Processes at most; 0 scans in this process, None takes one for each core (at most 16).
        executor: Runs `scan_shard` instead of processes of our own.

    Raises:
        ConfigError: `num_workers` is negative.
        WorkerError: A process died.
    """
    workers = default_workers() if num_workers is None else num_workers
    if workers < 0:
        raise ConfigError(f"num_workers is {workers}: give 0 (no processes) or more.")
    if executor is not None:
        return _scan_with(executor, tasks)
    if workers <= 1 or len(tasks) == 1:
        return _scan_here(tasks)
    return _scan_adaptively(tasks, workers)


def _scan_one(task: ScanTask) -> Result:
    try:
        return task, scan_shard(task)
    except (EnergonGrainError, OSError) as error:
        return task, error


def _scan_here(tasks: Sequence[ScanTask]) -> Iterator[Result]:
    return map(_scan_one, tasks)


def _scan_with(executor: Executor, tasks: Sequence[ScanTask]) -> Iterator[Result]:
    running: set[Future[Result]] = {executor.submit(_scan_one, task) for task in tasks}
    try:
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    finally:
        for future in running:
            future.cancel()


def _scan_adaptively(tasks: Sequence[ScanTask], workers: int) -> Iterator[Result]:
    sizes = [_size_bytes(task) for task in tasks]
    left_bytes = sum(sizes)
    start = time.perf_counter()
    done_bytes = 0
    for place, (task, size) in enumerate(zip(tasks, sizes, strict=True)):
        elapsed_s = time.perf_counter() - start
        expected_s = elapsed_s * left_bytes / max(done_bytes, 1)
        if left_bytes > START_HERE_BELOW_BYTES or (elapsed_s > _TRIAL_S and expected_s > _WORTH_PROCESSES_S):
            yield from scan_in_processes(tasks[place:], workers)
            return
        yield _scan_one(task)
        done_bytes += size
        left_bytes -= size


def _size_bytes(task: ScanTask) -> int:
    try:
        return task.tar_path.stat().st_size
    except OSError:
        return 0  # the scan will say what is wrong
