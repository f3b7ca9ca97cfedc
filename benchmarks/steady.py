"""Measure throughput, in the same way for every contender. Standard library only."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

Batch = TypeVar("Batch")


def steady(
    make: Callable[[], Iterator[Batch]],
    weigh: Callable[[Batch], tuple[int, int]],
    *,
    warmup_s: float,
    seconds: float,
) -> dict[str, Any]:
    """Build the loader, let it warm up, then count what it delivers.

    `make` is called after all imports. `weigh` returns (samples, payload bytes) of a batch, and so accesses every value
    once. The result has `first_batch_s`, the time from `make` to the first batch, and rates over at least `seconds`
    that begin `warmup_s` after the first batch.
    """
    started = time.perf_counter()
    batches = make()
    weigh(next(batches))
    first_batch_s = time.perf_counter() - started

    now = time.perf_counter()
    end = now + warmup_s
    while now < end:
        weigh(next(batches))
        now = time.perf_counter()

    samples = payload = 0
    all_begin = _processor_s_of_all()
    begin, cpu_begin = time.perf_counter(), time.process_time()
    end = begin + seconds
    now = begin
    while now < end:
        batch_samples, batch_payload = weigh(next(batches))
        samples += batch_samples
        payload += batch_payload
        now = time.perf_counter()
    elapsed, cpu, cpu_of_all = now - begin, time.process_time() - cpu_begin, _processor_s_of_all() - all_begin
    return {
        "samples_per_s": samples / elapsed,
        "payload_mb_per_s": payload / elapsed / 1e6,
        "samples_per_cpu_s": samples / cpu,  # of this process alone: meaningless if workers do the work
        "samples_per_cpu_s_of_all": samples / max(cpu, cpu_of_all),
        "first_batch_s": first_batch_s,
        "samples": samples,
    }


def weigh_column(values: Any) -> tuple[int, int]:
    """Return samples and payload of one field of a batch: a list of bytes, str or arrays, or one stacked array."""
    if hasattr(values, "nbytes"):
        return len(values), int(values.nbytes)
    if len(values) and hasattr(values[0], "nbytes"):
        return len(values), sum(int(value.nbytes) for value in values)
    return len(values), sum(map(len, values))


def _processor_s_of_all() -> float:
    """Return the processor seconds of this process, its finished children, and its descendants that still run."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()  # a program's name may contain spaces
        except OSError:  # it ended
            continue
        parents[int(path.parent.name)] = int(fields[1])
        used[int(path.parent.name)] = sum(map(int, fields[11:15]))  # also its finished children

    def ours(process: int) -> bool:
        while process > 1 and process != os.getpid():
            process = parents.get(process, 0)
        return process == os.getpid()

    return sum(ticks for process, ticks in used.items() if ours(process)) / os.sysconf("SC_CLK_TCK")
